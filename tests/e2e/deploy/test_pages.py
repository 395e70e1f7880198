"""Every command line that a page of docs/ shows is one that the program knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.deploy.reading import ROOT, parse_command_line

pytestmark = pytest.mark.e2e

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

BLOCK = re.compile(r"^```(?:console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROMPTED = re.compile(r"^\$ (shoal .*)$", re.MULTILINE)
INLINE = re.compile(r"`(shoal [a-z][^`…]*)`")


def command_lines(page: Path) -> Iterator[list[str]]:
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.findall(text):
        for line in PROMPTED.findall(block):
            yield shlex.split(line, comments=True)[1:]
    for line in INLINE.findall(BLOCK.sub("", text)):
        if line.rstrip().count(" ") > 1:  # one word is a name, such as `shoal up`, and not a line to type
            yield shlex.split(line)[1:]


def without_the_shell(words: list[str]) -> list[str]:
    """Only what the program itself is given: no pipe, and no file that is put into it."""
    if "<" in words:
        words = words[: words.index("<")]
    return [word for word in words if word != "|"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_command_lines_of_a_page_are_known(page: Path) -> None:
    for words in command_lines(page):
        parse_command_line(without_the_shell(words))


def test_there_are_some() -> None:
    assert sum(len(list(command_lines(page))) for page in PAGES) > 20

"""Every command line that a page of docs/ shows is one that the program knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.deploy.reading import ROOT, is_a_name, parse_command_line, shell_lines
from tests.e2e.pages.blocks import CONSOLE, SCRIPT, blocks, commands

pytestmark = pytest.mark.e2e

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(shoal [a-z][^`…]*)`")


def command_lines(page: Path) -> Iterator[list[str]]:
    for block in blocks(page):
        if block.language == CONSOLE:
            for command in commands(block):
                yield from shell_lines(command.text)
        elif block.language == SCRIPT:
            yield from shell_lines(block.text)
    for line in INLINE.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        words = shlex.split(line)[1:]
        if not is_a_name(words):
            yield words


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

"""Every `shoal …` on the pages names a command that there is, with options that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from shoal.cli.main import app

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(shoal [^`]+)`")
CONSOLE = re.compile(r"^ *(?:\$ )?(?:[A-Z_]+=\S+ )*(shoal .*)", re.MULTILINE)
END = re.compile(r" [|&>#;]")
OPTION = re.compile(r"--?[A-Za-z][A-Za-z-]*")
#: What stands for a part of a command that a page leaves open.
OPEN = ("…", "<", "[", "-", ".")


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


TREE = dict(commands(typer.main.get_command(app)))


def calls(page: str) -> list[str]:
    """The command lines of a page."""
    blocks = [call for block in FENCED.findall(page) for call in CONSOLE.findall(block)]
    return [*blocks, *(each.replace("\n", " ") for each in INLINE.findall(FENCED.sub("", page)))]


def wrong_words(call: str) -> list[str]:
    """The words of a command line that are no command or option."""
    words, path = END.split(call)[0].split()[1:], ()
    while words and (*path, words[0]) in TREE:
        path = (*path, words.pop(0))
    command = TREE[path]
    if getattr(command, "commands", None) and words and not words[0].startswith(OPEN):
        return words[:1]
    known = {"--help", "-h"}.union(*((*each.opts, *each.secondary_opts) for each in command.params))
    before = words[: words.index("--")] if "--" in words else words
    given = [found[0] for word in before if (found := OPTION.match(word.strip("[]()'\"")))]
    return [each for each in given if not {each} <= known and not {f"-{letter}" for letter in each[1:]} <= known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_are_there(page: Path) -> None:
    wrong = {call: words for call in calls(page.read_text(encoding="utf-8")) if (words := wrong_words(call))}
    assert not wrong


def test_a_wrong_word_is_found() -> None:
    assert calls("```console\n$ shoal job list\n```\nand `shoal job\nget`") == ["shoal job list", "shoal job get"]
    assert wrong_words("shoal job lst") == ["lst"]
    assert wrong_words("shoal job list --wach | cat --x") == ["--wach"]
    assert wrong_words("shoal exec web -it -- sh -c x") == []

"""What stands between fences on a page of docs/: read here once, for those who run it and for those who check it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"

#: What a shell is meant for: `console` has prompts and what is answered, `sh` is a script.
CONSOLE, SCRIPT = "console", "sh"

_HEADING = re.compile(r"^(#+) (.*)$")
_PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page."""

    #: Those that it stands below, from the outermost to the innermost; the title of the page is none of them.
    headings: tuple[str, ...]
    language: str
    text: str
    #: Where it begins, to be found again.
    line: int

    def __str__(self) -> str:
        return f"{' / '.join(self.headings)}, line {self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed at one prompt, and what the page says is printed then."""

    text: str
    shown: tuple[str, ...]


def blocks(page: Path) -> Iterator[Block]:
    """Every block of a page, in order."""
    below: list[str] = []
    language, began, inside = "", 0, None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if inside is None and line.startswith("```"):
            language, began, inside = line.removeprefix("```"), number, list[str]()
        elif inside is None:
            if found := _HEADING.match(line):
                below = [*below[: len(found[1]) - 2], found[2]]
        elif line == "```":
            yield Block(tuple(below), language, "\n".join(inside), began)
            inside = None
        else:
            inside.append(line)
    assert inside is None, f"{page.name}, line {began}: the block has no end"


def commands(block: Block) -> Iterator[Command]:
    """What is typed in a block with prompts, and what is answered each time."""
    assert block.language == CONSOLE, block
    typed: list[str] = []
    shown: list[str] = []
    for line in block.text.splitlines():
        if typed and typed[-1].endswith("\\"):
            typed[-1] = " ".join([typed[-1].removesuffix("\\").rstrip(), line.strip()])
        elif line.startswith(_PROMPT):
            if typed:
                yield Command(typed[-1], tuple(shown))
            typed, shown = [line.removeprefix(_PROMPT)], []
        else:
            assert typed, f"{block}: an answer comes before the first prompt: {line}"
            shown.append(line)
    assert typed, f"{block}: nothing is typed"
    yield Command(typed[-1], tuple(shown))

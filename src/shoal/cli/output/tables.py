"""Fits a table into a width. Pure, so that tests can compare text.

Ids are never cut. When a table is too wide, prose is cut first, then whole columns are dropped, the least important
first; `--json` still has them. Called by `shoal.cli.output.printing`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Column:
    """One column, and how it yields when there is no room."""

    title: str
    #: Columns with the highest rank are dropped first; 0 is never dropped.
    rank: int = 0
    #: Prose may be cut down to this many cells; 0 means that it is never cut.
    least: int = 0
    right: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that stay, by index, and their widths."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]


def clean(text: str) -> str:
    """The text as one printable line: nothing that a workload or a peer wrote can move the cursor."""
    if text.isprintable():
        return text
    spaced = (" " if character.isspace() else character for character in text)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in spaced).strip()


def cells(text: str) -> int:
    """How many cells of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(character) for character in text)


def cut(text: str, width: int) -> str:
    """The text in at most `width` cells, with an ellipsis where something is missing."""
    if cells(text) <= width:
        return text
    kept, used = "", 0
    for character in text:
        size = _cells_of(character)
        if used + size > width - 1:
            break
        kept, used = kept + character, used + size
    return kept.rstrip() + _ELLIPSIS


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text filled up with spaces to `width` cells."""
    fill = " " * max(0, width - cells(text))
    return fill + text if right else text + fill


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Layout:
    """Choose the columns and their widths. Empty columns are dropped; without a width, nothing is dropped or cut."""
    longest = [max([0, *(cells(row[index]) for row in rows)]) for index in range(len(columns))]
    natural = [max(cells(column.title), most) for column, most in zip(columns, longest, strict=True)]
    if width is None:
        return Layout(tuple(range(len(columns))), tuple(natural))
    kept = [i for i, column in enumerate(columns) if longest[i] or not rows or column.rank == 0]
    while True:
        smallest = sum(_least(columns[i], natural[i]) for i in kept) + GAP * (len(kept) - 1)
        droppable = [i for i in kept if columns[i].rank > 0]
        if smallest <= width or not droppable:
            return Layout(tuple(kept), _shrink([columns[i] for i in kept], [natural[i] for i in kept], width))
        kept.remove(max(droppable, key=lambda i: (columns[i].rank, i)))


def _least(column: Column, natural: int) -> int:
    return min(natural, max(column.least, cells(column.title))) if column.least else natural


def _shrink(columns: Sequence[Column], natural: Sequence[int], width: int) -> tuple[int, ...]:
    widths = list(natural)
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    while excess > 0:
        shrinkable = [i for i, column in enumerate(columns) if widths[i] > _least(column, natural[i])]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda i: widths[i])] -= 1
        excess -= 1
    return tuple(widths)


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1

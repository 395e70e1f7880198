"""Finds lines of CSV that cannot be rows, so that a file with many of them is read in one pass.

What is refused here is refused by Arrow, too: a line with another number of cells, or a cell of a number that has none.
Whatever needs a closer look passes: quotes, carriage returns, numbers that are too large. Called by
`shoal.records.parsing.tables` for blocks that cannot be read as they are.
"""

from __future__ import annotations

import re
import string
from typing import Any

import pyarrow as pa

#: Bytes that numbers and lines have: as a delimiter or a separator they make a cell ambiguous.
_TAKEN = frozenset(string.ascii_letters + string.digits + '+-._() \t"\r\n')
_INT = rb"[ \t]*[+-]?(?:[0-9]+|0[xX][0-9a-fA-F]+)[ \t]*"
_FLOAT = rb"[ \t]*[+-]?(?:[0-9.][0-9.eE+-]*|[iInN][A-Za-z0-9_()]*)[ \t]*"
_BOM = b"\xef\xbb\xbf"


class Screen:
    """Looks at lines with the same columns."""

    def __init__(self, names: list[str], schema: Any, delimiter: str, separator: str) -> None:
        """Of a file with these columns, of which a schema wants some."""
        self._row: re.Pattern[bytes] | None = None
        self._columns, self._delimiter = len(names), delimiter.encode()
        twice = len(set(schema.names)) < len(schema.names)
        if len(delimiter) == 1 and delimiter.isascii() and delimiter not in _TAKEN and not twice:
            any_text = b"[^" + re.escape(self._delimiter) + b"]*"
            kinds = {each.name: each.type for each in schema if names.count(each.name) == 1}
            cells = [_cell(kinds[name], separator, any_text) if name in kinds else any_text for name in names]
            self._row = re.compile(re.escape(self._delimiter).join(cells))

    def problem_of(self, line: bytes) -> str:
        """Why a line, with or without its end, can be no row; empty if it may be one, or is nothing at all."""
        text = line.rstrip(b"\n").removesuffix(b"\r")
        if self._row is None or not text or text.startswith(_BOM) or b'"' in text or b"\r" in text:
            return ""
        if self._row.fullmatch(text):
            return ""
        cells = text.count(self._delimiter) + 1
        if cells != self._columns:
            return f"it has {cells} of {self._columns} columns"
        return "a cell of a number has none, or another number of them than the column says"


def _cell(kind: Any, separator: str, any_text: bytes) -> bytes:
    is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    value = kind.value_type if is_list else kind
    if pa.types.is_integer(value):
        one = _INT
    elif pa.types.is_floating(value):
        one = _FLOAT
    else:
        return any_text
    if not is_list:
        return one
    if not separator or _TAKEN.intersection(separator):
        return any_text
    more = b"(?:" + re.escape(separator.encode()) + one + b")"
    if pa.types.is_fixed_size_list(kind):
        return one + more + b"{%d}" % (kind.list_size - 1)
    return b"(?:" + one + more + b"*)?"

"""The part of the registry for tables: dumps may be cut off, damaged or of another table."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shoal.tables.dumps import arrow, monolith
from shoal.tables.settings.table import SliceSettings, TableSettings
from shoal.tables.table import EmbeddingTable
from shoal.testing.fuzz import ParserCase, changed_bytes
from tests.fuzz.inputs import blobs, file_named, flipped_bytes, with_folder

SHARD = "t-00000-of-00001"
COUNTS = "t.meta-00000-of-00001"


def _table() -> EmbeddingTable:
    return EmbeddingTable(TableSettings((SliceSettings(3),)))


@functools.cache
def _dumps() -> dict[str, bytes]:
    """The files of a small table in each format."""
    table = _table()
    table.apply(np.arange(4), np.ones((4, 3), np.float32))
    with tempfile.TemporaryDirectory() as folder:
        arrow.write(table, f"{folder}/arrow")
        monolith.write(table, f"{folder}/one", shards=1)
        monolith.write_tables({"t": table}, f"{folder}/t", shards=1)
        names = {"arrow": "arrow", "entries": "one-00000-of-00001", "tables": SHARD, "counts": COUNTS}
        return {name: (Path(folder) / file).read_bytes() for name, file in names.items()}


def _around(name: str) -> st.SearchStrategy[bytes]:
    good = _dumps()[name]
    return blobs | changed_bytes(good) | flipped_bytes(good)


def _file(read: Callable[[str], Any]) -> Callable[[Any], object]:
    return with_folder(file_named(SHARD), lambda folder: read(str(folder / SHARD)))


def _tables(name: str) -> Callable[[Any], object]:
    """Reads tables whose file of this name holds what is given, beside one that is right."""

    def fill(folder: Path, content: bytes) -> None:
        file_named(SHARD)(folder, _dumps()["tables"])
        file_named(COUNTS)(folder, _dumps()["counts"])
        file_named(name)(folder, content)

    return with_folder(fill, lambda folder: monolith.load_tables(str(folder / "t"), {"t": _table()}))


TABLE_PARSERS: dict[str, ParserCase] = {
    "shoal.tables.dumps.arrow.load": ParserCase(
        _file(lambda path: arrow.load(path, _table())), _around("arrow"), good=(_dumps()["arrow"],)
    ),
    "shoal.tables.dumps.arrow.read": ParserCase(
        _file(lambda path: list(arrow.read(path))), _around("arrow"), good=(_dumps()["arrow"],)
    ),
    "shoal.tables.dumps.arrow.read_facts": ParserCase(
        _file(arrow.read_facts), _around("arrow"), good=(_dumps()["arrow"],)
    ),
    "shoal.tables.dumps.monolith.load": ParserCase(
        _file(lambda path: monolith.load(path, _table())), _around("entries"), good=(_dumps()["entries"],)
    ),
    "shoal.tables.dumps.monolith.load_tables": ParserCase(
        _tables(SHARD), _around("tables"), good=(_dumps()["tables"],)
    ),
    "shoal.tables.dumps.monolith.load_tables of counts": ParserCase(
        _tables(COUNTS), _around("counts"), good=(_dumps()["counts"],)
    ),
}

#: Read something, and parse nothing that somebody else wrote.
NO_TABLE_PARSERS: dict[str, str] = {
    "shoal.tables.kernels.access.load_word": "a word of the memory of a table",
    "shoal.tables.kernels.lookups.read_rows": "rows of the memory of a table",
    "shoal.tables.kernels.codecs.decode_row": "a row of the memory of a table",
}

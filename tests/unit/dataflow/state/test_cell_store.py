"""Rows by number and key in a backend: they come back as they were, in the order of numbers, and go by number."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from shoal.dataflow.state import cell_store
from shoal.dataflow.state.backends import open_backend
from shoal.dataflow.state.cell_store import CellStore
from shoal.dataflow.state.tables import TableState

KEYS = {
    "whole": pa.array([1, -5, None, 2**62], pa.int64()),
    "small": pa.array([1, -5, None, 100], pa.int8()),
    "unsigned": pa.array([1, 2**64 - 1, None, 0], pa.uint64()),
    "float": pa.array([0.5, float("inf"), None, -2.0]),
    "truth": pa.array([True, False, None, None]),
    "text": pa.array(["a", "", None, "ä" * 300]),
    "bytes": pa.array([b"\0", b"", None, b"\0\0"], pa.large_binary()),
    "decimal": pa.array([Decimal("1.50"), Decimal("-0.01"), None, Decimal("0.00")], pa.decimal128(10, 2)),
    "moment": pa.array(
        [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(1900, 1, 1, tzinfo=dt.UTC), None, None],
        pa.timestamp("us", "UTC"),
    ),
    "day": pa.array([dt.date(2026, 1, 1), dt.date(1900, 1, 1), None, None], pa.date32()),
}
PANES = pa.array([3, -2, 0, 7], pa.int64())
GROUPS = np.array([1, 1, 1, 0])
VALUES = {
    "numbers": {"rows": pa.array([1, 2, 3, 4]), "least": pa.array([0.5, -1.0, 2.0, float("nan")])},
    "lists": {"rows": pa.array([1, 2, 3, 4]), "all": pa.array([["x"], [], ["y", None], None])},
}


def no_combine(_older, _newer):
    raise AssertionError("nothing is there twice")


def added(older, newer):
    return newer.set_column(
        newer.schema.names.index("rows"), "rows", pa.compute.add(older.column("rows"), newer.column("rows"))
    )


def make(kind: str, folder, table, keys) -> CellStore:
    return CellStore(open_backend(kind, str(folder)), table.schema, (*keys, "pane"), "pane")


def rows_of(parts) -> list[str]:
    return sorted(repr(row) for part in parts for row in part.rows.to_pylist())


@pytest.mark.parametrize("kind", ["memory", "rocks"])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_rows_come_back_as_they_were(tmp_path, kind, values):
    table = pa.table({**KEYS, "pane": PANES, **values})
    store = make(kind, tmp_path, table, KEYS)
    changed: list[TableState] = []
    store.put(TableState(table, GROUPS), no_combine, changed)
    parts = list(store.read(1))
    assert [part.groups.tolist() for part in parts] == [[0], [1, 1, 1]]
    assert parts[1].rows.column("pane").to_pylist() == [-2, 0, 3]
    assert rows_of(parts) == rows_of(changed) == sorted(map(repr, table.to_pylist()))
    assert all(part.rows.schema == table.schema for part in parts)
    store.close()


@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_rows_of_a_key_and_number_are_put_together_and_go_by_number(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(cell_store, "_BYTES_AT_ONCE", 1)  # row by row, after the first
    table = pa.table({"key": ["a", "b", "a", "c"], "pane": PANES, "rows": [1, 2, 3, 4]})
    store = make(kind, tmp_path, table, ["key"])
    for _ in range(3):
        changed: list[TableState] = []
        store.put(TableState(table, GROUPS), added, changed)
    assert sorted(row["rows"] for part in changed for row in part.rows.to_pylist()) == [3, 6, 9, 12]
    assert len(store) == 4
    assert store.numbers == {3, -2, 0, 7}
    assert rows_of(store.read(1000, end=0)) == [repr({"key": "b", "pane": -2, "rows": 6})]
    store.drop_below(3)
    assert [(len(part.rows), set(part.groups)) for part in store.read(1)] == [(1, {0}), (1, {1})]
    assert store.numbers == {3, 7}
    store.drop_below(100)
    assert not store
    assert list(store.read(1)) == []
    store.close()

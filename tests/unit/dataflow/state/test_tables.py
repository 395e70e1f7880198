"""Tables of state: changes that are merged are what a dictionary would hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dataflow.state.dirty import DirtyCells
from shoal.dataflow.state.tables import LateTables, TableState, merge, split_groups

GROUPS = 4
SCHEMA = pa.schema({"key": pa.string(), "number": pa.int64(), "value": pa.int64()})
KEYS = ("key", "number")

keys = st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 3))
#: What happens between two snapshots: keys that are set, and keys that are removed.
steps = st.lists(st.tuples(keys, st.none() | st.integers(0, 9)), max_size=6)


def group_of(key: tuple[Any, int]) -> int:
    return hash(key) % GROUPS if key[0] is not None else 0


def change(step: list[tuple[tuple[Any, int], int | None]], floor: int | None = None) -> TableState:
    """A snapshot of what a step has changed."""
    now = dict(step)
    there = {key: value for key, value in now.items() if value is not None}
    gone = dict.fromkeys(key for key, value in step if value is None)
    return TableState(
        pa.Table.from_pylist([{"key": k, "number": n, "value": v} for (k, n), v in there.items()], schema=SCHEMA),
        np.array([group_of(key) for key in there], np.int64),
        KEYS,
        pa.Table.from_pylist([{"key": k, "number": n} for k, n in gone], schema=pa.schema(list(SCHEMA)[:2])),
        np.array([group_of(key) for key in gone], np.int64),
        None if floor is None else ("number", floor),
    )


def content(table: TableState) -> dict[tuple[Any, int], int]:
    rows = table.rows.to_pylist()
    found = {(row["key"], row["number"]): row["value"] for row in rows}
    assert len(found) == len(rows)
    assert [group_of(key) for key in found] == table.groups.tolist()
    return found


def expected(history: list[list[tuple[tuple[Any, int], int | None]]]) -> dict[tuple[Any, int], int]:
    state: dict[tuple[Any, int], int] = {}
    for step in history:
        for key, value in step:
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
    return state


@given(st.lists(steps, min_size=1, max_size=6))
def test_merged_changes_are_what_a_dictionary_holds(history):
    assert content(merge([change(step) for step in history])) == expected(history)


@given(st.lists(steps, min_size=3, max_size=7), st.data())
def test_it_does_not_matter_what_is_merged_first(history, data):
    parts = [change(step) for step in history]
    start = data.draw(st.integers(1, len(parts) - 1))
    end = data.draw(st.integers(start + 1, len(parts)))
    middle = merge(parts[start:end], keep_gone=True)
    assert content(merge([*parts[:start], middle, *parts[end:]])) == expected(history)


@given(st.lists(steps, min_size=1, max_size=5), st.integers(0, GROUPS), st.integers(0, GROUPS))
def test_key_groups_can_be_merged_apart(history, first, end):
    found = content(merge([change(step).of_groups(first, end) for step in history]))
    assert found == {key: value for key, value in expected(history).items() if first <= group_of(key) < end}


@given(st.lists(st.tuples(steps, st.integers(0, 4)), min_size=1, max_size=5))
def test_rows_below_the_floor_are_gone(history):
    floors = sorted(floor for _step, floor in history)
    parts = [change(step, floor) for (step, _floor), floor in zip(history, floors, strict=True)]
    found = content(merge(parts))
    assert found == {key: v for key, v in expected([step for step, _ in history]).items() if key[1] >= floors[-1]}


def test_rows_of_one_key_are_replaced_together():
    schema = pa.schema({"key": pa.string(), "value": pa.int64()})

    def rows(*pairs: tuple[str, int]) -> TableState:
        table = pa.Table.from_pylist([{"key": k, "value": v} for k, v in pairs], schema=schema)
        return TableState(table, np.zeros(len(pairs), np.int64), ("key",))

    found = merge([rows(("a", 1), ("a", 2), ("b", 3)), rows(("a", 4), ("a", 5))])
    assert found.rows.to_pylist() == [{"key": "b", "value": 3}, {"key": "a", "value": 4}, {"key": "a", "value": 5}]


def test_rows_without_a_key_are_only_added():
    rows = pa.table({"time": [1, 2, 3]})
    parts = [TableState(rows, np.array([0, 1, 0]), floor=("time", floor)) for floor in (0, 2)]
    assert merge(parts).rows.column("time").to_pylist() == [2, 3, 2, 3]


@pytest.mark.parametrize("groups", [[], [2, 0, 2, 1], [0, 0, 3]])
def test_a_table_is_cut_by_key_group(groups):
    rows = pa.table({"at": list(range(len(groups)))})
    found = {group: part.column("at").to_pylist() for group, part in split_groups(rows, np.array(groups, np.int64))}
    assert found == {group: [at for at, each in enumerate(groups) if each == group] for group in set(groups)}


def test_late_tables_are_made_once_when_they_are_first_read():
    made: list[int] = []

    def make() -> TableState:
        made.append(1)
        return change([(("a", 0), 1)])

    tables = LateTables({"t": make})
    assert list(tables) == ["t"]
    assert not made
    assert tables["t"] is tables["t"]
    assert made == [1]


@pytest.mark.parametrize(("rows", "marked"), [(31, [0, 1]), (32, [0, 1, 2, 3])])
def test_many_rows_for_each_cell_mark_all_cells(rows, marked):
    dirty = DirtyCells(is_tracking=True)
    dirty.mark_rows(np.arange(rows) % 2, 4)
    assert dirty.take().tolist() == marked

"""Tasks write what changed, merge what has grown long, and read back the key groups they need."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dataflow.checkpoint import uploads
from shoal.dataflow.checkpoint.handles import StepState, TaskPart
from shoal.dataflow.checkpoint.messages import Declined, TaskId
from shoal.dataflow.checkpoint.records import Layout
from shoal.dataflow.checkpoint.restore import share_states
from shoal.dataflow.checkpoint.statestore import StateStore
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.checkpoint.uploads import first_to_merge
from shoal.dataflow.errors import CheckpointError
from shoal.dataflow.language.keys import KeyGroups
from shoal.dataflow.operators.base import OperatorState
from shoal.dataflow.state.tables import TableState
from shoal.testing.disks import DiskCall, faulty_disk
from tests.unit.dataflow.checkpoint.writing import Task

TOTAL = 8
LAYOUT = Layout(key_groups=TOTAL, kinds={"sum": "aggregate"}, widths={"sum": 3})


def groups_of(subtask: int, width: int) -> KeyGroups:
    return KeyGroups(-(-subtask * TOTAL // width), -(-(subtask + 1) * TOTAL // width), TOTAL)


def table(rows: dict[int, int], gone: set[int] = frozenset(), floor: int | None = None) -> TableState:
    """A table of numbers; a number's key group is its remainder."""
    keys, values = list(rows), list(rows.values())
    return TableState(
        pa.table({"key": pa.array(keys, pa.int64()), "value": pa.array(values, pa.int64())}),
        np.array([key % TOTAL for key in keys], np.int64),
        ("key",),
        pa.table({"key": pa.array(sorted(gone), pa.int64())}),
        np.array([key % TOTAL for key in sorted(gone)], np.int64),
        None if floor is None else ("key", floor),
    )


def change(rows: dict[int, int], gone: set[int] = frozenset(), **more: Any) -> OperatorState:
    return OperatorState(tables={"cells": table(rows, gone, **more)}, is_whole=False)


def content(state: OperatorState) -> dict[int, int]:
    if "cells" not in state.tables:
        return {}
    rows = state.tables["cells"].rows
    return dict(zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True))


def read(store: StateStore, part: TaskPart, uid: str = "sum") -> dict[int, int]:
    return content(store.read_chain(uid, part.chains.get(uid, ()), {each.name: each for each in part.files}))


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(str(tmp_path))


@pytest.fixture
def task(store: StateStore) -> Task:
    return Task(store, TaskId(0, 0), groups_of(0, 1))


def test_a_checkpoint_writes_what_changed_and_names_the_rest(store, task):
    first = task.write(1, {"sum": change(dict.fromkeys(range(10000), 0))})
    second = task.write(2, {"sum": change({5: 1}, {6})})
    assert second.written * 20 < first.written
    assert first.file in [each.name for each in second.files]
    assert read(store, second) == {key: int(key == 5) for key in range(10_000) if key != 6}


def test_without_changes_a_chain_does_not_grow(task):
    task.write(1, {"sum": change({1: 1})})
    parts = [task.write(number, {"sum": change({})}) for number in range(2, 6)]
    assert {len(part.chains["sum"]) for part in parts} == {1}


def test_what_is_whole_takes_the_place_of_all_before(store, task):
    task.write(1, {"sum": change({1: 1, 2: 2})})
    part = task.write(2, {"sum": OperatorState(tables={"cells": table({3: 3})})})
    assert len(part.files) == 1
    assert read(store, part) == {3: 3}


def test_the_state_of_each_step_is_weighed(task):
    sums = change(dict.fromkeys(range(10_000), 0))
    task.write(1, {"sum": sums, "none": change({}), "own": OperatorState({0: b"own"})})
    task.write(2, {"sum": change({5: 1}), "none": change({}), "own": OperatorState({0: b"other"})})
    task.uploads.close()
    sizes = task.uploads.state_bytes
    assert 100_000 < sizes["sum"] < 1_000_000  # two numbers of eight bytes and more, each of 10,000 times
    assert sizes.get("none", 0) == 0
    assert 0 < sizes["own"] < 100


def test_bytes_of_an_operators_own_are_whole_each_time(store, task):
    task.write(1, {"own": OperatorState({0: b"zero", 1: b"one"})})
    part = task.write(2, {"own": OperatorState({1: b"two"})})
    assert store.read_chain("own", part.chains["own"], {part.file: part.files[0]}).keyed == {1: b"two"}


def test_long_chains_are_merged(store, task):
    most = uploads._MOST_LINKS
    for number in range(1, 4 * most):
        part = task.write(number, {"sum": change({number: number, 0: number}, {number - 3})})
        assert len(part.chains["sum"]) <= most + 1
    assert any("merged" in each.name for each in part.files)
    assert read(store, part) == {0: number, **{key: key for key in range(max(1, number - 2), number + 1)}}


@pytest.mark.parametrize("part", [1, 10**9])
def test_a_merge_takes_a_part_of_the_key_groups_at_a_time(store, task, monkeypatch, part):
    """The state may be larger than memory."""
    monkeypatch.setattr(uploads, "_PART_BYTES", part)
    merged: list[int] = []
    merge = StateStore.merge_links

    def noted(self, uid, chain, handles, *, keep_gone):
        found = merge(self, uid, chain, handles, keep_gone=keep_gone)
        merged.append(len(set(found["cells"].groups.tolist())))
        return found

    monkeypatch.setattr(StateStore, "merge_links", noted)
    for number in range(1, uploads._MOST_LINKS + 4):
        rows = {key: key * number for key in range(number, 3 * TOTAL)}
        written = task.write(number, {"sum": change(rows, {number - 2} if number > 2 else set(), floor=0)})
    assert any("merged" in each.name for each in written.files)
    assert max(merged) == (1 if part == 1 else TOTAL)
    last = {key: key * min(key, number) for key in range(1, 3 * TOTAL)}
    gone = set(range(1, number - 1))
    assert read(store, written) == {key: value for key, value in last.items() if key not in gone}


def test_parts_that_have_no_schema_in_common_are_merged_as_a_whole(store, task, monkeypatch):
    monkeypatch.setattr(uploads, "_PART_BYTES", 1)
    for number in range(1, uploads._MOST_LINKS + 4):
        both = table({number: number})
        if number % TOTAL == 3:
            both = replace(both, rows=both.rows.cast(pa.schema([("key", pa.int64()), ("value", pa.int32())])))
        written = task.write(number, {"sum": OperatorState(tables={"cells": both}, is_whole=False)})
    assert any("merged" in each.name for each in written.files)
    assert read(store, written) == {key: key for key in range(1, number + 1)}


def test_files_below_the_floor_are_let_go(store, task):
    for number in range(1, 9):
        part = task.write(number, {"sum": change({10 * number: 1}, floor=10 * (number - 1))})
    assert len(part.chains["sum"]) == 2
    assert read(store, part) == {70: 1, 80: 1}


def test_a_floor_that_rose_over_a_part_of_a_file_is_written(store, task):
    """Rows that were freed by it must not come back, although nothing else changed."""
    task.write(1, {"sum": change({10: 1, 20: 1, 30: 1}, floor=10)})
    part = task.write(2, {"sum": change({}, floor=20)})
    assert read(store, part) == {20: 1, 30: 1}
    again = [task.write(number, {"sum": change({}, floor=20)}) for number in range(3, 6)]
    assert {each.chains["sum"] for each in again} == {part.chains["sum"]}
    for number in range(21, 31):
        part = task.write(number, {"sum": change({}, floor=number)})
        assert len(part.chains["sum"]) == 2
    assert read(store, part) == {30: 1}
    assert "sum" not in task.write(40, {"sum": change({}, floor=31)}).chains


def test_a_file_below_the_floor_that_says_what_is_gone_is_kept(store, task):
    task.write(1, {"sum": change({100: 1}, floor=0)})
    task.write(2, {"sum": change({5: 1}, {100}, floor=0)})
    part = task.write(3, {"sum": change({200: 1}, floor=10)})
    assert read(store, part) == {200: 1}


@pytest.mark.parametrize("sizes", [[], [5], [1] * 16, [100, *[1] * 15]])
def test_short_chains_are_left_alone(sizes):
    assert first_to_merge(sizes) is None


@given(st.lists(st.integers(1, 10**6), min_size=17, max_size=40))
def test_a_merge_makes_a_chain_short_again(sizes):
    start = first_to_merge(sizes)
    assert start is not None
    assert start <= 8


def test_what_is_large_is_not_merged_with_little():
    assert first_to_merge([1000, *[1] * 16]) == 1
    assert first_to_merge([20, *[1] * 16]) == 0


def test_what_a_disk_did_not_take_goes_with_the_next_checkpoint(tmp_path):
    with faulty_disk(tmp_path) as disk:
        store = StateStore(disk.url)
        task = Task(store, TaskId(0, 0), groups_of(0, 1))
        task.write(1, {"sum": change({1: 1, 2: 2, 3: 3})})
        disk.fail(DiskCall.WRITE, errno.ENOSPC)
        for number, each in ((2, change({1: 10, 4: 4}, {2})), (3, change({4: 40}, {3}))):
            declined = task.report(number, {"sum": each})
            assert isinstance(declined, Declined)
            assert "space" in declined.reason
        disk.heal()
        part = task.write(4, {"sum": change({5: 5})})
        assert read(store, part) == {1: 10, 4: 40, 5: 5}
        assert len(part.chains["sum"]) == 2


def test_a_zombie_of_an_earlier_epoch_takes_the_place_of_nothing(store):
    live = Task(store, TaskId(0, 0), groups_of(0, 1), epoch=2)
    zombie = Task(store, TaskId(0, 0), groups_of(0, 1), epoch=1)
    part = live.write(7, {"sum": change({1: 1})})
    other = zombie.write(7, {"sum": change({1: 666})})
    assert part.file != other.file
    assert read(store, part) == {1: 1}


def test_what_is_no_failure_of_a_disk_is_the_tasks(store, task, monkeypatch):
    monkeypatch.setattr(StateStore, "write", lambda *_: 1 / 0)
    task.uploads.submit(1, {"sum": change({1: 1})})
    task.uploads._thread.join(20)
    assert [type(each) for each in task.failures] == [ZeroDivisionError]


def test_a_torn_piece_is_found_by_whoever_reads_it(store, task, tmp_path):
    part = task.write(1, {"sum": change({key: key for key in range(TOTAL)})})
    path = tmp_path / "state" / part.file
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    fresh = StateStore(str(tmp_path))
    handles = {each.name: each for each in part.files}
    chain = part.chains["sum"]
    mine = tuple(link.of_groups(0, 4) for link in chain)
    assert content(fresh.read_chain("sum", mine, handles)) == {0: 0, 1: 1, 2: 2, 3: 3}  # only its own groups
    with pytest.raises(CheckpointError, match="torn"):
        fresh.read_chain("sum", chain, handles)


changes = st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(0, 99)), max_size=8)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.lists(changes, min_size=1, max_size=5)), min_size=1, max_size=4))
def test_state_over_restarts_at_any_width_is_what_a_dictionary_holds(tmp_path_factory, runs):
    """Random changes, a snapshot after each, and restarts at other widths; old files are pruned all the while."""
    directory = str(tmp_path_factory.mktemp("job"))
    expected: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uploads, "_MOST_LINKS", 2)
        for width, snapshots in runs:
            storage = CheckpointStorage(directory, "job", keep=2)
            found = storage.search().checkpoint
            history = storage.begin(LAYOUT)
            tasks = []
            for subtask in range(width):
                groups = groups_of(subtask, width)
                task = Task(storage.open_store(), TaskId(0, subtask), groups, epoch=1)
                if found is not None:
                    restored = task.uploads.restore(share_states(found, groups), found.handles).get("sum", [])
                    for most in (None, 1, 100):  # as a whole, by single key groups, and some of them together
                        pieces = [content(piece) for state in restored for piece in state.pieces(most)]
                        mine = {k: v for piece in pieces for k, v in piece.items()}
                        assert mine == {k: v for k, v in expected.items() if k % TOTAL in groups}
                        assert sum(map(len, pieces)) == len(mine)
                tasks.append((groups, task))
            for number, each in enumerate(snapshots, start=history.highest + 1):
                for key, value in each:
                    expected.pop(key, None) if value is None else expected.__setitem__(key, value)
                touched = dict.fromkeys(key for key, _value in each)
                parts = []
                for groups, task in tasks:
                    own = [key for key in touched if key % TOTAL in groups]
                    there = {key: expected[key] for key in own if key in expected}
                    gone = {key for key, value in each if value is None and key in own}
                    parts.append(task.write(number, {"sum": change(there, gone)}))
                storage.complete(number, LAYOUT, parts)
                storage.prune(number)
            for _groups, task in tasks:
                task.uploads.close()
                assert not task.failures
    found = CheckpointStorage(directory, "job").search().checkpoint
    assert found is not None
    whole: dict[int, int] = {}
    for _subtask, state in found.states["sum"]:
        assert isinstance(state, StepState)
        whole |= content(StateStore(f"{directory}/job").read_chain("sum", state.chain, found.handles))
    assert whole == expected

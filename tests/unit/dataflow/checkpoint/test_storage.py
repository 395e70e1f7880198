"""Checkpoints on disk: whole or not there."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import PreconditionError
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.checkpoint.restore import check_match, share_states
from shoal.dataflow.checkpoint.storage import CheckpointStorage, Layout, decode_state, encode_state
from shoal.dataflow.language.failures import CheckpointError
from shoal.dataflow.operators.base import KeyGroups, OperatorState

LAYOUT = Layout(key_groups=8, kinds={"sum": "aggregate", "out": "sink"}, widths={"sum": 2, "out": 2})


def write(storage: CheckpointStorage, number: int, text: bytes = b"x") -> None:
    parts = [
        storage.write_task(number, TaskId(1, subtask), {"sum": OperatorState({subtask: text}, b"s%d" % subtask)})
        for subtask in range(2)
    ]
    storage.complete(number, LAYOUT, parts)


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(str(tmp_path), "job", keep=2)


def test_what_was_written_is_read(storage):
    assert storage.latest() is None
    write(storage, 3, b"three")
    found = storage.latest()
    assert found.number == 3
    assert found.kinds == LAYOUT.kinds
    assert found.states["sum"] == [(0, OperatorState({0: b"three"}, b"s0")), (1, OperatorState({1: b"three"}, b"s1"))]


def test_without_a_manifest_there_is_nothing(storage):
    write(storage, 1)
    storage.write_task(2, TaskId(1, 0), {})
    assert storage.latest().number == 1
    assert storage.begin(LAYOUT).highest == 2  # its number is not used again


def test_the_last_ones_are_kept(storage, tmp_path):
    for number in range(1, 6):
        write(storage, number)
        storage.prune(number)
    assert sorted(each.name for each in (tmp_path / "job").iterdir()) == ["000000000004", "000000000005"]


def test_pruning_spares_what_is_newer(storage, tmp_path):
    write(storage, 1)
    storage.write_task(2, TaskId(1, 0), {})
    storage.prune(1)
    assert sorted(each.name for each in (tmp_path / "job").iterdir()) == ["000000000001", "000000000002"]


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "manifest cut", "manifest of another job"])
def test_one_that_is_damaged_is_skipped_with_a_warning(storage, tmp_path, caplog, damage):
    write(storage, 1, b"one")
    write(storage, 2, b"two")
    part = tmp_path / "job" / "000000000002" / "1.0.state"
    manifest = part.with_name("manifest.json")
    match damage:
        case "cut":
            part.write_bytes(part.read_bytes()[:-1])
        case "flip":
            content = bytearray(part.read_bytes())
            content[-1] ^= 1
            part.write_bytes(content)
        case "gone":
            part.unlink()
        case "manifest cut":
            manifest.write_bytes(manifest.read_bytes()[:-5])
        case _:
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"job": "another"}))
    with caplog.at_level(logging.WARNING):
        assert storage.latest().number == 1
    assert "checkpoint 2 of job job cannot be used" in caplog.text


def test_when_none_can_be_read_that_is_an_error(storage, tmp_path):
    write(storage, 1)
    (tmp_path / "job" / "000000000001" / "1.0.state").unlink()
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        storage.latest()


def test_an_unknown_format_is_not_read(storage, tmp_path):
    write(storage, 1)
    path = tmp_path / "job" / "000000000001" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointError, match="99"):
        storage.latest()


def test_widths_are_remembered_over_attempts(storage):
    assert storage.begin(LAYOUT).widths == {}
    narrow = Layout(key_groups=8, kinds=LAYOUT.kinds, widths={"sum": 1, "out": 1})
    assert storage.begin(narrow).widths == {"sum": 2, "out": 2}
    assert storage.begin(LAYOUT).widths == {"sum": 2, "out": 2}


def test_the_number_of_key_groups_is_fixed(storage):
    storage.begin(LAYOUT)
    with pytest.raises(PreconditionError, match="8 key groups"):
        storage.begin(Layout(key_groups=16, kinds={}, widths={}))


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.tuples(st.dictionaries(st.integers(0, 127), st.binary(max_size=20)), st.binary(max_size=20)),
        max_size=4,
    )
)
def test_states_survive_being_written(states):
    given_states = {uid: OperatorState(keyed, shared) for uid, (keyed, shared) in states.items()}
    assert decode_state(encode_state(given_states)) == given_states


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(content):
    for each in (content, b"SHOALCP1" + content):
        with contextlib.suppress(CheckpointError):
            decode_state(each)


# -- restoring --------------------------------------------------------------------------------------------


def test_a_task_gets_its_key_groups_and_everyones_shared_state(storage):
    write(storage, 5, b"k")
    shared = share_states(storage.latest(), KeyGroups(1, 8, 8))["sum"]
    assert shared == [(5, 0, OperatorState({}, b"s0")), (5, 1, OperatorState({1: b"k"}, b"s1"))]


def test_a_plan_finds_its_state_by_uid(storage):
    write(storage, 1)
    found = storage.latest()
    check_match(found, LAYOUT, stateful=frozenset({"sum", "out"}))
    renamed = Layout(key_groups=8, kinds={"total": "aggregate", "out": "sink"}, widths={})
    with pytest.raises(PreconditionError) as caught:
        check_match(found, renamed, stateful=frozenset({"total", "out"}))
    assert "'total' has no state in it" in caught.value.message
    assert "the state of 'sum' has no operator in the plan" in caught.value.message
    check_match(found, renamed, stateful=frozenset({"total"}), allow_missing=True, allow_unknown=True)


def test_a_uid_that_means_something_else_now_is_refused(storage):
    write(storage, 1)
    other = Layout(key_groups=8, kinds={"sum": "join", "out": "sink"}, widths={})
    with pytest.raises(PreconditionError, match="was aggregate and is join"):
        check_match(storage.latest(), other, stateful=frozenset({"sum"}), allow_missing=True, allow_unknown=True)


def test_a_place_beyond_the_end_is_refused():
    content = encode_state({"sum": OperatorState({0: b"zero"}, b"shared")})
    with pytest.raises(CheckpointError, match="beyond"):
        decode_state(content[:-1])


@pytest.mark.parametrize(
    "change", [{"tasks": {"a": 1}}, {"tasks": [{"file": "../x"}]}, {"key_groups": "8"}, {"operators": [1]}]
)
def test_a_manifest_that_says_nonsense_is_skipped(storage, tmp_path, change):
    write(storage, 1)
    write(storage, 2)
    path = tmp_path / "job" / "000000000002" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert storage.latest().number == 1


@pytest.mark.parametrize("change", [{"widths": 1}, {"widths": {"sum": "2"}}, {"key_groups": None}])
def test_notes_that_say_nonsense_are_refused(storage, tmp_path, change):
    storage.begin(LAYOUT)
    path = tmp_path / "job" / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=r"job\.json"):
        storage.begin(LAYOUT)

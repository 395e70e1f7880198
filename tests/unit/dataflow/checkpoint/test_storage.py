"""Checkpoints on disk: whole or not there."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from shoal.core import files
from shoal.core.errors import PreconditionError
from shoal.dataflow.checkpoint.handles import StepState
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.checkpoint.records import Branch, Checkpoint, Layout, Search
from shoal.dataflow.checkpoint.restore import check_match, share_states
from shoal.dataflow.checkpoint.statestore import file_name
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.errors import CheckpointError
from shoal.dataflow.language.keys import KeyGroups
from shoal.dataflow.operators.base import OperatorState
from tests.unit.dataflow.checkpoint.writing import write_task

LAYOUT = Layout(key_groups=8, kinds={"sum": "aggregate", "out": "sink"}, widths={"sum": 2, "out": 2})


def write(storage: CheckpointStorage, number: int, text: bytes = b"x") -> None:
    parts = [
        write_task(storage, number, TaskId(1, subtask), {"sum": OperatorState({subtask: text}, b"s%d" % subtask)})
        for subtask in range(2)
    ]
    storage.complete(number, LAYOUT, parts)


def loaded(storage: CheckpointStorage, found: Checkpoint, state: StepState) -> OperatorState:
    return storage.open_store().read_chain("sum", state.chain, found.handles)


def listed(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(str(tmp_path), "job", keep=2)


def test_what_was_written_is_read(storage):
    assert storage.search().checkpoint is None
    write(storage, 3, b"three")
    found = storage.search().checkpoint
    assert found.number == 3
    assert found.kinds == LAYOUT.kinds
    assert [(subtask, state.shared) for subtask, state in found.states["sum"]] == [(0, b"s0"), (1, b"s1")]
    assert [loaded(storage, found, state).keyed for _subtask, state in found.states["sum"]] == [
        {0: b"three"},
        {1: b"three"},
    ]


def test_without_a_manifest_there_is_nothing(storage):
    write(storage, 1)
    write_task(storage, 2, TaskId(1, 0), {})
    assert storage.search().checkpoint.number == 1
    assert storage.begin(LAYOUT).highest == 2  # its number is not used again


def test_widths_are_known_by_the_checkpoints_when_the_notes_of_the_job_are_gone(storage, tmp_path):
    """Else nobody would look at what tasks had prepared that there are no more."""
    write(storage, 1)
    write(storage, 2)
    (tmp_path / "job" / "000000000002" / "manifest.json").write_bytes(b"{")
    narrow = Layout(LAYOUT.key_groups, LAYOUT.kinds, {"sum": 1, "out": 1})
    assert storage.begin(narrow).widths == {"sum": 2, "out": 2}
    (tmp_path / "job" / "job.json").unlink()
    (tmp_path / "job" / "000000000001" / "manifest.json").unlink()
    assert storage.begin(narrow).widths == {}


def test_the_last_ones_are_kept(storage, tmp_path):
    for number in range(1, 6):
        write(storage, number)
        storage.prune(number)
    assert listed(tmp_path / "job") == ["000000000004", "000000000005", "state"]
    assert listed(tmp_path / "job" / "state") == [
        file_name(number, 1, TaskId(1, subtask)) for number in (4, 5) for subtask in range(2)
    ]


def test_a_search_finds_no_checkpoint_of_a_branch_that_was_left(storage):
    for number in range(1, 5):
        write(storage, number)
    storage.follow(Branch(7, base=2, highest=4))
    assert storage.search().checkpoint.number == 2
    assert storage.search(4).checkpoint.number == 4, "one can be asked for"
    storage.follow(Branch(7, base=0, highest=4))
    assert storage.search() == Search(None, {})
    write(storage, 5)
    assert storage.search().checkpoint.number == 5
    storage.follow(Branch(8, base=3, highest=4))
    assert storage.search().checkpoint.number == 3, "another life of the job wrote 5"


def test_a_base_that_is_gone_is_named(storage):
    write(storage, 1)
    storage.follow(Branch(7, base=2, highest=4))
    assert storage.search() == Search(None, {2: "it is gone"})


def test_a_branch_that_was_left_goes_when_there_are_enough_of_the_new_one(storage, tmp_path):
    def numbers() -> list[int]:
        return [int(name) for name in listed(tmp_path / "job") if name != "state"]

    for number in range(1, 4):
        write(storage, number)
    storage.follow(Branch(7, base=0, highest=3))
    write(storage, 4)
    storage.prune(4)
    assert numbers() == [1, 2, 3, 4]
    write(storage, 5)
    storage.prune(5)
    assert numbers() == [4, 5]


def test_pruning_spares_what_is_newer(storage, tmp_path):
    write(storage, 1)
    write_task(storage, 2, TaskId(1, 0), {})
    storage.prune(1)
    assert listed(tmp_path / "job") == ["000000000001", "state"]
    assert file_name(2, 1, TaskId(1, 0)) in listed(tmp_path / "job" / "state")


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "manifest cut", "manifest of another job"])
def test_one_that_is_damaged_is_passed_over_and_named(storage, tmp_path, damage):
    write(storage, 1, b"one")
    write(storage, 2, b"two")
    part = tmp_path / "job" / "state" / file_name(2, 1, TaskId(1, 0))
    manifest = tmp_path / "job" / "000000000002" / "manifest.json"
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
    found = storage.search()
    assert found.checkpoint.number == 1
    assert list(found.damaged) == [2]
    assert found.damaged[2]


def test_no_flipped_bit_changes_what_a_manifest_says(storage, tmp_path):
    write(storage, 2)
    whole = storage.search().checkpoint
    manifest = tmp_path / "job" / "000000000002" / "manifest.json"
    content = manifest.read_bytes()
    for place in range(len(content)):
        manifest.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with contextlib.suppress(CheckpointError):
            found = storage.search()
            assert found.checkpoint == whole or list(found.damaged) == [2]


def test_one_can_be_asked_for_by_its_number(storage, tmp_path):
    for number in (1, 2, 3):
        write(storage, number)
    (tmp_path / "job" / "state" / file_name(2, 1, TaskId(1, 0))).unlink()
    assert storage.search(1).checkpoint.number == 1
    assert list(storage.search(2).damaged) == [2]
    assert storage.search(2).checkpoint is None
    assert storage.search(4) == Search(None, {})


def test_an_unknown_format_is_not_read(storage, tmp_path):
    write(storage, 1)
    path = tmp_path / "job" / "000000000001" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointError, match="99") as caught:
        storage.search()
    assert "from_checkpoint=0" in caught.value.hint


def test_one_of_another_format_is_not_passed_over(storage, tmp_path):
    """It is whole: falling back past it would put its output out again."""
    write(storage, 1)
    write(storage, 2)
    path = tmp_path / "job" / "000000000002" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    with pytest.raises(CheckpointError, match="format 1, and this version reads and writes format 2"):
        storage.search()


def test_widths_are_remembered_over_attempts(storage):
    assert storage.begin(LAYOUT).widths == {}
    narrow = Layout(key_groups=8, kinds=LAYOUT.kinds, widths={"sum": 1, "out": 1})
    assert storage.begin(narrow).widths == {"sum": 2, "out": 2}
    assert storage.begin(LAYOUT).widths == {"sum": 2, "out": 2}


def test_the_number_of_key_groups_is_fixed(storage):
    storage.begin(LAYOUT)
    with pytest.raises(PreconditionError, match="8 key groups"):
        storage.begin(Layout(key_groups=16, kinds={}, widths={}))


class Reads:
    """Counts what is read of state files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = self.bytes = 0
        self._open = files.open_file
        monkeypatch.setattr(files, "open_file", self.open_file)

    def open_file(self, path: str, mode: str = "rb"):
        file = self._open(path, mode)
        if mode == "rb":
            self.opened += 1
            read = file.read
            file.read = lambda size: self.count(read(size))
        return file

    def count(self, content: bytes) -> bytes:
        self.bytes += len(content)
        return content


def test_a_task_host_reads_headers_and_the_key_groups_of_its_tasks(storage, monkeypatch):
    """The coordinator has verified the whole checkpoint when it chose it."""
    size = 100_000
    state = OperatorState({group: bytes([group]) * size for group in range(8)}, b"shared")
    storage.complete(1, LAYOUT, [write_task(storage, 1, TaskId(1, 0), {"sum": state})])
    reads = Reads(monkeypatch)
    host = CheckpointStorage(storage._base.removesuffix("/job"), "job")
    found = host.read(1)
    assert reads.bytes < size
    ((_number, _subtask, mine),) = share_states(found, KeyGroups(2, 4, 8))["sum"]
    reads.opened = 0
    store = host.open_store()
    assert sorted(store.read_chain("sum", mine.chain, found.handles).keyed) == [2, 3]
    assert reads.bytes < 3 * size
    assert reads.opened == 2, "one for the header, one for all pieces"


def test_a_piece_that_is_torn_is_noticed_by_the_task_that_reads_it(storage, tmp_path):
    write(storage, 1)
    found = storage.read(1)
    part = tmp_path / "job" / "state" / file_name(1, 1, TaskId(1, 0))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    assert list(storage.search().damaged) == [1]
    with pytest.raises(CheckpointError, match="is torn"):
        loaded(storage, found, found.states["sum"][0][1])


# -- restoring --------------------------------------------------------------------------------------------


def test_a_task_gets_its_key_groups_and_everyones_shared_state(storage):
    write(storage, 5, b"k")
    shared = share_states(storage.search().checkpoint, KeyGroups(1, 8, 8))["sum"]
    assert [(number, subtask, state.shared) for number, subtask, state in shared] == [(5, 0, b"s0"), (5, 1, b"s1")]
    found = storage.search().checkpoint
    assert [loaded(storage, found, state).keyed for _number, _subtask, state in shared] == [{}, {1: b"k"}]


def test_a_plan_finds_its_state_by_uid(storage):
    write(storage, 1)
    found = storage.search().checkpoint
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
    found = storage.search().checkpoint
    with pytest.raises(PreconditionError, match="was aggregate and is join"):
        check_match(found, other, stateful=frozenset({"sum"}), allow_missing=True, allow_unknown=True)


@pytest.mark.parametrize(
    "change", [{"tasks": {"a": 1}}, {"tasks": [{"file": "../x"}]}, {"key_groups": "8"}, {"operators": [1]}]
)
def test_a_manifest_that_says_nonsense_is_skipped(storage, tmp_path, change):
    write(storage, 1)
    write(storage, 2)
    path = tmp_path / "job" / "000000000002" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert storage.search().checkpoint.number == 1


@pytest.mark.parametrize("change", [{"widths": 1}, {"widths": {"sum": "2"}}, {"key_groups": None}])
def test_notes_that_say_nonsense_are_refused(storage, tmp_path, change):
    storage.begin(LAYOUT)
    path = tmp_path / "job" / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=r"job\.json"):
        storage.begin(LAYOUT)

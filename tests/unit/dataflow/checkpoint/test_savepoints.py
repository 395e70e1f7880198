"""Savepoints: kept under a name, found by it, let go; and a stopped job that goes on from one."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.entropy import SystemEntropy
from shoal.core.errors import InvalidError, PreconditionError
from shoal.dataflow.checkpoint.claim import JobRunsError, claim_job, read_record
from shoal.dataflow.checkpoint.savepoints import Savepoints, number_of_savepoint
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from tests.unit.dataflow.checkpoint.test_storage import LAYOUT, write


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    storage = CheckpointStorage(str(tmp_path), "job", keep=1)
    storage.begin(LAYOUT)
    for number in (1, 2):
        write(storage, number)
    return storage


@pytest.fixture
def points(storage: CheckpointStorage, tmp_path: Path) -> Savepoints:
    return Savepoints(str(tmp_path), "job")


def numbers(storage: CheckpointStorage) -> list[int]:
    return [number for number in range(1, 20) if storage.search(number).checkpoint is not None]


def test_a_savepoint_stays_until_it_is_deleted(storage, points):
    taken = points.take("before-upgrade")
    assert (taken.checkpoint, taken.name) == (2, "before-upgrade")
    write(storage, 3)
    storage.prune(3)
    assert numbers(storage) == [2, 3]
    assert [(each.checkpoint, each.name) for each in points.list()] == [(2, "before-upgrade")]
    assert Path(points.list()[0].place, "manifest.json").is_file()
    assert number_of_savepoint(storage, "before-upgrade") == 2
    assert points.delete("before-upgrade") == 2
    storage.prune(3)
    assert numbers(storage) == [3]
    assert points.list() == ()


def test_one_without_a_name_is_found_by_its_number(storage, points):
    storage.keep(1)
    assert [(each.checkpoint, each.name) for each in points.list()] == [(1, "")]
    assert points.delete(1) == 1


@pytest.mark.parametrize("name", ["", "7", "a b", "../up", ".hidden", "x" * 101])
def test_a_name_that_is_none_is_refused(points, name):
    with pytest.raises(InvalidError, match="savepoint"):
        points.take(name)
    assert points.list() == ()


def test_a_name_and_a_checkpoint_are_taken_once(storage, points):
    points.take("one")
    with pytest.raises(InvalidError, match="is the name of checkpoint 2"):
        points.take("one")
    with pytest.raises(PreconditionError, match="is savepoint 'one' already"):
        points.take("two")


def test_what_is_not_there_is_named_with_what_is(storage, points):
    points.take("before")
    for call in (lambda: points.delete("befor"), lambda: number_of_savepoint(storage, "befor")):
        with pytest.raises(InvalidError, match="did you mean 'before'"):
            call()
    with pytest.raises(InvalidError, match="is none of job"):
        points.delete(1)
    with pytest.raises(InvalidError, match="is none of job"):
        points.restore(9, SystemEntropy())


def test_a_job_without_checkpoints_has_nothing_to_keep(tmp_path):
    empty = Savepoints(str(tmp_path), "other")
    assert not empty.has_job
    with pytest.raises(PreconditionError, match="no complete checkpoint"):
        empty.take("one")


def test_a_stopped_job_goes_on_from_a_savepoint_and_its_later_checkpoints_do_not_count(storage, points, tmp_path):
    points.take("good")
    for number in (3, 4):
        write(storage, number)
    claim = claim_job(str(tmp_path), "job", SystemEntropy(), is_new=False)
    with pytest.raises(JobRunsError):
        points.restore("good", SystemEntropy())
    claim.release()
    assert points.restore("good", SystemEntropy()) == 2
    record = read_record(str(tmp_path), "job")
    assert record is not None
    assert (record.base, record.highest) == (2, 4)
    storage.follow(record.branch)
    found = storage.search().checkpoint
    assert found is not None
    assert found.number == 2

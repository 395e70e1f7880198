"""A disk for checkpoints that is full or broken: the job goes on, says so, and shows how old its checkpoint is."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.core import files
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import ExhaustedError
from shoal.dataflow.checkpoint.claim import claim_job
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.errors import CheckpointError
from shoal.dataflow.execution import engine
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.testing.disks import DiskCall, FaultyDisk, faulty_disk
from shoal.testing.suites.files import FilesSuite
from tests.unit.dataflow.execution.flows import (
    Recording,
    Tap,
    expected_sums,
    recording_sink,
    rows,
    tap_source,
    window_sums,
)
from tests.unit.dataflow.execution.test_recovery import batches, feed, visible


class TestFaultyDisk(FilesSuite):
    """The double is a disk like any other while nothing fails."""

    __test__ = True

    @pytest.fixture
    def root(self, tmp_path: Path) -> Iterator[str]:
        with faulty_disk(tmp_path) as disk:
            yield disk.url


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    with faulty_disk(tmp_path / "disk") as made:
        yield made


def until(holds: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(4000):
        if holds():
            return
        pause.wait(0.005)
    raise AssertionError("it never held")


def start(tap: Tap, recording: Recording, directory: str, *, bounded: bool = False, **options) -> engine.RunningFlow:
    checkpoint = CheckpointSettings(directory=directory, interval=0.02, min_pause=0.001, **options)
    sink = recording_sink(window_sums(tap_source(tap, bounded=bounded)), recording)
    return engine.start([sink], name="job", settings=FlowSettings(checkpoint=checkpoint, poll=0.005))


@pytest.mark.parametrize("call", [DiskCall.WRITE, DiskCall.RENAME], ids=lambda call: call.value)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_a_disk_that_takes_no_checkpoint_does_not_end_the_job(disk, caplog, call, number):
    tap, recording = Tap(), Recording()
    flow = start(tap, recording, disk.url)
    feed(tap, batches(3))
    until(lambda: flow.metrics().checkpoints.completed >= 1)
    disk.fail(call, number)
    until(lambda: flow.metrics().checkpoints.failed_in_a_row >= 10)
    now = flow.metrics().checkpoints
    assert not flow.is_done
    assert now.age > 0
    assert now.reason
    assert [each.message for each in caplog.records if "The job goes on" in each.message]
    feed(tap, batches(3, start=3))
    tap.wait_fetched(6)
    disk.heal()
    until(lambda: flow.metrics().checkpoints.completed > now.completed)
    later = flow.metrics().checkpoints
    assert (later.failed_in_a_row, later.reason) == (0, "")
    tap.close()
    flow.stop(finish=True, timeout=20)
    assert visible(recording) == expected_sums(batches(6))


def test_the_age_is_that_of_the_last_complete_checkpoint(disk):
    tap = Tap()
    flow = start(tap, Recording(), disk.url)
    until(lambda: flow.metrics().checkpoints.completed >= 1)
    disk.fail(DiskCall.WRITE)
    until(lambda: flow.metrics().checkpoints.failed_in_a_row)
    before = flow.metrics().checkpoints
    until(lambda: flow.metrics().checkpoints.failed_in_a_row > before.failed_in_a_row + 3)
    assert flow.metrics().checkpoints.age > before.age
    disk.heal()
    flow.stop(timeout=20)


def test_warnings_do_not_come_with_every_failure(disk, caplog):
    flow = start(Tap(), Recording(), disk.url)
    until(lambda: flow.metrics().checkpoints.completed >= 1)
    disk.fail(DiskCall.WRITE)
    until(lambda: flow.metrics().checkpoints.failed_in_a_row >= 20)
    disk.heal()
    flow.stop(timeout=20)
    said = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert len([each for each in said if "The job goes on" in each]) == 1
    assert len([each for each in said if "after" in each and "that failed" in each]) == 1


def test_a_stop_returns_with_an_error_when_the_last_checkpoint_cannot_be_written(disk):
    flow = start(Tap(), Recording(), disk.url)
    until(lambda: flow.metrics().checkpoints.completed >= 1)
    disk.fail(DiskCall.WRITE)
    with pytest.raises(CheckpointError, match="4 checkpoints in a row failed") as caught:
        flow.stop(timeout=20)
    assert "goes on from its newest complete checkpoint" in caught.value.hint


def test_a_job_that_could_not_write_its_last_checkpoint_goes_on_from_the_one_before(disk):
    tap, recording = Tap(), Recording()
    feed(tap, batches(3))
    flow = start(tap, recording, disk.url)
    until(lambda: flow.metrics().checkpoints.completed >= 1)
    disk.fail(DiskCall.WRITE)
    feed(tap, batches(3, start=3))
    with pytest.raises(CheckpointError):
        flow.stop(timeout=20)
    disk.heal()
    tap.close()
    start(tap, recording, disk.url, bounded=True).wait(20)
    assert visible(recording) == expected_sums(batches(6))


@pytest.mark.parametrize("call", [DiskCall.LIST, DiskCall.REMOVE], ids=lambda call: call.value)
def test_old_checkpoints_that_cannot_be_listed_or_removed_do_not_end_the_job(disk, caplog, call):
    flow = start(Tap(), Recording(), disk.url, keep=1)
    until(lambda: flow.metrics().checkpoints.completed >= 1)
    disk.fail(call, errno.EIO)
    before = flow.metrics().checkpoints.completed
    until(lambda: flow.metrics().checkpoints.completed > before + 3)
    disk.heal()
    assert flow.stop(timeout=20).checkpoints.failed == 0
    assert any("old checkpoint" in each.message for each in caplog.records)
    storage = CheckpointStorage(disk.url, "job")
    assert len(storage._numbers()) == 1  # what stayed was removed after a later one


def test_sources_wait_while_too_much_output_waits_for_a_checkpoint(disk):
    tap, recording = Tap(), Recording()
    flow = start(tap, recording, disk.url, write_ahead_bytes=20_000)
    until(lambda: flow.metrics().checkpoints.completed >= 1)
    disk.fail(DiskCall.WRITE)
    given = 0
    while not flow.metrics().checkpoints.is_paused:
        tap.give(rows(("a", 1, 10 * given)))
        given += 1
        # The pause may begin before this one is read: then it waits like the others.
        until(lambda enough=given: tap.fetched >= enough or flow.metrics().checkpoints.is_paused)
        assert given < 5000
    failed = flow.metrics().checkpoints.failed
    until(lambda: flow.metrics().checkpoints.failed > failed + 1)  # a later trigger has come, so the pause has too
    fetched = tap.fetched
    feed(tap, [rows(("a", 1, 10 * (given + 1)))] * 3)
    failed = flow.metrics().checkpoints.failed
    until(lambda: flow.metrics().checkpoints.failed > failed + 3)
    assert tap.fetched <= fetched + 1  # the one that was on its way when the order came
    disk.heal()
    tap.wait_fetched(given + 3)
    assert not flow.stop(finish=True, timeout=20).checkpoints.is_paused
    assert sum(row["total"] for row in recording.rows) == given + 3


def test_a_flow_without_checkpoints_has_no_age():
    tap = Tap()
    flow = engine.start([recording_sink(tap_source(tap), Recording())])
    assert flow.metrics().checkpoints.age is None
    flow.stop(timeout=20)


def test_a_full_disk_fails_as_a_real_one_does(disk):
    disk.fail(DiskCall.WRITE)
    with pytest.raises(ExhaustedError, match="No space left"):
        files.write_atomic(files.join(disk.url, "file"), b"x")


def test_a_job_is_claimed_though_its_process_cannot_be_named(tmp_path, monkeypatch):
    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    claim = claim_job(str(tmp_path), "job", SystemEntropy(), is_new=True)
    monkeypatch.undo()
    claim.release()

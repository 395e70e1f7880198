"""A job runs once at a time, and a dead one holds nobody up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.entropy import SystemEntropy
from shoal.core.errors import PreconditionError
from shoal.dataflow.checkpoint.claim import Claim, claim_job, read_record
from shoal.dataflow.checkpoint.records import Branch
from shoal.dataflow.errors import CheckpointError
from shoal.dataflow.execution import engine
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from tests.unit.dataflow.execution.flows import Tap, collect, rows, tap_source

_HOLDS = """
import sys, time
from shoal.dataflow.checkpoint.claim import claim_job
from shoal.core.entropy import SystemEntropy
claim = claim_job(sys.argv[1], "job", SystemEntropy(), is_new=True)
print("claimed", flush=True)
sys.stdin.read()
"""


def claim(directory: Path | str, job: str = "job", *, is_new: bool = True) -> Claim:
    return claim_job(str(directory), job, SystemEntropy(), is_new=is_new)


def test_one_at_a_time_and_again_after_it_was_let_go(tmp_path):
    first = claim(tmp_path, "job")
    with pytest.raises(PreconditionError, match=f"job 'job' runs already, in process {os.getpid()}") as caught:
        claim(tmp_path, "job")
    assert "stop that one" in caught.value.hint
    other = claim(tmp_path, "other")
    other.release()
    first.release()
    first.release()
    again = claim(tmp_path, "job")
    again.release()


def test_a_process_that_was_killed_holds_nobody_up(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        with pytest.raises(PreconditionError, match=f"in process {holder.pid}"):
            claim(tmp_path, "job")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        claim(tmp_path, "job").release()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system tells no states of processes")
def test_a_process_that_is_suspended_is_called_so(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "claimed\n"
            holder.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
            with pytest.raises(PreconditionError, match=f"in process {holder.pid}, which is suspended") as caught:
                claim(tmp_path, "job")
            assert f"kill -CONT {holder.pid}" in caught.value.hint
        finally:
            holder.kill()


def test_every_claim_has_a_higher_epoch_and_one_life_has_one_incarnation(tmp_path):
    first = claim(tmp_path)
    first.note_committed(7)
    first.note_committed(5)  # a smaller one changes nothing
    first.release()
    second = claim(tmp_path)
    assert (second.record.epoch, second.record.through) == (2, 7)
    assert second.record.incarnation == first.record.incarnation > 0
    second.roll_back(0, 12, incarnation=99)
    second.release()
    third = claim(tmp_path)
    assert (third.record.epoch, third.record.through, third.record.incarnation) == (3, 0, 99)
    assert third.record.branch == Branch(99, 0, 12)
    third.roll_back(14, 20)
    assert (third.record.through, third.record.branch) == (0, Branch(99, 14, 20))
    third.release()


def test_a_record_that_knows_no_rollback_is_read(tmp_path):
    made = claim(tmp_path)
    made.release()
    path = tmp_path / "job" / "commits.json"
    content = json.loads(path.read_text())
    del content["base"], content["highest"], content["checksum"]
    path.write_text(json.dumps(content))
    again = claim(tmp_path)
    assert again.record.branch == Branch(made.record.incarnation)
    again.release()


def test_a_job_from_before_has_no_record_of_its_commits(tmp_path):
    made = claim(tmp_path, is_new=False)
    assert (made.record.incarnation, made.record.through) == (0, None)
    made.release()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"format": 1}', b'{"format":1,"job":"job","incarnation":-1,"term":1,"through":1,"token":""}'],
)
def test_a_record_that_cannot_be_read_is_an_error_that_lets_go_of_the_job(tmp_path, content):
    claim(tmp_path).release()
    (tmp_path / "job" / "commits.json").write_bytes(content)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"commits\.json") as caught:
            claim(tmp_path)
        assert "--accept-duplicates" in caught.value.hint


def test_no_flipped_bit_changes_what_a_record_says(tmp_path):
    made = claim(tmp_path)
    made.note_committed(7)
    made.release()
    path = tmp_path / "job" / "commits.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with contextlib.suppress(CheckpointError):
            assert read_record(str(tmp_path), "job") == made.record


def test_where_there_is_no_lock_the_last_claim_counts():
    place = f"memory://checkpoints-{os.getpid()}"
    first = claim(place)
    first.check()
    second = claim(place)
    second.check()
    with pytest.raises(PreconditionError, match="claimed under a newer epoch, 2; this coordinator has epoch 1"):
        first.check()


def test_a_coordinator_that_was_replaced_writes_nothing_and_what_it_wrote_is_put_right():
    place = f"memory://woken-{os.getpid()}"
    first, second = claim(place), claim(place, is_new=False)
    for write in (lambda: first.note_committed(3), lambda: first.roll_back(2, 3)):
        with pytest.raises(PreconditionError, match="was claimed under a newer epoch"):
            write()
    first._write(first.record)  # it stood still between its look and this
    second.check()
    assert read_record(place, "job") == second.record
    with pytest.raises(PreconditionError, match="was claimed under a newer epoch"):
        first.check()


def test_a_flow_is_not_started_twice(tmp_path):
    settings = FlowSettings(checkpoint=CheckpointSettings(directory=str(tmp_path), interval=60))
    tap = Tap()
    tap.give(rows(("a", 1, 1)))
    flow = engine.start([collect(tap_source(tap))], name="job", settings=settings)
    with pytest.raises(PreconditionError, match="runs already"):
        engine.start([collect(tap_source(Tap()))], name="job", settings=settings)
    tap.close()
    flow.stop()
    tap = Tap()
    tap.close()
    engine.start([collect(tap_source(tap))], name="job", settings=settings).stop()

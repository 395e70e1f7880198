"""A job runs once at a time, and a dead one holds nobody up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.errors import PreconditionError
from shoal.dataflow.checkpoint.claim import claim_job
from shoal.dataflow.execution import engine
from shoal.dataflow.language.settings import CheckpointSettings, FlowSettings
from tests.unit.dataflow.execution.flows import Tap, collect, rows, tap_source

_HOLDS = """
import sys, time
from shoal.dataflow.checkpoint.claim import claim_job
claim = claim_job(sys.argv[1], "job")
print("claimed", flush=True)
sys.stdin.read()
"""


def test_one_at_a_time_and_again_after_it_was_let_go(tmp_path):
    first = claim_job(str(tmp_path), "job")
    assert first is not None
    with pytest.raises(PreconditionError, match=f"job 'job' runs already, in process {os.getpid()}") as caught:
        claim_job(str(tmp_path), "job")
    assert "stop that one" in caught.value.hint
    other = claim_job(str(tmp_path), "other")
    assert other is not None
    other.release()
    first.release()
    first.release()
    again = claim_job(str(tmp_path), "job")
    assert again is not None
    again.release()


def test_a_process_that_was_killed_holds_nobody_up(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        with pytest.raises(PreconditionError, match=f"in process {holder.pid}"):
            claim_job(str(tmp_path), "job")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        claim = claim_job(str(tmp_path), "job")
        assert claim is not None
        claim.release()


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
                claim_job(str(tmp_path), "job")
            assert f"kill -CONT {holder.pid}" in caught.value.hint
        finally:
            holder.kill()


def test_what_is_not_on_this_host_is_not_claimed():
    assert claim_job("memory://checkpoints", "job") is None


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

"""A task host that its coordinator cannot kill: it stands still while its job goes on, and then wakes up.

On one machine a coordinator kills what is left of an epoch, stopped processes too. Between machines it cannot. Here it
spares stopped ones, so that there are zombies. Used by `process_job`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.ids import RunId
from shoal.dataflow.execution.coordinator.running import RunningFlow
from shoal.dataflow.execution.hosts.processes import _Runner

_LONG = 60.0


class Zombies:
    """The task hosts that were stopped when their epoch ended."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.runs: dict[RunId, int] = {}
        stop = _Runner._stop

        async def stop_others(runner: _Runner, patience: float) -> None:
            stopped = {run: pid for run, pid in runner._runs.values() if state_of(pid) == "T"}
            if stopped:
                self.runs |= stopped
                await runner._opened().extend_deadlines(tuple(stopped), SystemClock().monotonic() + _LONG)
            runner._runs = {number: each for number, each in runner._runs.items() if each[0] not in stopped}
            await stop(runner, patience)

        patch.setattr(_Runner, "_stop", stop_others)

    def wake(self, flow: RunningFlow) -> None:
        """When the next epoch has committed a checkpoint, let the zombie go on, and wait until it has ended."""
        wait_until(lambda: flow.recoveries > 0 and not flow.is_recovering)
        wait_until(lambda: flow.metrics().checkpoints.completed > 0)
        (pid,) = self.runs.values()
        assert state_of(pid) == "T"
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: state_of(pid) in ("", "Z"))
        assert not flow.is_done, "it ended while the job went on"


def state_of(pid: int) -> str:
    """The state of a process as Linux calls it; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_until(condition) -> None:
    ends = time.monotonic() + _LONG
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)

"""Readiness commands, run by the keeper in the surroundings of a run.

The keeper runs them, not the agent, so that none is left behind when the agent is killed. A probe has the user, the
directory and the environment of its run (as /proc has it, because the keeper keeps no environments), counts towards
its limits and dies with it. Called by `server`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from shoal.runtimes import cgroups
from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.lives.children import ChildDefaults, Launch, fork_gated
from shoal.runtimes.keeper.loop import Loop, Timer
from shoal.runtimes.keeper.protocol import Refusal
from shoal.runtimes.keeper.records import RunRecord

MAX_PROBES = 64

Verdict = Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class _Probe:
    timer: Timer
    verdict: Verdict


class Probes:
    """The probes that are running."""

    def __init__(self, loop: Loop, defaults: ChildDefaults) -> None:
        self._loop = loop
        self._defaults = defaults
        self._running: dict[int, _Probe] = {}

    def start(self, record: RunRecord, command: tuple[str, ...], *, timeout: float, verdict: Verdict) -> None:
        """Run a command; the verdict is whether it exits with 0 in time. Raises `Refusal`."""
        if len(self._running) >= MAX_PROBES:
            raise Refusal("exhausted", f"{MAX_PROBES} probes are running already")
        environ = procfs.read_environ(record.pid)
        if not environ or not procfs.is_running(record.pid, record.start_time):
            verdict(False)
            return
        pairs = (os.fsdecode(each).partition("=") for each in environ)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        launch = Launch(
            argv=command,
            env={name: value for name, _, value in pairs if name},
            working_dir=record.working_dir,
            stdout=null,
            stderr=null,
            user=record.user,
            own_dir=record.own_dir,
            cgroup_entrances=cgroups.entrances(record.cgroups),
            die_with_parent=True,
        )
        try:
            child = fork_gated(launch, self._defaults)
        except OSError as error:
            raise Refusal("unavailable", f"the probe could not be started: {error.strerror}") from error
        finally:
            os.close(null)
        child.open_gate()
        child.close_report()  # why it could not run does not matter: the verdict is no
        timer = self._loop.call_at(self._loop.now() + timeout, lambda: self._kill(child.pid))
        self._running[child.pid] = _Probe(timer, verdict)

    def knows(self, pid: int) -> bool:
        """Whether a child is a probe."""
        return pid in self._running

    def child_ended(self, pid: int, status: int) -> bool:
        """Take in the end of a child; whether it was a probe."""
        probe = self._running.pop(pid, None)
        if probe is None:
            return False
        probe.timer.cancel()
        probe.verdict(status == 0)
        return True

    def _kill(self, pid: int) -> None:
        if pid in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                os.killpg(pid, signal.SIGKILL)

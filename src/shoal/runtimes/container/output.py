"""Copies what containers print into log files of the agent's own, while they run.

So the output of a container is kept, bounded and read exactly as that of a process, also after the container is gone.
A restarted agent asks the engine for the whole output of a run and skips what its files have. Owned by
`shoal.runtimes.container.runtime`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.ids import RunId
from shoal.core.tasks import TaskScope
from shoal.runtimes import log_files
from shoal.runtimes.clocks import LinuxClock
from shoal.runtimes.container.engine.api import EngineApi
from shoal.runtimes.container.log_tails import LogTail, LogTails

log = logging.getLogger(__name__)

#: A run has ended, and its last output is waited for at most this long.
DRAIN_SECONDS = 10.0


class OutputCopies:
    """One copying task per running container."""

    def __init__(self, directory_of: Callable[[str], Path], scope: TaskScope, clock: Clock) -> None:
        """`directory_of` gives the log directory of a workload."""
        self._directory_of = directory_of
        self._scope = scope
        self._tails = LogTails(scope, clock)
        self._copies: dict[RunId, tuple[LogTail, asyncio.Task[None]]] = {}

    async def begin(self, api: EngineApi, run_id: RunId, workload_id: str, container_id: str) -> None:
        """Copy the output of a run, unless that goes on already. From now on it can be read, before it prints too."""
        if self._is_copied(run_id):
            return
        directory = self._directory_of(workload_id)
        with contextlib.suppress(OSError):  # the writer tries again
            await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        if not self._is_copied(run_id):
            tail = self._tails.new()
            work = self._copy(tail, api, run_id, directory, container_id)
            self._copies[run_id] = (tail, self._scope.start(work, name=f"output of {run_id}"))

    def _is_copied(self, run_id: RunId) -> bool:
        known = self._copies.get(run_id)
        return known is not None and not known[1].done()

    async def finish(self, api: EngineApi, run_id: RunId, workload_id: str, container_id: str) -> None:
        """Copy what is left of a run that has ended. Output that the engine does not give in time is lost."""
        await self.begin(api, run_id, workload_id, container_id)
        tail, copying = self._copies.pop(run_id)
        tail.end()
        _, late = await asyncio.wait({copying}, timeout=DRAIN_SECONDS)
        for task in late:
            log.warning("run %s: the engine does not end the stream of its output", run_id)
            task.cancel()

    async def _copy(self, tail: LogTail, api: EngineApi, run_id: RunId, directory: Path, container_id: str) -> None:
        writer = log_files.LogWriter(directory, LinuxClock())
        try:
            skip = await asyncio.to_thread(_begin, directory, run_id, writer)
            async for stream, printed, at_ms in tail.follow(api, container_id):
                text, skip = printed[skip:], max(0, skip - len(printed))
                if text:
                    await asyncio.to_thread(writer.write, stream, text, at_ms=at_ms)
        except (ShoalError, OSError) as error:
            log.info("run %s: copying its output ended: %s", run_id, error)
        finally:
            writer.close()


def _begin(directory: Path, run_id: RunId, writer: log_files.LogWriter) -> int:
    """How many bytes of a run's output are in the files already. A run without a mark gets one."""
    printed = log_files.printed_by_run(directory, run_id) if directory.is_dir() else None
    if printed is None:
        writer.begin_run(run_id)
    return printed or 0

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
from datetime import datetime
from pathlib import Path

from shoal.core.clock import epoch_ms
from shoal.core.errors import ShoalError
from shoal.core.ids import RunId
from shoal.core.tasks import TaskScope
from shoal.runtimes import log_files
from shoal.runtimes.clocks import LinuxClock
from shoal.runtimes.container.api import EngineApi

log = logging.getLogger(__name__)

#: A run has ended, and its last output is waited for at most this long.
DRAIN_SECONDS = 10.0


class OutputCopies:
    """One copying task per running container."""

    def __init__(self, directory_of: Callable[[str], Path], scope: TaskScope) -> None:
        """`directory_of` gives the log directory of a workload."""
        self._directory_of = directory_of
        self._scope = scope
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, api: EngineApi, run_id: RunId, workload_id: str, container_id: str) -> None:
        """Copy the output of a run, unless that goes on already. From now on it can be read, before it prints too."""
        if self._is_copied(run_id):
            return
        directory = self._directory_of(workload_id)
        with contextlib.suppress(OSError):  # the writer tries again
            await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        if not self._is_copied(run_id):
            work = self._copy(api, run_id, directory, container_id)
            self._tasks[run_id] = self._scope.start(work, name=f"output of {run_id}")

    def _is_copied(self, run_id: RunId) -> bool:
        task = self._tasks.get(run_id)
        return task is not None and not task.done()

    async def finish(self, api: EngineApi, run_id: RunId, workload_id: str, container_id: str) -> None:
        """Copy what is left of a run that has ended. Output that the engine does not give in time is lost."""
        await self.begin(api, run_id, workload_id, container_id)
        _, late = await asyncio.wait({self._tasks.pop(run_id)}, timeout=DRAIN_SECONDS)
        for task in late:
            log.warning("run %s: the engine does not end the stream of its output", run_id)
            task.cancel()

    async def _copy(self, api: EngineApi, run_id: RunId, directory: Path, container_id: str) -> None:
        writer = log_files.LogWriter(directory, LinuxClock())
        try:
            skip = await asyncio.to_thread(_begin, directory, run_id, writer)
            async for stream, data in api.logs(container_id, follow=True, timestamps=True):
                at_ms, text = split_time(data)
                if skip:
                    text, skip = text[skip:], max(0, skip - len(text))
                if text:
                    await asyncio.to_thread(writer.write, stream, text, at_ms=at_ms)
        except ShoalError as error:
            log.info("run %s: copying its output ended: %s", run_id, error)
        finally:
            writer.close()


def _begin(directory: Path, run_id: RunId, writer: log_files.LogWriter) -> int:
    """How many bytes of a run's output are in the files already. A run without a mark gets one."""
    printed = log_files.printed_by_run(directory, run_id) if directory.is_dir() else None
    if printed is None:
        writer.begin_run(run_id)
    return printed or 0


def split_time(data: bytes) -> tuple[int | None, bytes]:
    """A line of the engine as its time and its text. Podman tells whole seconds, for which the present is better."""
    stamp, found, text = data.partition(b" ")
    if not found:
        return None, data
    try:
        moment = datetime.fromisoformat(stamp.decode())
    except (ValueError, UnicodeDecodeError):
        return None, data
    is_exact = b"." in stamp
    return (epoch_ms(moment) if is_exact else None), text

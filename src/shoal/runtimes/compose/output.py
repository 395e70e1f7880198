"""Copies what the containers of a project print into one log, while they run.

In a project of several containers each line begins with its service. A restarted agent asks the engine for the whole
output of a container and skips what the log has. Owned by `shoal.runtimes.compose.runtime`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.ids import RunId, WorkloadId
from shoal.core.tasks import TaskScope
from shoal.runtimes import log_files
from shoal.runtimes.clocks import LinuxClock
from shoal.runtimes.compose.members import Member
from shoal.runtimes.compose.records import ComposeRun
from shoal.runtimes.container.engine.api import EngineApi
from shoal.runtimes.container.log_tails import LogTail, LogTails
from shoal.runtimes.container.output import DRAIN_SECONDS

log = logging.getLogger(__name__)

#: A line without an end is cut here, so that it cannot hold up memory.
_MAX_LINE = 16 * 1024


@dataclass(slots=True)
class _RunLog:
    """The log of a run that goes on."""

    writer: log_files.LogWriter
    directory: Path
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    copies: dict[str, tuple[LogTail, asyncio.Task[None]]] = field(default_factory=dict)


class ProjectOutput:
    """One copying task per running container."""

    def __init__(self, directory_of: Callable[[WorkloadId], Path], scope: TaskScope, clock: Clock) -> None:
        """`directory_of` gives the log directory of a workload."""
        self._directory_of = directory_of
        self._scope = scope
        self._tails = LogTails(scope, clock)
        self._logs: dict[RunId, _RunLog] = {}

    async def begin(self, api: EngineApi, run: ComposeRun) -> None:
        """Copy the output of a run's containers, unless that goes on already."""
        run_log = self._logs.get(run.run_id)
        if run_log is None:
            directory = self._directory_of(run.workload_id)
            run_log = _RunLog(log_files.LogWriter(directory, LinuxClock()), directory)
            self._logs[run.run_id] = run_log
            async with run_log.turn:
                await asyncio.to_thread(_begin_run, run_log, run.run_id)
        for member in run.members:
            known = run_log.copies.get(member.container_id)
            if known is None or known[1].done():
                # A project of one container is shown as that container would be.
                lines = LineCutter(member.prefix if len(run.members) > 1 else b"")
                tail = self._tails.new()
                work = self._copy(tail, api, run_log, member, lines)
                copying = self._scope.start(work, name=f"output of {member.service}")
                run_log.copies[member.container_id] = (tail, copying)

    async def finish(self, api: EngineApi, run: ComposeRun) -> None:
        """Copy what is left of a run that has ended. Output that the engine does not give in time is lost."""
        await self.begin(api, run)
        run_log = self._logs.pop(run.run_id)
        if run_log.copies:
            for tail, _ in run_log.copies.values():
                tail.end()
            copying = [task for _, task in run_log.copies.values()]
            _, late = await asyncio.wait(copying, timeout=DRAIN_SECONDS)
            for task in late:
                log.warning("run %s: the engine does not end the stream of its output", run.run_id)
                task.cancel()
        run_log.writer.close()

    async def _copy(self, tail: LogTail, api: EngineApi, run_log: _RunLog, member: Member, lines: LineCutter) -> None:
        try:
            async with run_log.turn:
                skip = await asyncio.to_thread(_begin_container, run_log, member.container_id, lines.prefix)
            async for stream, printed, at_ms in tail.follow(api, member.container_id, tty=member.tty):
                left = skip.get(stream, 0)
                text, skip[stream] = printed[left:], max(0, left - len(printed))
                if whole := lines.feed(stream, text):
                    async with run_log.turn:
                        await asyncio.to_thread(run_log.writer.write, stream, whole, at_ms=at_ms)
        except (ShoalError, OSError) as error:
            log.info("copying the output of %s ended: %s", member.service, error)
        for stream, rest in lines.rest():
            async with run_log.turn:
                await asyncio.to_thread(run_log.writer.write, stream, rest)


class LineCutter:
    """Puts a prefix before every line. Without a prefix everything passes as it is. Pure."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._open: dict[str, bytes] = {}

    def feed(self, stream: str, text: bytes) -> bytes:
        """The whole lines that can be written now."""
        if not self.prefix:
            return text
        *lines, rest = (self._open.pop(stream, b"") + text).split(b"\n")
        while len(rest) >= _MAX_LINE:
            lines.append(rest[:_MAX_LINE])
            rest = rest[_MAX_LINE:]
        self._open[stream] = rest
        return b"".join(self.prefix + line + b"\n" for line in lines)

    def rest(self) -> list[tuple[str, bytes]]:
        """The lines that have no end, by stream."""
        return [(stream, self.prefix + rest + b"\n") for stream, rest in self._open.items() if rest]


def _begin_run(run_log: _RunLog, run_id: RunId) -> None:
    """A run without a mark gets one."""
    if not run_log.directory.is_dir() or log_files.printed_by_run(run_log.directory, run_id) is None:
        run_log.writer.begin_run(run_id)


def _begin_container(run_log: _RunLog, container_id: str, prefix: bytes) -> dict[str, int]:
    """How many bytes of a container's output are in the log already, by stream."""
    printed = log_files.printed_by_source(run_log.directory, container_id, prefix)
    if printed is None:
        run_log.writer.begin_source(container_id)
    return printed or {}

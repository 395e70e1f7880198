"""Commands inside containers, through the exec endpoints of the Engine API. Called by both runtimes with an engine.

The connection of an exec is taken over: after the answer to the start both ends send bytes. The engine has no call that
ends a command, so what is left of one is killed by its process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.model.execs import ExecCommand, ExecEnd
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import ExecSession, RunError
from shoal.runtimes.cgroups import read_memberships
from shoal.runtimes.container.engine.api import EngineApi, EngineError, TakenConnection, split_frames

_CHUNK = 32 * 1024
_POLL_SECONDS = 0.02
_END_SECONDS = 5.0
_SIGNAL_BASE = 128
_HIGHEST_SIGNAL = 64


async def start_command(api: EngineApi, container_id: str, wanted: ExecCommand, clock: Clock) -> ExecSession:
    """Start a command in a container. Raises `RunError`."""
    env = (f"TERM={wanted.term}",) if wanted.terminal else ()
    has_input = wanted.interactive or wanted.terminal  # a terminal is input and output
    try:
        exec_id = await api.create_exec(container_id, wanted.command, tty=wanted.terminal, stdin=has_input, env=env)
        connection = await api.start_exec(exec_id, tty=wanted.terminal)
    except EngineError as error:
        raise RunError(f"the command cannot be started: {error.message}", failure=FailureReason.INVALID_SPEC) from error
    session = EngineSession(api, exec_id, connection, container_id=container_id, wanted=wanted, clock=clock)
    if wanted.terminal:
        await session.resize(wanted.window.rows, wanted.window.columns)
    if not has_input:
        await session.end_input()
    return session


class EngineSession:
    """A command in a container."""

    def __init__(
        self,
        api: EngineApi,
        exec_id: str,
        connection: TakenConnection,
        *,
        container_id: str,
        wanted: ExecCommand,
        clock: Clock,
    ) -> None:
        self._api = api
        self._exec_id = exec_id
        self._connection = connection
        self._container_id = container_id
        self._wanted = wanted
        self._clock = clock
        self._ended = False

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """What it prints, to its end."""
        pieces = self._connection.read()
        if self._wanted.terminal:
            async for piece in pieces:
                yield "stdout", piece
        else:
            async for frame in split_frames(pieces):
                yield frame

    async def write(self, data: bytes) -> None:
        """Hand it input; waits while it does not read."""
        await self._connection.write(data)

    async def end_input(self) -> None:
        """Close its input."""
        if self._wanted.terminal:
            await self._connection.write(b"\x04")
        else:
            self._connection.end_input()

    async def resize(self, rows: int, columns: int) -> None:
        """Its terminal has another size. An engine that is not ready for it yet is asked again."""
        if not self._wanted.terminal:
            return
        deadline = self._clock.monotonic() + 1.0
        while True:
            try:
                await self._api.resize_exec(self._exec_id, rows, columns)
            except ShoalError:
                if self._clock.monotonic() > deadline:
                    return
                await self._clock.sleep(_POLL_SECONDS)
            else:
                return

    async def wait(self) -> ExecEnd:
        """How it ended. The engine may need a moment after the end of its output."""
        deadline = self._clock.monotonic() + _END_SECONDS
        while (code := await self._api.exec_exit_code(self._exec_id)) is None:
            if self._clock.monotonic() > deadline:
                await self.close()
                return ExecEnd(signal=signal.SIGKILL)
            await self._clock.sleep(_POLL_SECONDS)
        self._ended = True
        if _SIGNAL_BASE < code <= _SIGNAL_BASE + _HIGHEST_SIGNAL:
            return ExecEnd(signal=code - _SIGNAL_BASE)
        return ExecEnd(code=code)

    async def close(self) -> None:
        """Let go of the connection, and kill the command if it has not ended."""
        await self._connection.close()
        if self._ended:
            return
        with contextlib.suppress(ShoalError):
            pid = await self._api.exec_pid(self._exec_id)
            if pid:
                await asyncio.to_thread(_kill_in_container, pid, self._container_id)


def _kill_in_container(pid: int, container_id: str) -> None:
    """Kill a process if it is one of the container: an engine elsewhere counts in numbers of its own."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if any(container_id in str(place.directory) for place in read_memberships(pid=pid)):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(handle)

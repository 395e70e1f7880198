"""Commands inside a VM, through its guest agent. Called by `shoal.runtimes.vm.runtime`.

The guest agent starts a command with all of its input and hands out its output at the end. So there is no terminal, and
input is collected first, up to a limit.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from typing import Any, Protocol

from shoal.core.clock import Clock
from shoal.core.errors import ExhaustedError, ShoalError, UnavailableError, UnsupportedError
from shoal.model.execs import ExecCommand, ExecEnd
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.vm.guest_agent import GuestAgentError

MAX_INPUT = 1 << 20
_POLL_SECONDS = 0.1


class GuestCalls(Protocol):
    """The guest agent of one VM."""

    async def call(self, command: str, **arguments: Any) -> Any:
        """Ask it. Raises `UnavailableError` when nobody answers."""
        ...

    async def answers(self) -> bool:
        """Whether there is one that answers."""
        ...


async def start_command(agent: GuestCalls, wanted: ExecCommand, clock: Clock) -> GuestSession:
    """Start a command in a guest. Raises `UnsupportedError` with the reason where that cannot be done."""
    if wanted.terminal:
        raise UnsupportedError("the guest agent of a VM has no terminals", hint="leave out -t, or use ssh")
    if not await agent.answers():
        raise UnsupportedError(
            "this VM has no guest agent that answers", hint="install qemu-guest-agent in the guest, or use ssh"
        )
    session = GuestSession(agent, wanted, clock)
    if not wanted.interactive:
        await session.end_input()
    return session


class GuestSession:
    """A command in a guest."""

    def __init__(self, agent: GuestCalls, wanted: ExecCommand, clock: Clock) -> None:
        self._agent = agent
        self._wanted = wanted
        self._clock = clock
        self._input = bytearray()
        self._pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._end: ExecEnd | None = None

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """What it printed, once it has ended."""
        pid = await asyncio.shield(self._pid)
        while not (status := await self._agent.call("guest-exec-status", pid=pid)).get("exited"):
            await self._clock.sleep(_POLL_SECONDS)
        self._end = ExecEnd(code=int(status.get("exitcode") or 0), signal=int(status.get("signal") or 0))
        for stream, field in (("stdout", "out-data"), ("stderr", "err-data")):
            if data := _decoded(status.get(field, "")):
                yield stream, data

    async def write(self, data: bytes) -> None:
        """Collect input. Raises `ExhaustedError` when it is too much."""
        if len(self._input) + len(data) > MAX_INPUT:
            raise ExhaustedError(f"a command in a VM takes at most {MAX_INPUT:,} bytes of input", limit=MAX_INPUT)
        self._input += data

    async def end_input(self) -> None:
        """Start it: its input is complete. Raises `RunError` when the guest cannot."""
        if self._pid.done():
            return
        path, *words = self._wanted.command
        given = {"input_data": base64.b64encode(self._input).decode()} if self._input else {}
        try:
            started = await self._agent.call("guest-exec", path=path, arg=words, capture_output=True, **given)
        except GuestAgentError as error:
            raise RunError(
                f"the command cannot be started: {error.message}", failure=FailureReason.INVALID_SPEC
            ) from error
        self._pid.set_result(int(started["pid"]))

    async def resize(self, rows: int, columns: int) -> None:
        """It has no terminal."""
        del rows, columns

    async def wait(self) -> ExecEnd:
        """How it ended."""
        if self._end is None:
            raise UnavailableError("the command in the guest has not ended")
        return self._end

    async def close(self) -> None:
        """Kill it, if it has not ended."""
        if not self._pid.done():
            self._pid.set_exception(UnavailableError("the command was not started"))
            self._pid.exception()
            return
        if self._end is None and self._pid.exception() is None:
            try:
                await self._agent.call("guest-exec", path="kill", arg=["-KILL", str(self._pid.result())])
            except ShoalError:
                return  # the guest is gone, and the command with it


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""

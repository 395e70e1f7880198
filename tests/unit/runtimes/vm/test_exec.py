"""Commands inside a VM: what the guest agent is asked, and what cannot be done with it."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from shoal.core.errors import ExhaustedError, UnavailableError, UnsupportedError
from shoal.model.execs import ExecCommand, ExecEnd
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.vm.exec import MAX_INPUT, start_command
from shoal.runtimes.vm.guest_agent import GuestAgentError
from shoal.testing.clock import LoopClock

pytestmark = pytest.mark.looptime


@dataclass
class Guest:
    """A guest agent as its protocol describes it: a command prints its input and runs for two polls."""

    is_there: bool = True
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    polls: int = 0

    async def answers(self) -> bool:
        return self.is_there

    async def call(self, command: str, **arguments: Any) -> Any:
        self.calls.append((command, arguments))
        if command == "guest-exec":
            return {"pid": 42}
        self.polls += 1
        if self.polls < 3:
            return {"exited": False}
        given = self.calls[0][1].get("input_data", "")
        return {"exited": True, "exitcode": 7, "out-data": given, "err-data": base64.b64encode(b"oops\n").decode()}


def clock() -> LoopClock:
    return LoopClock(datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_command_runs_in_the_guest() -> None:
    guest = Guest()
    session = await start_command(guest, ExecCommand(("sh", "-c", "true")), clock())
    assert [piece async for piece in session.output()] == [("stderr", b"oops\n")]
    assert await session.wait() == ExecEnd(code=7)
    await session.close()
    assert guest.calls[0] == ("guest-exec", {"path": "sh", "arg": ["-c", "true"], "capture_output": True})
    assert [name for name, _ in guest.calls[1:]] == ["guest-exec-status"] * 3


async def test_input_is_collected_first() -> None:
    guest = Guest()
    session = await start_command(guest, ExecCommand(("cat",), interactive=True), clock())
    await session.write(b"ty")
    await session.write(b"ped")
    assert guest.calls == []
    await session.end_input()
    assert [piece async for piece in session.output()] == [("stdout", b"typed"), ("stderr", b"oops\n")]
    with pytest.raises(ExhaustedError):
        await session.write(b"x" * MAX_INPUT)


async def test_a_command_is_killed_when_it_is_closed() -> None:
    guest = Guest()
    session = await start_command(guest, ExecCommand(("sleep", "1000")), clock())
    await session.close()
    assert guest.calls[-1] == ("guest-exec", {"path": "kill", "arg": ["-KILL", "42"]})


async def test_one_that_was_not_started_prints_nothing() -> None:
    session = await start_command(Guest(), ExecCommand(("cat",), interactive=True), clock())
    await session.close()
    with pytest.raises(UnavailableError, match="not started"):
        await anext(session.output())


@pytest.mark.parametrize("is_interactive", [False, True])
async def test_a_program_that_is_not_there_is_told_as_such(is_interactive: bool) -> None:
    class Empty(Guest):
        async def call(self, command: str, **arguments: Any) -> Any:
            if command == "guest-exec":
                raise GuestAgentError("guest-exec: Failed to execute child process")
            return await super().call(command, **arguments)

    async def start() -> None:
        session = await start_command(Empty(), ExecCommand(("nowhere",), interactive=is_interactive), clock())
        await session.end_input()

    with pytest.raises(RunError, match="Failed to execute") as raised:
        await start()
    assert (raised.value.failure, raised.value.transient) == (FailureReason.INVALID_SPEC, False)


@pytest.mark.parametrize(
    ("guest", "command", "reason"),
    [
        (Guest(is_there=False), ExecCommand(("true",)), "no guest agent"),
        (Guest(), ExecCommand(("sh",), terminal=True), "no terminals"),
    ],
    ids=["no agent", "terminal"],
)
async def test_what_cannot_be_done_is_refused_with_the_reason(guest: Guest, command: ExecCommand, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        await start_command(guest, command, clock())

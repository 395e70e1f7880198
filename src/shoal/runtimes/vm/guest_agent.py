"""The guest agent (qemu-ga) of a VM: JSON lines over a socket that leads into the guest.

The guest need not have one, and one that is busy or gone answers late or never, so every call has a time limit. QEMU
serves one client at a time; calls of this agent wait for each other. Called by `boot`, `runtime` and by exec.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from shoal.core.errors import UnavailableError
from shoal.runtimes.keeper.files import connect

_SECONDS = 5.0
_MAX_ANSWER = 64 * 1024 * 1024
#: Before an answer to `guest-sync-delimited`, so that what an earlier client left unread is not taken for ours.
_DELIMITER = b"\xff"
_numbers = itertools.count(1)


class GuestAgentError(UnavailableError):
    """The guest agent answered with an error."""


class GuestAgent:
    """The guest agent behind one socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._turn = asyncio.Lock()

    async def call(self, command: str, *, seconds: float = _SECONDS, **arguments: Any) -> Any:
        """Ask the guest agent. Raises `UnavailableError` when nobody answers, `GuestAgentError` for an error."""
        try:
            async with asyncio.timeout(seconds), self._turn, self._connected() as (reader, writer):
                await _synchronize(reader, writer)
                _send(writer, command, arguments)
                answer = json.loads(await reader.readline())
        except (OSError, TimeoutError, ValueError, EOFError) as error:
            raise UnavailableError(
                f"the guest agent does not answer: {error or type(error).__name__}",
                hint="install qemu-guest-agent in the guest",
            ) from error
        if "error" in answer:
            raise GuestAgentError(f"{command}: {answer['error'].get('desc', answer['error'])}")
        return answer.get("return")

    async def answers(self, *, seconds: float = 1.0) -> bool:
        """Whether there is a guest agent that answers."""
        try:
            await self.call("guest-ping", seconds=seconds)
        except UnavailableError:
            return False
        return True

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        link = connect(self._socket)
        reader, writer = await asyncio.open_unix_connection(sock=link, limit=_MAX_ANSWER)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _synchronize(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    number = next(_numbers)
    writer.write(_DELIMITER)
    _send(writer, "guest-sync-delimited", {"id": number})
    while True:
        await reader.readuntil(_DELIMITER)
        with contextlib.suppress(ValueError):
            if json.loads(await reader.readline()).get("return") == number:
                return


def _send(writer: asyncio.StreamWriter, command: str, arguments: dict[str, Any]) -> None:
    names = {name.replace("_", "-"): value for name, value in arguments.items()}
    writer.write(json.dumps({"execute": command, "arguments": names}).encode() + b"\n")

"""What QEMU is asked while a guest runs, over its monitor socket (QMP). Called by `shoal.runtimes.vm.runtime`.

One connection per question: a guest runs for weeks and is asked a few times, and a restarted agent resumes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qemu.qmp import QMPClient, QMPError

from shoal.core.errors import UnavailableError
from shoal.runtimes.keeper.files import connect

_SECONDS = 10.0
#: A row of `info usernet`: protocol, state, handle, the host's address and port, then the guest's.
_CONNECTION = re.compile(r"TCP\[(\w+)\]\s+\d+\s+\S+\s+(\d+)\s")
#: Before the guest has accepted, and the row of the forward itself.
_NOT_ACCEPTED = frozenset({"SYN_SENT", "SYN_RECEIVED", "CLOSED", "HOST_FORWARD"})


@dataclass(frozen=True, slots=True)
class GuestLook:
    """How a guest is, and what it has read from its disks and written to them."""

    read_bytes: int
    write_bytes: int
    #: QEMU paused it because its disk could not be written.
    is_paused: bool


async def look(socket: Path, *, seconds: float = _SECONDS) -> GuestLook:
    """Ask QEMU how a guest is. One that is paused is told to go on: there may be room again. Raises `UnavailableError`.

    A guest that still cannot write is paused again at once.
    """
    async with _connected(socket, seconds) as client:
        status: Any = await client.execute("query-status")
        answer: Any = await client.execute("query-blockstats")
        is_paused = status["status"] == "io-error"
        if is_paused:
            await client.execute("cont")
        stats = [each["stats"] for each in answer]
        return GuestLook(sum(each["rd_bytes"] for each in stats), sum(each["wr_bytes"] for each in stats), is_paused)


async def accepts(socket: Path, host_port: int) -> bool:
    """Whether the guest accepts connections on a forwarded port. Raises `UnavailableError`.

    QEMU itself accepts every connection to a forwarded port. Its table of connections tells what the guest accepted.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", host_port)
    except OSError:
        return False
    try:
        for _ in range(5):  # the guest answers within milliseconds, or its network is not up
            async with _connected(socket) as client:
                table: Any = await client.execute("human-monitor-command", {"command-line": "info usernet"})
            found = {state for state, port in _CONNECTION.findall(str(table)) if int(port) == host_port}
            if found - _NOT_ACCEPTED:
                return True
            if reader.at_eof():
                return False
            await asyncio.sleep(0.02)
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def _connected(socket: Path, seconds: float = _SECONDS) -> AsyncGenerator[QMPClient]:
    client = QMPClient("shoal")
    client.logger.setLevel(logging.CRITICAL)
    try:
        async with asyncio.timeout(seconds):
            await client.connect(connect(socket))
            try:
                yield client
            finally:
                with contextlib.suppress(QMPError, OSError, EOFError):
                    await client.disconnect()
    except (QMPError, OSError, TimeoutError, EOFError) as error:
        raise UnavailableError(f"the monitor of the VM does not answer: {error or type(error).__name__}") from error

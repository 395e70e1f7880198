"""What QEMU is told while a guest runs, over its monitor socket (QMP). Called by `shoal.runtimes.vm.runtime`.

One connection per question: a guest runs for weeks and is asked a few times, and a restarted agent resumes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from qemu.qmp import QMPClient, QMPError

from shoal.core.errors import UnavailableError

_SECONDS = 10.0


async def power_down(socket: Path) -> None:
    """Press the power button: the guest shuts down by itself if it listens. Raises `UnavailableError`."""
    async with _connected(socket) as client:
        await client.execute("system_powerdown")


async def run_state(socket: Path) -> str:
    """QEMU's word for the state of the guest, such as `running` or `io-error`. Raises `UnavailableError`."""
    async with _connected(socket) as client:
        answer: Any = await client.execute("query-status")
        return str(answer["status"])


@contextlib.asynccontextmanager
async def _connected(socket: Path) -> AsyncGenerator[QMPClient]:
    client = QMPClient("shoal")
    client.logger.setLevel(logging.CRITICAL)
    try:
        async with asyncio.timeout(_SECONDS):
            await client.connect(str(socket))
            try:
                yield client
            finally:
                with contextlib.suppress(QMPError, OSError):
                    await client.disconnect()
    except (QMPError, OSError, TimeoutError, EOFError) as error:
        raise UnavailableError(f"the monitor of the VM does not answer: {error or type(error).__name__}") from error

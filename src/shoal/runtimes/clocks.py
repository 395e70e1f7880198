"""The keeper's two clocks.

`shoal.core.clock` would pull the whole of asyncio into a process that has to stay small, and it has no clock that
counts while the machine is suspended: a deadline must pass during a suspend, because the other side's lease does.
Called by the keeper's loop and by code that stamps a record.
"""

from __future__ import annotations

import time
from typing import Protocol


class KeeperClock(Protocol):
    """What the keeper may know of time."""

    def boottime(self) -> float:
        """Seconds since the machine booted, suspends included."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970; for stamps only."""
        ...


class LinuxClock:
    """The machine's clocks."""

    def boottime(self) -> float:
        """CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_ms(self) -> int:
        """CLOCK_REALTIME."""
        return time.time_ns() // 1_000_000


def iso_millis(wall_ms: int) -> str:
    """A stamp in UTC such as 2026-01-31T12:00:00.250Z."""
    seconds, millis = divmod(wall_ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{millis:03d}Z"

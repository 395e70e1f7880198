"""The only reader of time. Loops take a `Clock`; pure code takes `now`.

`monotonic()` is the running event loop's own time, so that under a virtual-time loop every sleep, timeout and
reading agree to the microsecond.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What product code may know of time."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; for durations and deadlines."""
        ...

    def wall(self) -> datetime:
        """The date, in UTC; for people and for stamps, never for liveness."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """The loop's time inside a loop, the system's outside; on Linux the two are one clock."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return time.monotonic()

    def wall(self) -> datetime:
        """Now, in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(seconds)


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since 1970, as the wire carries them."""
    return round(moment.timestamp() * 1000)


def from_epoch_ms(value: int) -> datetime:
    """The inverse of `epoch_ms`."""
    return datetime.fromtimestamp(value / 1000, UTC)

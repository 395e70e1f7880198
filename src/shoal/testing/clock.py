"""A clock for tests: steady time is the loop's, and the date is a fixed start plus it.

Under a loop in virtual time every sleep, timeout, steady reading and date agree exactly.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta


class LoopClock:
    """Follows the running event loop."""

    def __init__(self, start: datetime) -> None:
        self._start = start
        self._offset = timedelta(0)

    def monotonic(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()

    def wall(self) -> datetime:
        """The start, plus the loop's time, plus what the date was set off by."""
        return self._start + timedelta(seconds=self.monotonic()) + self._offset

    async def sleep(self, seconds: float) -> None:
        """Wait on the loop."""
        await asyncio.sleep(seconds)

    def set_date_off(self, offset: timedelta) -> None:
        """Somebody sets the machine's date; steady time goes on as before."""
        self._offset = offset

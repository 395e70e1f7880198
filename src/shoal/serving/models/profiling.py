"""Measures how fast a model server answers: calls it from several tasks for a while, and sums the latencies up.

Called by `shoal serving-client profile`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError

#: Measuring ends after so many calls, so that memory is bounded.
MAX_CALLS = 1_000_000


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured. Latencies are in milliseconds, of calls that were answered."""

    calls: int
    errors: int
    seconds: float
    #: The first error, if there was one.
    first_error: str
    average_ms: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0

    @property
    def qps(self) -> float:
        """Answered calls per second."""
        return self.calls / self.seconds if self.seconds > 0 else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of sorted values lies; 0 without values."""
    return ordered[round((len(ordered) - 1) * share)] if ordered else 0.0


async def measure(call: Callable[[], Awaitable[object]], *, clock: Clock, seconds: float, parallel: int) -> Profile:
    """Call again and again for so long, from so many tasks at once."""
    latencies: list[float] = []
    failures: list[str] = []
    began = clock.monotonic()

    async def work() -> None:
        while clock.monotonic() - began < seconds and len(latencies) + len(failures) < MAX_CALLS:
            before = clock.monotonic()
            try:
                await call()
            except ShoalError as error:
                failures.append(error.message)
                await clock.sleep(0.01)  # a server that refuses at once must not be asked in a busy loop
            else:
                latencies.append((clock.monotonic() - before) * 1000)

    await asyncio.gather(*(work() for _ in range(parallel)))
    ordered = sorted(latencies)
    return Profile(
        calls=len(ordered),
        errors=len(failures),
        seconds=clock.monotonic() - began,
        first_error=failures[0] if failures else "",
        average_ms=sum(ordered) / len(ordered) if ordered else 0.0,
        p50_ms=percentile(ordered, 0.5),
        p99_ms=percentile(ordered, 0.99),
    )

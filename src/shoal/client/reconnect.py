"""Decides how long a broken stream is opened again, and with which delays. Called by the streams of the client."""

from __future__ import annotations

import math

from shoal.core.clock import Clock
from shoal.core.retry import Backoff

_DELAYS = Backoff(first=0.2, cap=2.0)
_STABLE_AFTER = 1.0
"""Seconds. A stream that broke sooner did not prove that the control plane is back."""


class Reconnect:
    """The state of one stream that is opened again whenever it breaks."""

    def __init__(self, clock: Clock, *, patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._failures = 0
        self._opened_at = math.inf
        self._lost_at = math.inf

    @property
    def is_first(self) -> bool:
        """Whether nothing has failed since the last success."""
        return self._failures == 0

    def opening(self) -> None:
        """The stream is being opened now."""
        self._opened_at = self._clock.monotonic()

    def received(self) -> None:
        """The stream gave something: it works."""
        self._failures = 0

    def lost(self) -> bool:
        """The stream broke. Returns whether it was broken for so long that the error is to be raised."""
        now = self._clock.monotonic()
        self._lost_at = now if now - self._opened_at > _STABLE_AFTER else min(self._lost_at, now)
        self._opened_at = math.inf
        return now - self._lost_at >= self._patience

    async def wait(self) -> None:
        """Wait before the stream is opened again; longer after each failure."""
        self._failures += 1
        await self._clock.sleep(_DELAYS.plain_delay(self._failures))

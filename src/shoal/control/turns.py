"""Orders to agents take turns: only so many are begun at once, however many workloads were placed together.

While wishes pour in, it matters more that each of them is decided on than that each agent is told at once: what is
decided is durable, and telling takes as long as deciding. Without turns every placement would put an order before the
wishes that still wait. An order that is not answered within a moment gives its turn to the next: so agents that are
slow or gone hold up nobody.

Owned by `shoal.control.dispatch`.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

#: Orders that are begun and not answered.
MOST_AT_ONCE = 16
#: Seconds after which an order counts no more, answered or not.
MOMENT = 0.1


class Turns:
    """Gives out turns."""

    def __init__(self, most: int = MOST_AT_ONCE, *, moment: float = MOMENT) -> None:
        self._free = asyncio.Semaphore(most)
        self._moment = moment

    def one(self) -> Turn:
        """A turn, for an `async with` around an order: it begins when there is one."""
        return Turn(self._free, self._moment)


class Turn:
    """The turn of one order."""

    __slots__ = ("_free", "_moment", "_timer")

    def __init__(self, free: asyncio.Semaphore, moment: float) -> None:
        self._free = free
        self._moment = moment
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._free.acquire()
        self._timer = asyncio.get_running_loop().call_later(self._moment, self._give_back)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._give_back()

    def _give_back(self) -> None:
        self._timer = None
        self._free.release()

"""Orders to agents take turns: only so many are begun at once, however many workloads were placed together.

While wishes pour in, it matters more that each of them is decided on than that each agent is told at once: what is
decided is durable, and telling takes as long as deciding. Without turns every placement would put an order before the
wishes that still wait. Once nothing waits for a place, many more are begun at once. An order that is not answered
within a moment gives its turn to the next: so agents that are slow or gone hold up nobody.

Owned by `shoal.control.workloads.dispatch`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType

#: Orders that are begun and not answered, while wishes wait for a place.
FEW = 16
#: The same, while none does. Bounds what an agent's process and the store get at once.
MANY = 256
#: Seconds after which an order counts no more, answered or not.
MOMENT = 0.1


class Turns:
    """Gives out turns, in the order in which they were asked for.

    Args:
        most: how many there are at once, asked each time.
        moment: seconds that one lasts at most.
    """

    def __init__(self, most: Callable[[], int], *, moment: float = MOMENT) -> None:
        self._most = most
        self.moment = moment
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def one(self) -> Turn:
        """A turn, for an `async with` around an order: it begins when there is one."""
        return Turn(self)

    async def take(self) -> None:
        """Wait for a turn."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()  # it went away
        if not self._waiting and self._taken < self._most():
            self._taken += 1
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():  # it got its turn in the very same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """Let the next ones begin: as many as there may be now, which may be more or fewer than before."""
        self._taken -= 1
        most = self._most() if self._waiting else 0
        while self._waiting and self._taken < most:
            following = self._waiting.popleft()
            if not following.done():
                self._taken += 1
                following.set_result(None)


class Turn:
    """The turn of one order."""

    __slots__ = ("_timer", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._turns.take()
        self._timer = asyncio.get_running_loop().call_later(self._turns.moment, self._give_back)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._give_back()

    def _give_back(self) -> None:
        self._timer = None
        self._turns.give_back()

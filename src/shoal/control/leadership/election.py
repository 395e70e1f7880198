"""Who leads, when several control planes share one database: a campaign that never ends.

Every control plane campaigns again and again. The store answers who leads by its own clock; whoever leads renews, and
everybody else waits for its time to run out. The term that was won is checked by every write, so a leader that was
stopped and wakes after its time writes nothing. With a database of its own a control plane wins at once and stays.

A leader that is cut off from the store may have been followed by another without knowing. It counts its own time from
when it asked for it, which is before the store began to count, and a tenth less: once that is over it does not vouch
for anything any more (`is_confirmed`), and nobody else has begun before.

Called by `shoal.control.server`, which begins and ends reigns by what is told here.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any

from shoal.control.state.loops import Rounds
from shoal.control.store.base import Leader, Store
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.tasks import running
from shoal.model.nodes import LEASE_MARGIN

log = logging.getLogger(__name__)

#: A leader that is not heard of for this long has lost. With the wait between campaigns it bounds a change of leader.
LEASE_SECONDS = 5.0
RENEW_SECONDS = 1.0


class Election:
    """One control plane's part in it."""

    def __init__(
        self,
        store: Store,
        *,
        holder: str,
        address: Callable[[], str],
        clock: Clock,
        on_change: Callable[[Leader, bool], Coroutine[Any, Any, None]],
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._store = store
        self._holder = holder
        self._address = address
        self._clock = clock
        self._on_change = on_change
        self._lease_seconds = lease_seconds
        self._renew_seconds = min(RENEW_SECONDS, lease_seconds / 4)
        self.leader = Leader(0, "", "", 0.0)
        self._confirmed_until = -math.inf

    @property
    def leads(self) -> bool:
        """Whether this control plane leads, as far as it knows."""
        return self.leader.holder == self._holder

    @property
    def is_confirmed(self) -> bool:
        """Whether nobody else can have begun to lead yet."""
        return self._clock.monotonic() < self._confirmed_until

    async def once(self) -> None:
        """Campaign once, and tell of a change. Raises what the store raises."""
        while True:
            leader = await self._ask()
            # First done, then believed: what fails half-way is done again after the next campaign.
            if _is_same(leader, self.leader) or await self._adopt(leader):
                self.leader = leader
                return

    async def run(self) -> None:
        """Campaign for ever. A store that is away changes nothing about who leads: nobody can write meanwhile."""
        rounds = Rounds("election")
        while True:
            await self._clock.sleep(self._renew_seconds)
            with rounds.attempt():
                await self.once()

    async def _ask(self) -> Leader:
        asked_at = self._clock.monotonic()
        leader = await self._store.acquire_leadership(self._holder, self._address(), seconds=self._lease_seconds)
        leads = leader.holder == self._holder
        self._confirmed_until = asked_at + leader.expires_in * (1.0 - LEASE_MARGIN) if leads else -math.inf
        return leader

    async def _adopt(self, leader: Leader) -> bool:
        """Tell of a new leader. False when it leads no more by then.

        To begin means to read everything, which takes its time in a large fleet: the lease is renewed meanwhile.
        """
        leads = leader.holder == self._holder
        if leads:
            self.leader = Leader(leader.term, "", "", 0.0)  # nobody leads until it has begun
        async with running(self._on_change(leader, leads), name="change of leader") as changing:
            while not (await asyncio.wait({changing}, timeout=self._renew_seconds))[0]:
                if leads and not await self._keeps(leader):
                    return False
            changing.result()
        return True

    async def _keeps(self, leader: Leader) -> bool:
        try:
            return _is_same(await self._ask(), leader)
        except ShoalError as error:
            log.info("the leadership was not renewed and is tried again: %s", error)
            return True

    async def resign(self) -> None:
        """Let the others lead at once, in good order."""
        if not self.leads:
            return
        try:
            await self._store.resign(self._holder)
        except ShoalError as error:
            log.warning("the leadership could not be given up; it ends by itself: %s", error)


def _is_same(one: Leader, other: Leader) -> bool:
    return (one.holder, one.term) == (other.holder, other.term)

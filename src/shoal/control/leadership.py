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

import logging
import math
from collections.abc import Awaitable, Callable

from shoal.control.store.base import Leader, Store
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.model.nodes import LEASE_MARGIN

log = logging.getLogger(__name__)

#: A leader that is not heard of for this long has lost. With the wait between campaigns it bounds a change of leader.
LEASE_SECONDS = 5.0
RENEW_SECONDS = 1.0


class Campaign:
    """One control plane's part in it."""

    def __init__(
        self,
        store: Store,
        *,
        holder: str,
        address: Callable[[], str],
        clock: Clock,
        on_change: Callable[[Leader, bool], Awaitable[None]],
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._store = store
        self._holder = holder
        self._address = address
        self._clock = clock
        self._on_change = on_change
        self._lease_seconds = lease_seconds
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
        asked_at = self._clock.monotonic()
        leader = await self._store.campaign(self._holder, self._address(), seconds=self._lease_seconds)
        leads = leader.holder == self._holder
        self._confirmed_until = asked_at + leader.expires_in * (1.0 - LEASE_MARGIN) if leads else -math.inf
        if (leader.holder, leader.term) != (self.leader.holder, self.leader.term):
            # First done, then believed: what fails half-way is done again after the next campaign.
            await self._on_change(leader, leads)
        self.leader = leader

    async def run(self) -> None:
        """Campaign for ever. A store that is away changes nothing about who leads: nobody can write meanwhile."""
        while True:
            await self._clock.sleep(min(RENEW_SECONDS, self._lease_seconds / 4))
            try:
                await self.once()
            except ShoalError as error:
                log.debug("campaign: %s", error)

    async def resign(self) -> None:
        """Let the others lead at once, in good order."""
        if not self.leads:
            return
        try:
            await self._store.resign(self._holder)
        except ShoalError as error:
            log.debug("resigning: %s", error)

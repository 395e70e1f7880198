"""Elects the leader among the control planes that share one database.

Each control plane asks the store for the leadership once a second. The store decides by its own clock: the leader
renews its lease, the others wait until it ends. Every write checks the term, so a leader that was stopped and wakes
after its lease writes nothing. A control plane with a database of its own leads at once and stays the leader.

A leader that is cut off from the store may have been replaced without knowing. It counts its lease from the moment it
asked, which is before the store began to count, and a tenth less. After that it confirms nothing (`is_confirmed`), and
no other leader has begun before.

Called by `shoal.control.server`, which begins and ends a leadership when `on_change` is called.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any

from shoal.control.leadership.states import LeadershipChange, LeadershipState, change_leadership, judge_leader
from shoal.control.state.loops import Rounds
from shoal.control.store.base import Leader, Store
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.tasks import running
from shoal.model.nodes import LEASE_MARGIN

log = logging.getLogger(__name__)

#: The lease of the leadership. With RENEW_SECONDS it bounds how long a change of leader takes.
LEASE_SECONDS = 5.0
RENEW_SECONDS = 1.0


class Election:
    """One control plane's part in the election."""

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
        self.state = LeadershipState.LEADERLESS
        self._confirmed_until = -math.inf

    @property
    def leads(self) -> bool:
        """Whether this control plane leads, as far as it knows."""
        return self.state is LeadershipState.LEADING

    @property
    def is_confirmed(self) -> bool:
        """Whether no other control plane can lead yet."""
        return self._clock.monotonic() < self._confirmed_until

    async def once(self) -> None:
        """Ask for the leadership once, and report a change. Raises what the store raises."""
        while True:
            leader = await self._ask()
            # Stored only when the change is done: a change that fails is tried again the next time.
            if _is_same(leader, self.leader) or await self._adopt(leader):
                self.leader = leader
                return

    async def run(self) -> None:
        """Ask for the leadership forever. While the store is unavailable the leader stays: nobody can write."""
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
        """Report a new leader. False when this control plane has lost the leadership meanwhile.

        A new leader reads the whole store, which takes long in a large fleet; the lease is renewed meanwhile.
        """
        what = judge_leader(leader, holder=self._holder)
        leads = what is LeadershipChange.ELECTED
        self._become(what)
        if leads:
            self.leader = Leader(leader.term, "", "", 0.0)  # no leader until it has started
        async with running(self._on_change(leader, leads), name="change of leader") as changing:
            while not (await asyncio.wait({changing}, timeout=self._renew_seconds))[0]:
                if leads and not await self._keeps(leader):
                    return False
            changing.result()
        if leads:
            self._become(LeadershipChange.STARTED)
        return True

    def _become(self, what: LeadershipChange) -> None:
        self.state = change_leadership(self.state, what)

    async def _keeps(self, leader: Leader) -> bool:
        try:
            return _is_same(await self._ask(), leader)
        except ShoalError as error:
            log.info("the leadership was not renewed and is tried again: %s", error)
            return True

    async def resign(self) -> None:
        """End the leadership, so that another control plane leads at once."""
        elected = self.state in (LeadershipState.STARTING, LeadershipState.LEADING)
        self._become(LeadershipChange.RESIGNED)
        if not elected:
            return
        try:
            await self._store.resign(self._holder)
        except ShoalError as error:
            log.warning("the leadership could not be ended in the store; its lease ends by itself: %s", error)


def _is_same(one: Leader, other: Leader) -> bool:
    return (one.holder, one.term) == (other.holder, other.term)

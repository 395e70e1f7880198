"""Watches every lease: marks nodes Suspect and NotReady, and forgives silence that was this process's own fault.

A round looks only at nodes that are late or may be: with thousands of nodes, a look at all would delay heartbeats.

When this process starts, or finds that it was stopped itself for a while, every node gets a full lease before it can
be declared lost. Started by the leader.
"""

from __future__ import annotations

import dataclasses
import heapq
import logging
import math
from collections.abc import Iterable
from datetime import datetime

from shoal.control.nodes import leases
from shoal.control.nodes.contacts import Contact, Contacts
from shoal.control.nodes.loss import LostNodes
from shoal.control.nodes.node_states import NodeStates, Silent
from shoal.control.state.ledger import Ledger
from shoal.control.state.loops import Rounds
from shoal.control.store.base import Batch
from shoal.control.workloads.work_queue import WorkQueue
from shoal.core.clock import Clock, epoch_ms
from shoal.core.ids import NodeId
from shoal.model.events import EventSource
from shoal.model.nodes import NodeRecord, NodeState

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
#: A pause of this process longer than this share of a lease counts as its own absence, not the nodes'.
OWN_ABSENCE_SHARE = 0.25
#: The shortest pause between two rounds, as a share of a tick: with thousands of nodes one of them changes at any time.
SETTLE_SHARE = 0.2
#: The pause is also so many times as long as the last round, but not longer than a tick.
PAUSE_ROUNDS = 10.0
#: The time of a node's last heartbeat is stored again when it is this many leases newer than the stored one. A node
#: that is well is looked at twice in a lease, so the stored time is at most two leases old.
STORE_AFTER_LEASES = 1.5
#: A node whose state changes within this time is judged now.
_SOON = 0.001


class LeaseWatch:
    """Judges every lease when it may be over."""

    def __init__(
        self,
        ledger: Ledger,
        queue: WorkQueue,
        contacts: Contacts,
        states: NodeStates,
        lost_nodes: LostNodes,
        *,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._queue = queue
        self._contacts = contacts
        self._states = states
        self._lost_nodes = lost_nodes
        self._clock = clock
        self._settings = contacts.settings
        #: Nodes that are well and when each is looked at next, the soonest first. An entry counts if `_next_look` has
        #: the same moment. Heartbeats do not touch it: the look finds a renewed lease and sets the next one.
        self._due: list[tuple[float, NodeId]] = []
        self._next_look: dict[NodeId, float] = {}
        #: Nodes that are not known to be well. They are looked at in every round.
        self._late: set[NodeId] = set()
        ledger.on_reload(self._look_at_all)

    async def store_promise(self) -> None:
        """Store a lease that is longer than the stored one, before the first heartbeat is answered.

        The next leader, perhaps with a shorter setting, has to wait as long as agents may count on this one.
        """
        promised = self._settings.lease_seconds

        def decide() -> Batch | None:
            longer = [
                dataclasses.replace(node, lease_seconds=promised)
                for node in self._fleet.nodes.values()
                if node.lease_seconds < promised
            ]
            return Batch(nodes=tuple(longer)) if longer else None

        await self._ledger.change(decide)

    async def run(self) -> None:
        """Judge leases until cancelled."""
        last_look = self._clock.monotonic()
        rounds, wait, pause = Rounds("leases"), self._tick, self._tick * SETTLE_SHARE
        while True:
            if await self._contacts.changed.wait(timeout=wait):
                # When a fleet returns, every registration wakes this loop; one round judges all of them.
                await self._clock.sleep(pause)
            now = self._clock.monotonic()
            if now - last_look > max(2.0 * self._tick, self._settings.lease_seconds * OWN_ABSENCE_SHARE):
                log.warning("this process was away for %.1f s; every node gets a full lease", now - last_look)
                self._contacts.renew_all()
            last_look = now
            with rounds.attempt():
                self._contacts.sync()
                looked_at = self._take_due(now)
                wait = min(self._tick, await self._judge(looked_at, now))
                await self._store_heartbeat_times(looked_at)
            last_look = self._clock.monotonic()
            pause = min(self._tick, max(self._tick * SETTLE_SHARE, PAUSE_ROUNDS * (last_look - now)))
            wait = max(wait, pause)

    async def stream_broke(self, node_id: NodeId) -> None:
        """The stream of a node has ended: the node gets no new work until its next heartbeat."""
        contact, node = self._contacts.get(node_id), self._fleet.nodes.get(node_id)
        if contact is None or node is None or node.state is not NodeState.READY:
            return
        silent = Silent(NodeState.SUSPECT, "its stream broke", contact.lease.last_receipt)
        self._look_soon(node_id)
        await self._states.set_silent({node_id: silent}, by=EventSource.STREAM)

    @property
    def _tick(self) -> float:
        return min(TICK_SECONDS, self._settings.lease_seconds / 10)

    def _take_due(self, now: float) -> list[NodeId]:
        """The nodes to look at: those that are late, those whose turn has come, and those that are new here."""
        while self._due and self._due[0][0] <= now + _SOON:
            moment, node_id = heapq.heappop(self._due)
            if self._next_look.get(node_id) == moment:
                self._look_soon(node_id)
        self._late |= self._contacts.keys() - self._next_look.keys()
        return list(self._late)

    def _look_soon(self, node_id: NodeId) -> None:
        self._next_look.pop(node_id, None)
        self._late.add(node_id)

    def _look_again(self, node_id: NodeId, moment: float) -> None:
        """A node is well, and stays well until then."""
        self._late.discard(node_id)
        self._next_look[node_id] = moment
        heapq.heappush(self._due, (moment, node_id))

    def _look_at_all(self) -> None:
        """Memory was read again: nothing that was seen before counts."""
        self._due.clear()
        self._next_look.clear()
        self._late.clear()

    async def _judge(self, node_ids: Iterable[NodeId], now: float) -> float:
        """Judge the leases of these nodes; all others are well. Returns the seconds until the next state changes."""
        soonest = math.inf
        alive = suspect = 0
        silent: dict[NodeId, Silent] = {}
        for node_id in node_ids:
            node, contact = self._fleet.nodes.get(node_id), self._contacts.get(node_id)
            if node is None or contact is None or node.dead:
                self._late.discard(node_id)
                self._contacts.forget(node_id)
                continue
            left, heard = self._seconds_left(contact, node, now), contact.lease.last_receipt
            if left > _SOON:
                self._look_again(node_id, now + left)
                continue
            verdict = leases.judge(
                last_receipt=heard,
                lease=contact.lease.seconds,
                now=now,
                settings=self._settings,
                heard=contact.lease.heard,
            )
            soonest = min(soonest, verdict.next_change_in or math.inf)
            if verdict.may_give_away_at_most_one and not contact.surely_stopped:
                contact.surely_stopped = True
                self._queue.enqueue_all(self._fleet.owned_by(node_id))
            state = leases.next_state(node.state, verdict, desired=node.desired.state)
            if state is not node.state and state in (NodeState.SUSPECT, NodeState.NOT_READY):
                silent[node_id] = Silent(state, verdict.reason, heard)
            elif state is not NodeState.NOT_READY:
                suspect += verdict.state is NodeState.SUSPECT
                alive += verdict.state is not NodeState.SUSPECT
        alive += len(self._contacts) - len(self._late)
        if self._due:
            soonest = min(soonest, self._due[0][0] - now)
        returned = await self._states.set_silent(silent, by=EventSource.LEASE)
        for node_id, each in silent.items():
            if node_id in returned:
                alive += 1
            elif each.state is NodeState.SUSPECT:
                suspect += 1
            elif (lost := self._contacts.get(node_id)) is not None:
                lost.lost_at = now
                self._queue.enqueue_all(self._fleet.owned_by(node_id))
        return min(soonest, await self._lost_nodes.judge(now, self._late, alive=alive, suspect=suspect))

    def _seconds_left(self, contact: Contact, node: NodeRecord, now: float) -> float:
        """How long a node that is well stays well without a heartbeat."""
        if node.state in (NodeState.SUSPECT, NodeState.NOT_READY):
            return 0.0
        return contact.lease.last_receipt + self._settings.suspect_after(contact.lease.seconds) - now

    async def _store_heartbeat_times(self, node_ids: Iterable[NodeId]) -> None:
        """Store from time to time when each of these nodes was last heard from, all in one batch."""
        due: dict[NodeId, tuple[Contact, datetime]] = {}
        for node_id in node_ids:
            contact = self._contacts.get(node_id)
            if contact is None or contact.last_heartbeat is None or node_id not in self._fleet.nodes:
                continue
            stored = contact.heartbeat_stored
            age = (contact.last_heartbeat - stored).total_seconds() if stored is not None else math.inf
            if age >= STORE_AFTER_LEASES * self._settings.lease_seconds:
                due[node_id] = (contact, contact.last_heartbeat)
        if due:
            await self._ledger.commit(Batch(heartbeats={each: epoch_ms(at) for each, (_, at) in due.items()}))
        for contact, at in due.values():
            contact.heartbeat_stored = at

"""Declares nodes lost, so that their work moves: at a limited rate, and not while most of the fleet vanished at once.

`shoal.control.workloads.decisions.failover` decides; this module collects the facts and stores the verdicts.
Called by `lease_watch` after each round.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Collection, Iterable

from shoal.control.nodes.contacts import Contacts
from shoal.control.state.events import Origin, node_event
from shoal.control.state.ledger import Ledger
from shoal.control.store.base import Batch
from shoal.control.workloads.decisions.failover import (
    Brake,
    Bucket,
    FailoverSettings,
    FleetHealth,
    LostNode,
    judge_evictions,
)
from shoal.control.workloads.work_queue import WorkQueue
from shoal.core.clock import Clock
from shoal.core.ids import NodeId
from shoal.model.events import Event, EventKind, EventSource, SubjectKind
from shoal.model.nodes import NodeState

log = logging.getLogger(__name__)


class LostNodes:
    """The nodes whose lease has run out, and which of them may be replaced."""

    def __init__(
        self,
        ledger: Ledger,
        queue: WorkQueue,
        contacts: Contacts,
        *,
        clock: Clock,
        settings: FailoverSettings,
        cluster_id: str,
    ) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._queue = queue
        self._contacts = contacts
        self._clock = clock
        self._settings = settings
        self._cluster_id = cluster_id
        self._bucket = Bucket()
        self._brake: Brake | None = None
        #: Why no work is moved from lost nodes; empty when the brake is off.
        self.brake = ""

    async def judge(self, now: float, silent: Iterable[NodeId], *, alive: int, suspect: int) -> float:
        """Declare nodes lost as fast as the settings allow. Returns the seconds until the next look.

        `silent`: every node that is NotReady, and perhaps others.
        """
        health = self._health(now, silent, alive=alive, suspect=suspect)
        verdict = judge_evictions(
            health,
            self._bucket,
            now=now,
            settings=self._settings,
            brake=self._brake,
            lease=self._contacts.settings.lease_seconds,
        )
        await self._note_brake(health, braked=verdict.braked)
        await self._declare_lost(verdict.declare_lost)
        self._bucket, self._brake = verdict.bucket, verdict.brake
        return verdict.next_in if verdict.next_in is not None else math.inf

    def _health(self, now: float, silent: Iterable[NodeId], *, alive: int, suspect: int) -> FleetHealth:
        held: list[LostNode] = []
        lately = 0
        for node_id in silent:
            node, contact = self._fleet.nodes.get(node_id), self._contacts.get(node_id)
            if node is None or contact is None or node.state is not NodeState.NOT_READY:
                continue
            if not node.declared_lost:
                contact.lost_at = now if contact.lost_at is None else contact.lost_at
                held.append(LostNode(node_id, contact.lost_at, has_work=bool(self._fleet.owned_by(node_id))))
            elif contact.lost_at is not None and now - contact.lost_at < contact.lease.seconds:
                lately += 1
        return FleetHealth(alive, suspect, held, lately)

    async def _note_brake(self, health: FleetHealth, *, braked: bool) -> None:
        if braked == bool(self.brake):
            return
        share = f"{health.vanished} of {health.total} nodes vanished within a lease"
        at = self._clock.wall()
        if braked:
            message = f"{share}: the fault may be on this side, so nothing is moved until nodes return"
            event = Event(
                at, SubjectKind.CONTROL, self._cluster_id, EventKind.FAILOVER_PAUSED, message, EventSource.LEASE, share
            )
        else:
            message = "enough nodes are heard of again"
            event = Event(
                at, SubjectKind.CONTROL, self._cluster_id, EventKind.FAILOVER_RESUMED, message, EventSource.LEASE, share
            )
        await self._ledger.commit(Batch(events=(event,)))
        (log.error if braked else log.info)("%s", event.message)
        self.brake = share if braked else ""

    async def _declare_lost(self, node_ids: Collection[NodeId]) -> None:
        """Let the work of these nodes be started elsewhere, all in one commit."""

        def decide() -> Batch | None:
            found = (self._fleet.nodes.get(each) for each in node_ids)
            lost = [each for each in found if each and not each.declared_lost and each.state is NodeState.NOT_READY]
            message, at = "its work is started elsewhere, as far as each workload's policy allows", self._clock.wall()
            events = (
                node_event(
                    each.node_id,
                    EventKind.NODE_DECLARED_LOST,
                    message,
                    Origin(at, EventSource.LEASE, each.state_reason),
                )
                for each in lost
            )
            declared = tuple(dataclasses.replace(each, declared_lost=True) for each in lost)
            return Batch(nodes=declared, events=tuple(events)) if lost else None

        if node_ids:
            await self._ledger.change(decide)
        for node_id in node_ids:
            self._queue.enqueue_all(self._fleet.owned_by(node_id))

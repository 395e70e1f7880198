"""Drains nodes: moves their workloads away, a few at a time, until none is left.

`shoal.control.state.moves` decides which workload moves next, and the reconciler carries a move out. A workload that
fits nowhere else stays and is tried again; one that runs to completion is waited for; after the deadline the rest is
moved by force. A restart loses nothing: the request is stored with the node, each move with its workload.

Started by `shoal.control.leadership.leader`; calls `shoal.control.workloads.relocation` and
`shoal.control.nodes.operations`.
"""

from __future__ import annotations

import logging

from shoal.control.nodes.operations import NodeOperations
from shoal.control.placement.feasible import describe_rejections
from shoal.control.placement.placer import Placer, Unplaced, request_for
from shoal.control.placement.scheduler import place
from shoal.control.state.events import Origin, workload_event
from shoal.control.state.fleet import holds_reservation
from shoal.control.state.ledger import Ledger
from shoal.control.state.loops import Rounds
from shoal.control.state.moves import Leaver, next_moves
from shoal.control.store.base import Batch
from shoal.control.workloads.relocation import Relocation
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.errors import ShoalError
from shoal.core.ids import NodeId, WorkloadId
from shoal.core.retry import Backoff
from shoal.core.tasks import Signal
from shoal.model.events import EventKind, EventSource
from shoal.model.nodes import DesiredNodeState, NodeState
from shoal.model.workloads import DesiredState, MoveKind, WorkloadRecord

log = logging.getLogger(__name__)

#: How often a draining node is checked, besides the changes that are stored.
LOOK_SECONDS = 1.0
#: A workload that could not be moved is tried again after this long.
STUCK_BACKOFF = Backoff(first=2.0, cap=30.0)


class Drains:
    """The drains in progress."""

    def __init__(
        self,
        ledger: Ledger,
        relocation: Relocation,
        placer: Placer,
        operations: NodeOperations,
        *,
        clock: Clock,
        entropy: Entropy,
        parallel: int,
    ) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._relocation = relocation
        self._placer = placer
        self._operations = operations
        self._clock = clock
        self._entropy = entropy
        self._parallel = parallel
        self._wake = Signal()
        self._tries: dict[WorkloadId, tuple[int, float]] = {}
        #: Why a workload cannot move yet, for views.
        self.stuck: dict[WorkloadId, str] = {}
        # From what is stored, not from the call: its answer may be lost and the caller gone.
        ledger.on_batch(self._stored)
        ledger.on_reload(self._wake.set)

    def _stored(self, batch: Batch) -> None:
        if any(node.desired is DesiredNodeState.DRAINING for node in batch.nodes):
            self._wake.set()

    def _is_draining(self, node_id: NodeId) -> bool:
        node = self._fleet.nodes.get(node_id)
        return node is not None and node.desired is DesiredNodeState.DRAINING

    async def run(self) -> None:
        """Drain until cancelled."""
        rounds = Rounds("drains")
        while True:
            draining = [node_id for node_id in self._fleet.nodes if self._is_draining(node_id)]
            for node_id in draining:
                with rounds.attempt(node_id):
                    await self._look_at(node_id)
            rounds.keep_only(draining)
            if not draining:
                self._tries.clear()
                self.stuck.clear()
            await self._wake.wait(timeout=LOOK_SECONDS if draining else None)

    async def _look_at(self, node_id: NodeId) -> None:
        node = self._fleet.nodes.get(node_id)
        if node is None:
            return
        if not self._fleet.leaving(node_id):  # what has left without a new node yet looks for one by itself
            if node.state is NodeState.DRAINING:  # it is in contact, so its heartbeats prove that it is empty
                await self._operations.drained(node_id)
            return
        if node.state is NodeState.NOT_READY:
            return  # lost: its work moves by the rules of failover
        forced = node.drain_deadline is not None and self._clock.wall() >= node.drain_deadline
        step = next_moves(
            self._leavers(node_id),
            on_the_way=self._on_the_way(node_id),
            parallel=self._parallel,
            forced=forced,
            now=self._clock.monotonic(),
        )
        for leaver in step.begin:
            if self._is_draining(node_id):  # the drain may have been canceled meanwhile
                await self._begin(leaver, node_id)
        for leaver in step.force:
            if self._is_draining(node_id):
                await self._force(leaver, node_id)

    def _on_the_way(self, node_id: NodeId) -> int:
        moving = (self._fleet.workloads[each] for each in self._fleet.moving_from(node_id))
        return sum(each.desired is DesiredState.RUNNING for each in moving)

    def _leavers(self, node_id: NodeId) -> list[Leaver]:
        """The workloads that have to be moved: those that should run."""
        ids = self._fleet.owned_by(node_id) | self._fleet.moving_from(node_id)
        records = (self._fleet.workloads[each] for each in ids)
        return [self._leaver(each) for each in records if self._has_to_leave(each, node_id)]

    def _has_to_leave(self, record: WorkloadRecord, node_id: NodeId) -> bool:
        if record.desired is not DesiredState.RUNNING:
            return False
        if record.move is not None and record.move.away_from == node_id:
            return record.move.kind is MoveKind.BEFORE or record.node_id == node_id
        return holds_reservation(record, self._fleet.observations.get(record.workload_id))

    def _leaver(self, record: WorkloadRecord) -> Leaver:
        return Leaver(
            record.workload_id,
            MoveKind.BEFORE if record.spec.migrates_first else MoveKind.AFTER,
            moving=record.move is not None,
            ends=record.spec.completes and not record.spec.failover.migrate,
            not_before=self._tries.get(record.workload_id, (0, 0.0))[1],
        )

    # -----------------------------------------------------------------------------------------------------
    # Moves

    async def _begin(self, leaver: Leaver, node_id: NodeId) -> None:
        reason = f"node {node_id} is drained"
        if leaver.kind is MoveKind.BEFORE:
            unplaced = await self._relocation.move_first(leaver.workload_id, reason=reason)
        else:
            unplaced = self._without_a_place(leaver.workload_id)
            if unplaced is None:
                await self._relocation.move_after(leaver.workload_id, node_id, reason=reason)
        # Also for a move that began: if its replacement fails and it comes back, the next try waits.
        tries = self._tries.get(leaver.workload_id, (0, 0.0))[0] + 1
        again_at = self._clock.monotonic() + STUCK_BACKOFF.delay(tries, self._entropy)
        self._tries[leaver.workload_id] = (tries, again_at)
        if unplaced is None:
            self.stuck.pop(leaver.workload_id, None)
            return
        self._wake.set()  # another workload may be able to move
        await self._note_stuck(leaver.workload_id, unplaced)

    def _without_a_place(self, workload_id: WorkloadId) -> Unplaced | None:
        """Check for a place before a workload is stopped to be moved."""
        record = self._fleet.workloads.get(workload_id)
        if record is None:
            return None
        request = request_for(self._fleet, record, away_from=record.node_id)
        (decision,) = place([request], self._fleet.facts(), strategy=self._placer.strategy).decisions
        return Unplaced(decision.rejections) if decision.node_id is None else None

    async def _note_stuck(self, workload_id: WorkloadId, unplaced: Unplaced) -> None:
        is_news = workload_id not in self.stuck
        words = self.stuck[workload_id] = describe_rejections(unplaced.rejections)
        record = self._fleet.workloads.get(workload_id)
        if is_news and record is not None:
            cause = f"node {record.node_id} is drained, and no other takes it"
            origin = Origin(self._clock.wall(), EventSource.DRAIN, cause)
            event = workload_event(record, EventKind.WORKLOAD_MOVE_WAITING, words, origin)
            try:
                await self._ledger.commit(Batch(events=(event,)))
            except ShoalError:
                del self.stuck[workload_id]  # it is still news in the next round
                raise

    async def _force(self, leaver: Leaver, node_id: NodeId) -> None:
        """After the deadline: move it, whether or not its replacement is ready or fits anywhere."""
        record = self._fleet.workloads.get(leaver.workload_id)
        if record is None:
            return
        reason = f"the deadline for draining node {node_id} has passed"
        if record.move is not None and record.move.kind is MoveKind.BEFORE:
            await self._relocation.finish(leaver.workload_id, reason)
        if record.node_id == node_id:
            await self._relocation.move_after(leaver.workload_id, node_id, reason=reason)

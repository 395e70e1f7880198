"""Places one workload, and stores an event when it fits nowhere.

Called by `shoal.control.workloads.dispatch` and, when an agent refuses a workload, by `shoal.control.workloads.sender`.
"""

from __future__ import annotations

from shoal.control.placement.feasible import describe_rejections
from shoal.control.placement.placer import Placer, Unplaced
from shoal.control.state.events import Origin, workload_event
from shoal.control.state.fleet import Fleet
from shoal.control.state.ledger import Ledger
from shoal.control.store.base import Batch
from shoal.control.workloads.commands import CommandLog
from shoal.control.workloads.copies import Copies
from shoal.control.workloads.groups import Groups
from shoal.control.workloads.pending import Pending
from shoal.core.clock import Clock
from shoal.core.ids import NodeId
from shoal.model.events import EventKind, EventSource
from shoal.model.nodes import NodeState
from shoal.model.workloads import WorkloadRecord


class Placing:
    """Places single workloads through the placer."""

    def __init__(
        self,
        ledger: Ledger,
        placer: Placer,
        *,
        commands: CommandLog,
        pending: Pending,
        copies: Copies,
        groups: Groups,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._fleet: Fleet = ledger.fleet
        self._placer = placer
        self._commands = commands
        self._pending = pending
        self._copies = copies
        self._groups = groups
        self._clock = clock

    async def place(self, record: WorkloadRecord, *, reason: str, away_from: NodeId | None = None) -> Unplaced | None:
        """Place a workload, away from the nodes that have refused it. None when it has a node, or needs none."""
        unplaced = await self._placer.place(
            record.workload_id,
            reason=reason,
            away_from=away_from,
            refused_by=self._commands.standing_refusals(record.workload_id),
        )
        if unplaced is None:
            self._pending.forget(record.workload_id)
            self._leave_behind(record)
        return unplaced

    async def note_unplaced(self, record: WorkloadRecord, unplaced: Unplaced) -> None:
        """A workload fits nowhere: it waits, or the change of its group is undone."""
        is_news = self._pending.note(record.workload_id, unplaced.rejections)
        if record.group_id is not None and await self._groups.member_unplaceable(record, unplaced.rejections):
            return
        if is_news:
            origin = Origin(
                self._clock.wall(), EventSource.SCHEDULER, f"generation {record.generation} fits on no node"
            )
            event = workload_event(
                record, EventKind.WORKLOAD_UNPLACEABLE, describe_rejections(unplaced.rejections), origin
            )
            await self._ledger.commit(Batch(events=(event,)))

    def _leave_behind(self, before: WorkloadRecord) -> None:
        """It has moved away from a node in contact: its copy is removed at once, not after the next heartbeat."""
        after = self._fleet.workloads.get(before.workload_id)
        if after is None or before.node_id is None or after.node_id == before.node_id:
            return
        node = self._fleet.nodes.get(before.node_id)
        if node is not None and node.state is not NodeState.NOT_READY:
            self._copies.note(before.workload_id, before.node_id, before.placed_generation)

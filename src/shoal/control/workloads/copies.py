"""Removes copies of workloads from nodes that own them no longer, and notes when they are gone.

A copy is only removed after a newer placement or a delete. Removals go through the command pump, so a node that does
not answer delays neither the owner nor other copies. Called by `shoal.control.workloads.dispatch` and for heartbeats.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from functools import partial

from shoal.control.agents.calls import Agents, is_foreign
from shoal.control.agents.pump import Pump
from shoal.control.state.facts import Removal
from shoal.control.state.fleet import Fleet
from shoal.control.state.ledger import Ledger
from shoal.control.store.base import Batch
from shoal.control.workloads.decisions import changes
from shoal.control.workloads.decisions.reports import is_superseded
from shoal.control.workloads.work_queue import WorkQueue
from shoal.core.errors import NotFoundError, ShoalError
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.nodes import HeartbeatMark
from shoal.model.workloads import DesiredState

log = logging.getLogger(__name__)


class Copies:
    """The copies that lost their ownership, as far as they are known to exist."""

    def __init__(self, ledger: Ledger, agents: Agents, pump: Pump, queue: WorkQueue) -> None:
        self._ledger = ledger
        self._fleet: Fleet = ledger.fleet
        self._agents = agents
        self._pump = pump
        self._queue = queue
        #: Copies that a node was told to remove and has agreed to: it takes no older command about them. With the first
        #: heartbeat that it made after that.
        self._fenced: defaultdict[WorkloadId, dict[NodeId, HeartbeatMark | None]] = defaultdict(dict)
        self._superseded: defaultdict[WorkloadId, dict[NodeId, int]] = defaultdict(dict)
        ledger.on_batch(self._stored)
        ledger.on_reload(lambda: self._drop_old_fences(list(self._fenced)))

    def _stored(self, batch: Batch) -> None:
        self._drop_old_fences([each.workload_id for each in batch.workloads if each.workload_id in self._fenced])

    def _drop_old_fences(self, workload_ids: Iterable[WorkloadId]) -> None:
        """What a node agreed to ends when it owns the workload again, or is removed: the next copy is another one."""
        for workload_id in workload_ids:
            record, fenced = self._fleet.workloads.get(workload_id), self._fenced[workload_id]
            for node_id in list(fenced):
                if node_id not in self._fleet.nodes or (record is not None and record.node_id == node_id):
                    del fenced[node_id]

    def note(self, workload_id: WorkloadId, node_id: NodeId, generation: int) -> None:
        """A node holds a copy that lost its ownership: it goes with the next `remove`."""
        self._superseded[workload_id][node_id] = generation

    def superseded(self, workload_id: WorkloadId, node_id: NodeId, generation: int) -> None:
        """A node holds a copy that lost its ownership: remove that copy there."""
        self.note(workload_id, node_id, generation)
        self._queue.enqueue(workload_id)

    async def absent(self, node_id: NodeId, workload_ids: Iterable[WorkloadId], heartbeat: HeartbeatMark) -> None:
        """A node that may hold older copies of these sent a heartbeat without them.

        That alone is no proof: a command that was sent before the move may still be in flight. So the node is told to
        remove what it has first, which it remembers. What a heartbeat made after that does not list is gone for good.
        """
        confirmed = []
        for workload_id in workload_ids:
            record = self._fleet.workloads.get(workload_id)
            fenced = self._fenced.get(workload_id, {})
            if node_id in fenced:
                if not heartbeat.is_before(fenced[node_id]):
                    confirmed.append(workload_id)
            elif record is not None:
                deleted = record.desired is DesiredState.DELETED
                self.superseded(workload_id, node_id, record.generation if deleted else record.placed_generation - 1)
        if confirmed:
            await self.gone(node_id, confirmed)

    async def gone(self, node_id: NodeId, workload_ids: Iterable[WorkloadId]) -> None:
        """A node no longer holds older copies of these."""
        ids = tuple(workload_ids)
        if await self._ledger.change(lambda: changes.copies_gone(self._fleet, node_id, ids)) is not None:
            for workload_id in ids:
                self._queue.enqueue(workload_id)
        for workload_id in ids:
            if node_id in self._fenced.get(workload_id, {}):
                del self._fenced[workload_id][node_id]

    def forget(self, workload_id: WorkloadId) -> None:
        """A workload was deleted."""
        self._fenced.pop(workload_id, None)
        self._superseded.pop(workload_id, None)

    def remove(self, workload_id: WorkloadId) -> None:
        """Tell the nodes that hold copies of a workload, and do not own it, to remove them."""
        for node_id in self._superseded.get(workload_id, ()):
            self._pump.submit(node_id, workload_id, partial(self._remove, workload_id, node_id))

    async def _remove(self, workload_id: WorkloadId, node_id: NodeId) -> None:
        superseded = self._superseded.get(workload_id, {})
        generation = superseded.pop(node_id, None)
        if not superseded:
            self._superseded.pop(workload_id, None)
        if generation is None:
            return
        try:
            await self._remove_one(workload_id, node_id, generation)
        except ShoalError as error:  # the next heartbeat reports the copy again
            log.info("superseded copy of %s on node %s: %s", workload_id, node_id, error)

    async def _remove_one(self, workload_id: WorkloadId, node_id: NodeId, generation: int) -> None:
        record = self._fleet.workloads.get(workload_id)
        node = self._fleet.nodes.get(node_id)
        if record is None or node is None or record.node_id == node_id:
            return
        if not is_superseded(record, node_id, generation):
            return
        # A foreign agent answers before it acts, and may go on reporting what it has removed. So its list of actions
        # is read before it is told again.
        if node_id in self._fenced.get(workload_id, {}) and is_foreign(node):
            removal = await self._agents.removal(node, workload_id)
            if removal is Removal.DONE:
                await self.gone(node_id, [workload_id])
            if removal in (Removal.DONE, Removal.BUSY):
                return
        try:
            moved = record.desired is not DesiredState.DELETED
            fence = await self._agents.delete(node, workload_id, generation, keep_data=moved)
        except NotFoundError:
            await self.gone(node_id, [workload_id])
            return
        self._fenced[workload_id][node_id] = fence
        log.info("removed the copy of %s with generation %d on node %s", workload_id, generation, node_id)

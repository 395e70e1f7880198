"""Gathers the facts that the reconciler decides from: records, the last command, and contact with nodes.

Called by `shoal.control.workloads.dispatch`, `shoal.control.workloads.groups` and
`shoal.control.workloads.status_reports`.
"""

from __future__ import annotations

from typing import Protocol

from shoal.control.state.fleet import Fleet
from shoal.control.workloads.commands import CommandLog
from shoal.control.workloads.decisions.reconciler import Facts, Owner, is_current
from shoal.control.workloads.pending import Pending
from shoal.core.clock import Clock
from shoal.core.ids import NodeId
from shoal.model.nodes import NodeState
from shoal.model.workloads import WorkloadRecord


class Liveness(Protocol):
    """What is known about contact with nodes; see `shoal.control.nodes.contacts`."""

    def surely_stopped(self, node_id: NodeId) -> bool:
        """Whether an at-most-one copy on a lost node must have stopped by now."""
        ...

    def silence(self, node_id: NodeId) -> float:
        """Seconds since the last heartbeat of a node."""
        ...

    def lease_of(self, node_id: NodeId) -> float:
        """How long a node counts as alive after a heartbeat."""
        ...

    def predecessor_until(self, node_id: NodeId) -> float:
        """Until when another agent that held this node id may still run at-most-one work; 0 when there is none."""
        ...


class WorkloadFacts:
    """The facts about each workload, as they are now."""

    def __init__(
        self, fleet: Fleet, commands: CommandLog, pending: Pending, liveness: Liveness, *, clock: Clock
    ) -> None:
        self._fleet = fleet
        self._commands = commands
        self._pending = pending
        self._liveness = liveness
        self._clock = clock

    def of(self, record: WorkloadRecord) -> Facts:
        """The facts about one workload."""
        owner = None
        node = self._fleet.owner_of(record)
        if node is not None:
            owner = Owner(
                node,
                surely_stopped=self._liveness.surely_stopped(node.node_id),
                silence=self._liveness.silence(node.node_id),
                lease=self._liveness.lease_of(node.node_id),
                predecessor_until=self._liveness.predecessor_until(node.node_id),
            )
        return Facts(
            record=record,
            owner=owner,
            observation=self._fleet.observations.get(record.workload_id),
            command=self._commands.get(record.workload_id),
            now=self._clock.monotonic(),
            wall=self._clock.wall(),
            older_copy_may_run=any(self._copy_may_run(record, node_id) for node_id in record.left_on),
            place_not_before=self._pending.not_before(record.workload_id),
            invalid=record.workload_id in self._commands.invalid,
            way_back=record.move is not None and self.is_in_contact(record.move.away_from),
        )

    def has_accepted(self, record: WorkloadRecord) -> bool:
        """Whether its owner is known to have the newest generation."""
        command = self._commands.get(record.workload_id)
        if command is not None and command.accepted and command.generation == record.generation:
            return True
        return is_current(self.of(record))

    def is_current(self, record: WorkloadRecord) -> bool:
        """Whether the last status report is about the newest generation, from its owner."""
        return is_current(self.of(record))

    def is_in_contact(self, node_id: NodeId) -> bool:
        """Whether a node is known and not lost."""
        node = self._fleet.nodes.get(node_id)
        return node is not None and node.state is not NodeState.NOT_READY

    def _copy_may_run(self, record: WorkloadRecord, node_id: NodeId) -> bool:
        node = self._fleet.nodes.get(node_id)
        if node is None or node.dead:
            return False
        return node_id in record.left_without_deadline or not self._liveness.surely_stopped(node_id)

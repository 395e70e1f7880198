"""The working set: everything that is stored, in memory, indexed for decisions.

The store holds the truth; this holds a copy that changes only when a batch was committed, so a reader never sees
what may still be lost. `shoal.control.state.ledger` is the one way to change both. Read by every module of the control
plane.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

from shoal.control.state.facts import NodeFacts
from shoal.control.state.moves import held_reservation, is_held
from shoal.control.store.base import Batch, Snapshot
from shoal.core.errors import NotFoundError
from shoal.core.ids import GroupId, JobId, NodeId, WorkloadId
from shoal.model.jobs import JobRecord
from shoal.model.nodes import DesiredNodeState, NodeRecord, NodeState
from shoal.model.resources import Resources
from shoal.model.trust import Revocation
from shoal.model.workloads import DesiredState, GroupRecord, Observation, RunState, Usage, WorkloadRecord


def holds_reservation(record: WorkloadRecord, observation: Observation | None) -> bool:
    """Whether the reservation of a workload on its node is still in use.

    It is freed when the owner confirms that the placed generation does not run and will not start by itself: stopped as
    requested, completed, or failed. A newer generation reserves when it is placed, not before.
    """
    if record.node_id is None:
        return False
    if observation is None or observation.node_id != record.node_id:
        return True
    status = observation.status
    if status.generation and status.generation < record.placed_generation:
        return True
    waits = record.desired is not DesiredState.RUNNING or record.placed_generation < record.generation
    ended = status.state is RunState.STOPPED and (waits or status.completed)
    return not (ended or status.state is RunState.FAILED)


class Fleet:
    """Nodes, workloads, groups and last reports, with what is reserved where."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.workloads: dict[WorkloadId, WorkloadRecord] = {}
        self.groups: dict[GroupId, GroupRecord] = {}
        self.observations: dict[WorkloadId, Observation] = {}
        self.revocations: dict[NodeId, Revocation] = {}
        self.jobs: dict[JobId, JobRecord] = {}
        #: New workloads get generations above this one, so that a name that is used again repeats none.
        self.generation_floor = 0
        self._left_on: defaultdict[NodeId, set[WorkloadId]] = defaultdict(set)
        self._owned: defaultdict[NodeId, set[WorkloadId]] = defaultdict(set)
        #: The workloads on their way off a node that is drained.
        self._moving: set[WorkloadId] = set()
        self._facts: dict[NodeId, NodeFacts] = {}
        self._disk_pressure: dict[NodeId, str] = {}

    def owned_by(self, node_id: NodeId) -> frozenset[WorkloadId]:
        """The workloads that a node owns."""
        return frozenset(self._owned.get(node_id, ()))

    def left_on(self, node_id: NodeId) -> frozenset[WorkloadId]:
        """The workloads of which a node may hold an older copy."""
        return frozenset(self._left_on.get(node_id, ()))

    def moving_from(self, node_id: NodeId) -> frozenset[WorkloadId]:
        """The workloads on their way off a node, until they run elsewhere."""
        found = (self.workloads[each] for each in self._moving)
        return frozenset(each.workload_id for each in found if each.move and each.move.away_from == node_id)

    def leaving(self, node_id: NodeId) -> frozenset[WorkloadId]:
        """The workloads that still have to leave a node before it is empty. What has ended there may stay."""
        held = {
            each
            for each in self._owned.get(node_id, ())
            if holds_reservation(self.workloads[each], self.observations.get(each))
        }
        return frozenset(held | self._left_on.get(node_id, set()))

    def has_nameless_end(self, workload_id: WorkloadId) -> bool:
        """Whether the last report is of an end, by an agent that does not say of which generation."""
        known = self.observations.get(workload_id)
        ends = (RunState.STOPPED, RunState.FAILED)
        return known is not None and not known.status.generation and known.status.state in ends

    def node(self, node_id: str) -> NodeRecord:
        """A node, or NotFoundError."""
        record = self.nodes.get(NodeId(node_id))
        if record is None:
            raise NotFoundError("node", node_id)
        return record

    def owner_of(self, record: WorkloadRecord) -> NodeRecord | None:
        """The node that owns a workload; None without one, and when its record was removed."""
        return self.nodes.get(record.node_id) if record.node_id is not None else None

    def workload(self, workload_id: str) -> WorkloadRecord:
        """A workload, or NotFoundError."""
        record = self.workloads.get(WorkloadId(workload_id))
        if record is None or self.is_buried(record):
            raise NotFoundError("workload", workload_id)
        return record

    def group(self, group_id: str) -> GroupRecord:
        """A group, or NotFoundError."""
        record = self.groups.get(GroupId(group_id))
        if record is None:
            raise NotFoundError("group", group_id)
        return record

    def job(self, job_id: str) -> JobRecord:
        """A job, or NotFoundError."""
        record = self.jobs.get(JobId(job_id))
        if record is None:
            raise NotFoundError("job", job_id)
        return record

    def is_buried(self, record: WorkloadRecord) -> bool:
        """Whether it is deleted for users, and only a tombstone is left for a lost node."""
        if record.desired is not DesiredState.DELETED:
            return False
        if record.node_id is None:
            return bool(record.left_on)
        owner = self.owner_of(record)
        return owner is not None and owner.state is NodeState.NOT_READY

    def facts(self) -> dict[NodeId, NodeFacts]:
        """Every node as the scheduler sees it."""
        if len(self._facts) < len(self.nodes):  # some have changed; only nodes that there are have facts
            for node_id in self.nodes:
                if node_id not in self._facts:
                    self._facts[node_id] = self._make_facts(node_id)
        return self._facts

    def facts_of(self, node_id: NodeId) -> NodeFacts:
        """One node as the scheduler sees it."""
        found = self._facts.get(node_id)
        if found is None:
            found = self._facts[node_id] = self._make_facts(node_id)
        return found

    def take(self, batch: Batch) -> None:
        """Apply a batch that the store has committed."""
        for node in batch.nodes:
            self.nodes[node.node_id] = dataclasses.replace(node, version=node.version + 1)
            self._facts.pop(node.node_id, None)
        for workload in batch.workloads:
            self._put_workload(dataclasses.replace(workload, version=workload.version + 1))
        for group in batch.groups:
            self.groups[group.group_id] = dataclasses.replace(group, version=group.version + 1)
        for observation in batch.observations:
            self._put_observation(observation)
        for workload_id in (*batch.forgotten_observations, *batch.removed_workloads):
            self._drop_observation(workload_id)
        for workload_id in batch.removed_workloads:
            self._remove_workload(workload_id)
        for node_id in batch.removed_nodes:
            self.nodes.pop(node_id, None)
            self._facts.pop(node_id, None)
            self._disk_pressure.pop(node_id, None)
        for revoked in batch.removed_revocations:
            self.revocations.pop(revoked, None)
        for revocation in batch.revocations:
            self.revocations[revocation.node_id] = dataclasses.replace(revocation, version=revocation.version + 1)
        self._take_jobs(batch)
        self.generation_floor = max(self.generation_floor, batch.generation_floor)
        for group_id in batch.removed_groups:
            self.groups.pop(group_id, None)

    def _take_jobs(self, batch: Batch) -> None:
        for job in batch.jobs:
            self.jobs[job.job_id] = dataclasses.replace(job, version=job.version + 1)
        for job_id in batch.removed_jobs:
            self.jobs.pop(job_id, None)

    def measured(self, workload_id: WorkloadId, usage: Usage) -> None:
        """Take in a measurement. It is not stored: the next heartbeat brings a newer one."""
        known = self.observations.get(workload_id)
        if known is None:
            return
        self.observations[workload_id] = dataclasses.replace(
            known, status=dataclasses.replace(known.status, usage=usage)
        )

    def note_disk_pressure(self, node_id: NodeId, why: str) -> bool:
        """Note why a node's disk is nearly full; empty when it is not. Returns whether the pressure is over now."""
        before = self._disk_pressure.pop(node_id, "")
        if why:
            self._disk_pressure[node_id] = why
        if why != before:
            self._facts.pop(node_id, None)
        return bool(before) and not why

    def load(self, stored: Snapshot) -> None:
        """Replace everything with what is stored."""
        self.workloads, self.observations = {}, {}
        self._moving.clear()
        for index in (self._owned, self._left_on):
            index.clear()
        self._facts.clear()
        self.nodes = {node.node_id: node for node in stored.nodes}
        self.groups = {group.group_id: group for group in stored.groups}
        self.revocations = {each.node_id: each for each in stored.revocations}
        self.jobs = {each.job_id: each for each in stored.jobs}
        self.generation_floor = stored.generation_floor
        for workload in stored.workloads:
            self._put_workload(workload)
        for observation in stored.observations:
            self._put_observation(observation)

    def _make_facts(self, node_id: NodeId) -> NodeFacts:
        node = self.nodes[node_id]
        owned = (self.workloads[each] for each in self._owned.get(node_id, ()))
        left = (self.workloads[each] for each in self._left_on.get(node_id, ()))
        tenants = [each for each in owned if holds_reservation(each, self.observations.get(each.workload_id))]
        held = [each for each in left if is_held(each, node_id)]  # two copies for a while: both are reserved
        reserved = [(each.reserved, each.reserved_ports) for each in tenants] + [
            held_reservation(each) for each in held
        ]
        return NodeFacts(
            spec=node.labeled_spec,
            state=node.state,
            reserved=Resources.total(request for request, _ in reserved),
            ports=frozenset(parse_port(port) for _, ports in reserved for port in ports),
            tenants={each.workload_id: each.spec.labels for each in (*tenants, *held)},
            cordoned=node.desired is DesiredNodeState.CORDONED,
            disk_pressure=self._disk_pressure.get(node_id, ""),
            unsupported_types=node.unsupported_types,
        )

    def _put_workload(self, record: WorkloadRecord) -> None:
        before = self.workloads.get(record.workload_id)
        if before is not None and before.node_id is not None and before.node_id != record.node_id:
            _discard(self._owned, before.node_id, record.workload_id)
            self._facts.pop(before.node_id, None)
        self._index_left_on(before.left_on if before is not None else (), record)
        self._index_move(before, record)
        self.workloads[record.workload_id] = record
        if record.node_id is not None:
            self._owned[record.node_id].add(record.workload_id)
            self._recount(record.node_id, record)

    def _recount(self, node_id: NodeId, record: WorkloadRecord) -> None:
        """Update the facts of its owner. A new tenant is added; any other change drops the facts, to be made anew."""
        facts = self._facts.pop(node_id, None)
        if facts is None or record.workload_id in facts.tenants:
            return
        if not holds_reservation(record, self.observations.get(record.workload_id)):
            self._facts[node_id] = facts
            return
        self._facts[node_id] = facts.with_tenant(
            record.workload_id,
            request=record.reserved,
            ports=frozenset(parse_port(port) for port in record.reserved_ports),
            labels=record.spec.labels,
        )

    def _remove_workload(self, workload_id: WorkloadId) -> None:
        record = self.workloads.pop(workload_id, None)
        if record is not None:
            self._index_left_on(record.left_on, dataclasses.replace(record, left_on=()))
            self._index_move(record, None)
        if record is not None and record.node_id is not None:
            _discard(self._owned, record.node_id, workload_id)
            self._facts.pop(record.node_id, None)

    def _index_left_on(self, before: tuple[NodeId, ...], record: WorkloadRecord) -> None:
        for node_id in before:
            _discard(self._left_on, node_id, record.workload_id)
        for node_id in record.left_on:
            self._left_on[node_id].add(record.workload_id)

    def _index_move(self, before: WorkloadRecord | None, record: WorkloadRecord | None) -> None:
        for each in (before, record):
            if each is not None and each.move is not None:
                self._facts.pop(each.move.away_from, None)
        if record is not None and record.move is not None:
            self._moving.add(record.workload_id)
        elif before is not None:
            self._moving.discard(before.workload_id)

    def _put_observation(self, observation: Observation) -> None:
        workload_id = observation.status.workload_id
        before, record = self.observations.get(workload_id), self.workloads.get(workload_id)
        if record is None:
            return  # removed while the report was being stored; the store has dropped it too
        self.observations[workload_id] = observation
        # Most reports do not change what is reserved, and making facts anew is slow.
        if holds_reservation(record, before) != holds_reservation(record, observation):
            self._facts.pop(record.node_id or observation.node_id, None)

    def _drop_observation(self, workload_id: WorkloadId) -> None:
        observation = self.observations.pop(workload_id, None)
        if observation is not None:
            self._facts.pop(observation.node_id, None)


def _discard(index: dict[NodeId, set[WorkloadId]], node_id: NodeId, workload_id: WorkloadId) -> None:
    """Remove a workload from the set of a node, and the set when it is empty."""
    found = index.get(node_id)
    if found is not None:
        found.discard(workload_id)
        if not found:
            del index[node_id]


def parse_port(text: str) -> tuple[int, str]:
    """`8080/tcp` as a pair."""
    number, _, protocol = text.partition("/")
    return int(number), protocol


def format_ports(ports: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    """Pairs as `8080/tcp`, in order."""
    return tuple(f"{number}/{protocol}" for number, protocol in sorted(ports))

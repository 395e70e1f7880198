"""Builds the views of nodes, workloads and groups from the working set. Called by `shoal.control.api.service`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from shoal.control.nodes.contacts import Contacts
from shoal.control.nodes.drain import Drains
from shoal.control.nodes.loss import LostNodes
from shoal.control.placement.feasible import describe_rejections
from shoal.control.state.fleet import Fleet
from shoal.control.state.lifecycle.phases import (
    NOT_STARTED,
    contract_status,
    group_phase,
    is_about_newest,
    phase_of,
)
from shoal.control.workloads.commands import CommandLog
from shoal.control.workloads.decisions import retries
from shoal.control.workloads.pending import Pending
from shoal.core.clock import Clock
from shoal.core.ids import SessionId
from shoal.model.nodes import ROOT_POOL, DesiredNodeState, NodeRecord, NodeSpec, NodeState
from shoal.model.phases import ACCEPTED, ContractStatus, WorkloadPhase
from shoal.model.resources import Resources
from shoal.model.views import ClusterSummary, GroupView, NodeView, PoolView, Reason, WorkloadView
from shoal.model.workloads import (
    DesiredState,
    FailoverPolicy,
    FailureReason,
    GroupRecord,
    Observation,
    RunState,
    RunStatus,
    Usage,
    WorkloadRecord,
)

SHOWN_SESSION = 6
#: What a stored change is called until its agent has started it: selects all states of that kind.
ACCEPTED_STATUS = "Accepted"
#: Every state that the view of a node can have.
NODE_STATES = tuple(state.value for state in NodeState)
#: In lists, a workload has the rejections of this many nodes; the view of one workload has them all.
LISTED_REJECTIONS = 20
#: Workloads that a summary counts before other tasks get their turn.
COUNTED_TOGETHER = 1000


def _short(view: WorkloadView) -> WorkloadView:
    """The view for lists, without the last output and most rejections."""
    run = view.run
    if run is not None and run.last_output:
        run = dataclasses.replace(run, last_output="")
    return dataclasses.replace(view, run=run, rejections=view.rejections[:LISTED_REJECTIONS])


def _names(view: WorkloadView) -> set[str]:
    """Everything that a list can be asked for to have this workload in it."""
    accepted = {ACCEPTED_STATUS.lower()} if view.state in ACCEPTED else set()
    return {view.status.lower(), view.state.lower()} | accepted


def _failover_word(node: NodeRecord) -> str:
    if node.dead:
        return "dead"
    if node.state is not NodeState.NOT_READY:
        return ""
    return "moving" if node.declared_lost else "held"


class Views:
    """Builds views."""

    def __init__(
        self,
        fleet: Fleet,
        contacts: Contacts,
        lost_nodes: LostNodes,
        *,
        commands: CommandLog,
        pending: Pending,
        drains: Drains,
        clock: Clock,
        cluster_id: str,
    ) -> None:
        self._fleet = fleet
        self._contacts = contacts
        self._lost_nodes = lost_nodes
        self._commands = commands
        self._pending = pending
        self._drains = drains
        self._clock = clock
        self._cluster_id = cluster_id

    def workload(self, record: WorkloadRecord, *, with_spec: bool = True) -> WorkloadView:
        """One workload."""
        observation = self._fleet.observations.get(record.workload_id)
        owner = self._fleet.owner_of(record)
        waiting = self._pending.waiting
        status = contract_status(record, observation, owner, waiting)
        mine = observation is not None and observation.node_id == record.node_id
        run = observation.status if observation is not None and mine else None
        newest = run if is_about_newest(record, observation) else None
        rejections = self._pending.rejections.get(record.workload_id, ())
        reason = self._reason(record, status, observation if newest is not None else None, owner)
        return WorkloadView(
            workload_id=record.workload_id,
            type=record.spec.type.value,
            desired_state=record.desired.value,
            status=status,
            state=phase_of(record, observation, owner, waiting),
            assigned_node_id=record.node_id or "",
            revision_id=record.revision_id,
            observed_revision_id=run.revision_id if run is not None else "",
            generation=record.generation,
            group_id=record.group_id or "",
            retry_attempts=record.retry.attempts,
            retry_max_attempts=record.retry.max_attempts,
            retry_next_at=record.retry.next_at,
            failure_reason=reason.code if status is ContractStatus.FAILED and reason is not None else "",
            created_at=record.created_at,
            last_updated=max(record.updated_at, observation.observed_at) if mine and observation else record.updated_at,
            reason=reason,
            usage=self._usage(record, run) if run is not None else None,
            run=run if self._contacts.receives_heartbeats or run is None else dataclasses.replace(run, usage=None),
            rejections=rejections,
            spec=record.spec if with_spec else None,
            spec_sha256=record.spec_sha256,
            moving_from=record.move.away_from if record.move is not None else "",
            left_on=record.left_on,
            labels=record.spec.labels,
        )

    def _phase(self, record: WorkloadRecord) -> WorkloadPhase:
        observation = self._fleet.observations.get(record.workload_id)
        owner = self._fleet.owner_of(record)
        return phase_of(record, observation, owner, self._pending.waiting)

    def _usage(self, record: WorkloadRecord, run: RunStatus) -> Usage | None:
        if not self._contacts.receives_heartbeats:
            return None
        contact = self._contacts.get(record.node_id) if record.node_id is not None else None
        measured = contact.measured.of(record.workload_id) if contact is not None and contact.measured else None
        return measured or run.usage

    def _reason(
        self, record: WorkloadRecord, status: ContractStatus, observation: Observation | None, owner: NodeRecord | None
    ) -> Reason | None:
        rejections = self._pending.rejections.get(record.workload_id)
        if rejections is not None and record.placed_generation < record.generation:
            code = FailureReason.INSUFFICIENT_RESOURCES.value
            return Reason(code, describe_rejections(rejections), record.updated_at, retryable=True)
        if status is ContractStatus.UNKNOWN and owner is not None:
            return Reason("NODE_LOST", self._why_lost(record, owner), owner.state_at, retryable=True)
        stuck = self._drains.stuck.get(record.workload_id)
        if stuck is not None and owner is not None and owner.desired is DesiredNodeState.DRAINING:
            return Reason(
                "NODE_DRAINING", f"node {owner.node_id} is drained: {stuck}", owner.desired_at, retryable=True
            )
        error = self._commands.errors.get(record.workload_id, "")
        if record.workload_id in self._commands.invalid:
            return Reason(FailureReason.INVALID_SPEC.value, error, record.updated_at)
        if error and observation is None:
            return Reason(FailureReason.NETWORK_ERROR.value, error, record.updated_at, retryable=True)
        if observation is None:
            return None
        run = observation.status
        if not run.message and run.failure is FailureReason.NONE:
            return None
        code = run.failure.value if run.failure is not FailureReason.NONE else ""
        return Reason(
            code,
            run.message,
            run.last_transition,
            next_retry_at=record.retry.next_at if run.state is RunState.FAILED else run.next_restart_at,
            retryable=run.state is not RunState.FAILED or not retries.is_final(record, run.failure),
        )

    def _why_lost(self, record: WorkloadRecord, owner: NodeRecord) -> str:
        """Why a workload on a lost node has not moved."""
        words = f"node {owner.node_id}: {owner.state_reason}"
        if owner.dead:
            return words
        if record.spec.failover.policy == FailoverPolicy.KEEP:
            return f"{words}; by its policy it is kept there"
        if not owner.declared_lost:
            return f"{words}; nothing is moved: {self._lost_nodes.brake or 'other lost nodes come first'}"
        return words

    def workloads(
        self, *, node_id: str = "", status: str = "", group_id: str = "", after: str = ""
    ) -> Iterator[WorkloadView]:
        """Every workload that matches, in order of the ids, from the one after `after` on."""
        wanted = status.lower()
        for workload_id in sorted(each for each in self._fleet.workloads if each > after):
            record = self._fleet.workloads.get(workload_id)
            if record is None:
                continue  # removed since the list was begun
            if self._fleet.is_buried(record) or (node_id and record.node_id != node_id):
                continue
            if group_id and record.group_id != group_id:
                continue
            view = _short(self.workload(record, with_spec=False))
            if not wanted or wanted in _names(view):
                yield view

    def node(self, record: NodeRecord) -> NodeView:
        """One node."""
        facts = self._fleet.facts_of(record.node_id)
        contact = self._contacts.get(record.node_id)
        expires = None
        if contact is not None:
            left = contact.lease.ends_at - self._clock.monotonic()
            expires = self._clock.wall() + timedelta(seconds=left)
        return NodeView(
            node_id=record.node_id,
            status=record.state.value,
            status_reason=record.state_reason,
            status_updated_by=record.state_by,
            status_updated_at=record.state_at,
            last_heartbeat=self._last_heartbeat(record),
            lease_expires_at=expires,
            grpc_endpoint=record.spec.endpoint,
            total=record.spec.capacity,
            available=dataclasses.replace(facts.free, pools=()),
            supported_workload_types=tuple(
                each for each in record.spec.workload_types if each not in record.unsupported_types
            ),
            storage_drivers=record.spec.storage_drivers,
            storage_pools=_pools(record.spec, facts.reserved),
            labels=record.labeled_spec.labels,
            host_id=record.spec.host_id,
            session=SessionId(record.session[-SHOWN_SESSION:]),
            agent_version=record.spec.agent_version,
            features=tuple(sorted(record.spec.features)),
            clock_skew_ms=contact.skew_ms if contact else 0,
            usage=contact.usage if contact else None,
            workload_count=len(facts.tenants),
            orphans=contact.orphans if contact else (),
            conditions=contact.conditions if contact else (),
            cluster_id=record.spec.cluster_id or self._cluster_id,
            desired=record.desired.value,
            desired_updated_at=record.desired_at,
            drain_deadline=record.drain_deadline,
            leaving=len(self._fleet.leaving(record.node_id)) if record.desired is DesiredNodeState.DRAINING else 0,
            failover=_failover_word(record),
        )

    def _last_heartbeat(self, record: NodeRecord) -> datetime | None:
        """The time of the last heartbeat. It is rarely stored, so a follower does not know it."""
        if not self._contacts.receives_heartbeats:
            return None
        contact = self._contacts.get(record.node_id)
        return contact.last_heartbeat if contact and contact.last_heartbeat else record.last_heartbeat

    def nodes(self, *, status: str = "", after: str = "") -> Iterator[NodeView]:
        """Every node that matches, in order of the ids, from the one after `after` on."""
        wanted = status.lower()
        for node_id in sorted(each for each in self._fleet.nodes if each > after):
            record = self._fleet.nodes.get(node_id)
            if record is None:
                continue
            view = self.node(record)
            if not wanted or view.status.lower() == wanted:
                yield view

    def group(self, record: GroupRecord) -> GroupView:
        """One group with its members."""
        known = [self._fleet.workloads[each] for each in record.members if each in self._fleet.workloads]
        members = tuple(self.workload(each) for each in known)
        status = group_phase(record, [self._phase(each) for each in known])
        bounds = record.member_changes.resolved(len(record.members))
        return GroupView(record.group_id, record.generation, status, record.message, members, bounds)

    def groups(self, *, after: str = "") -> Iterator[GroupView]:
        """Every group, in order of the ids, from the one after `after` on."""
        for group_id in sorted(each for each in self._fleet.groups if each > after):
            record = self._fleet.groups.get(group_id)
            if record is not None:
                yield self.group(record)

    async def summary(self) -> ClusterSummary:
        """The fleet in numbers. Every workload is counted exactly once."""
        nodes = Counter(node.state for node in self._fleet.nodes.values())
        words: Counter[str] = Counter()
        waiting = self._pending.waiting
        for number, record in enumerate(list(self._fleet.workloads.values()), start=1):
            if number % COUNTED_TOGETHER == 0:
                await asyncio.sleep(0)  # heartbeats go first
            owner = self._fleet.owner_of(record)
            buried = self._fleet.is_buried(record)
            observation = self._fleet.observations.get(record.workload_id)
            words[DesiredState.DELETED if buried else contract_status(record, observation, owner, waiting)] += 1
        return ClusterSummary(
            total_nodes=sum(nodes.values()),
            ready_nodes=nodes[NodeState.READY],
            not_ready_nodes=sum(nodes.values()) - nodes[NodeState.READY],
            suspect_nodes=nodes[NodeState.SUSPECT],
            total_workloads=sum(words.values()),
            running_workloads=words[ContractStatus.RUNNING],
            pending_workloads=sum(words[word] for word in NOT_STARTED),
            failed_workloads=words[ContractStatus.FAILED],
            deleted_workloads=words[DesiredState.DELETED],
            stopped_workloads=words[ContractStatus.STOPPED] + words[ContractStatus.STOPPING],
            completed_workloads=words[ContractStatus.COMPLETED],
            deleting_workloads=words[ContractStatus.DELETING],
            lost_workloads=words[ContractStatus.UNKNOWN],
            groups=len(self._fleet.groups),
            cluster_id=self._cluster_id,
            generated_at=self._clock.wall(),
        )


def _pools(spec: NodeSpec, reserved: Resources) -> tuple[PoolView, ...]:
    """The declared pools of a node; its own disk is shown apart."""
    return tuple(
        PoolView(pool.name, pool.total_gb, pool.total_gb - reserved.in_pool(pool.name))
        for pool in spec.storage_pools
        if pool.name != ROOT_POOL
    )

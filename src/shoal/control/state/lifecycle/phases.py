"""The state of a workload or group as people see it, derived from its record, the last report and its node. Pure.

Called by the views, the metrics and the requests of users.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shoal.core.ids import WorkloadId
from shoal.model.nodes import NodeRecord, NodeState
from shoal.model.phases import ContractStatus, GroupPhase, WorkloadPhase
from shoal.model.workloads import (
    DesiredState,
    FailureReason,
    GroupRecord,
    Observation,
    RunState,
    RunStatus,
    WorkloadRecord,
)

P, C = WorkloadPhase, ContractStatus

CONTRACT_STATUSES: Mapping[WorkloadPhase, frozenset[ContractStatus]] = {
    P.PENDING: frozenset({C.PENDING}),
    P.UNPLACEABLE: frozenset({C.PENDING, C.SCHEDULED, C.UPDATING}),
    P.WAITING_FOR_SECRET: frozenset({C.SCHEDULED, C.UPDATING}),
    P.STARTING: frozenset({C.PENDING, C.SCHEDULED}),
    P.UPDATING: frozenset({C.UPDATING}),
    P.NOT_READY: frozenset({C.PENDING}),
    P.CRASH_LOOP: frozenset({C.PENDING}),
    P.RUNNING: frozenset({C.RUNNING}),
    P.COMPLETED: frozenset({C.COMPLETED}),
    P.FAILED: frozenset({C.FAILED}),
    P.UNKNOWN: frozenset({C.UNKNOWN}),
    P.STOPPING: frozenset({C.STOPPING}),
    P.STOPPED: frozenset({C.STOPPED}),
    P.DELETING: frozenset({C.DELETING}),
}
"""The names of the published contract under which each state appears."""

_BY_NAME = {phase.value: phase for phase in P}

NOT_STARTED = (C.PENDING, C.SCHEDULED, C.UPDATING)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the control plane knows about workloads that do not start, beside their records."""

    unplaceable: Collection[WorkloadId] = ()
    without_secret: Collection[WorkloadId] = ()
    #: Their newest spec is invalid, says a foreign agent.
    invalid: Collection[WorkloadId] = ()


def contract_status(
    record: WorkloadRecord, observation: Observation | None, owner: NodeRecord | None, waiting: Waiting
) -> ContractStatus:
    """The state of a workload under the names of the published contract."""
    if record.desired is DesiredState.DELETED:
        return C.DELETING
    current = is_about_newest(record, observation)
    state = observation.status.state if observation is not None and current else None
    if record.desired is DesiredState.STOPPED:
        quiet = record.node_id is None or owner is None or state is RunState.STOPPED
        return C.STOPPED if quiet else C.STOPPING
    if current and observation is not None and observation.status.completed:
        return C.COMPLETED
    if record.node_id is None or owner is None:
        return C.PENDING
    if state is RunState.FAILED or record.workload_id in waiting.invalid:
        return C.FAILED
    if owner.state is NodeState.NOT_READY:
        return C.UNKNOWN
    if state is None:
        return C.SCHEDULED if observation is None or observation.node_id != record.node_id else C.UPDATING
    return C.PENDING if state is RunState.STOPPED else C(state.value)


def phase_of(
    record: WorkloadRecord,
    observation: Observation | None,
    owner: NodeRecord | None,
    waiting: Waiting,
) -> WorkloadPhase:
    """The state of a workload."""
    status = contract_status(record, observation, owner, waiting)
    if status not in NOT_STARTED:
        return _BY_NAME[status]
    if record.placed_generation < record.generation and record.workload_id in waiting.unplaceable:
        return P.UNPLACEABLE
    if record.node_id is None or owner is None:
        return P.PENDING
    if status is not C.PENDING or observation is None:
        if record.workload_id in waiting.without_secret:
            return P.WAITING_FOR_SECRET
        return P.STARTING if status is C.SCHEDULED else P.UPDATING
    run = observation.status
    if has_crashed(run):
        return P.CRASH_LOOP
    return P.NOT_READY if run.pid and run.state is RunState.PENDING else P.STARTING


def has_crashed(run: RunStatus) -> bool:
    """Whether a run ended by itself, and its agent waits before it starts it again."""
    return run.next_restart_at is not None and run.exit is not None and run.failure is not FailureReason.NONE


def is_about_newest(record: WorkloadRecord, observation: Observation | None) -> bool:
    """Whether a report is about the newest generation, or from an agent that knows none."""
    if observation is None or observation.node_id != record.node_id:
        return False
    return observation.status.generation in (0, record.generation)


_WORST_FIRST = ((P.FAILED, GroupPhase.FAILED), (P.UNKNOWN, GroupPhase.DEGRADED))
_ALL_ALIKE = {
    P.RUNNING: GroupPhase.RUNNING,
    P.COMPLETED: GroupPhase.COMPLETED,
    P.STOPPED: GroupPhase.STOPPED,
}


def group_phase(group: GroupRecord, members: Collection[WorkloadPhase]) -> GroupPhase:
    """The state of a group: the worst of its members decides."""
    if group.desired is DesiredState.DELETED:
        return GroupPhase.DELETING
    kinds = set(members)
    for phase, worst in _WORST_FIRST:
        if phase in kinds:
            return worst
    if len(kinds) == 1:
        return _ALL_ALIKE.get(kinds.pop(), GroupPhase.PENDING)
    return GroupPhase.RUNNING if kinds <= {P.RUNNING, P.COMPLETED} else GroupPhase.PENDING

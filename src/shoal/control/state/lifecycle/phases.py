"""The state of a workload or group as people see it, derived from its record, the last report and its node. Pure.

Called by the views, the metrics and the requests of users.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shoal.core.ids import WorkloadId
from shoal.model.nodes import NodeRecord, NodeState
from shoal.model.phases import GroupPhase, WorkloadPhase
from shoal.model.workloads import DesiredState, FailureReason, GroupRecord, Observation, RunState, WorkloadRecord

P = WorkloadPhase

CONTRACT_STATUSES: Mapping[WorkloadPhase, frozenset[str]] = {
    P.PENDING: frozenset({"Pending"}),
    P.UNPLACEABLE: frozenset({"Pending", "Scheduled", "Updating"}),
    P.WAITING_FOR_SECRET: frozenset({"Scheduled", "Updating"}),
    P.STARTING: frozenset({"Pending", "Scheduled"}),
    P.UPDATING: frozenset({"Updating"}),
    P.NOT_READY: frozenset({"Pending"}),
    P.CRASH_LOOP: frozenset({"Pending"}),
    P.RUNNING: frozenset({"Running"}),
    P.COMPLETED: frozenset({"Completed"}),
    P.FAILED: frozenset({"Failed"}),
    P.UNKNOWN: frozenset({"Unknown"}),
    P.STOPPING: frozenset({"Stopping"}),
    P.STOPPED: frozenset({"Stopped"}),
    P.DELETING: frozenset({"Deleting"}),
}
"""The names of the published contract under which each state appears."""

_BY_NAME = {phase.value: phase for phase in P}

WORKLOAD_STATUSES = tuple(dict.fromkeys(status for phase in P for status in sorted(CONTRACT_STATUSES[phase])))


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the control plane knows about workloads that do not start, beside their records."""

    unplaceable: Collection[WorkloadId] = ()
    without_secret: Collection[WorkloadId] = ()


def contract_status(record: WorkloadRecord, observation: Observation | None, owner: NodeRecord | None) -> str:
    """The state of a workload under the names of the published contract."""
    if record.desired is DesiredState.DELETED:
        return "Deleting"
    current = is_about_newest(record, observation)
    state = observation.status.state if observation is not None and current else None
    if record.desired is DesiredState.STOPPED:
        quiet = record.node_id is None or owner is None or state is RunState.STOPPED
        return "Stopped" if quiet else "Stopping"
    if current and observation is not None and observation.status.completed:
        return "Completed"
    if record.node_id is None or owner is None:
        return "Pending"
    if state is RunState.FAILED:
        return "Failed"
    if owner.state is NodeState.NOT_READY:
        return "Unknown"
    if state is None:
        return "Scheduled" if observation is None or observation.node_id != record.node_id else "Updating"
    return "Pending" if state is RunState.STOPPED else state.value


def phase_of(
    record: WorkloadRecord,
    observation: Observation | None,
    owner: NodeRecord | None,
    waiting: Waiting,
) -> WorkloadPhase:
    """The state of a workload."""
    status = contract_status(record, observation, owner)
    if status not in ("Pending", "Scheduled", "Updating"):
        return _BY_NAME[status]
    if record.placed_generation < record.generation and record.workload_id in waiting.unplaceable:
        return P.UNPLACEABLE
    if record.node_id is None or owner is None:
        return P.PENDING
    if status != "Pending" or observation is None:
        if record.workload_id in waiting.without_secret:
            return P.WAITING_FOR_SECRET
        return P.STARTING if status == "Scheduled" else P.UPDATING
    run = observation.status
    if run.next_restart_at is not None and run.exit is not None and run.failure is not FailureReason.NONE:
        return P.CRASH_LOOP
    return P.NOT_READY if run.pid and run.state is RunState.PENDING else P.STARTING


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

"""The states of a workload and of a group, as people see them. Pure.

Called by the views, the metrics and the requests of users.
"""

from __future__ import annotations

from shoal.model.nodes import NodeRecord, NodeState
from shoal.model.workloads import DesiredState, GroupRecord, Observation, RunState, WorkloadRecord

#: Every state that `workload_status` returns.
WORKLOAD_STATES = (
    *("Pending", "Scheduled", "Updating", "Running", "Completed", "Failed", "Unknown", "Stopping", "Stopped"),
    "Deleting",
)


def workload_status(record: WorkloadRecord, observation: Observation | None, owner: NodeRecord | None) -> str:
    """The one word for how a workload stands."""
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


def is_about_newest(record: WorkloadRecord, observation: Observation | None) -> bool:
    """Whether a report is about the newest generation, or from an agent that knows none."""
    if observation is None or observation.node_id != record.node_id:
        return False
    return observation.status.generation in (0, record.generation)


def group_status(group: GroupRecord, statuses: list[str]) -> str:
    """The one word for how a group stands."""
    if group.desired is DesiredState.DELETED:
        return "Deleting"
    kinds = set(statuses)
    for word in ("Failed", "Unknown"):
        if word in kinds:
            return "Failed" if word == "Failed" else "Degraded"
    for word in ("Running", "Completed", "Stopped"):
        if kinds == {word}:
            return word
    return "Running" if kinds <= {"Running", "Completed"} else "Pending"

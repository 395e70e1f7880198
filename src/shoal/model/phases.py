"""The states of workloads, groups and nodes that people see, each with a sentence.

`status` in the published contract has coarser names; `WorkloadPhase` is the finer state beside it. Made by
`shoal.control.state.lifecycle`, shown by the command line, counted by the metrics, and listed in
docs/reference/states.md.
"""

from __future__ import annotations

import enum

from shoal.model.described import Described


class WorkloadPhase(Described):
    """The state of a workload."""

    PENDING = "Pending", "It is stored and has no node yet."
    UNPLACEABLE = "Unplaceable", "No node can take it now; its reason has every node's reason."
    WAITING_FOR_SECRET = "WaitingForSecret", "It has a node, and a secret that it needs is missing."
    STARTING = "Starting", "It has a node, and its agent prepares or starts it."
    UPDATING = "Updating", "An earlier generation is on its node, and the newest one is on its way there."
    NOT_READY = "NotReady", "It runs, and its readiness probe does not pass."
    CRASH_LOOP = "CrashLoop", "It ended by itself, and its agent waits before it starts it again."
    RUNNING = "Running", "It runs and is ready."
    COMPLETED = "Completed", "It has run to its end and is not run again."
    FAILED = "Failed", "It failed, and its agent does not start it again."
    UNKNOWN = "Unknown", "Its node is NotReady, or its agent cannot tell."
    STOPPING = "Stopping", "A stop was requested, and its agent has not confirmed it."
    STOPPED = "Stopped", "It is stopped as requested."
    DELETING = "Deleting", "Its deletion was requested, and a copy may still be there."


ACCEPTED = frozenset(
    {
        WorkloadPhase.PENDING,
        WorkloadPhase.UNPLACEABLE,
        WorkloadPhase.WAITING_FOR_SECRET,
        WorkloadPhase.STARTING,
        WorkloadPhase.UPDATING,
    }
)
"""What `--status Accepted` selects: stored, and its newest generation has not been started."""


class ContractStatus(enum.StrEnum):
    """The state of a workload under the names of the published contract: `WorkloadView.status`."""

    PENDING = "Pending"
    SCHEDULED = "Scheduled"
    UPDATING = "Updating"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    DELETING = "Deleting"


AS_REQUESTED = frozenset({ContractStatus.RUNNING, ContractStatus.STOPPED, ContractStatus.COMPLETED})
"""A workload with such a status needs nobody's attention."""


class GroupPhase(Described):
    """The state of a group."""

    PENDING = "Pending", "A member does not run yet."
    RUNNING = "Running", "Every member runs or has completed."
    DEGRADED = "Degraded", "A member is on a node that is NotReady."
    FAILED = "Failed", "A member has failed."
    COMPLETED = "Completed", "Every member has run to its end."
    STOPPED = "Stopped", "Every member is stopped."
    DELETING = "Deleting", "The deletion of the group and its members was requested."

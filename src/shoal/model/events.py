"""Events: what changed, why, and who reported it.

`EventKind` lists every kind; docs/reference/events.md is written from it. Made by the control plane, stored with the
change that they report, and shown by `shoal events`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shoal.model.described import Described


class SubjectKind(enum.StrEnum):
    """What an event is about."""

    WORKLOAD = "workload"
    GROUP = "group"
    NODE = "node"
    JOB = "job"
    CONTROL = "control"


class EventSource(enum.StrEnum):
    """Which part of the fleet caused an event."""

    API = "api"  # a call of a user or a program
    AGENT = "agent"  # a report of an agent
    STREAM = "stream"  # the connection that an agent keeps open
    LEASE = "lease"  # the watch over leases
    RECONCILER = "reconciler"
    SCHEDULER = "scheduler"
    DRAIN = "drain"
    OPERATOR = "operator"  # an operation on a node
    REGISTER = "register"
    HEARTBEAT = "heartbeat"
    JOIN = "join"
    JOB = "job"  # an engine that runs a job


class EventKind(Described):
    """Every kind of event, with a sentence that says when it happens."""

    WORKLOAD_CREATED = "WorkloadCreated", "A workload was stored for the first time."
    WORKLOAD_UPDATED = "WorkloadUpdated", "A workload got another spec, revision or desired state."
    WORKLOAD_START_REQUESTED = "WorkloadStartRequested", "A start of a stopped workload was requested."
    WORKLOAD_STOP_REQUESTED = "WorkloadStopRequested", "A stop of a workload was requested."
    WORKLOAD_DELETE_REQUESTED = "WorkloadDeleteRequested", "The deletion of a workload was requested."
    WORKLOAD_DELETED = "WorkloadDeleted", "No node has a copy any longer, and the record is gone."
    WORKLOAD_ADOPTED = "WorkloadAdopted", "A workload that ran on a node without a record was taken over as it runs."
    WORKLOAD_PLACED = "WorkloadPlaced", "A workload got its first node."
    WORKLOAD_MOVED = "WorkloadMoved", "A workload got another node."
    WORKLOAD_UNPLACEABLE = "WorkloadUnplaceable", "No node can take the workload; the message has every node's reason."
    WORKLOAD_STARTING = "WorkloadStarting", "The agent has the workload and prepares or starts it."
    WORKLOAD_CRASHED = "WorkloadCrashed", "The workload ended by itself; its agent starts it again after a delay."
    WORKLOAD_NOT_READY = (
        "WorkloadNotReady",
        "The readiness probe of a workload that was ready fails.",
    )
    WORKLOAD_RUNNING = "WorkloadRunning", "The workload runs and is ready."
    WORKLOAD_STOPPED = "WorkloadStopped", "The agent has stopped the workload."
    WORKLOAD_FAILED = "WorkloadFailed", "The workload failed, and its agent does not try again by itself."
    WORKLOAD_UNKNOWN = "WorkloadUnknown", "The agent cannot tell how the workload is."
    WORKLOAD_COMPLETED = "WorkloadCompleted", "The workload has run to its end."
    WORKLOAD_RETRIED = "WorkloadRetried", "A workload that had ended is run again."
    WORKLOAD_RETRY_SCHEDULED = "WorkloadRetryScheduled", "A workload failed and is tried again later."
    WORKLOAD_RETRIES_EXHAUSTED = "WorkloadRetriesExhausted", "A workload failed too often and is not tried again."
    WORKLOAD_GENERATION_RAISED = (
        "WorkloadGenerationRaised",
        "An agent had accepted a higher generation, as after a restore; the workload got a higher one.",
    )
    WORKLOAD_MOVE_STARTED = "WorkloadMoveStarted", "A workload leaves a node that is drained."
    WORKLOAD_MOVE_FINISHED = "WorkloadMoveFinished", "A workload has left a node that is drained."
    WORKLOAD_MOVE_CANCELED = "WorkloadMoveCanceled", "The replacement failed; the copy on the old node stays."
    WORKLOAD_MOVE_WAITING = "WorkloadMoveWaiting", "A workload cannot leave a drained node yet; the message says why."
    WORKLOAD_CHANGE_REVERTED = "WorkloadChangeReverted", "The change of its group could not be placed and was undone."
    WORKLOAD_EXEC = "WorkloadExec", "An operator runs a command inside a workload; the message has who and what."
    GROUP_CREATED = "GroupCreated", "A group was stored for the first time."
    GROUP_UPDATED = "GroupUpdated", "The members of a group, or their specs, changed."
    GROUP_ACCEPTED = "GroupAccepted", "Every agent has accepted its part of the change."
    GROUP_CHANGE_REVERTED = "GroupChangeReverted", "A member could not be placed, so the whole change was undone."
    GROUP_DELETE_REQUESTED = "GroupDeleteRequested", "The deletion of a group and its members was requested."
    GROUP_DELETED = "GroupDeleted", "All members are gone, and the record of the group too."
    NODE_JOINED = "NodeJoined", "A node got its first certificate by a join token."
    NODE_REGISTERED = "NodeRegistered", "An agent registered a node that was not known."
    NODE_REREGISTERED = "NodeReregistered", "The agent of a known node registered again."
    NODE_READY = "NodeReady", "Heartbeats of the node arrive again."
    NODE_SUSPECT = "NodeSuspect", "Heartbeats are missing; the node gets no new work."
    NODE_NOT_READY = "NodeNotReady", "The lease of the node ran out."
    NODE_DECLARED_LOST = "NodeDeclaredLost", "The work of a NotReady node may be started elsewhere now."
    NODE_DECLARED_DEAD = "NodeDeclaredDead", "An operator says that nothing runs on the node."
    NODE_REMOVED = "NodeRemoved", "An operator removed the record of the node."
    NODE_CORDONED = "NodeCordoned", "The node gets no new work."
    NODE_UNCORDONED = "NodeUncordoned", "The node takes work again."
    NODE_LABELED = "NodeLabeled", "An operator changed the labels of the node."
    NODE_DRAIN_REQUESTED = "NodeDrainRequested", "A drain of the node was requested."
    NODE_DRAINED = "NodeDrained", "The node is empty."
    NODE_CONDITION_RAISED = "NodeConditionRaised", "The agent reports a condition, such as DiskPressure."
    NODE_CONDITION_CLEARED = "NodeConditionCleared", "A condition is over."
    NODE_TYPE_UNSUPPORTED = "NodeTypeUnsupported", "The agent refused a type of workload, so no more of it go there."
    ORPHAN_FOUND = "OrphanFound", "A node runs a workload that has no record."
    FAILOVER_PAUSED = "FailoverPaused", "Most nodes vanished at once, so nothing is moved until some return."
    FAILOVER_RESUMED = "FailoverResumed", "Enough nodes are back, so lost work is moved again."
    JOB_SUBMITTED = "JobSubmitted", "A job was stored for the first time, or submitted again after it had ended."
    JOB_REQUESTED = "JobRequested", "A person asked something of a job; the message says what."
    JOB_CHANGED = "JobChanged", "A job made a transition; the message has the state before and after."
    JOB_REMOVED = "JobRemoved", "The record of a job that had ended was dropped to make room."
    JOIN_TOKEN_CREATED = "JoinTokenCreated", "A join token was made."
    JOIN_TOKEN_REVOKED = "JoinTokenRevoked", "A join token was revoked."
    SECRET_SET = "SecretSet", "A secret got a value."
    SECRET_DELETED = "SecretDeleted", "A secret was deleted."


RENAMED: Mapping[str, EventKind] = {
    "WorkloadStartWished": EventKind.WORKLOAD_START_REQUESTED,
    "WorkloadStopWished": EventKind.WORKLOAD_STOP_REQUESTED,
    "WorkloadDeletionWished": EventKind.WORKLOAD_DELETE_REQUESTED,
    "WorkloadPending": EventKind.WORKLOAD_STARTING,
    "GenerationRaised": EventKind.WORKLOAD_GENERATION_RAISED,
    "RetryPlanned": EventKind.WORKLOAD_RETRY_SCHEDULED,
    "RetriesExhausted": EventKind.WORKLOAD_RETRIES_EXHAUSTED,
    "MoveBegun": EventKind.WORKLOAD_MOVE_STARTED,
    "MoveFinished": EventKind.WORKLOAD_MOVE_FINISHED,
    "MoveTakenBack": EventKind.WORKLOAD_MOVE_CANCELED,
    "MoveWaits": EventKind.WORKLOAD_MOVE_WAITING,
    "ChangeUndone": EventKind.WORKLOAD_CHANGE_REVERTED,
    "GroupSettled": EventKind.GROUP_ACCEPTED,
    "GroupChangeUndone": EventKind.GROUP_CHANGE_REVERTED,
    "GroupDeletionWished": EventKind.GROUP_DELETE_REQUESTED,
    "NodeReturned": EventKind.NODE_REREGISTERED,
    "NodeLost": EventKind.NODE_NOT_READY,
    "NodeGivenUp": EventKind.NODE_DECLARED_LOST,
    "NodeDrainWished": EventKind.NODE_DRAIN_REQUESTED,
    "OrphanSeen": EventKind.ORPHAN_FOUND,
    "MovesHeld": EventKind.FAILOVER_PAUSED,
    "MovesResumed": EventKind.FAILOVER_RESUMED,
}
"""Names of earlier versions, as they stand in databases, with the present ones."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change of state. `cursor` is set by the store and grows without gaps in order of commit."""

    time: datetime
    subject_kind: str
    subject_id: str
    #: An `EventKind`; or what a newer version wrote.
    kind: str
    message: str
    source: str
    #: The reason, such as "lease of node n1 expired".
    cause: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    #: The labels of the workload that it is about, as they were then.
    labels: Mapping[str, str] = field(default_factory=dict)
    cursor: int = 0

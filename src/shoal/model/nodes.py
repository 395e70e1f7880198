"""Nodes: what an agent says of its machine, and what the control plane makes of it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from shoal.core.ids import NodeId, SessionId
from shoal.core.shape import Identifier, MaxLength, Pattern, Range
from shoal.model.resources import MAX_DISK_GB, Resources
from shoal.model.stored import stored_as

LABEL_KEY = Annotated[
    str,
    Pattern(
        r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?", "must be a label key of at most 128 letters, digits or ._/-"
    ),
]
LABEL_VALUE = Annotated[str, MaxLength(256)]
CONSTRAINT_KEY = Annotated[
    str,
    Pattern(
        r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?",
        "must be a label key of at most 128 letters, digits or ._/-; node_id and host_id stand for the node's own",
    ),
]


#: The part of a lease that is kept as distance, on both sides, between two owners of at-most-one work: an agent stops
#: it so much before its lease ends by its own count, the control plane gives it away so much after by its own.
LEASE_MARGIN = 0.1


class NodeState(enum.StrEnum):
    """How the control plane sees a node."""

    READY = "Ready"  # heartbeats arrive; work may be placed on it
    SUSPECT = "Suspect"  # heartbeats are missing; its work stays, nothing new goes there
    NOT_READY = "NotReady"  # its lease ran out; its work moves
    DRAINING = "Draining"  # a person wants it empty; work leaves one by one
    DRAINED = "Drained"  # empty, and nothing new goes there


class DesiredNodeState(enum.StrEnum):
    """What an operator wants of a node. No report of an agent takes it back."""

    NONE = ""  # take work
    CORDONED = "cordoned"  # take no new work; what is there stays
    DRAINING = "draining"  # be emptied
    DRAINED = "drained"  # it was emptied, and nothing new goes there

    @property
    def state(self) -> NodeState | None:
        """The state that shows it, as long as the node is heard of."""
        return {DesiredNodeState.DRAINING: NodeState.DRAINING, DesiredNodeState.DRAINED: NodeState.DRAINED}.get(self)


class Feature(enum.StrEnum):
    """What an agent can do beyond the published contract. A foreign agent has none of them."""

    GENERATIONS = "generations"  # refuses commands of an older generation
    SESSIONS = "sessions"  # sends its session with every heartbeat
    PUSH = "push"  # sends a heartbeat at once when a status changes; each one is a full snapshot
    LOGS = "logs"  # serves ReadLogs
    LOG_QUERIES = "log_queries"  # reads logs by time, by run and from a position
    PORTS = "ports"  # chooses named ports
    STREAM = "stream"  # opens a ControlStream and takes calls through it; such an agent may have no endpoint
    SECRETS = "secrets"  # takes the values of secrets beside the spec, and keeps them encrypted
    IDENTITY = "identity"  # gets certificates for its workloads, and keeps them fresh
    EXEC = "exec"  # runs commands inside its workloads
    BATCHES = "batches"  # takes several messages of a ControlStream in one
    ARTIFACTS = "artifacts"  # fetches blobs for its workloads, and caches them
    STOP_ALONE = "stop_alone"  # stops a workload by itself after as long without contact as its spec says


@dataclass(frozen=True, slots=True)
class HeartbeatMark:
    """One heartbeat among those of a node: which session, which number."""

    session: SessionId
    sequence: int

    def is_before(self, first: HeartbeatMark | None) -> bool:
        """Whether it was made before the heartbeat that counts first. Those of another session came after it."""
        return first is not None and self.session == first.session and self.sequence < first.sequence


#: The pool that stands for the node's own disk.
ROOT_POOL = "root"


@dataclass(frozen=True, slots=True)
class StoragePool:
    """A place for disks."""

    name: Annotated[str, MaxLength(128, 1)]
    type: Annotated[str, MaxLength(64)] = "local"
    total_gb: Annotated[int, Range(0, MAX_DISK_GB)] = 0


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What an agent registers with."""

    node_id: Identifier
    #: host:port at which the control plane reaches the agent; empty when it only calls out.
    endpoint: Annotated[str, MaxLength(300)]
    capacity: Resources
    workload_types: Annotated[tuple[Annotated[str, MaxLength(32, 1)], ...], MaxLength(16)] = ()
    storage_drivers: Annotated[tuple[Annotated[str, MaxLength(64, 1)], ...], MaxLength(64)] = ()
    storage_pools: Annotated[tuple[StoragePool, ...], MaxLength(256)] = ()
    labels: Annotated[Mapping[LABEL_KEY, LABEL_VALUE], MaxLength(256)] = field(default_factory=dict)
    agent_version: Annotated[str, MaxLength(128)] = ""
    #: Nodes with an equal one are on one host. Empty when the agent does not say.
    host_id: Annotated[str, MaxLength(256)] = ""
    cluster_id: Annotated[str, MaxLength(128)] = ""
    features: frozenset[str] = frozenset()

    def has(self, feature: Feature) -> bool:
        """Whether the agent can do it."""
        return feature.value in self.features


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Measured use and the agent's own sum of reservations, from the last heartbeat."""

    cpu_allocated_millicores: int = 0
    cpu_used_millicores: int = 0
    memory_allocated_mb: int = 0
    memory_used_mb: int = 0
    disk_allocated_gb: int = 0
    disk_used_gb: int = 0
    slots_used: int = 0


class ConditionType(enum.StrEnum):
    """What can be wrong with a node while it is in contact."""

    DISK_PRESSURE = "DiskPressure"  # its disk is nearly full: no new work goes there
    KEEPER_LATE = "KeeperLate"  # the process that owns its workloads does not answer in time
    ORPHANED_PROCESSES = "OrphanedProcesses"  # processes of workloads run there that no record explains
    RUNTIME_UNAVAILABLE = "RuntimeUnavailable"  # one of its runtimes is down: its kind of workload is not offered
    RUNS_AS_ROOT = "RunsAsRoot"  # workloads that name no user run as root


class RefusalCode(enum.StrEnum):
    """Why an agent refuses a workload; the fact `reason` of its error."""

    DRAINING = "draining"  # the node is being emptied
    PORT = "port"  # a fixed port is another workload's
    SLOT_MEMORY = "slot_memory"  # it asks for more memory than its slots have
    RESOURCES = "resources"  # not enough is left
    DISK_PRESSURE = "disk_pressure"  # the node's disk is nearly full
    WORKLOADS = "workloads"  # the agent has as many as it can report


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """Something that is wrong with a node."""

    #: A `ConditionType`, or the word of an agent of another version.
    type: str
    message: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as the control plane stores it.

    Liveness itself (the time of the last heartbeat) is kept in memory and starts anew with the process, so that a
    restarted control plane gives every node one full lease; `last_heartbeat` is the last one stored, for views.
    """

    spec: NodeSpec
    #: The session whose heartbeats count now. Empty for an agent that knows no sessions.
    session: SessionId
    state: NodeState
    state_reason: str
    #: Who said so: register, heartbeat, lease, stream, operator.
    state_by: str
    state_at: datetime
    registered_at: datetime
    last_heartbeat: datetime
    #: The lease that was promised last; a restart with a shorter one still keeps it.
    lease_seconds: float
    desired: DesiredNodeState = stored_as("wish", default=DesiredNodeState.NONE)
    desired_at: datetime | None = stored_as("wish_at", default=None)
    #: When what is left on a draining node is moved by force; None for never.
    drain_deadline: datetime | None = None
    #: Lost, and its work may be moved: the rate of moves and the brake have let it pass.
    declared_lost: bool = stored_as("given_up", default=False)
    #: An operator knows that it is gone for good, and nothing runs there.
    dead: bool = False
    #: Types of workload that its agent registered with and then refused as unsupported. A registration clears them.
    unsupported_types: tuple[str, ...] = ()
    #: Labels that an operator set. They win over those that the agent registers.
    operator_labels: Mapping[str, str] = field(default_factory=dict)
    #: Compare-and-set: 0 before it was first stored.
    version: int = 0

    @property
    def node_id(self) -> NodeId:
        """The node's id."""
        return NodeId(self.spec.node_id)

    @property
    def labeled_spec(self) -> NodeSpec:
        """What the agent registered, with the labels of the operator: this is what placement goes by."""
        if not self.operator_labels:
            return self.spec
        return dataclasses.replace(self.spec, labels={**self.spec.labels, **self.operator_labels})

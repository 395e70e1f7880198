"""Workloads: what a person asks for, who owns it, and what was last seen of it.

The spec classes mirror the fields of `persys.control.v1.WorkloadSpec` and carry every rule on them; the same
classes read YAML documents (`shoal.model.documents`) and publish the JSON Schemas. Those of the four kinds of workload
are in `shoal.model.spec.kinds`; their names are exported here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated

from shoal.core.errors import InternalError, Problem, problem
from shoal.core.ids import GroupId, NodeId, WorkloadId
from shoal.core.shape import MaxLength, OneOf, Range
from shoal.model.nodes import CONSTRAINT_KEY, LABEL_KEY, LABEL_VALUE
from shoal.model.resources import MAX_CPU_MILLICORES, MAX_DISK_GB, MAX_MEMORY_MB, MAX_SLOTS, PoolShare, Resources
from shoal.model.spec.kinds import (
    CloudInit,
    ComposeSpec,
    ContainerSpec,
    ProcessSpec,
    Ulimit,
    VmDisk,
    VmNetwork,
    VmSpec,
)
from shoal.model.spec.parts import (
    MAX_DURATION,
    USER_PATTERN,
    USER_RULE,
    ArtifactSpec,
    Body,
    CommandProbe,
    Duration,
    EnvName,
    FileSpec,
    HttpProbe,
    Liveness,
    ManagedVolume,
    NamedPort,
    PortMapping,
    Readiness,
    RestartPolicy,
    StopPolicy,
    Text,
    VmBoot,
    VolumeMount,
)
from shoal.model.spec.words import (
    AffinityDirection,
    ComposeSource,
    ConstraintOperator,
    FailoverPolicy,
    MoveKind,
    Restart,
)

__all__ = [
    "MAX_DURATION",
    "MAX_MEMBERS",
    "USER_PATTERN",
    "USER_RULE",
    "Affinity",
    "AffinityDirection",
    "AgentSpec",
    "ArtifactSpec",
    "Body",
    "CloudInit",
    "CommandProbe",
    "ComposeSource",
    "ComposeSpec",
    "Constraint",
    "ConstraintOperator",
    "ContainerSpec",
    "DesiredState",
    "Duration",
    "EnvName",
    "Exit",
    "Failover",
    "FailoverPolicy",
    "FailureReason",
    "FileSpec",
    "GroupMemberBefore",
    "GroupRecord",
    "HttpProbe",
    "Liveness",
    "ManagedVolume",
    "MemberChanges",
    "Move",
    "MoveKind",
    "NamedPort",
    "Observation",
    "PlacementRules",
    "PortMapping",
    "ProcessSpec",
    "Readiness",
    "Rejection",
    "ResourceRequest",
    "Restart",
    "RestartPolicy",
    "RetryState",
    "RunState",
    "RunStatus",
    "StopPolicy",
    "Text",
    "Ulimit",
    "Usage",
    "VmBoot",
    "VmDisk",
    "VmNetwork",
    "VmSpec",
    "VolumeMount",
    "WorkloadRecord",
    "WorkloadSpec",
    "WorkloadType",
]

#: Of a group.
MAX_MEMBERS = 4096


class WorkloadType(enum.Enum):
    """The kinds of runtime."""

    CONTAINER = "container"
    COMPOSE = "compose"
    VM = "vm"
    PROCESS = "process"


class DesiredState(enum.StrEnum):
    """What a person wants of a workload. DELETED: its deletion was requested."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    DELETED = "Deleted"


class RunState(enum.StrEnum):
    """What an agent reports. These five names and no others are accepted from the wire."""

    PENDING = "Pending"  # accepted; being prepared, waiting to be ready, or waiting to be restarted
    RUNNING = "Running"  # it runs and is ready
    STOPPED = "Stopped"  # it does not run, and should not or has completed
    FAILED = "Failed"  # it does not run, although it should; the agent will not try again by itself
    UNKNOWN = "Unknown"  # the agent cannot tell


class FailureReason(enum.Enum):
    """Why a workload failed, by the names of persys.control.v1."""

    NONE = "FAILURE_REASON_UNSPECIFIED"
    IMAGE_PULL_FAILED = "IMAGE_PULL_FAILED"
    IMAGE_NOT_FOUND = "IMAGE_NOT_FOUND"
    INSUFFICIENT_RESOURCES = "INSUFFICIENT_RESOURCES"
    INVALID_SPEC = "INVALID_SPEC"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    NETWORK_ERROR = "NETWORK_ERROR"
    STORAGE_ERROR = "STORAGE_ERROR"
    VM_BOOT_FAILED = "VM_BOOT_FAILED"


# ---------------------------------------------------------------------------------------------------------
# Specs


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule on the labels of a node; the keys node_id and host_id stand for the node's own."""

    key: CONSTRAINT_KEY
    operator: Annotated[str, OneOf(tuple(ConstraintOperator))] = ConstraintOperator.IN
    values: Annotated[tuple[LABEL_VALUE, ...], MaxLength(256)] = ()

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        field = f"{at}.values" if at else "values"
        takes_values = self.operator in (ConstraintOperator.IN, ConstraintOperator.NOT_IN)
        if takes_values and not self.values:
            yield problem(field, None, f"must not be empty for the operator {self.operator}")
        if not takes_values and self.values:
            yield problem(field, list(self.values), f"must be empty for the operator {self.operator}")


@dataclass(frozen=True, slots=True)
class Affinity:
    """A rule about which other workloads are near."""

    workloads: Annotated[Mapping[LABEL_KEY, LABEL_VALUE], MaxLength(64, 1)]
    scope: Annotated[str, MaxLength(128, 1)] = "node"
    direction: Annotated[str, OneOf(tuple(AffinityDirection))] = AffinityDirection.APART
    required: bool = False
    weight: Annotated[int, Range(1, 100)] = 50


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Where a workload may and would rather run."""

    constraints: Annotated[tuple[Constraint, ...], MaxLength(64)] = ()
    affinities: Annotated[tuple[Affinity, ...], MaxLength(64)] = ()
    storage_drivers: Annotated[tuple[Annotated[str, MaxLength(64, 1)], ...], MaxLength(64)] = ()


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What is reserved for a workload on its node, and what it is limited to where the agent can."""

    cpu_millicores: Annotated[int, Range(0, MAX_CPU_MILLICORES)] = 0
    memory_mb: Annotated[int, Range(0, MAX_MEMORY_MB)] = 0
    disk_gb: Annotated[int, Range(0, MAX_DISK_GB)] = 0


@dataclass(frozen=True, slots=True)
class Failover:
    """What becomes of a workload when its node is lost, or emptied by an operator."""

    policy: Annotated[str, OneOf(tuple(FailoverPolicy))] = FailoverPolicy.REPLACE
    after: Duration = timedelta(0)
    #: When a node is drained: the replacement is ready before the old copy is stopped, or begun after. Empty is
    #: before; but after for a workload of which there may be only one copy, or that runs to an end.
    migrate: Annotated[str, OneOf(("", *MoveKind))] = ""

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        field = f"{at}.after" if at else "after"
        if self.policy == FailoverPolicy.STOP and not self.after:
            yield problem(field, None, "is required with policy stop: how long it may run without contact")
        if self.policy == FailoverPolicy.KEEP and self.after:
            yield problem(field, self.after, "must not be given with policy keep, which never moves it")


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Everything a person says about one workload."""

    type: WorkloadType
    resources: ResourceRequest = ResourceRequest()
    container: ContainerSpec | None = None
    compose: ComposeSpec | None = None
    vm: VmSpec | None = None
    process: ProcessSpec | None = None
    metadata: Annotated[Mapping[Annotated[str, MaxLength(256, 1)], Text], MaxLength(256)] = field(default_factory=dict)
    placement: PlacementRules = PlacementRules()
    slots: Annotated[int, Range(0, MAX_SLOTS)] = 0
    at_most_one: bool = False
    labels: Annotated[Mapping[LABEL_KEY, LABEL_VALUE], MaxLength(256)] = field(default_factory=dict)
    failover: Failover = Failover()

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        if self.at_most_one and self.failover.migrate == MoveKind.BEFORE:
            yield problem(f"{prefix}failover.migrate", "before", "must not be before with at_most_one: it needs two")
        if self.at_most_one and self.failover.policy == FailoverPolicy.STOP:
            yield problem(
                f"{prefix}failover.policy", "stop", "must not be stop with at_most_one, which stops it with its lease"
            )
        yield from _one_body(self, self.type, prefix)

    @property
    def body(self) -> Body:
        """The part that is its kind's own. A spec that breaks its rules may have none: then it asks for nothing."""
        return self.process or self.container or self.compose or self.vm or Body()

    @property
    def request(self) -> Resources:
        """What is reserved for it. A VM that says nothing else needs what its guest is given."""
        asked, vm = self.resources, self.vm
        return Resources(
            asked.cpu_millicores or (vm.vcpus * 1000 if vm is not None else 0),
            asked.memory_mb or (vm.memory_mb if vm is not None else 0),
            asked.disk_gb,
            self.slots,
            tuple(PoolShare(name, gb) for name, gb in sorted(self.body.pool_gb.items())),
        )

    @property
    def host_ports(self) -> frozenset[tuple[int, str]]:
        """The (port, protocol) pairs of the node that it needs for itself."""
        return self.body.host_ports

    @property
    def completes(self) -> bool:
        """Whether a run that ends well is the end of the workload."""
        return self.body.restart_rules.completes

    @property
    def restarts(self) -> bool:
        """Whether it is tried again after it has failed."""
        return self.body.restart_rules.policy != Restart.NO

    @property
    def migrates_first(self) -> bool:
        """Whether its replacement is ready before it is stopped on a node that is drained."""
        if self.failover.migrate:
            return self.failover.migrate == MoveKind.BEFORE and not self.at_most_one
        return not self.at_most_one and not self.completes

    @property
    def storage_drivers(self) -> frozenset[str]:
        """The storage drivers its node must have."""
        managed = self.body.managed_volumes
        return frozenset(self.placement.storage_drivers) | {volume.driver or "local" for volume in managed}


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What an agent needs to know to run one workload: the part of a spec that reaches it."""

    type: WorkloadType
    #: Exactly one of the four is set, the one that `type` names.
    container: ContainerSpec | None = None
    compose: ComposeSpec | None = None
    vm: VmSpec | None = None
    process: ProcessSpec | None = None
    #: What the control plane reserved, and so what the workload is limited to.
    request: Resources = Resources()
    at_most_one: bool = False
    #: Without contact for so long (or for a lease, if that is longer), it is stopped. 0: never.
    stop_after: Duration = timedelta(0)

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        yield from _one_body(self, self.type, prefix)

    @property
    def body(self) -> ContainerSpec | ComposeSpec | VmSpec | ProcessSpec:
        """The one that is set."""
        body = self.process or self.container or self.compose or self.vm
        if body is None:
            raise InternalError(f"a spec of type {self.type.value} has no {self.type.value}")
        return body


def _one_body(spec: WorkloadSpec | AgentSpec, type_: WorkloadType, prefix: str) -> Iterator[Problem]:
    for kind in WorkloadType:
        given = getattr(spec, kind.value) is not None
        if kind is type_ and not given:
            yield problem(f"{prefix}{kind.value}", None, f"is required when type is {type_.value}")
        elif kind is not type_ and given:
            yield problem(f"{prefix}{kind.value}", None, f"must not be given when type is {type_.value}")


# ---------------------------------------------------------------------------------------------------------
# What the control plane keeps


@dataclass(frozen=True, slots=True)
class RetryState:
    """Attempts of the control plane to get a failed workload going again."""

    #: Failures that count, since it was last healthy. Those of the infrastructure do not.
    attempts: int = 0
    max_attempts: int = 5
    #: When it is tried again; None when it runs, or has failed for good.
    next_at: datetime | None = None
    #: All failures since it was last healthy: the delay follows them.
    failures: int = 0
    #: The generation whose failure is counted here already.
    failed_generation: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A workload on its way off a node that is still alive.

    BEFORE: the owner is the new node already, and the copy on `away_from` is left alone until the owner's runs.
    AFTER: the owner is `away_from` until it confirms the removal; then there is none until a place is found.
    """

    kind: MoveKind
    away_from: NodeId
    #: The generation that began the move: as long as it is the newest, the move can be taken back.
    generation: int
    since: datetime
    #: BEFORE: what the copy on `away_from` holds there, whatever its replacement is given meanwhile. None: it was
    #: stored by an earlier version, and is what its replacement has.
    reserved: Resources | None = None
    reserved_ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A workload: its desired state and its owner.

    `generation` is the fencing token: it grows with every placement, every change of the spec and every change of
    the desired state, so that a command that arrives late can be told from the newest one.
    """

    workload_id: WorkloadId
    spec: WorkloadSpec
    #: The exact spec that was accepted, as serialized persys.control.v1.WorkloadSpec, and its SHA-256.
    spec_bytes: bytes
    spec_sha256: bytes
    revision_id: str
    desired: DesiredState
    generation: int
    created_at: datetime
    updated_at: datetime
    #: The owner. None while nothing could be placed. An update that fits nowhere leaves the owner as it was.
    node_id: NodeId | None = None
    #: The generation that was last placed; below `generation` while a newer one waits for a place.
    placed_generation: int = 0
    placed_at: datetime | None = None
    #: What is reserved on the owner: that of the placed generation, which may be an older spec's. Ports as "8080/tcp".
    reserved: Resources = Resources()
    reserved_ports: tuple[str, ...] = ()
    #: Nodes that may still hold an older copy, because it was placed away from them. A node leaves the list when it
    #: reports without that copy, or is removed. While there is one, a deleted workload's record stays as a tombstone.
    left_on: tuple[NodeId, ...] = ()
    #: Whether the placed generation is held to a deadline by its keeper, so that it is surely stopped some time after
    #: contact was lost; and the nodes of `left_on` whose older copy is not.
    placed_at_most_one: bool = False
    left_without_deadline: tuple[NodeId, ...] = ()
    group_id: GroupId | None = None
    retry: RetryState = RetryState()
    #: On its way off a node that is being drained; until it runs elsewhere.
    move: Move | None = None
    #: Counts the times that the same spec is run once more although it has ended or failed.
    attempt: int = 0
    #: Compare-and-set: 0 before it was first stored.
    version: int = 0


class EndedBy(enum.StrEnum):
    """What ended a run. Runtimes keep it as a text in their records."""

    ITSELF = ""
    STOP = "stop"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a run ended. `unknown` when the keeper died with it."""

    code: int = 0
    signal: int = 0
    unknown: bool = False
    ended_at: datetime | None = None
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """What a workload uses, measured by its agent."""

    cpu_percent: float = 0.0
    memory_bytes: int = 0
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0
    net_rx_bytes: int = 0
    net_tx_bytes: int = 0
    collected_at: datetime | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What an agent reports of one workload: the body of a heartbeat's status, on both sides of the wire."""

    workload_id: WorkloadId
    state: RunState
    failure: FailureReason = FailureReason.NONE
    message: str = ""
    last_transition: datetime | None = None
    #: 0 from an agent that knows no generations.
    generation: int = 0
    revision_id: str = ""
    exit: Exit | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    completed: bool = False
    deleting: bool = False
    last_output: str = ""
    pid: int = 0
    started_at: datetime | None = None
    next_restart_at: datetime | None = None
    spec_sha256: bytes = b""
    usage: Usage | None = None
    #: The state of each service of a compose project.
    services: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """The last accepted report on a workload, with the node that sent it."""

    node_id: NodeId
    status: RunStatus
    observed_at: datetime


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why one node cannot take a workload."""

    node_id: NodeId
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class GroupMemberBefore:
    """What a member was before the change under way, so that the change can be undone. No spec: it did not exist."""

    workload_id: WorkloadId
    spec_bytes: bytes | None
    revision_id: str
    desired: DesiredState
    spec_sha256: bytes = b""


@dataclass(frozen=True, slots=True)
class MemberChanges:
    """What the members of a group may change of it with their own certificates (`identity: true`)."""

    #: How many members the group may have; 0: as many as its operator applied.
    min_members: Annotated[int, Range(0, MAX_MEMBERS)] = 0
    max_members: Annotated[int, Range(0, MAX_MEMBERS)] = 0
    #: Arguments of a process that begin with one of these may be changed, added and left out.
    arg_prefixes: Annotated[tuple[Annotated[str, MaxLength(256, 1)], ...], MaxLength(64)] = ()

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        if self.max_members and self.min_members > self.max_members:
            field = f"{at}.min_members" if at else "min_members"
            yield problem(field, self.min_members, f"must not be above max_members ({self.max_members})")

    def resolved(self, members: int) -> MemberChanges:
        """The same bounds with numbers, for a group to which an operator gave so many members."""
        least = self.min_members or min(members, self.max_members or members)
        return MemberChanges(least, self.max_members or max(members, least), self.arg_prefixes)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A set of workloads placed all or none.

    While a change is under way `before` holds what its members were; it is emptied once every agent concerned has
    accepted its part, or used to undo the change when one cannot be placed anywhere.
    """

    group_id: GroupId
    #: Counts changes of the set.
    generation: int
    members: tuple[WorkloadId, ...]
    created_at: datetime
    updated_at: datetime
    desired: DesiredState = DesiredState.RUNNING
    before: tuple[GroupMemberBefore, ...] = ()
    before_members: tuple[WorkloadId, ...] = ()
    #: What became of the last change: "" while all is well, else why it was undone.
    message: str = ""
    #: Set by its operator. Without numbers in a group that an earlier version stored.
    member_changes: MemberChanges = MemberChanges()
    version: int = 0

"""Workloads: what a person asks for, who owns it, and what was last seen of it.

The spec classes mirror the fields of `persys.control.v1.WorkloadSpec` and carry every rule on them; the same
classes read YAML documents (`shoal.model.documents`) and publish the JSON Schemas.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated

from shoal.core.errors import Problem, problem
from shoal.core.ids import GroupId, NodeId, WorkloadId
from shoal.core.shape import Check, Identifier, MaxLength, NumberToo, OneOf, Pattern, Range
from shoal.model.nodes import CONSTRAINT_KEY, LABEL_KEY, LABEL_VALUE
from shoal.model.resources import MAX_CPU_MILLICORES, MAX_DISK_GB, MAX_MEMORY_MB, MAX_SLOTS, Resources

MAX_TEXT = 64 * 1024
MAX_PAYLOAD = 1024 * 1024
MAX_DURATION = timedelta(days=365)
#: Of a group.
MAX_MEMBERS = 4096
SHORTEST_PERIOD = timedelta(milliseconds=100)

Text = Annotated[str, MaxLength(MAX_TEXT)]
EnvName = Annotated[str, Pattern(r"[A-Za-z_][A-Za-z0-9_]{0,255}", "must be an environment variable name")]
#: Who runs a process.
USER_PATTERN, USER_RULE = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", "must be a user name or uid"
Env = Annotated[Mapping[EnvName, Text], MaxLength(1024)]
Words = Annotated[tuple[Text, ...], MaxLength(1024)]
PortNumber = Annotated[int, Range(0, 65535)]
PortName = Annotated[
    str, Pattern(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", "must be a name of lower-case letters, digits and dashes")
]
RestartWord = Annotated[str, OneOf(("", "always", "on-failure", "no", "unless-stopped"))]


def _is_absolute(path: str) -> str | None:
    return None if not path or path.startswith("/") else "must be an absolute path"


def _is_reasonable(value: timedelta) -> str | None:
    return None if timedelta(0) <= value <= MAX_DURATION else "must be between 0s and 8760h"


def _is_a_period(value: timedelta) -> str | None:
    return None if SHORTEST_PERIOD <= value <= MAX_DURATION else "must be between 100ms and 8760h"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_port_or_name(text: str) -> str | None:
    if not 0 < len(text) <= 63:
        return "must be a port number or the name of one of the workload's ports"
    return None if not _is_number(text) or 0 < int(text) <= 65535 else "must be between 1 and 65,535"


AbsolutePath = Annotated[str, MaxLength(4096), Check(_is_absolute, "an absolute path")]
Duration = Annotated[timedelta, Check(_is_reasonable)]
ProbePeriod = Annotated[timedelta, Check(_is_a_period)]
Threshold = Annotated[int, Range(1, 1000)]
PortReference = Annotated[str, NumberToo(), Check(_is_port_or_name, "a port number or a port's name")]


class WorkloadType(enum.Enum):
    """The kinds of runtime."""

    CONTAINER = "container"
    COMPOSE = "compose"
    VM = "vm"
    PROCESS = "process"


class DesiredState(enum.Enum):
    """What a person wants of a workload. DELETED: its deletion was requested."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    DELETED = "Deleted"


class RunState(enum.Enum):
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
class RestartPolicy:
    """When the agent starts a process again by itself."""

    policy: RestartWord = "always"
    max_retries: Annotated[int, Range(0, 1_000_000)] = 0
    delay: Duration = timedelta(milliseconds=500)
    max_delay: Duration = timedelta(seconds=60)
    healthy_after: Duration = timedelta(seconds=60)

    @property
    def completes(self) -> bool:
        """Whether an exit with code 0 is the end of the workload."""
        return self.policy in ("no", "on-failure")


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Ready when a GET answers with a status from 200 to 399."""

    port: PortReference
    path: Annotated[str, MaxLength(2048)] = "/"


@dataclass(frozen=True, slots=True)
class CommandProbe:
    """Ready when the command exits with 0."""

    command: Annotated[tuple[Text, ...], MaxLength(256, 1)]


@dataclass(frozen=True, slots=True)
class Readiness:
    """When a started process counts as Running. Exactly one of the three probes is set."""

    tcp_port: PortReference | None = None
    http: HttpProbe | None = None
    command: CommandProbe | None = None
    #: Between two tries until it is ready first.
    interval: Duration = timedelta(milliseconds=500)
    timeout: Duration = timedelta(seconds=1)
    deadline: Duration = timedelta(seconds=60)
    #: Between two tries from then on.
    period: ProbePeriod = timedelta(seconds=5)
    #: After so many failures in a row it is NotReady, until one try succeeds.
    failure_threshold: Threshold = 3

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        yield from _one_probe(self, at)


@dataclass(frozen=True, slots=True)
class Liveness:
    """When a process that was ready counts as hung and is restarted. Exactly one of the three probes is set."""

    tcp_port: PortReference | None = None
    http: HttpProbe | None = None
    command: CommandProbe | None = None
    interval: ProbePeriod = timedelta(seconds=10)
    timeout: Duration = timedelta(seconds=1)
    #: After so many failures in a row it is stopped and started again, as its restart policy says.
    failure_threshold: Threshold = 3

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        yield from _one_probe(self, at)


def _one_probe(probe: Readiness | Liveness, at: str) -> Iterator[Problem]:
    given = [name for name in ("tcp_port", "http", "command") if getattr(probe, name) is not None]
    if len(given) != 1:
        yield problem(at, " and ".join(given) or None, "must have exactly one of tcp_port, http and command")


@dataclass(frozen=True, slots=True)
class StopPolicy:
    """How a process is asked to end, and how long it may take before its group is killed."""

    signal: Annotated[str, OneOf(("", "TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "KILL"))] = "TERM"
    grace: Duration = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A port handed over as SHOAL_PORT_<NAME> and reported in the status. 0 lets the agent choose."""

    name: PortName
    port: PortNumber = 0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A child process of an agent."""

    command: Annotated[tuple[Text, ...], MaxLength(1024, 1)]
    args: Words = ()
    env: Env = field(default_factory=dict)
    working_dir: AbsolutePath = ""
    user: Annotated[str, Pattern(USER_PATTERN, USER_RULE, allow_empty=True)] = ""
    restart: RestartPolicy = RestartPolicy()
    readiness: Readiness | None = None
    stop: StopPolicy = StopPolicy()
    ports: Annotated[tuple[NamedPort, ...], MaxLength(64)] = ()
    clear_env: bool = False
    #: Further variables, by the names of the secrets that hold their values.
    env_from_secrets: Annotated[Mapping[EnvName, Identifier], MaxLength(64)] = field(default_factory=dict)
    #: Hand it a certificate of its own, of role workload, for its group. Members of groups only.
    identity: bool = False
    liveness: Liveness | None = None

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        if self.command and not self.command[0].strip():
            yield problem(f"{prefix}command[0]", self.command[0], "must name a program")
        for name in self.env_from_secrets:
            if name in self.env:
                yield problem(f"{prefix}env_from_secrets.{name}", name, "must not be in env too: which value is meant?")
        yield from _duplicates(f"{prefix}ports", [port.name for port in self.ports], "port name")
        yield from _duplicates(f"{prefix}ports", [port.port or None for port in self.ports], "port")
        for name, probe in (("readiness", self.readiness), ("liveness", self.liveness)):
            wanted = probe and (probe.tcp_port or (probe.http.port if probe.http else None))
            if wanted and not _is_number(wanted) and wanted not in {port.name for port in self.ports}:
                yield problem(f"{prefix}{name}", wanted, "must name one of the workload's ports or be a number")


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A directory of the host inside a container."""

    host_path: Annotated[str, MaxLength(4096, 1), Check(_is_absolute)]
    container_path: Annotated[str, MaxLength(4096, 1), Check(_is_absolute)]
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class PortMapping:
    """A port of the host that leads into a container. A host port of 0 lets the engine choose."""

    container_port: Annotated[int, Range(1, 65535)]
    host_port: PortNumber = 0
    protocol: Annotated[str, OneOf(("", "tcp", "udp"))] = "tcp"


@dataclass(frozen=True, slots=True)
class ManagedVolume:
    """A volume that outlives revisions of its workload."""

    name: Identifier
    driver: Annotated[str, MaxLength(64)] = "local"
    size_gb: Annotated[int, Range(0, MAX_DISK_GB)] = 0
    access_mode: Annotated[str, MaxLength(64)] = ""
    fs_type: Annotated[str, MaxLength(64)] = ""
    mount_path: AbsolutePath = ""
    read_only: bool = False
    retain_policy: Annotated[str, OneOf(("", "Delete", "Retain"))] = ""


@dataclass(frozen=True, slots=True)
class Ulimit:
    """A resource limit of a container's processes, by its name in `ulimit`, such as `nofile`."""

    name: Annotated[str, Pattern(r"[a-z]{2,16}", "must be the name of a limit, such as nofile")]
    soft: Annotated[int, Range(-1, 1 << 40)]
    hard: Annotated[int, Range(-1, 1 << 40)]


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container."""

    image: Annotated[str, MaxLength(1024, 1)]
    command: Words = ()
    env: Env = field(default_factory=dict)
    volumes: Annotated[tuple[VolumeMount, ...], MaxLength(256)] = ()
    ports: Annotated[tuple[PortMapping, ...], MaxLength(256)] = ()
    restart_policy: RestartWord = ""
    privileged: bool = False
    managed_volumes: Annotated[tuple[ManagedVolume, ...], MaxLength(256)] = ()
    #: Appended to command.
    args: Words = ()
    #: Run a small init as the first process, which forwards signals and reaps children.
    init: bool = False
    #: The user inside the container; the image's own when empty.
    user: Annotated[str, MaxLength(128)] = ""
    working_dir: AbsolutePath = ""
    stop: StopPolicy = StopPolicy()
    pull_policy: Annotated[str, OneOf(("", "missing", "always", "never"))] = ""
    ulimits: Annotated[tuple[Ulimit, ...], MaxLength(32)] = ()
    labels: Annotated[Mapping[Annotated[str, MaxLength(256, 1)], Text], MaxLength(256)] = field(default_factory=dict)
    #: A weight for the CPU against other containers, as a foreign scheduler sends it. 0 is the engine's default.
    cpu_shares: Annotated[int, Range(0, 262_144)] = 0

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        taken = [f"{port.host_port}/{port.protocol or 'tcp'}" if port.host_port else None for port in self.ports]
        yield from _duplicates(f"{at}.ports" if at else "ports", taken, "host port")


@dataclass(frozen=True, slots=True)
class ComposeSpec:
    """A compose project, given in full or by a git repository."""

    source_type: Annotated[str, OneOf(("git", "inline"))] = "inline"
    git_repo: Annotated[str, MaxLength(2048)] = ""
    git_ref: Annotated[str, MaxLength(256)] = ""
    inline_yaml: Annotated[str, MaxLength(MAX_PAYLOAD)] = ""
    env: Env = field(default_factory=dict)

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        if self.source_type == "git" and not self.git_repo:
            yield problem(f"{prefix}git_repo", None, "is required when source_type is git")
        if self.source_type == "inline" and not self.inline_yaml.strip():
            yield problem(f"{prefix}inline_yaml", None, "is required when source_type is inline")


@dataclass(frozen=True, slots=True)
class VmDisk:
    """A disk of a VM."""

    pool_name: Annotated[str, MaxLength(128)] = ""
    size_gb: Annotated[int, Range(0, MAX_DISK_GB)] = 0
    mount_point: Annotated[str, MaxLength(4096)] = ""


@dataclass(frozen=True, slots=True)
class VmNetwork:
    """A network interface of a VM."""

    bridge: Annotated[str, MaxLength(64)] = ""
    dhcp: bool = False
    static_ip: Annotated[str, MaxLength(64)] = ""


@dataclass(frozen=True, slots=True)
class CloudInit:
    """What the guest is configured with at first boot."""

    user_data: Annotated[str, MaxLength(256 * 1024)] = ""
    meta_data: Annotated[str, MaxLength(256 * 1024)] = ""
    network_config: Annotated[str, MaxLength(256 * 1024)] = ""
    vendor_data: Annotated[str, MaxLength(256 * 1024)] = ""


@dataclass(frozen=True, slots=True)
class VmSpec:
    """A virtual machine."""

    vcpus: Annotated[int, Range(1, 1024)] = 1
    memory_mb: Annotated[int, Range(1, MAX_MEMORY_MB)] = 512
    disks: Annotated[tuple[VmDisk, ...], MaxLength(64)] = ()
    networks: Annotated[tuple[VmNetwork, ...], MaxLength(64)] = ()
    cloud_init: CloudInit | None = None
    os_image: Annotated[str, MaxLength(4096)] = ""
    managed_volumes: Annotated[tuple[ManagedVolume, ...], MaxLength(256)] = ()


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule on the labels of a node; the keys node_id and host_id stand for the node's own."""

    key: CONSTRAINT_KEY
    operator: Annotated[str, OneOf(("in", "not_in", "exists", "not_exists"))] = "in"
    values: Annotated[tuple[LABEL_VALUE, ...], MaxLength(256)] = ()

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        field = f"{at}.values" if at else "values"
        if self.operator in ("in", "not_in") and not self.values:
            yield problem(field, None, f"must not be empty for the operator {self.operator}")
        if self.operator in ("exists", "not_exists") and self.values:
            yield problem(field, list(self.values), f"must be empty for the operator {self.operator}")


@dataclass(frozen=True, slots=True)
class Affinity:
    """A rule about which other workloads are near."""

    workloads: Annotated[Mapping[LABEL_KEY, LABEL_VALUE], MaxLength(64, 1)]
    scope: Annotated[str, MaxLength(128, 1)] = "node"
    direction: Annotated[str, OneOf(("near", "apart"))] = "apart"
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

    #: replace: started elsewhere, `after` its node was lost. keep: left alone until the node is back, removed or
    #: declared dead. stop: its agent stops it by itself `after` that long without contact, and then it is replaced.
    policy: Annotated[str, OneOf(("replace", "keep", "stop"))] = "replace"
    after: Duration = timedelta(0)
    #: When a node is drained: the replacement is ready before the old copy is stopped, or begun after. Empty is
    #: before; but after for a workload of which there may be only one copy, or that runs to an end.
    migrate: Annotated[str, OneOf(("", "before", "after"))] = ""

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        field = f"{at}.after" if at else "after"
        if self.policy == "stop" and not self.after:
            yield problem(field, None, "is required with policy stop: how long it may run without contact")
        if self.policy == "keep" and self.after:
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
        if self.at_most_one and self.failover.migrate == "before":
            yield problem(f"{prefix}failover.migrate", "before", "must not be before with at_most_one: it needs two")
        if self.at_most_one and self.failover.policy == "stop":
            yield problem(
                f"{prefix}failover.policy", "stop", "must not be stop with at_most_one, which stops it with its lease"
            )
        if getattr(self, self.type.value) is None:
            yield problem(f"{prefix}{self.type.value}", None, f"is required when type is {self.type.value}")
        for kind in WorkloadType:
            if kind is not self.type and getattr(self, kind.value) is not None:
                yield problem(f"{prefix}{kind.value}", None, f"must not be given when type is {self.type.value}")

    @property
    def request(self) -> Resources:
        """What is reserved for it."""
        asked = self.resources
        return Resources(asked.cpu_millicores, asked.memory_mb, asked.disk_gb, self.slots)

    @property
    def host_ports(self) -> frozenset[tuple[int, str]]:
        """The (port, protocol) pairs of the node that it needs for itself."""
        if self.process is not None:
            return frozenset((port.port, "tcp") for port in self.process.ports if port.port)
        if self.container is not None:
            return frozenset((p.host_port, p.protocol or "tcp") for p in self.container.ports if p.host_port)
        return frozenset()

    @property
    def completes(self) -> bool:
        """Whether a run that ends well is the end of the workload."""
        if self.process is not None:
            return self.process.restart.completes
        return self.container is not None and self.container.restart_policy in ("no", "on-failure")

    @property
    def restarts(self) -> bool:
        """Whether it is tried again after it has failed."""
        if self.process is not None:
            return self.process.restart.policy != "no"
        return self.container is None or self.container.restart_policy != "no"

    @property
    def migrates_first(self) -> bool:
        """Whether its replacement is ready before it is stopped on a node that is drained."""
        if self.failover.migrate:
            return self.failover.migrate == "before" and not self.at_most_one
        return not self.at_most_one and not self.completes

    @property
    def storage_drivers(self) -> frozenset[str]:
        """The storage drivers its node must have."""
        volumes = self.container or self.vm
        managed = volumes.managed_volumes if volumes is not None else ()
        return frozenset(self.placement.storage_drivers) | {volume.driver or "local" for volume in managed}


def _duplicates(at: str, values: Sequence[str | int | None], noun: str) -> Iterator[Problem]:
    seen: set[str | int] = set()
    for index, value in enumerate(values):
        if value is None:
            continue
        if value in seen:
            yield problem(f"{at}[{index}]", value, f"the same {noun} is given twice")
        seen.add(value)


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What an agent needs to know to run one workload: the part of a spec that reaches it."""

    type: WorkloadType
    #: Set for the type `process`; the other kinds have their own.
    process: ProcessSpec | None = None
    #: What the control plane reserved, and so what the workload is limited to.
    request: Resources = Resources()
    at_most_one: bool = False
    #: Without contact for so long (or for a lease, if that is longer), it is stopped. 0: never.
    stop_after: Duration = timedelta(0)

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        if self.type is WorkloadType.PROCESS and self.process is None:
            yield problem(f"{at}.process" if at else "process", None, "is required when type is process")


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


class MoveKind(enum.Enum):
    """In which order a workload leaves one node and begins on another."""

    BEFORE = "before"  # it runs on the new node before the copy on the old one is removed
    AFTER = "after"  # the copy on the old node is removed first


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


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A workload: its desired state and its owner.

    `generation` is the fencing token: it grows with every placement, every change of the spec and every change of
    the desired state, so that an order that arrives late can be told from the newest one.
    """

    workload_id: WorkloadId
    spec: WorkloadSpec
    #: The exact spec that was accepted, as serialised persys.control.v1.WorkloadSpec, and its SHA-256.
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
    #: Grows when the same spec is to be run once more although it has ended or failed.
    attempt: int = 0
    #: Compare-and-set: 0 before it was first stored.
    version: int = 0


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

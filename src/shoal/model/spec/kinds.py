"""The specs of the four kinds of workload: processes, containers, compose projects and virtual machines.

They mirror the fields of `persys.control.v1.WorkloadSpec` and carry every rule on them. The same classes read YAML
documents (`shoal.model.documents`) and publish the JSON Schemas. `shoal.model.workloads` exports all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from shoal.core.errors import Problem, problem
from shoal.core.shape import MaxLength, OneOf, Pattern, Range
from shoal.model.resources import MAX_DISK_GB, MAX_MEMORY_MB
from shoal.model.spec.parts import (
    MAX_PAYLOAD,
    USER_PATTERN,
    USER_RULE,
    AbsolutePath,
    ArtifactSpecs,
    Body,
    Env,
    Files,
    ImageLocation,
    Liveness,
    ManagedVolume,
    NamedPort,
    PortMapping,
    Readiness,
    RestartPolicy,
    RestartWord,
    RetainPolicy,
    SecretEnv,
    Sha256,
    StopPolicy,
    Text,
    VmBoot,
    VolumeMount,
    Words,
    artifact_problems,
    by_pool,
    duplicates,
    file_problems,
    fixed_ports,
    image_problems,
    is_number,
    mapping_problems,
    named_mappings,
    probed_ports,
    secret_problems,
)
from shoal.model.spec.words import ComposeSource, PullPolicy, Restart

# ---------------------------------------------------------------------------------------------------------
# Processes


@dataclass(frozen=True, slots=True)
class ProcessSpec(Body):
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
    env_from_secrets: SecretEnv = field(default_factory=dict)
    #: Hand it a certificate of its own, of role workload, for its group. Members of groups only.
    identity: bool = False
    liveness: Liveness | None = None
    #: Files in its working directory.
    files: Files = ()
    #: Blobs of the control plane that its agent links into its working directory, read-only.
    artifacts: ArtifactSpecs = ()

    @property
    def restart_rules(self) -> RestartPolicy:
        """When the agent starts it again by itself."""
        return self.restart

    @property
    def named_ports(self) -> tuple[NamedPort, ...]:
        """All of its ports."""
        return self.ports

    @property
    def host_ports(self) -> frozenset[tuple[int, str]]:
        """The ports that it names by number."""
        return frozenset((port.port, "tcp") for port in self.ports if port.port)

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        if self.command and not self.command[0].strip():
            yield problem(f"{prefix}command[0]", self.command[0], "must name a program")
        yield from secret_problems(self, self.env, prefix)
        yield from duplicates(f"{prefix}ports", [port.name for port in self.ports], "port name")
        yield from duplicates(f"{prefix}ports", [port.port or None for port in self.ports], "port")
        names = {port.name for port in self.ports}
        for name, wanted in probed_ports(self):
            if not is_number(wanted) and wanted not in names:
                yield problem(f"{prefix}{name}", wanted, "must name one of the workload's ports or be a number")
        yield from file_problems(self.files, f"{prefix}files", absolute=False)
        yield from artifact_problems(self.artifacts, self.files, f"{prefix}artifacts")


# ---------------------------------------------------------------------------------------------------------
# Containers


@dataclass(frozen=True, slots=True)
class Ulimit:
    """A resource limit of a container's processes, by its name in `ulimit`, such as `nofile`. -1 is no limit."""

    name: Annotated[str, Pattern(r"[a-z]{2,16}", "must be the name of a limit, such as nofile")]
    soft: Annotated[int, Range(-1, 1 << 40)]
    hard: Annotated[int, Range(-1, 1 << 40)]

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        if self.hard != -1 and not -1 < self.soft <= self.hard:
            yield problem(f"{at}.soft" if at else "soft", self.soft, f"must not be above hard ({self.hard})")


@dataclass(frozen=True, slots=True)
class ContainerSpec(Body):
    """A container."""

    image: Annotated[str, MaxLength(1024, 1)]
    command: Words = ()
    env: Env = field(default_factory=dict)
    volumes: Annotated[tuple[VolumeMount, ...], MaxLength(256)] = ()
    ports: Annotated[tuple[PortMapping, ...], MaxLength(256)] = ()
    #: The restart policy in one word; `restart` says more.
    restart_policy: RestartWord = Restart.UNSET
    #: Needs an agent with --allow-privileged.
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
    #: Empty means missing: the image is pulled when the engine does not have it.
    pull_policy: Annotated[str, OneOf(("", *PullPolicy))] = ""
    ulimits: Annotated[tuple[Ulimit, ...], MaxLength(32)] = ()
    labels: Annotated[Mapping[Annotated[str, MaxLength(256, 1)], Text], MaxLength(256)] = field(default_factory=dict)
    #: A weight for the CPU against other containers, as a foreign scheduler sends it. 0 is the engine's default.
    cpu_shares: Annotated[int, Range(0, 262_144)] = 0
    #: None: as `restart_policy` says.
    restart: RestartPolicy | None = None
    #: None: the HEALTHCHECK of the image, if it has one.
    readiness: Readiness | None = None
    liveness: Liveness | None = None
    #: Further variables, by the names of the secrets that hold their values.
    env_from_secrets: SecretEnv = field(default_factory=dict)
    #: Files in the container, by absolute paths.
    files: Files = ()

    @property
    def restart_rules(self) -> RestartPolicy:
        """`restart`, or what the one word means."""
        return self.restart or RestartPolicy(policy=self.restart_policy or Restart.ALWAYS)

    @property
    def port_mappings(self) -> tuple[PortMapping, ...]:
        """All of its ports."""
        return self.ports

    @property
    def named_ports(self) -> tuple[NamedPort, ...]:
        """The mappings that have a name, by their host ports."""
        return named_mappings(self.ports)

    @property
    def host_ports(self) -> frozenset[tuple[int, str]]:
        """The host ports that it names by number."""
        return fixed_ports(self.ports)

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        yield from mapping_problems(self.ports, f"{prefix}ports")
        yield from secret_problems(self, self.env, prefix)
        yield from duplicates(f"{prefix}ulimits", [each.name for each in self.ulimits], "limit")
        yield from file_problems(self.files, f"{prefix}files", absolute=True)
        if self.restart is not None and self.restart_policy not in ("", self.restart.policy):
            rule = f"must not be another than restart.policy ({self.restart.policy})"
            yield problem(f"{prefix}restart_policy", self.restart_policy, rule)
        reachable = {port.name for port in self.ports if port.name}
        reachable |= {str(port.container_port) for port in self.ports if port.name or port.host_port}
        for name, wanted in probed_ports(self):
            if wanted not in reachable:
                rule = "must name one of the workload's ports, or be the container_port of one with a name or host port"
                yield problem(f"{prefix}{name}", wanted, rule)


# ---------------------------------------------------------------------------------------------------------
# Compose projects


@dataclass(frozen=True, slots=True)
class ComposeSpec(Body):
    """A compose project, given in full or by a git repository."""

    source_type: Annotated[str, OneOf(tuple(ComposeSource))] = ComposeSource.INLINE
    #: A URL, or a path of the node.
    git_repo: Annotated[str, MaxLength(2048)] = ""
    git_ref: Annotated[str, MaxLength(256)] = ""
    #: The compose file, as text or in base64.
    inline_yaml: Annotated[str, MaxLength(MAX_PAYLOAD)] = ""
    env: Env = field(default_factory=dict)
    #: How long its services may take to end. The signal is each service's own.
    stop: StopPolicy = StopPolicy()
    restart: RestartPolicy = RestartPolicy()
    #: Whether the volumes of the project go when the workload is deleted. Empty means Retain.
    #: Updates and restarts always keep them.
    retain_policy: RetainPolicy = ""
    #: Further variables, by the names of the secrets that hold their values.
    env_from_secrets: SecretEnv = field(default_factory=dict)
    #: Files in the directory of the project.
    files: Files = ()

    @property
    def restart_rules(self) -> RestartPolicy:
        """When the agent starts it again by itself."""
        return self.restart

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        if self.source_type == ComposeSource.GIT and not self.git_repo:
            yield problem(f"{prefix}git_repo", None, "is required when source_type is git")
        if self.source_type == ComposeSource.INLINE and not self.inline_yaml.strip():
            yield problem(f"{prefix}inline_yaml", None, "is required when source_type is inline")
        yield from secret_problems(self, self.env, prefix)
        yield from file_problems(self.files, f"{prefix}files", absolute=False)


# ---------------------------------------------------------------------------------------------------------
# Virtual machines

#: The size of a disk that has neither a size nor an image.
DEFAULT_DISK_GB = 20


@dataclass(frozen=True, slots=True)
class VmDisk:
    """A disk of a VM. The first one holds the overlay over `os_image`, if there is one."""

    #: The storage pool of the node that it lies in, whose space it reserves. Empty: the agent's own directory.
    pool_name: Annotated[str, MaxLength(128)] = ""
    #: 0: as large as its image, or 20 GB without one.
    size_gb: Annotated[int, Range(0, MAX_DISK_GB)] = 0
    #: Where the guest mounts it, an absolute path; written into user-data. The name of a device means: nowhere.
    mount_point: Annotated[str, MaxLength(4096)] = ""
    #: What it begins with: a path of the node or a URL (file, https). The image itself is never changed.
    image: ImageLocation = ""
    #: Of the image; required for https.
    sha256: Sha256 = ""
    #: Of the image. Empty: as QEMU finds it; iso is attached read-only.
    format: Annotated[str, OneOf(("", "qcow2", "raw", "iso"))] = ""
    read_only: bool = False
    #: A disk file of the node that is used as it is, and made if it is not there. Foreign schedulers send one.
    path: AbsolutePath = ""
    #: What tells it from the other disks of the VM, whatever their order: an update finds its data by it, and the guest
    #: finds it as /dev/disk/by-id/virtio-<name>. Empty: the agent gives it one, such as disk0.
    name: Annotated[
        str,
        Pattern(
            r"(?!cidata$|volume)[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?",
            "must have at most 20 lower-case letters, digits and dashes, and be neither cidata nor begin with volume",
            allow_empty=True,
        ),
    ] = ""

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        yield from image_problems(self.image, self.sha256, f"{prefix}image", f"{prefix}sha256")
        if self.path and (self.image or self.pool_name):
            yield problem(f"{prefix}path", self.path, "must not be given with image or pool_name")


@dataclass(frozen=True, slots=True)
class VmNetwork:
    """A network interface of a VM: user-mode networking, unless a bridge or a tap device is given."""

    bridge: Annotated[str, MaxLength(64)] = ""
    #: Written into network-config.
    dhcp: bool = False
    static_ip: Annotated[str, MaxLength(64)] = ""
    #: A tap device of the node that is there already.
    tap: Annotated[str, MaxLength(64)] = ""
    #: Empty: made from the ids of the workload and of the interface, so it stays the same.
    mac: Annotated[
        str, Pattern(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", "must be a MAC address in lower case", allow_empty=True)
    ] = ""
    #: Ports of the host that lead into the guest; with user-mode networking only.
    ports: Annotated[tuple[PortMapping, ...], MaxLength(64)] = ()
    #: What tells it from the other interfaces of the VM, whatever their order: its MAC address is made from it, and
    #: network-config gives the interface this name in the guest. Empty: the agent gives it one, such as eth0.
    name: Annotated[
        str,
        Pattern(
            r"(?!lo$)[a-z]([a-z0-9-]{0,13}[a-z0-9])?",
            "must have at most 15 lower-case letters, digits and dashes, begin with a letter, and not be lo",
            allow_empty=True,
        ),
    ] = ""

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        if self.bridge and self.tap:
            yield problem(f"{prefix}tap", self.tap, "must not be given with bridge")
        if self.ports and (self.bridge or self.tap):
            yield problem(f"{prefix}ports", None, "must not be given with a bridge or a tap device")
        for index, port in enumerate(self.ports):
            if not port.name and not port.host_port:
                yield problem(f"{prefix}ports[{index}]", None, "must have a name or a host_port")


@dataclass(frozen=True, slots=True)
class CloudInit:
    """What the guest is configured with at first boot."""

    user_data: Annotated[str, MaxLength(256 * 1024)] = ""
    meta_data: Annotated[str, MaxLength(256 * 1024)] = ""
    network_config: Annotated[str, MaxLength(256 * 1024)] = ""
    vendor_data: Annotated[str, MaxLength(256 * 1024)] = ""


_VM_STOP = StopPolicy(grace=timedelta(seconds=60))


@dataclass(frozen=True, slots=True)
class VmSpec(Body):
    """A virtual machine."""

    vcpus: Annotated[int, Range(1, 1024)] = 1
    memory_mb: Annotated[int, Range(1, MAX_MEMORY_MB)] = 512
    disks: Annotated[tuple[VmDisk, ...], MaxLength(64)] = ()
    networks: Annotated[tuple[VmNetwork, ...], MaxLength(64)] = ()
    cloud_init: CloudInit | None = None
    #: The base of the first disk: a path of the node or a URL (file, https). Checked by the agent that runs it.
    os_image: ImageLocation = ""
    managed_volumes: Annotated[tuple[ManagedVolume, ...], MaxLength(256)] = ()
    #: A kernel of the node that is loaded without a boot loader.
    kernel: AbsolutePath = ""
    initrd: AbsolutePath = ""
    kernel_args: Annotated[str, MaxLength(4096)] = ""
    #: Of os_image; required for https.
    os_image_sha256: Sha256 = ""
    #: auto: KVM if a guest boots with it, else TCG.
    acceleration: Annotated[str, OneOf(("auto", "kvm", "tcg"))] = "auto"
    #: None: it is Running as soon as QEMU runs.
    boot: VmBoot | None = None
    #: How long the guest may take to power down. The signal does not matter.
    stop: StopPolicy = _VM_STOP
    restart: RestartPolicy = RestartPolicy()
    #: Whether its disks go when the workload is deleted. Empty means Retain. Updates and restarts
    #: always keep them.
    retain_policy: RetainPolicy = ""

    @property
    def volumes_hold_disks(self) -> bool:
        """A guest sees disks only."""
        return True

    @property
    def restart_rules(self) -> RestartPolicy:
        """When the agent starts it again by itself."""
        return self.restart

    @property
    def port_mappings(self) -> tuple[PortMapping, ...]:
        """The forwarded ports of all its interfaces."""
        return tuple(port for network in self.networks for port in network.ports)

    @property
    def named_ports(self) -> tuple[NamedPort, ...]:
        """The mappings that have a name, by their host ports."""
        return named_mappings(self.port_mappings)

    @property
    def host_ports(self) -> frozenset[tuple[int, str]]:
        """The host ports that it names by number."""
        return fixed_ports(self.port_mappings)

    @property
    def pool_gb(self) -> Mapping[str, int]:
        """The space that it reserves in each storage pool of its node."""
        disks = [(disk.pool_name, disk.size_gb or DEFAULT_DISK_GB) for disk in self.disks]
        return by_pool([*disks, *((volume.pool_name, volume.size_gb) for volume in self.managed_volumes)])

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        yield from mapping_problems(self.port_mappings, f"{prefix}networks.ports")
        yield from duplicates(f"{prefix}networks", [each.mac or None for each in self.networks], "MAC address")
        yield from duplicates(f"{prefix}networks", [each.name or None for each in self.networks], "name")
        yield from duplicates(f"{prefix}disks", [each.name or None for each in self.disks], "name")
        if (self.initrd or self.kernel_args) and not self.kernel:
            yield problem(f"{prefix}kernel", None, "is required with initrd and kernel_args")
        forwarded = {port.container_port for port in self.port_mappings if port.protocol != "udp"}
        if self.boot is not None and self.boot.tcp_port and self.boot.tcp_port not in forwarded:
            rule = "must be the container_port of a forwarded TCP port"
            yield problem(f"{prefix}boot.tcp_port", self.boot.tcp_port, rule)

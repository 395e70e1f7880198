"""Parts of specs that several kinds of workload have, their rules, and `Body`: what all kinds have in common.

Used by `shoal.model.spec.kinds`, which has the kinds themselves; `shoal.model.workloads` exports the public names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from shoal.core.errors import Problem, problem
from shoal.core.shape import Check, Identifier, MaxLength, NumberToo, OneOf, Pattern, Range
from shoal.model.resources import MAX_DISK_GB
from shoal.model.spec.words import Restart

MAX_TEXT = 64 * 1024
MAX_PAYLOAD = 1024 * 1024
MAX_DURATION = timedelta(days=365)
SHORTEST_PERIOD = timedelta(milliseconds=100)
#: All files of a workload together.
MAX_FILES_BYTES = 1024 * 1024
_WRITE_BITS = 0o222

Text = Annotated[str, MaxLength(MAX_TEXT)]
EnvName = Annotated[str, Pattern(r"[A-Za-z_][A-Za-z0-9_]{0,255}", "must be an environment variable name")]
#: Who runs a process.
USER_PATTERN, USER_RULE = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", "must be a user name or uid"
Env = Annotated[Mapping[EnvName, Text], MaxLength(1024)]
#: Further variables, by the names of the secrets that hold their values.
SecretEnv = Annotated[Mapping[EnvName, Identifier], MaxLength(64)]
Words = Annotated[tuple[Text, ...], MaxLength(1024)]
PortNumber = Annotated[int, Range(0, 65535)]
_PORT_NAME = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
_PORT_NAME_RULE = "must be a name of lower-case letters, digits and dashes"
PortName = Annotated[str, Pattern(_PORT_NAME, _PORT_NAME_RULE)]
RestartWord = Annotated[str, OneOf(tuple(Restart))]
#: Whether data goes with a deleted workload. Empty means Retain: data is never deleted unless somebody asked for it.
RetainPolicy = Annotated[str, OneOf(("", "Delete", "Retain"))]


def is_absolute(path: str) -> str | None:
    """The rule in words, if a path is relative."""
    return None if not path or path.startswith("/") else "must be an absolute path"


def _stays_inside(path: str) -> str | None:
    parts = path.split("/")
    if path.endswith("/") or ".." in parts or not any(part not in ("", ".") for part in parts):
        return "must be the path of a file, without .."
    return None


def _is_read_only(mode: int) -> str | None:
    return None if 0 <= mode <= 0o777 and not mode & _WRITE_BITS else "must be a mode without write permission, as 0444"


def _is_reasonable(value: timedelta) -> str | None:
    return None if timedelta(0) <= value <= MAX_DURATION else "must be between 0s and 8760h"


def _is_a_period(value: timedelta) -> str | None:
    return None if SHORTEST_PERIOD <= value <= MAX_DURATION else "must be between 100ms and 8760h"


def is_number(text: str) -> bool:
    """Whether a text is a number in decimal digits."""
    return text.isascii() and text.isdigit()


def _is_port_or_name(text: str) -> str | None:
    if not 0 < len(text) <= 63:
        return "must be a port number or the name of one of the workload's ports"
    return None if not is_number(text) or 0 < int(text) <= 65535 else "must be between 1 and 65,535"


def is_regular_expression(text: str) -> str | None:
    """The rule in words, if a text is no regular expression."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return "must be a regular expression"
    return None


AbsolutePath = Annotated[str, MaxLength(4096), Check(is_absolute, "an absolute path")]
Duration = Annotated[timedelta, Check(_is_reasonable)]
ProbePeriod = Annotated[timedelta, Check(_is_a_period)]
Threshold = Annotated[int, Range(1, 1000)]
PortReference = Annotated[str, NumberToo(), Check(_is_port_or_name, "a port number or a port's name")]
Sha256 = Annotated[str, Pattern(r"[0-9a-f]{64}", "must be the SHA-256 as 64 lower-case hex digits", allow_empty=True)]
#: A path of the node, or a URL with the scheme file or https.
ImageLocation = Annotated[str, MaxLength(4096)]


# ---------------------------------------------------------------------------------------------------------
# Parts of several kinds


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When the agent starts a workload again by itself."""

    policy: RestartWord = Restart.ALWAYS
    max_retries: Annotated[int, Range(0, 1_000_000)] = 0
    delay: Duration = timedelta(milliseconds=500)
    max_delay: Duration = timedelta(seconds=60)
    healthy_after: Duration = timedelta(seconds=60)

    @property
    def completes(self) -> bool:
        """Whether an exit with code 0 is the end of the workload."""
        return self.policy in (Restart.NO, Restart.ON_FAILURE)


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
    """When a started workload counts as Running. Exactly one of the three probes is set."""

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
    """When a workload that was ready counts as hung and is restarted. Exactly one of the three probes is set."""

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
    """How a workload is asked to end, and how long it may take before it is killed."""

    signal: Annotated[str, OneOf(("", "TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "KILL"))] = "TERM"
    grace: Duration = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A port handed over as SHOAL_PORT_<NAME> and reported in the status. 0 lets the agent choose."""

    name: PortName
    port: PortNumber = 0


@dataclass(frozen=True, slots=True)
class FileSpec:
    """A file that the workload finds when it starts: text of the spec, or the value of a secret. Read-only."""

    path: Annotated[str, MaxLength(4096, 1), Check(_stays_inside, "the path of a file")]
    content: Text = ""
    #: The name of a secret. The file is replaced when the secret changes, also while the workload runs.
    secret: Annotated[str, MaxLength(128)] = ""
    mode: Annotated[int, Range(0, 0o777), Check(_is_read_only, "a mode without write permission")] = 0o444

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        if self.content and self.secret:
            yield problem(f"{at}.secret" if at else "secret", self.secret, "must not be given with content")


Files = Annotated[tuple[FileSpec, ...], MaxLength(64)]


@dataclass(frozen=True, slots=True)
class ArtifactSpec:
    """A blob of the control plane that the workload finds as a read-only file when it starts."""

    sha256: Annotated[str, Pattern(r"[0-9a-f]{64}", "must be the SHA-256 as 64 lower-case hex digits")]
    path: Annotated[str, MaxLength(4096, 1), Check(_stays_inside, "the path of a file")]


ArtifactSpecs = Annotated[tuple[ArtifactSpec, ...], MaxLength(64)]


@dataclass(frozen=True, slots=True)
class VmBoot:
    """When a guest has booted. Each sign that is given has to be seen."""

    #: A regular expression that a line of the console matches.
    console: Annotated[str, MaxLength(1024), Check(is_regular_expression, "a regular expression")] = ""
    #: A port of the guest that accepts connections; it has to be forwarded.
    tcp_port: PortNumber = 0
    #: The guest agent answers.
    guest_agent: bool = False
    #: After this long without the signs it is VM_BOOT_FAILED.
    deadline: Duration = timedelta(minutes=5)

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        if not self.console and not self.tcp_port and not self.guest_agent:
            yield problem(at, None, "must have at least one of console, tcp_port and guest_agent")


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A directory of the host inside a container."""

    host_path: Annotated[str, MaxLength(4096, 1), Check(is_absolute)]
    container_path: Annotated[str, MaxLength(4096, 1), Check(is_absolute)]
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class PortMapping:
    """A port of the host that leads into a container or a guest.

    With a name it is one of the workload's named ports, and a host port of 0 is chosen by the agent. Without a name,
    a host port of 0 is chosen by the engine.
    """

    #: The port inside.
    container_port: Annotated[int, Range(1, 65535)]
    host_port: PortNumber = 0
    protocol: Annotated[str, OneOf(("", "tcp", "udp"))] = "tcp"
    name: Annotated[str, Pattern(_PORT_NAME, _PORT_NAME_RULE, allow_empty=True)] = ""


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
    #: Whether it goes when the workload is deleted. Empty means Retain.
    retain_policy: RetainPolicy = ""
    #: The storage pool of the node that it lies in, whose space it reserves. Empty: the agent's own directory.
    pool_name: Annotated[str, MaxLength(128)] = ""

    @property
    def is_read_only(self) -> bool:
        """Whether its workload may not write to it."""
        return self.read_only or self.access_mode == "ReadOnlyMany"


class Body:
    """What every kind of workload answers, whatever it is made of. Kinds that have a field of the name override it."""

    __slots__ = ()

    @property
    def restart_rules(self) -> RestartPolicy:
        """When the agent starts it again by itself."""
        return RestartPolicy()

    @property
    def stop(self) -> StopPolicy:
        """How it is asked to end."""
        return StopPolicy()

    @property
    def readiness(self) -> Readiness | None:
        """When it counts as Running; None: as soon as it runs, or as its runtime says."""
        return None

    @property
    def liveness(self) -> Liveness | None:
        """When it counts as hung."""
        return None

    @property
    def boot(self) -> VmBoot | None:
        """When it has booted; None: it does not, or nobody asks."""
        return None

    @property
    def named_ports(self) -> tuple[NamedPort, ...]:
        """The ports that are chosen by the agent or given, passed to it and reported."""
        return ()

    @property
    def port_mappings(self) -> tuple[PortMapping, ...]:
        """The ports of the node that lead into it."""
        return ()

    @property
    def host_ports(self) -> frozenset[tuple[int, str]]:
        """The (port, protocol) pairs of the node that it needs for itself."""
        return frozenset()

    @property
    def env_from_secrets(self) -> Mapping[str, str]:
        """Variables whose values are secrets, by the names of those."""
        return {}

    @property
    def files(self) -> tuple[FileSpec, ...]:
        """Files that it finds when it starts."""
        return ()

    @property
    def managed_volumes(self) -> tuple[ManagedVolume, ...]:
        """Volumes that outlive its revisions."""
        return ()

    @property
    def volumes_hold_disks(self) -> bool:
        """Whether its managed volumes are disks, whose file systems are its own to make, and not directories."""
        return False

    @property
    def retain_policy(self) -> str:
        """What becomes of its own disks and volumes when it is deleted."""
        return ""

    @property
    def deletes_data(self) -> bool:
        """Whether its own disks and volumes go when it is deleted. Without a policy they are retained."""
        return self.retain_policy == "Delete"

    @property
    def identity(self) -> bool:
        """Whether it gets a certificate of its own."""
        return False

    @property
    def artifacts(self) -> tuple[ArtifactSpec, ...]:
        """The blobs that it needs."""
        return ()

    @property
    def secret_names(self) -> frozenset[str]:
        """The secrets that it needs."""
        return frozenset(self.env_from_secrets.values()) | {each.secret for each in self.files if each.secret}

    @property
    def pool_gb(self) -> Mapping[str, int]:
        """The space that it reserves in each storage pool of its node."""
        return by_pool((volume.pool_name, volume.size_gb) for volume in self.managed_volumes)


def by_pool(parts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The sum of the sizes for each pool; parts without a pool do not count."""
    pools: dict[str, int] = {}
    for name, size in parts:
        if name:
            pools[name] = pools.get(name, 0) + size
    return pools


# ---------------------------------------------------------------------------------------------------------
# Rules that several kinds share


def probed_ports(body: Body) -> Iterator[tuple[str, str]]:
    """The ports that the probes of a spec refer to, each with the name of its probe."""
    for name, probe in (("readiness", body.readiness), ("liveness", body.liveness)):
        wanted = probe and (probe.tcp_port or (probe.http.port if probe.http else None))
        if wanted:
            yield name, wanted


def secret_problems(body: Body, env: Mapping[str, str], prefix: str) -> Iterator[Problem]:
    """Variables that are given twice, in the spec and by a secret."""
    for name in body.env_from_secrets:
        if name in env:
            yield problem(f"{prefix}env_from_secrets.{name}", name, "must not be in env too: which value is meant?")


def file_problems(files: Sequence[FileSpec], at: str, *, absolute: bool) -> Iterator[Problem]:
    """What is wrong with the files of a spec taken together."""
    rule = "must be an absolute path in the container" if absolute else "must be a path below the working directory"
    for index, each in enumerate(files):
        if each.path.startswith("/") is not absolute:
            yield problem(f"{at}[{index}].path", each.path, rule)
    yield from duplicates(at, [each.path for each in files], "path")
    if sum(len(each.content.encode(errors="replace")) for each in files) > MAX_FILES_BYTES:
        yield problem(at, None, f"must not have more than {MAX_FILES_BYTES:,} bytes together")


def artifact_problems(artifacts: Sequence[ArtifactSpec], files: Sequence[FileSpec], at: str) -> Iterator[Problem]:
    """What is wrong with the artifacts of a spec, taken together and with its files."""
    for index, each in enumerate(artifacts):
        if each.path.startswith("/"):
            yield problem(f"{at}[{index}].path", each.path, "must be a path below the working directory")
    taken = {each.path for each in files}
    for index, each in enumerate(artifacts):
        if each.path in taken:
            yield problem(f"{at}[{index}].path", each.path, "is the path of one of its files")
    yield from duplicates(at, [each.path for each in artifacts], "path")


def image_problems(image: str, sha256: str, at: str, sha256_at: str) -> Iterator[Problem]:
    """What is wrong with the location of a disk image."""
    scheme, separator, _ = image.partition("://")
    if (separator and scheme not in ("file", "https")) or (image and not separator and not image.startswith("/")):
        yield problem(at, image, "must be an absolute path or a URL with the scheme file or https")
    if scheme == "https" and separator and not sha256:
        yield problem(sha256_at, None, "is required with https")


def mapping_problems(ports: Sequence[PortMapping], at: str) -> Iterator[Problem]:
    """Ports and names that are given twice."""
    taken = [f"{port.host_port}/{port.protocol or 'tcp'}" if port.host_port else None for port in ports]
    yield from duplicates(at, taken, "host port")
    yield from duplicates(at, [port.name or None for port in ports], "port name")


def named_mappings(ports: Sequence[PortMapping]) -> tuple[NamedPort, ...]:
    """The mappings that have a name, by their host ports."""
    return tuple(NamedPort(port.name, port.host_port) for port in ports if port.name)


def fixed_ports(ports: Sequence[PortMapping]) -> frozenset[tuple[int, str]]:
    """The host ports that are given by number."""
    return frozenset((port.host_port, port.protocol or "tcp") for port in ports if port.host_port)


def duplicates(at: str, values: Sequence[str | int | None], noun: str) -> Iterator[Problem]:
    """Values that are there twice; None does not count."""
    seen: set[str | int] = set()
    for index, value in enumerate(values):
        if value is None:
            continue
        if value in seen:
            yield problem(f"{at}[{index}]", value, f"the same {noun} is given twice")
        seen.add(value)

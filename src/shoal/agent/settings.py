"""Everything that can be set about an agent, and the environment variables that may set it.

    settings = load_settings(AgentSettings, flags=…, env=os.environ, env_names=ENV_NAMES, file=…)

Called by `shoal.cli`; read by `shoal.agent.server`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from shoal.agent.node.probes import MEMORY_RULE, parse_memory
from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import IDENTIFIER, IDENTIFIER_RULE, is_identifier
from shoal.core.shape import Check, MaxLength, OneOf, Pattern, Range
from shoal.model.nodes import LABEL_KEY, LABEL_VALUE, ROOT_POOL
from shoal.model.resources import MAX_DISK_GB, MAX_SLOTS
from shoal.model.trust import parse_token
from shoal.model.workloads import USER_PATTERN, USER_RULE, EnvName, WorkloadType
from shoal.wire.addresses import Address, parse_address
from shoal.wire.trust.access import LOOPBACK, Access

CONTROL_PORT = 8085
AGENT_PORT = 50051
JOIN_PORT = 8086

# As in `shoal.wire.trust.credentials`, which an agent without certificates does not load.
CA_FILE, CERT_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"

_OTHERWISE = "join with --join TOKEN, or make them with `shoal certs issue --role agent`"

#: The variable that names a settings file when no flag does.
CONFIG_ENV = "PERSYS_CONFIG_FILE"

ENV_NAMES: Mapping[str, tuple[str, ...]] = {
    "data_dir": ("SHOAL_AGENT_DATA_DIR", "PERSYS_STATE_PATH"),
    "control": ("SHOAL_CONTROL", "PERSYS_SCHEDULER_ADDR"),
    "ca": ("SHOAL_CA", "PERSYS_TLS_CA"),
    "cert": ("SHOAL_CERT", "PERSYS_TLS_CERT"),
    "key": ("SHOAL_KEY", "PERSYS_TLS_KEY"),
    "join": ("SHOAL_JOIN_TOKEN",),
    "join_address": ("SHOAL_JOIN_ADDRESS",),
    "insecure": ("SHOAL_INSECURE", "PERSYS_SCHEDULER_INSECURE"),
    # Not SHOAL_NODE_ID: that is what an agent tells its workloads, and a workload may be an agent.
    "node_id": ("SHOAL_AGENT_NODE_ID", "PERSYS_NODE_ID"),
    "grpc_host": ("SHOAL_AGENT_GRPC_HOST", "PERSYS_GRPC_ADDR"),
    "grpc_port": ("SHOAL_AGENT_GRPC_PORT", "PERSYS_GRPC_PORT"),
    "no_listen": ("SHOAL_AGENT_NO_LISTEN",),
    "advertise": ("SHOAL_AGENT_ADVERTISE", "PERSYS_AGENT_GRPC_ENDPOINT"),
    "http_host": ("SHOAL_AGENT_HTTP_HOST",),
    "http_port": ("SHOAL_AGENT_HTTP_PORT", "PERSYS_METRICS_PORT"),
    "labels": ("SHOAL_AGENT_LABELS", "PERSYS_NODE_LABELS"),
    "region": ("SHOAL_AGENT_REGION", "PERSYS_NODE_REGION"),
    "environment": ("SHOAL_AGENT_ENVIRONMENT", "PERSYS_NODE_ENV"),
    "cluster_id": ("SHOAL_CLUSTER_ID",),
    "slots": ("SHOAL_AGENT_SLOTS",),
    "pass_env": ("SHOAL_AGENT_PASS_ENV",),
    "default_user": ("SHOAL_AGENT_DEFAULT_USER",),
    "runtimes": ("SHOAL_AGENT_RUNTIMES",),
    "allow_privileged": ("SHOAL_AGENT_ALLOW_PRIVILEGED",),
    "storage_pools": ("SHOAL_AGENT_STORAGE_POOLS",),
    "artifacts_gb": ("SHOAL_AGENT_ARTIFACTS_GB",),
    "cpu": ("SHOAL_AGENT_CPU",),
    "memory": ("SHOAL_AGENT_MEMORY",),
    "version": ("PERSYS_VERSION",),
    "log_level": ("PERSYS_LOG_LEVEL",),
}


POOL_RULE = "must be name=path:GB, as fast=/srv/fast:200, or name=server:/export:GB for one that is mounted over NFS"


@dataclass(frozen=True, slots=True)
class Pool:
    """A directory of this machine for disks and volumes, and how much of it may be reserved."""

    name: str
    path: Path
    total_gb: int
    #: The server of a pool that is mounted over NFS; the path is the server's then.
    server: str = ""

    @property
    def driver(self) -> str:
        """The storage driver of its volumes."""
        return "nfs" if self.server else "local"

    @property
    def place(self) -> str:
        """The directory, or server:/export."""
        return f"{self.server}:{self.path}" if self.server else str(self.path)


def parse_pool(text: str) -> Pool:
    """A storage pool as name=path:GB or name=server:/export:GB. Raises `ValueError`."""
    name, _, rest = text.partition("=")
    path, _, size = rest.rpartition(":")
    server = ""
    if not path.startswith("/"):
        server, _, path = path.partition(":")
    if not is_identifier(name) or not path.startswith("/") or not (size.isascii() and size.isdigit()):
        raise ValueError(POOL_RULE)
    if not 0 < int(size[:20]) <= MAX_DISK_GB:
        raise ValueError(f"the size of a pool must be between 1 and {MAX_DISK_GB:,} GB")
    return Pool(name, Path(path), int(size), server)


def _is_pool(text: str) -> str | None:
    try:
        parse_pool(text)
    except ValueError as error:
        return str(error)
    return None


def _is_memory(text: str) -> str | None:
    try:
        parse_memory(text)
    except ValueError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything that can be set about an agent."""

    #: Where the agent stores its state, and its workloads' files and logs. Made when missing.
    data_dir: Annotated[str, MaxLength(4096, 1)]
    #: The control plane's addresses, host:port (8085 when the port is left out), tried in turn.
    control: Annotated[tuple[Annotated[str, MaxLength(300, 1)], ...], MaxLength(32)] = ()
    #: Serve commands without registering anywhere.
    standalone: bool = False
    #: The authorities that are trusted, this agent's certificate and its key: paths of PEM files.
    ca: Annotated[str, MaxLength(4096)] = ""
    cert: Annotated[str, MaxLength(4096)] = ""
    key: Annotated[str, MaxLength(4096)] = ""
    #: A token of `shoal token create`: get a certificate by it, unless there is one in the data directory already.
    join: Annotated[str, MaxLength(256)] = ""
    #: Where to join, host or host:port, tried in turn. Empty: where the control plane is, at the usual port.
    join_address: Annotated[tuple[Annotated[str, MaxLength(300, 1)], ...], MaxLength(32)] = ()
    #: No TLS: anyone who can connect may do everything.
    insecure: bool = False
    #: The id of this node. Empty: that of the certificate, else the host name, which is stored.
    node_id: Annotated[str, Pattern(IDENTIFIER.pattern, IDENTIFIER_RULE, allow_empty=True)] = ""
    #: The address to listen on. None: every address; loopback alone with `insecure`.
    grpc_host: Annotated[str, MaxLength(255)] | None = None
    grpc_port: Annotated[int, Range(0, 65535)] = AGENT_PORT
    #: Listen nowhere: commands come only through the stream that the agent opens to the control plane.
    no_listen: bool = False
    #: What is registered instead of the address above: host, or host:port. For agents behind another address.
    advertise: Annotated[str, MaxLength(300)] = ""
    #: /metrics and /health; not served without a port.
    http_host: Annotated[str, MaxLength(255)] = "127.0.0.1"
    http_port: Annotated[int, Range(0, 65535)] | None = None
    #: How many task processes the node runs side by side. None: one for each core.
    slots: Annotated[int, Range(0, MAX_SLOTS)] | None = None
    #: Cores that the node offers. None: what its cgroup allows, else what the machine has; memory and disk likewise.
    cpu: Annotated[float, Range(0.001, 10_000)] | None = None
    memory: Annotated[str, MaxLength(32), Check(_is_memory, MEMORY_RULE)] | None = None
    disk_gb: Annotated[int, Range(0, MAX_DISK_GB)] | None = None
    #: How many threads a task may use for each of its slots; handed on to it.
    workers_per_slot: Annotated[int, Range(1, 1024)] = 1
    labels: Annotated[Mapping[LABEL_KEY, LABEL_VALUE], MaxLength(250)] = field(default_factory=dict)
    #: Shorthands for the labels `region` and `env`.
    region: LABEL_VALUE = ""
    environment: LABEL_VALUE = ""
    #: A control plane of another cluster refuses the node. Empty: the cluster of the certificate, or any.
    cluster_id: Annotated[str, Pattern(IDENTIFIER.pattern, IDENTIFIER_RULE, allow_empty=True)] = ""
    #: Nodes with an equal one are on one host. Empty: found out from the machine.
    host_id: Annotated[str, MaxLength(256)] = ""
    #: Stop the workloads before the agent ends, instead of leaving them running.
    stop_workloads_on_exit: bool = False
    #: How long that may take in all. Each workload has its own grace period within it.
    stop_grace: timedelta = timedelta(seconds=60)
    #: Variables of the agent's environment that workloads get, besides PATH, HOME, LANG and TZ.
    pass_env: Annotated[tuple[EnvName, ...], MaxLength(64)] = ()
    #: Who runs workloads that name no user. Empty: the user of the agent.
    default_user: Annotated[str, Pattern(USER_PATTERN, USER_RULE, allow_empty=True)] = ""
    #: The kinds of workload to run here. Empty: all that this machine can run.
    runtimes: Annotated[
        tuple[Annotated[str, OneOf(tuple(kind.value for kind in WorkloadType))], ...], MaxLength(4)
    ] = ()
    #: Run containers that ask for all rights on this machine.
    allow_privileged: bool = False
    #: Directories for disks and volumes, as name=path:GB.
    storage_pools: Annotated[
        tuple[Annotated[str, MaxLength(4096), Check(_is_pool, POOL_RULE)], ...], MaxLength(64)
    ] = ()
    #: How much room the artifacts of workloads may take in the data directory. What was used longest ago goes first.
    artifacts_gb: Annotated[int, Range(1, MAX_DISK_GB)] = 4
    #: What is registered and shown as the agent's version. Empty: the package's.
    version: Annotated[str, MaxLength(128)] = ""
    #: debug, info, warning or error; empty: as for every command.
    log_level: Annotated[str, OneOf(("", "debug", "info", "warn", "warning", "error"))] = ""

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        if not self.control and not self.standalone:
            rule = "is required: where is the control plane? An agent without one is started with --standalone"
            yield problem(f"{prefix}control", None, rule)
        if self.no_listen and not self.control_addresses:
            yield problem(f"{prefix}no_listen", True, "needs a control plane: nobody else can send commands to it")
        for index, address in enumerate(self.control):
            yield from _address_problems(_with_port(address, CONTROL_PORT), f"{prefix}control[{index}]")
        yield from self._access_problems(prefix)
        for name, host in (("grpc_host", self.grpc_host or LOOPBACK), ("http_host", self.http_host)):
            yield from _address_problems(f"{_bracketed(host)}:0", f"{prefix}{name}", listening=True)
        names = [text.partition("=")[0] for text in self.storage_pools]
        if len(set(names)) < len(names):
            yield problem(f"{prefix}storage_pools", ", ".join(names), "must not have two pools of one name")
        if ROOT_POOL in names:
            yield problem(f"{prefix}storage_pools", ROOT_POOL, "is the name of the node's own disk; choose another")
        if self.advertise:
            yield from _address_problems(_with_port(self.advertise, AGENT_PORT), f"{prefix}advertise")

    def _access_problems(self, prefix: str) -> Iterator[Problem]:
        if not self.join:
            yield from self.access.problems(prefix, otherwise=_OTHERWISE)
            return
        if self._given_access.is_given:
            yield problem(f"{prefix}join", None, "must not be given together with certificates or --insecure")
        if not self.control_addresses and not self.join_address:
            yield problem(
                f"{prefix}join_address", None, "is required: an agent that stands alone joins nobody it knows"
            )
        try:
            parse_token(self.join, name=f"{prefix}join")
        except InvalidError as error:
            yield from error.problems
        for index, address in enumerate(self.join_address):
            yield from _address_problems(_with_port(address, JOIN_PORT), f"{prefix}join_address[{index}]")

    @property
    def directory(self) -> Path:
        """The data directory. A state file, as foreign agents name it, stands for its directory."""
        path = Path(self.data_dir).absolute()  # other programs get it, and they have working directories of their own
        return path.parent if path.suffix == ".db" else path

    @property
    def control_addresses(self) -> tuple[str, ...]:
        """Where the control plane is; nowhere when the agent stands alone."""
        return () if self.standalone else tuple(_with_port(address, CONTROL_PORT) for address in self.control)

    @property
    def credentials_dir(self) -> Path:
        """Where an agent keeps the certificate that it got by joining."""
        return self.directory / "certs"

    @property
    def has_joined(self) -> bool:
        """Whether it uses that certificate."""
        return not self._given_access.is_given and (self.join != "" or _exists(self.credentials_dir / CERT_FILE))

    @property
    def access(self) -> Access:
        """Its certificate: the given one, else the one it got by joining."""
        if not self.has_joined:
            return self._given_access
        ca, cert, key = (str(self.credentials_dir / name) for name in (CA_FILE, CERT_FILE, KEY_FILE))
        return Access(ca, cert, key)

    @property
    def join_addresses(self) -> tuple[str, ...]:
        """Where to join."""
        if self.join_address:
            return tuple(_with_port(address, JOIN_PORT) for address in self.join_address)
        hosts = dict.fromkeys(parse_address(address).host for address in self.control_addresses)
        return tuple(str(Address(host, JOIN_PORT)) for host in hosts)

    @property
    def _given_access(self) -> Access:
        return Access(self.ca, self.cert, self.key, self.insecure)

    @property
    def grpc_address(self) -> str:
        """Where to serve."""
        return f"{_bracketed(self.access.listening_host(self.grpc_host))}:{self.grpc_port}"

    @property
    def http_address(self) -> str | None:
        """Where to serve HTTP; None: nowhere."""
        return f"{_bracketed(self.http_host)}:{self.http_port}" if self.http_port is not None else None

    @property
    def wanted_runtimes(self) -> tuple[WorkloadType, ...]:
        """The kinds of workload that were asked for; none: all that there are."""
        return tuple(WorkloadType(word) for word in self.runtimes)

    @property
    def pools(self) -> dict[str, Pool]:
        """The storage pools by name."""
        return {pool.name: pool for pool in map(parse_pool, self.storage_pools)}

    @property
    def memory_mb(self) -> int | None:
        """The memory that was given."""
        return parse_memory(self.memory) if self.memory is not None else None

    @property
    def all_labels(self) -> dict[str, str]:
        """The labels that were given, in any of the ways there are."""
        named = {"region": self.region, "env": self.environment}
        return {**{key: value for key, value in named.items() if value}, **self.labels}

    def endpoint(self, served_at: str, *, local_host: Callable[[], str]) -> str:
        """The address to register: as given, else where the agent serves, as others can reach it.

        Args:
            served_at: the address that is really served, with its port.
            local_host: this machine's address as the control plane sees it, for agents that listen everywhere.
        """
        served = parse_address(served_at)
        if self.advertise:
            return _with_port(self.advertise, served.port)
        listening = parse_address(self.grpc_address, listening=True)
        return str(Address(local_host(), served.port)) if listening.is_wildcard else served_at

    def reachable_host(self, *, local_host: Callable[[], str]) -> str:
        """The host at which others reach this node, and so what its workloads serve."""
        if self.advertise:
            return parse_address(_with_port(self.advertise, 1)).host
        listening = parse_address(self.grpc_address, listening=True)
        return local_host() if listening.is_wildcard else listening.host


def _with_port(text: str, port: int) -> str:
    """host:port from host or host:port."""
    text = text.strip()
    if text.startswith("["):
        return text if "]:" in text else f"{text}:{port}"
    return f"{_bracketed(text)}:{port}" if text.count(":") != 1 else text


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _address_problems(address: str, field_name: str, *, listening: bool = False) -> list[Problem]:
    try:
        parse_address(address, field=field_name, listening=listening)
    except InvalidError as error:
        return list(error.problems)
    return []


def _exists(path: Path) -> bool:
    """Whether there is such a file. There is none under a name that no file can have."""
    try:
        return path.exists()
    except OSError:
        return False

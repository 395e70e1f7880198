"""What one serving agent runs and where: the file, the environment and the ports together.

`deploy` decides which roles run here, with which ports, shard and replica; it is the only place that joins the two
sources. The environment comes before the file, as on the platforms that set it; `agent_port` is the exception. Called
by `shoal serve`; used by everything in `shoal.serving`.
"""

from __future__ import annotations

import contextlib
import enum
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import ExhaustedError, InvalidError, Problem, problem
from shoal.discovery.hosts import family_of, local_address
from shoal.discovery.replicas.records import AddressFamily
from shoal.serving.config.environment import Environment
from shoal.serving.config.settings import NAME_RULE, ServingSettings, is_name
from shoal.serving.filters import LayoutFilter, parse_filters

DEFAULT_LAYOUT = "default"
SERVING_HOME = "/opt/tiger/monolith_serving"


class Role(enum.StrEnum):
    """What a model server serves."""

    PS = "ps"
    ENTRY = "entry"
    DENSE = "dense"
    UNIFIED = "unified"


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """Where one model server listens."""

    grpc: int
    http: int
    archon: int


@dataclass(frozen=True, slots=True)
class Server:
    """One model server that runs here."""

    role: Role
    ports: ServerPorts
    #: Among several dense services on one machine.
    index: int = 0

    @property
    def name(self) -> str:
        """Its name among the processes of this agent."""
        return f"{self.role.value}{self.index or ''}"


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that is decided before anything starts."""

    settings: ServingSettings
    environment: Environment
    deploy_type: str
    shard_id: int
    shard_num: int
    #: -1 when the tree chooses it.
    replica_id: int
    agent_port: int
    #: 0 without a proxy.
    proxy_port: int
    #: In the order of their start.
    servers: tuple[Server, ...]
    filters: tuple[LayoutFilter, ...]

    @property
    def bzid(self) -> str:
        """The top of the tree."""
        return self.settings.bzid or ""

    @property
    def location(self) -> str:
        """`idc:cluster`, or nothing when one of them is not known."""
        idc, cluster = self.environment.idc, self.environment.cluster
        return f"{idc}:{cluster}" if idc and cluster else ""

    @property
    def path_prefix(self) -> str:
        """Where the replicas of this agent stand in the tree."""
        base = f"/{self.bzid}/service/{self.settings.base_name}"
        return f"{base}/{self.location}" if self.settings.dc_aware and self.location else base

    @property
    def layout_path(self) -> str:
        """The layout that this agent follows."""
        pattern = self.settings.layout_pattern or DEFAULT_LAYOUT
        return pattern if pattern.startswith("/") else f"/{self.bzid}/layouts/{pattern}"

    @property
    def container_cluster(self) -> str:
        """The service that this container belongs to, as containers name it in the tree."""
        env = self.environment
        return f"{env.psm or 'unknown'};{env.idc or None};{env.cluster or None}"

    @property
    def container_id(self) -> str:
        """The name of this container. `:` separates the parts of a binding, so an IPv6 address has none here."""
        return self.environment.pod_name or self.advertised_host.replace(":", "-")

    @property
    def advertised_host(self) -> str:
        """The address that peers are told."""
        env = self.environment
        return env.host_ip or env.pod_ip or env.host_ipv6 or local_address()

    @property
    def address_family(self) -> AddressFamily:
        """The addresses of peers that this machine calls."""
        return family_of(self.environment.host_ip, self.environment.pod_ip)

    def servers_of(self, role: Role) -> tuple[Server, ...]:
        """The model servers of a role."""
        return tuple(server for server in self.servers if server.role is role)

    def ps_indexes(self) -> tuple[int, ...]:
        """The parameter servers of this shard."""
        return tuple(index for index in range(self.settings.num_ps) if index % self.shard_num == self.shard_id)

    def replica_of(self, server: Server, replica_id: int | None = None) -> int:
        """The replica id of one model server, which differs between the dense services of one machine.

        Without an id of the machine they have none either: those of two machines would be the same.
        """
        own = self.replica_id if replica_id is None else replica_id
        several = len(self.servers_of(Role.DENSE))
        if server.role is not Role.DENSE or several <= 1 or own < 0:
            return own
        return own * several + server.index


#: Gives so many free ports, each another one.
FreePorts = Callable[[int], tuple[int, ...]]


#: Free ports are chosen below the range of the kernel's source ports: no outgoing connection takes one meanwhile.
LOWEST_FREE, HIGHEST_FREE = 20_000, 32_767
_TRIES = 1000


def free_ports(count: int, *, entropy: Entropy | None = None) -> tuple[int, ...]:
    """Ports that nobody listens on now. They are held together, so that no two are the same."""
    chance = entropy or SystemEntropy()
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for _ in range(_TRIES):
            if len(found) == count:
                break
            port = int(chance.uniform(LOWEST_FREE, HIGHEST_FREE + 1))
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("", port))
                found.append(port)
    if len(found) < count:
        raise ExhaustedError(f"there are no {count} free ports between {LOWEST_FREE} and {HIGHEST_FREE}")
    return tuple(found)


def deploy(settings: ServingSettings, environment: Environment, *, take_ports: FreePorts = free_ports) -> Deployment:
    """Join the file and the environment. Raises `InvalidError` with every problem."""
    problems = list(_shard_problems(settings, environment))
    problems.extend(_name_problems(environment))
    if problems:
        raise InvalidError(problems)
    shard_num = environment.shard_num or settings.num_shard or 1
    shard_id = environment.shard_id or 0
    kind = "mixed" if settings.stand_alone_serving else settings.deploy_type or settings.server_type or ""
    ports = _Ports(settings, environment, take_ports)
    servers = tuple(_servers(kind, settings, environment, ports))
    deployment = Deployment(
        settings=settings,
        environment=environment,
        deploy_type=kind,
        shard_id=shard_id,
        shard_num=shard_num,
        replica_id=_replica_id(settings, environment),
        agent_port=settings.agent_port or ports.choose(2),
        proxy_port=(settings.proxy_port or ports.choose(None)) if _has_proxy(settings, servers) else 0,
        servers=servers,
        filters=parse_filters(settings.layout_filters, shard_id=shard_id, shard_num=shard_num),
    )
    problems.extend(_port_problems(deployment))
    if problems:
        raise InvalidError(problems)
    return deployment


def _shard_problems(settings: ServingSettings, environment: Environment) -> Iterator[Problem]:
    in_file, outside = settings.num_shard, environment.shard_num
    if in_file is not None and outside is not None and in_file != outside:
        yield problem("num_shard", in_file, f"must be equal to MONOLITH_HOST_SHARD_N, which is {outside}")
        return
    shards = outside or in_file or 1
    if environment.shard_id is None:
        if shards > 1:
            yield problem("SHARD_ID", None, f"is required: there are {shards} shards")
    elif environment.shard_id >= shards:
        yield problem("SHARD_ID", environment.shard_id, f"must be less than the number of shards, which is {shards}")


def _name_problems(environment: Environment) -> Iterator[Problem]:
    """What becomes a part of a path must be one."""
    names = {
        "TCE_INTERNAL_IDC": environment.idc,
        "TCE_CLUSTER": environment.cluster,
        "TCE_PSM": environment.psm,
        "MY_POD_NAME": environment.pod_name,
    }
    for name, value in names.items():
        if value and not is_name(value):
            yield problem(name, value, NAME_RULE)


def _replica_id(settings: ServingSettings, environment: Environment) -> int:
    """An agent of version 1 has the hash of its pod's name, others what the platform says."""
    given, hashed = environment.replica_id, environment.hashed_pod_name
    if settings.agent_version == 1 and hashed >= 0:
        return hashed
    return hashed if given is None else given


def _has_proxy(settings: ServingSettings, servers: tuple[Server, ...]) -> bool:
    return bool(settings.proxy_binary) and any(server.role is Role.ENTRY for server in servers)


#: By deploy type and role: the numbers of the variables with the gRPC, HTTP and archon port.
_PORT_NUMBERS: Mapping[tuple[str, Role], tuple[int, int, int]] = {
    ("mixed", Role.ENTRY): (3, 4, 0),
    ("mixed", Role.PS): (5, 6, 7),
    ("mixed", Role.DENSE): (8, 9, 10),
    ("entry", Role.ENTRY): (3, 4, 0),
    ("ps", Role.PS): (3, 4, 0),
    ("dense", Role.DENSE): (3, 4, 0),
    ("unified", Role.UNIFIED): (3, 4, 0),
}


def _servers(kind: str, settings: ServingSettings, environment: Environment, ports: _Ports) -> Iterator[Server]:
    """The model servers of a deploy type, those first that others wait for."""
    roles = {
        "mixed": (Role.PS, *((Role.DENSE,) if settings.dense_alone else ()), Role.ENTRY),
        "entry": (Role.ENTRY,),
        "ps": (Role.PS,),
        "dense": (Role.DENSE,),
        "unified": (Role.UNIFIED,),
    }[kind]
    for role in roles:
        several = settings.dense_service_num if (kind, role) == ("dense", Role.DENSE) else 1
        for index in range(several):
            # The platform knows the ports of the first dense service only.
            is_first = role is not Role.DENSE or (index == 0 and environment.dense_service_index == 0)
            numbers = _PORT_NUMBERS[kind, role] if is_first else (None, None, None)
            yield Server(role, ports.of(role, numbers, from_file=index == 0), index=index)


class _Ports:
    """Chooses ports: those of the environment, else those of the file, else free ones."""

    def __init__(self, settings: ServingSettings, environment: Environment, take_ports: FreePorts) -> None:
        self._settings = settings
        self._environment = environment
        self._take_ports = take_ports
        self._free: list[int] = []
        self._used = set(environment.ports.values())

    def of(self, role: Role, numbers: tuple[int | None, int | None, int | None], *, from_file: bool) -> ServerPorts:
        names = ("tfs_port_grpc", "tfs_port_http", "tfs_port_archon")
        if role is not Role.UNIFIED:
            names = (f"tfs_{role}_port", f"tfs_{role}_http_port", f"tfs_{role}_archon_port")
        given = [getattr(self._settings, name) if from_file else None for name in names]
        return ServerPorts(*(self.choose(number, in_file) for number, in_file in zip(numbers, given, strict=True)))

    def choose(self, number: int | None, in_file: int | None = None) -> int:
        if number is not None and number in self._environment.ports:
            return self._environment.ports[number]
        return in_file or self._next_free()

    def _next_free(self) -> int:
        while True:
            if not self._free:
                self._free = list(self._take_ports(8))
            port = self._free.pop(0)
            if port not in self._used:
                self._used.add(port)
                return port


def _port_problems(deployment: Deployment) -> Iterator[Problem]:
    """No two listeners have one port."""
    chosen = {"agent_port": deployment.agent_port}
    if deployment.proxy_port:
        chosen["proxy_port"] = deployment.proxy_port
    for server in deployment.servers:
        chosen |= {
            f"{server.name} gRPC": server.ports.grpc,
            f"{server.name} HTTP": server.ports.http,
            f"{server.name} archon": server.ports.archon,
        }
    first: dict[int, str] = {}
    for name, port in chosen.items():
        other = first.setdefault(port, name)
        if other != name:
            yield problem(f"the port of {name}", port, f"is the port of {other} already")

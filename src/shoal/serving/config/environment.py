"""The environment variables that serving agents read. Names are those of the platforms that Monolith runs on.

A workload of a fleet has others for two of them: its id stands for the name of the pod, and its named ports (`agent`,
`grpc`, `http`, `archon`, and `ps-grpc` and so on where several roles run) for PORT to PORT10.

Every value is read and checked once, when the agent starts; all problems are reported at once. A variable that is empty
counts as unset. Called by `shoal.serving.config.deployment`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.errors import InvalidError, Problem, problem
from shoal.wire.addresses import Address, parse_address

#: By number: 0 is PORT, 2 is PORT2. PORT1 belongs to the file distribution of the platform.
_PORTS = {0: "PORT", **{number: f"PORT{number}" for number in range(2, 11)}}
#: The same as named ports of a workload. Those without a role are the entry's where several roles run.
_NAMED_PORTS = {
    0: "SHOAL_PORT_ARCHON",
    2: "SHOAL_PORT_AGENT",
    3: "SHOAL_PORT_GRPC",
    4: "SHOAL_PORT_HTTP",
    5: "SHOAL_PORT_PS_GRPC",
    6: "SHOAL_PORT_PS_HTTP",
    7: "SHOAL_PORT_PS_ARCHON",
    8: "SHOAL_PORT_DENSE_GRPC",
    9: "SHOAL_PORT_DENSE_HTTP",
    10: "SHOAL_PORT_DENSE_ARCHON",
}


@dataclass(frozen=True, slots=True)
class Environment:
    """What the platform says about this container."""

    #: How many shards the service has.
    shard_num: int | None = None
    shard_id: int | None = None
    replica_id: int | None = None
    #: Which of several dense services on one machine this is.
    dense_service_index: int = 0
    #: By number: 0 is PORT, 2 is PORT2.
    ports: Mapping[int, int] = field(default_factory=dict)
    host_ip: str = ""
    host_ipv6: str = ""
    pod_ip: str = ""
    pod_name: str = ""
    #: In cores and bytes; 0 without a limit.
    cpu_limit: float = 0.0
    memory_limit: int = 0
    idc: str = ""
    cluster: str = ""
    #: The name of the service at the platform.
    psm: str = ""
    metric_prefix: str = ""
    model_server: str = ""
    #: `user:password` for the tree.
    zk_auth: str = field(default="", repr=False)

    @property
    def hashed_pod_name(self) -> int:
        """A replica id made from the name of the pod; -1 without one."""
        if not self.pod_name:
            return -1
        digest = hashlib.md5(self.pod_name.encode(), usedforsecurity=False).hexdigest()
        return int(digest[10:20], 16)


def read_environment(env: Mapping[str, str]) -> Environment:
    """Read the environment. Raises `InvalidError` with every problem."""
    reading = _Reading(env)
    # Monolith's own script for deployments sets the second one.
    names = ("MONOLITH_HOST_SHARD_N", "byterec_host_shard_n")
    shard_num = next((name for name in names if reading.text(name)), names[0])
    cluster = ("TCE_LOGICAL_CLUSTER", "TCE_CLUSTER", "TCE_PHYSICAL_CLUSTER")
    ports = {
        number: reading.integer(name if reading.text(name) else _NAMED_PORTS[number], most=65535)
        for number, name in _PORTS.items()
    }
    found = Environment(
        shard_num=reading.integer(shard_num, least=1),
        shard_id=reading.integer("SHARD_ID"),
        replica_id=reading.integer("REPLICA_ID"),
        dense_service_index=reading.integer("DENSE_SERVICE_IDX") or 0,
        ports={number: port for number, port in ports.items() if port is not None},
        host_ip=reading.host("MY_HOST_IP"),
        host_ipv6=reading.host("MY_HOST_IPV6", is_ipv6=True),
        pod_ip=reading.host("MY_POD_IP"),
        pod_name=reading.text("MY_POD_NAME") or reading.text("SHOAL_WORKLOAD_ID"),
        cpu_limit=reading.number("MY_CPU_LIMIT"),
        memory_limit=int(reading.number("MY_MEM_LIMIT")),
        idc=reading.text("TCE_INTERNAL_IDC").lower(),
        cluster=next((value for name in cluster if (value := reading.text(name))), "").lower(),
        psm=reading.text("TCE_PSM"),
        metric_prefix=reading.text("MONOLITH_METRIC_PREFIX"),
        model_server=reading.text("MONOLITH_TFS_BINARY"),
        zk_auth=reading.credentials("ZK_AUTH"),
    )
    if reading.problems:
        raise InvalidError(reading.problems)
    return found


class _Reading:
    """Reads variables and collects what is wrong with them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.problems: list[Problem] = []

    def text(self, name: str) -> str:
        return self._env.get(name, "").strip()

    def credentials(self, name: str) -> str:
        text = self.text(name)
        if text and not all(text.partition(":")):
            self.problems.append(problem(name, None, "must be user:password"))  # its value is a secret
        return text

    def host(self, name: str, *, is_ipv6: bool = False) -> str:
        """A host that peers can call, an IPv6 address without its brackets."""
        text = self.text(name)
        host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        rule = "must be an address or the name of a host, without a port"
        try:
            is_wildcard = bool(text) and parse_address(str(Address(host, 1))).is_wildcard
        except InvalidError:
            self.problems.append(problem(name, text, rule))
        else:
            if is_wildcard:
                self.problems.append(problem(name, text, "must be an address that peers can call"))
            elif host and is_ipv6 and ":" not in host:
                self.problems.append(problem(name, text, "must be an IPv6 address"))
        return host

    def integer(self, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most:
            return int(text)
        self.problems.append(problem(name, text, f"must be a whole number between {least:,} and {most:,}"))
        return None

    def number(self, name: str) -> float:
        text = self.text(name)
        try:
            value = float(text or 0)
        except ValueError:
            value = -1.0
        if not 0 <= value < 2**63:
            self.problems.append(problem(name, text, "must be a number"))
            return 0.0
        return value

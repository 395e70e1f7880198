"""Everything that can be set about a control plane. Read by `shoal control`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from shoal.control.nodes.leases import LeaseSettings
from shoal.control.state.facts import Strategy
from shoal.control.workloads.decisions.failover import FailoverSettings
from shoal.core.errors import Problem, problem
from shoal.core.ids import IDENTIFIER, IDENTIFIER_RULE
from shoal.core.shape import MaxLength, Pattern, Range, find_problems
from shoal.wire.trust.access import Access

# Not from `shoal.wire.trust.sealing`: that loads what a control plane without secrets has no need of.
KEY_BYTES = 32
KEY_RULE = "must be the base64 of 32 bytes, such as `openssl rand -base64 32` prints"

_OTHERWISE = "make them with `shoal certs init` and `shoal certs issue --role control`"


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Everything that can be set about a control plane."""

    #: Where the embedded database lives. Made when missing.
    data_dir: Annotated[str, MaxLength(4096, 1)]
    #: The address agents and clients dial. None: every one, and loopback alone when nobody is known.
    grpc_host: Annotated[str, MaxLength(255)] | None = None
    grpc_port: Annotated[int, Range(0, 65535)] = 8085
    #: /metrics, /health, /healthz and /readyz.
    http_host: Annotated[str, MaxLength(255)] = "127.0.0.1"
    http_port: Annotated[int, Range(0, 65535)] = 8084
    #: A PostgreSQL URL; empty for SQLite in the data directory.
    database: Annotated[str, MaxLength(4096)] = ""
    #: The authorities that are trusted, this control plane's certificate and its key: paths of PEM files.
    ca: Annotated[str, MaxLength(4096)] = ""
    cert: Annotated[str, MaxLength(4096)] = ""
    key: Annotated[str, MaxLength(4096)] = ""
    #: What secrets are sealed with, as base64. Empty: a key that is made in the data directory. Several control planes
    #: on one database need the same. It has no flag: flags are seen by everyone on the machine.
    secret_key: str = field(default="", repr=False)
    #: Path of the authority's key. With it this control plane makes join tokens and issues certificates.
    ca_key: Annotated[str, MaxLength(4096)] = ""
    #: Where agents without a certificate join, if there is a key to sign theirs with.
    join_port: Annotated[int, Range(0, 65535)] = 8086
    #: Serve without certificates, anyone who can connect. Has to be asked for.
    insecure: bool = False
    #: Agents that name another cluster are turned away. Empty: the certificate's, and `default` without one.
    cluster_id: Annotated[str, Pattern(IDENTIFIER.pattern, IDENTIFIER_RULE, allow_empty=True)] = ""
    #: How often agents send heartbeats.
    heartbeat_interval: timedelta = timedelta(seconds=10)
    #: How long a node counts as alive after a heartbeat.
    lease: timedelta = timedelta(seconds=30)
    #: spread: the emptiest node first. binpack: the fullest that still fits.
    strategy: Strategy = Strategy.SPREAD
    #: Nodes are declared lost one after another: this share of the fleet at once (at least one node) …
    failover_burst: Annotated[float, Range(0.0, 1.0)] = 0.1
    #: … and so many more per second.
    failover_rate: Annotated[float, Range(0.001, 1000.0)] = 0.1
    #: When more than this share of the nodes vanishes within a lease, nothing is moved. 1 turns the brake off.
    brake_share: Annotated[float, Range(0.0, 1.0)] = 0.55
    #: Fewer nodes than this never pull the brake.
    brake_least: Annotated[int, Range(1, 1_000_000)] = 3
    #: How many workloads leave a node that is drained at a time.
    drain_parallel: Annotated[int, Range(1, 1000)] = 1
    #: What other control planes and clients are told to dial when this one leads; empty: the address it serves at.
    advertise: Annotated[str, MaxLength(300)] = ""
    #: Where artifacts are kept: a directory or a URL such as s3://bucket/x. Empty: the data directory. Several control
    #: planes on one database need a place that all of them reach.
    artifacts: Annotated[str, MaxLength(4096)] = ""
    #: How much room artifacts may take.
    artifacts_gb: Annotated[int, Range(1, 1_000_000)] = 10
    #: How many events are kept.
    max_events: Annotated[int, Range(100, 10_000_000)] = 10_000

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        yield from find_problems(self.leases, at=at)
        yield from self.access.problems(f"{at}." if at else "", otherwise=_OTHERWISE)
        if self.secret_key and not _is_key(self.secret_key):
            yield problem(f"{at}.secret_key" if at else "secret_key", None, KEY_RULE)
        if self.ca_key and self.insecure:
            rule = "must not be given together with --insecure: nobody would be asked for the certificates it signs"
            yield problem(f"{at}.ca_key" if at else "ca_key", self.ca_key, rule)

    @property
    def access(self) -> Access:
        """How it proves who it is."""
        return Access(self.ca, self.cert, self.key, self.insecure)

    @property
    def grpc_address(self) -> str:
        """Where to serve gRPC."""
        return f"{_bracketed(self.access.listening_host(self.grpc_host))}:{self.grpc_port}"

    @property
    def join_address(self) -> str | None:
        """Where to let agents join; None: nowhere."""
        if not self.ca_key:
            return None
        return f"{_bracketed(self.access.listening_host(self.grpc_host))}:{self.join_port}"

    @property
    def http_address(self) -> str:
        """Where to serve HTTP."""
        return f"{_bracketed(self.http_host)}:{self.http_port}"

    @property
    def failover(self) -> FailoverSettings:
        """The part that is about moving work off lost nodes."""
        return FailoverSettings(
            burst_share=self.failover_burst,
            nodes_per_second=self.failover_rate,
            brake_share=self.brake_share,
            brake_least=self.brake_least,
        )

    @property
    def leases(self) -> LeaseSettings:
        """The part that is about leases."""
        return LeaseSettings(heartbeat_interval=self.heartbeat_interval, lease=self.lease)


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text.strip(), validate=True)) == KEY_BYTES
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host

"""Everything that can be set about a control plane. Read by `shoal.cli.control`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from shoal.control.facts import Strategy
from shoal.control.leases import LeaseSettings
from shoal.core.errors import Problem
from shoal.core.ids import Identifier
from shoal.core.shape import MaxLength, Range, find_problems


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Everything that can be set about a control plane."""

    #: Where the embedded database lives. Made when missing.
    data_dir: Annotated[str, MaxLength(4096, 1)]
    #: The address agents and clients dial. Loopback unless told otherwise, as long as nothing is authenticated.
    grpc_host: Annotated[str, MaxLength(255)] = "127.0.0.1"
    grpc_port: Annotated[int, Range(0, 65535)] = 8085
    #: /metrics, /health, /healthz and /readyz.
    http_host: Annotated[str, MaxLength(255)] = "127.0.0.1"
    http_port: Annotated[int, Range(0, 65535)] = 8084
    #: A PostgreSQL URL; empty for SQLite in the data directory.
    database: Annotated[str, MaxLength(4096)] = ""
    #: Serve without certificates. Has to be asked for.
    insecure: bool = False
    #: Agents that name another cluster are turned away.
    cluster_id: Identifier = "default"
    #: How often agents are asked to beat.
    heartbeat_interval: timedelta = timedelta(seconds=10)
    #: How long a node counts as alive after a beat.
    lease: timedelta = timedelta(seconds=30)
    #: spread: the emptiest node first. binpack: the fullest that still fits.
    strategy: Strategy = Strategy.SPREAD
    #: What other control planes and clients are told to dial when this one leads; empty: the address it serves at.
    advertise: Annotated[str, MaxLength(300)] = ""
    #: How many events are kept.
    max_events: Annotated[int, Range(100, 10_000_000)] = 10_000

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        yield from find_problems(self.leases, at=at)

    @property
    def leases(self) -> LeaseSettings:
        """The part that is about leases."""
        return LeaseSettings(heartbeat_interval=self.heartbeat_interval, lease=self.lease)

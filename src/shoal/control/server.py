"""Builds the control plane from its settings and runs it until it is told to stop. The only place that wires it.

Called by `shoal.cli.control` and by `shoal.testing.fleet`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from shoal.control.agents import Agents
from shoal.control.dispatch import Dispatch
from shoal.control.facts import Strategy
from shoal.control.fleet import Fleet, Ledger
from shoal.control.groups import Groups
from shoal.control.leases import LeaseSettings
from shoal.control.metrics import ControlMetrics
from shoal.control.nodes import Nodes
from shoal.control.placer import Placer
from shoal.control.service import ControlService
from shoal.control.store.base import Store
from shoal.control.store.select import open_store
from shoal.control.views import Views
from shoal.control.watchers import EventFeed
from shoal.control.workloads import Workloads
from shoal.core.clock import Clock, SystemClock
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import InvalidError, Problem, ShoalError, problem
from shoal.core.ids import Identifier
from shoal.core.shape import MaxLength, Range, check, find_problems
from shoal.core.tasks import TaskScope
from shoal.wire import convert
from shoal.wire.http import HttpServer, serve_http
from shoal.wire.methods import AgentControl, methods_of
from shoal.wire.transport import Server, Service, Transport

log = logging.getLogger(__name__)

STORE_CHECK_SECONDS = 1.0


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
    #: How many events are kept.
    max_events: Annotated[int, Range(100, 10_000_000)] = 10_000

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        yield from find_problems(self.leases, at=at)

    @property
    def leases(self) -> LeaseSettings:
        """The part that is about leases."""
        return LeaseSettings(heartbeat_interval=self.heartbeat_interval, lease=self.lease)


class ControlPlane:
    """One control plane: its parts, made from settings and joined."""

    def __init__(
        self,
        settings: ControlSettings,
        *,
        transport: Transport,
        store: Store | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        metrics: ControlMetrics | None = None,
    ) -> None:
        _require_insecure(settings)
        check(settings)
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.entropy: Entropy = entropy or SystemEntropy()
        self._transport = transport
        self.metrics = metrics or ControlMetrics()
        self.store = store or open_store(
            settings.database or None,
            Path(settings.data_dir),
            decode_spec=convert.decode_spec_bytes,
            max_events=settings.max_events,
        )
        self.scope = TaskScope("control")
        self.fleet = Fleet()
        self.ledger = Ledger(self.store, self.fleet)
        self.agents = Agents(transport)
        self.placer = Placer(self.ledger, clock=self.clock, strategy=settings.strategy)
        self.dispatch = Dispatch(
            self.ledger,
            self.placer,
            self.agents,
            clock=self.clock,
            entropy=self.entropy,
            scope=self.scope,
            on_step=self.metrics.step,
        )
        self.nodes = Nodes(
            self.ledger,
            self.dispatch,
            clock=self.clock,
            entropy=self.entropy,
            settings=settings.leases,
            cluster_id=settings.cluster_id,
        )
        self.workloads = Workloads(self.ledger, self.dispatch, clock=self.clock)
        self.groups = Groups(
            self.ledger, self.dispatch, self.placer, clock=self.clock, decode_spec=convert.decode_spec_bytes
        )
        self.dispatch.liveness = self.nodes
        self.dispatch.groups = self.groups
        self.views = Views(self.fleet, self.nodes, self.dispatch, clock=self.clock, cluster_id=settings.cluster_id)
        self.feed = EventFeed(self.ledger)
        self._server: Server | None = None
        self._http: HttpServer | None = None
        self._store_trouble = "starting"
        self._mode_changed_at = self.clock.wall()

    @property
    def address(self) -> str:
        """Where it serves gRPC."""
        if self._server is None:
            raise RuntimeError("the control plane has not been started")
        return self._server.address

    @property
    def http_address(self) -> str:
        """Where it serves HTTP; empty without."""
        return self._http.address if self._http is not None else ""

    async def start(self, *, http: bool = True) -> None:
        """Read what is stored, serve, and begin to reconcile."""
        await self.store.open()
        await self.ledger.load()
        self.nodes.start()
        self._set_trouble("")
        service = Service(methods_of(AgentControl), self._service())
        self._server = await self._transport.serve(
            f"{_bracketed(self.settings.grpc_host)}:{self.settings.grpc_port}", [service]
        )
        if http:
            self._http = await serve_http(
                f"{_bracketed(self.settings.http_host)}:{self.settings.http_port}",
                metrics=self._render_metrics,
                health=self.health,
                ready=self.is_ready,
            )
        self._server.set_serving(True)
        self.scope.start(self.placer.run(), name="placer")
        self.scope.start(self.nodes.watch(), name="leases")
        self.scope.start(self._watch_store(), name="store")
        self.dispatch.enqueue_all(list(self.fleet.workloads))

    async def failed(self) -> None:
        """Wait until one of its background tasks fails, and raise that."""
        await self.scope.failed()

    async def stop(self) -> None:
        """Stop serving and let go of everything. Workloads are not touched."""
        if self._server is not None:
            await self._server.stop()
        if self._http is not None:
            await self._http.stop()
        self.dispatch.close()
        await self.scope.close()
        await self.agents.close()
        await self.store.close()

    # -----------------------------------------------------------------------------------------------------
    # Health

    def is_ready(self) -> bool:
        """Whether it can take writes now."""
        return not self._store_trouble

    def health(self) -> tuple[int, Mapping[str, object]]:
        """The true status, with the keys that clients of /health know."""
        ready = self.is_ready()
        body = {
            "status": "ok" if ready else "degraded",
            "mode": "normal" if ready else "degraded",
            "reason": self._store_trouble,
            "modeChangedAt": self._mode_changed_at.isoformat(),
        }
        return (200 if ready else 503), body

    async def _watch_store(self) -> None:
        while True:
            await self.clock.sleep(STORE_CHECK_SECONDS)
            try:
                await self.store.ping()
            except ShoalError as error:
                self._set_trouble(error.message)
            else:
                self._set_trouble("")

    def _set_trouble(self, trouble: str) -> None:
        if bool(trouble) != bool(self._store_trouble):
            self._mode_changed_at = self.clock.wall()
            if trouble:
                log.error("the store is away: %s; workloads are left as they are", trouble)
            else:
                log.info("the store is there")
        self._store_trouble = trouble

    def _render_metrics(self) -> bytes:
        self.metrics.refresh(self.views.summary(), self.nodes)
        return self.metrics.render()

    def _service(self) -> ControlService:
        return ControlService(
            fleet=self.fleet,
            nodes=self.nodes,
            workloads=self.workloads,
            groups=self.groups,
            placer=self.placer,
            views=self.views,
            feed=self.feed,
            store=self.store,
            agents=self.agents,
            clock=self.clock,
        )


async def run_control(
    settings: ControlSettings,
    *,
    transport: Transport,
    stop: asyncio.Event,
    metrics: ControlMetrics | None = None,
    on_ready: object = None,
) -> None:
    """Run a control plane until `stop` is set, or until one of its tasks fails."""
    plane = ControlPlane(settings, transport=transport, metrics=metrics)
    try:
        await plane.start()
        if callable(on_ready):
            on_ready(plane)
        stopping = asyncio.ensure_future(stop.wait())
        failing = asyncio.ensure_future(plane.failed())
        await asyncio.wait({stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if failing.done():
            failing.result()
        failing.cancel()
    finally:
        await plane.stop()


def _require_insecure(settings: ControlSettings) -> None:
    if not settings.insecure:
        raise InvalidError(
            [
                problem(
                    "--insecure",
                    None,
                    "is required: this version has no certificates yet and serves anyone who can reach it",
                )
            ],
            hint="start with --insecure on a network you trust",
        )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host

"""Builds the control plane from its settings and runs it until it is told to stop. The only place that wires it.

One database, one leader: with SQLite that is this process; with PostgreSQL several control planes campaign, one reigns,
and the others answer reads and refuse writes with the leader's address. Called by `shoal.cli.control` and by
`shoal.testing`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from shoal.control.gate import Gate
from shoal.control.leadership import Campaign
from shoal.control.metrics import ControlMetrics
from shoal.control.reign import Reign
from shoal.control.settings import ControlSettings
from shoal.control.store.base import Leader, Store
from shoal.control.store.select import open_store
from shoal.core.clock import Clock, SystemClock
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import InvalidError, NotLeaderError, ShoalError, problem
from shoal.core.files import write_atomic
from shoal.core.shape import check
from shoal.core.tasks import TaskScope
from shoal.wire import convert
from shoal.wire.http import HttpServer, serve_http
from shoal.wire.methods import AgentControl, methods_of
from shoal.wire.transport import Server, Service, Transport

log = logging.getLogger(__name__)

STORE_CHECK_SECONDS = 1.0
#: How often a control plane that does not lead looks for changes.
FOLLOW_SECONDS = 0.5


class ControlPlane:
    """One control plane: it campaigns, and it reigns or follows."""

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
        self._entropy: Entropy = entropy or SystemEntropy()
        self._transport = transport
        self._metrics = metrics or ControlMetrics()
        self.store = store or open_store(
            settings.database or None,
            Path(settings.data_dir),
            decode_spec=convert.decode_spec_bytes,
            max_events=settings.max_events,
        )
        self._scope = TaskScope("control")
        self._gate = Gate()
        self.reign = self._new_reign(term=0)
        self._campaign = Campaign(
            self.store,
            holder=_remembered_name(Path(settings.data_dir), self._entropy),
            address=self._advertised,
            clock=self.clock,
            on_change=self._leader_changed,
        )
        self._reign_failed: asyncio.Future[None] | None = None
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

    @property
    def leads(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self._campaign.leads

    async def start(self, *, http: bool = True) -> None:
        """Open the store, serve, and lead or follow."""
        await self.store.open()
        self._reign_failed = asyncio.get_running_loop().create_future()
        service = Service(methods_of(AgentControl), self._gate)
        self._server = await self._transport.serve(
            f"{_bracketed(self.settings.grpc_host)}:{self.settings.grpc_port}", [service]
        )
        await self._campaign.once()
        self._set_trouble("")
        if http:
            self._http = await serve_http(
                f"{_bracketed(self.settings.http_host)}:{self.settings.http_port}",
                metrics=self._render_metrics,
                health=self.health,
                ready=self.is_ready,
            )
        self._server.set_serving(True)
        self._scope.start(self._campaign.run(), name="campaign")
        self._scope.start(self._follow(), name="follow")
        self._scope.start(self._watch_store(), name="store")

    async def failed(self) -> None:
        """Wait until one of its background tasks fails, and raise that."""
        assert self._reign_failed is not None  # noqa: S101 it was started
        ours = asyncio.ensure_future(self._scope.failed())
        try:
            await asyncio.wait({ours, self._reign_failed}, return_when=asyncio.FIRST_COMPLETED)
            for each in (ours, self._reign_failed):
                if each.done():
                    each.result()
        finally:
            ours.cancel()

    async def stop(self) -> None:
        """Stop serving and let go of everything. Workloads are not touched."""
        if self._server is not None:
            await self._server.stop()
        if self._http is not None:
            await self._http.stop()
        await self._scope.close()
        await self.reign.end()
        await self._campaign.resign()
        await self.store.close()

    # -----------------------------------------------------------------------------------------------------
    # Leading and following

    def _new_reign(self, term: int) -> Reign:
        return Reign(
            self.settings,
            store=self.store,
            transport=self._transport,
            clock=self.clock,
            entropy=self._entropy,
            metrics=self._metrics,
            term=term,
        )

    def _advertised(self) -> str:
        return self.settings.advertise or self.address

    async def _leader_changed(self, leader: Leader, leads: bool) -> None:
        """Begin a reign, or end it. A reign that was over before this process noticed has written nothing since."""
        before = self.reign
        log.info("term %d: %s leads", leader.term, "this control plane" if leads else leader.address or "nobody")
        fresh = self._new_reign(leader.term)
        if leads:
            await fresh.begin()
            self._scope.start(self._report_failure(fresh), name=f"term-{leader.term}")
        else:
            await fresh.refresh()
        self.reign = fresh
        self._gate.open_to(fresh, leads=leads, leader=leader.address)
        await before.end()

    async def _report_failure(self, reign: Reign) -> None:
        try:
            await reign.scope.failed()
        except NotLeaderError:
            log.warning("a task of term %d ended with it", reign.term)
        except Exception as error:  # noqa: BLE001 whatever it is, it ends the process
            if self._reign_failed is not None and not self._reign_failed.done():
                self._reign_failed.set_exception(error)

    async def _follow(self) -> None:
        while True:
            await self.clock.sleep(FOLLOW_SECONDS)
            if self._campaign.leads:
                continue
            try:
                await self.reign.refresh()
            except ShoalError as error:
                log.debug("following: %s", error)

    # -----------------------------------------------------------------------------------------------------
    # Health

    def is_ready(self) -> bool:
        """Whether it can do its part now: write if it leads, know the leader if it does not."""
        return not self._store_trouble

    def health(self) -> tuple[int, Mapping[str, object]]:
        """The true status, with the keys that clients of /health know."""
        ready = self.is_ready()
        leader = self._campaign.leader
        body = {
            "status": "ok" if ready else "degraded",
            "mode": "normal" if ready else "degraded",
            "reason": self._store_trouble,
            "modeChangedAt": self._mode_changed_at.isoformat(),
            "role": "leader" if self._campaign.leads else "follower",
            "leader": leader.address,
            "term": leader.term,
        }
        return (200 if ready else 503), body

    async def _watch_store(self) -> None:
        while True:
            await self.clock.sleep(STORE_CHECK_SECONDS)
            try:
                await self.store.ping()
            except NotLeaderError:
                self._set_trouble("")
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
        self._metrics.refresh(self.reign.views.summary(), self.reign.nodes)
        return self._metrics.render()


async def run_control(
    settings: ControlSettings,
    *,
    transport: Transport,
    stop: asyncio.Event,
    metrics: ControlMetrics | None = None,
    on_ready: Callable[[ControlPlane], None] | None = None,
) -> None:
    """Run a control plane until `stop` is set, or until one of its tasks fails."""
    plane = ControlPlane(settings, transport=transport, metrics=metrics)
    try:
        await plane.start()
        if on_ready is not None:
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


def _remembered_name(data_dir: Path, entropy: Entropy) -> str:
    """This control plane's name among others, the same after a restart: it need not wait for its own old lease."""
    path = data_dir / "name"
    try:
        name = path.read_text().strip()
    except OSError:
        name = ""
    if not name:
        name = entropy.token()
        data_dir.mkdir(parents=True, exist_ok=True)
        write_atomic(str(path), name.encode())
    return name


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

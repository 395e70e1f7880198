"""Builds the control plane from its settings and runs it until it is told to stop. The only place that wires it.

One database has one leader. With SQLite that is this process. With PostgreSQL several control planes take part in the
election; one leads, the others serve reads and refuse writes with the leader's address. Called by `shoal control` and
by `shoal.testing`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from shoal.control.api.enrollment_service import CredentialService, EnrollmentService
from shoal.control.api.exec_service import ExecService
from shoal.control.api.secret_service import SecretService
from shoal.control.api.service import ControlService
from shoal.control.artifacts.service import ArtifactService
from shoal.control.jobs.service import JobService
from shoal.control.leadership.election import Election
from shoal.control.leadership.instance_id import InstanceId
from shoal.control.leadership.leader import Leadership
from shoal.control.leadership.routing import LeaderRouting
from shoal.control.metrics import ControlMetrics
from shoal.control.settings import ControlSettings
from shoal.control.state.loops import Rounds
from shoal.control.store.base import Leader, Store
from shoal.control.store.select import open_store, open_workflows
from shoal.control.trust.enrollment import JoinListener, RateLimit
from shoal.control.trust.signing import Signer
from shoal.core.clock import Clock, SystemClock
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import NotLeaderError, ShoalError
from shoal.core.shape import check
from shoal.core.tasks import Signal, TaskScope, first_of, running
from shoal.discovery.directory import AddressDirectory
from shoal.discovery.embedded.serving import CoordinationService
from shoal.jobs.engine import Engines
from shoal.jobs.workflows import Workflows
from shoal.model.identity import Caller, Identity, Role
from shoal.wire import convert
from shoal.wire.addresses import Address, parse_address
from shoal.wire.methods import (
    AgentControl,
    Artifacts,
    Coordination,
    Credentials,
    Enrollment,
    Jobs,
    Secrets,
    ServingAgent,
    WorkloadExec,
    methods_of,
)
from shoal.wire.sockets.http import HttpServer, serve_http
from shoal.wire.transport import Server, Service, Transport
from shoal.wire.trust.access import check_own_identity

log = logging.getLogger(__name__)

DEFAULT_CLUSTER = "default"
STORE_CHECK_SECONDS = 1.0
#: A store that has not answered a check for this long counts as unavailable; its own timeout is longer.
STORE_ANSWERS_WITHIN = 2.0
#: How often a follower looks for changes.
FOLLOW_SECONDS = 0.5
#: How often the key is compared with that of the stored secrets: another control plane may have set the first one.
KEY_CHECK_SECONDS = 60.0
#: The rate limit of callers without a certificate: enough for a fleet that starts at once.
JOINS_PER_SECOND = 10.0
JOINS_AT_ONCE = 100


class ControlPlaneServer:
    """One control plane: it takes part in the election, and leads or follows."""

    def __init__(
        self,
        settings: ControlSettings,
        *,
        transport: Transport,
        join_transport: Transport | None = None,
        store: Store | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        metrics: ControlMetrics | None = None,
        threads: Executor | None = None,
        engines: Engines | None = None,
        workflows: Callable[[], Workflows] | None = None,
    ) -> None:
        check(settings)
        self.settings = _with_cluster(settings, transport.identity)
        self.clock: Clock = clock or SystemClock()
        self._entropy: Entropy = entropy or SystemEntropy()
        self._transport = transport
        self._join_transport = join_transport
        self._metrics = metrics or ControlMetrics()
        self.store = store or open_store(
            settings.database or None,
            Path(settings.data_dir),
            decode_spec=convert.decode_spec_bytes,
            max_events=settings.max_events,
        )
        self._engines = engines or Engines()
        #: Makes the workflows of one leadership.
        self._workflows = workflows or (
            lambda: open_workflows(self.settings.database or None, Path(self.settings.data_dir))
        )
        self._scope = TaskScope("control")
        self._routing = LeaderRouting()
        self._join = JoinListener(
            RateLimit(per_second=JOINS_PER_SECOND, burst=JOINS_AT_ONCE, monotonic=self.clock.monotonic)
        )
        #: Set when a change could not be stored: the store is checked at once.
        self._store_failed = Signal()
        self._threads = threads
        self._signer = Signer(
            Path(settings.ca),
            Path(settings.ca_key) if settings.ca_key else None,
            cluster=self.settings.cluster_id,
            threads=threads,
        )
        self.leadership = self._new_leadership(term=0)
        self._instance = InstanceId(Path(settings.data_dir), self._entropy)
        self._election = Election(
            self.store,
            holder=self._instance.text,
            address=self._advertised,
            clock=self.clock,
            on_change=self._leader_changed,
        )
        self._leadership_failed: asyncio.Future[None] | None = None
        self._server: Server | None = None
        self._join_server: Server | None = None
        self._http: HttpServer | None = None
        self._store_trouble = "starting"
        self._key_checks = Rounds("check of the secrets' key")
        self._key_trouble = ""
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
    def join_address(self) -> str:
        """Where agents without a certificate join; empty where they cannot."""
        return self._join_server.address if self._join_server is not None else ""

    @property
    def leads(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self._election.leads

    async def start(self, *, http: bool = True) -> None:
        """Open the store, serve, and lead or follow."""
        if self.settings.database:  # without, the store has a lock of its own
            self._instance.hold()
        await self.store.open()
        await asyncio.to_thread(self._instance.save)
        self._leadership_failed = asyncio.get_running_loop().create_future()
        services = [
            Service(methods_of(AgentControl), self._routing.handlers(ControlService, attrgetter("service"))),
            Service(methods_of(Credentials), self._routing.handlers(CredentialService, attrgetter("credentials"))),
            Service(methods_of(Secrets), self._routing.handlers(SecretService, attrgetter("secrets"))),
            Service(methods_of(Jobs), self._routing.handlers(JobService, attrgetter("jobs"))),
            Service(methods_of(Artifacts), self._routing.handlers(ArtifactService, attrgetter("artifacts"))),
            Service(methods_of(WorkloadExec), self._routing.handlers(ExecService, attrgetter("exec"))),
            Service(methods_of(Coordination), self._routing.handlers(CoordinationService, attrgetter("coordination"))),
            Service(methods_of(ServingAgent), self._routing.handlers(AddressDirectory, attrgetter("addresses"))),
        ]
        self._server = await self._transport.serve(
            self.settings.grpc_address, services, check_caller=self._check_caller
        )
        if self._join_transport is not None and self.settings.join_address is not None:
            handlers = self._routing.handlers(EnrollmentService, attrgetter("enrollment"))
            joining = [Service(methods_of(Enrollment), handlers)]
            self._join_server = await self._join_transport.serve(self.settings.join_address, joining)
            self._join.port = parse_address(self._join_server.address).port
        await self._election.once()
        self._set_trouble("")
        if http:
            self._http = await serve_http(
                self.settings.http_address,
                metrics=self._render_metrics,
                health=self.health,
                ready=self.is_ready,
            )
        self._server.set_serving(True)
        if self._join_server is not None:
            self._join_server.set_serving(True)
        self._scope.start(self._election.run(), name="election")
        self._scope.start(self._follow(), name="follow")
        self._scope.start(self._watch_store(), name="store")
        self._scope.start(self._watch_key(), name="key")

    async def failed(self) -> None:
        """Wait until one of its background tasks fails, and raise that."""
        assert self._leadership_failed is not None  # noqa: S101 it was started
        async with running(self._scope.failed(), name="failed") as ours:
            await asyncio.wait({ours, self._leadership_failed}, return_when=asyncio.FIRST_COMPLETED)
            for each in (ours, self._leadership_failed):
                if each.done():
                    each.result()

    async def stop(self) -> None:
        """Stop serving and let go of everything. Workloads are not touched."""
        self.leadership.streams.close()
        self.leadership.coordination.close()
        if self._server is not None:
            await self._server.stop()
        if self._join_server is not None:
            await self._join_server.stop()
        if self._http is not None:
            await self._http.stop()
        await self._scope.close()
        await self.leadership.end()
        await self._election.resign()
        await self.store.close()
        self._instance.release()

    # -----------------------------------------------------------------------------------------------------
    # Leading and following

    def _new_leadership(self, term: int) -> Leadership:
        return Leadership(
            self.settings,
            store=self.store,
            transport=self._transport,
            clock=self.clock,
            entropy=self._entropy,
            metrics=self._metrics,
            join=self._join,
            signer=self._signer,
            threads=self._threads,
            engines=self._engines,
            workflows=self._workflows(),
            term=term,
            is_confirmed=lambda: self._election.is_confirmed,
            on_store_failure=self._store_failed.set,
        )

    def _check_caller(self, caller: Caller) -> None:
        self.leadership.revocations.check(caller)

    def _advertised(self) -> str:
        if self.settings.advertise or not self.settings.database:
            return self.settings.advertise or self.address
        # Others share this database, perhaps from other machines: loopback would lead them to themselves.
        listening = parse_address(self.settings.grpc_address, listening=True)
        served = parse_address(self.address)
        return str(Address(socket.gethostname(), served.port)) if listening.is_wildcard else self.address

    async def _leader_changed(self, leader: Leader, leads: bool) -> None:
        """Begin to lead or to follow. A leadership that ended before this process noticed has written nothing since."""
        log.info("term %d: %s leads", leader.term, "this control plane" if leads else leader.address or "nobody")
        # The old one ends first: it must not decide while the new one reads. It serves reads until then.
        self._routing.route_to(self.leadership, leads=False, leader="" if leads else leader.address)
        await self.leadership.end()
        fresh = self._new_leadership(leader.term)
        try:
            await (fresh.begin() if leads else fresh.refresh())
        except BaseException:
            await fresh.end()
            raise
        if leads:
            self._scope.start(self._report_failure(fresh), name=f"term-{leader.term}")
        self.leadership = fresh
        self._routing.route_to(fresh, leads=leads, leader=leader.address)
        await self._check_key()

    async def _report_failure(self, leadership: Leadership) -> None:
        try:
            await leadership.scope.failed()
        except NotLeaderError:
            log.warning("a task of term %d ended with it", leadership.term)
        except Exception as error:  # noqa: BLE001 whatever it is, it ends the process
            if self._leadership_failed is not None and not self._leadership_failed.done():
                self._leadership_failed.set_exception(error)

    async def _follow(self) -> None:
        rounds = Rounds("following")
        while True:
            await self.clock.sleep(FOLLOW_SECONDS)
            if self._election.leads:
                continue
            with rounds.attempt():
                await self.leadership.refresh()

    # -----------------------------------------------------------------------------------------------------
    # Health

    def is_ready(self) -> bool:
        """Whether it can serve now: write if it leads, know the leader if it follows."""
        return not self._store_trouble

    def health(self) -> tuple[int, Mapping[str, object]]:
        """The true status, with the keys that clients of /health know."""
        ready = self.is_ready()
        leader = self._election.leader
        body = {
            "status": "ok" if ready else "degraded",
            "mode": "normal" if ready else "degraded",
            "reason": self._store_trouble,
            "modeChangedAt": self._mode_changed_at.isoformat(),
            "role": "leader" if self._election.leads else "follower",
            "leader": leader.address,
            "term": leader.term,
            "secrets": self._key_trouble or "ok",
        }
        return (200 if ready else 503), body

    async def _watch_store(self) -> None:
        silent = f"it has not answered for {STORE_ANSWERS_WITHIN:g} s"
        while True:
            if self._store_trouble:
                await self.clock.sleep(STORE_CHECK_SECONDS)
            else:
                await self._store_failed.wait(timeout=STORE_CHECK_SECONDS)
            noticing = asyncio.get_running_loop().call_later(STORE_ANSWERS_WITHIN, self._set_trouble, silent)
            try:
                await self.store.ping()
                noticing.cancel()
                if self._election.leads:
                    # A commit whose answer was lost is noticed even if nobody writes.
                    await self.leadership.ledger.settle()
            except NotLeaderError:
                self._set_trouble("")
            except ShoalError as error:
                self._set_trouble(error.message)
            else:
                self._set_trouble("")
            finally:
                noticing.cancel()

    async def _watch_key(self) -> None:
        while True:
            await self.clock.sleep(KEY_CHECK_SECONDS)
            await self._check_key()

    async def _check_key(self) -> None:
        """Report whether this control plane can open the stored secrets: before it leads, not when work waits."""
        trouble = self._key_trouble
        with self._key_checks.attempt():
            trouble = await self.leadership.cluster_secrets.key_trouble()
        if trouble != self._key_trouble:
            if trouble:
                log.error("%s; workloads that name them wait while this control plane leads", trouble)
            else:
                log.info("the secrets can be opened")
        self._key_trouble = trouble

    def _set_trouble(self, trouble: str) -> None:
        if bool(trouble) != bool(self._store_trouble):
            self._mode_changed_at = self.clock.wall()
            if trouble:
                log.error("the store is unavailable: %s; workloads are left as they are", trouble)
            else:
                log.info("the store is available")
        self._store_trouble = trouble

    def _render_metrics(self) -> bytes:
        self._metrics.refresh(self.leadership.fleet, self.leadership.waiting)
        return self._metrics.render()


async def run_control(
    settings: ControlSettings,
    *,
    transport: Transport,
    stop: asyncio.Event,
    join_transport: Transport | None = None,
    metrics: ControlMetrics | None = None,
    on_ready: Callable[[ControlPlaneServer], None] | None = None,
    engines: Engines | None = None,
) -> None:
    """Run a control plane until `stop` is set, or until one of its tasks fails."""
    plane = ControlPlaneServer(
        settings, transport=transport, join_transport=join_transport, metrics=metrics, engines=engines
    )
    try:
        await plane.start()
        if on_ready is not None:
            on_ready(plane)
        await first_of(stop.wait(), plane.failed())
    finally:
        await plane.stop()


def _with_cluster(settings: ControlSettings, identity: Identity | None) -> ControlSettings:
    """The settings with the cluster of the certificate. Raises `InvalidError` if they name another one."""
    check_own_identity(identity, Role.CONTROL, insecure=settings.insecure, cluster_id=settings.cluster_id)
    named = settings.cluster_id or (identity.cluster if identity is not None else DEFAULT_CLUSTER)
    return replace(settings, cluster_id=named)

"""Builds an agent from its settings and runs it until it is told to stop. The only place that wires it.

SIGTERM and a restart leave workloads running: they are children of the keeper. `stop_workloads_on_exit` stops them
first, and a keeper without runs ends too. Called by `shoal agent` and by tests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Threads
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shoal.agent.contact.control_client import ControlClient
from shoal.agent.contact.ownership import OwnershipDesk
from shoal.agent.contact.registration import Registration
from shoal.agent.contact.states import RegistrationState
from shoal.agent.contact.terms import Terms
from shoal.agent.exec_service import ExecHandlers
from shoal.agent.job_series import JobSeries
from shoal.agent.metrics import AgentMetrics
from shoal.agent.node.health import NodeWatch
from shoal.agent.node.probes import default_node_id, detect_capacity, detect_host_id, make_probes
from shoal.agent.service import AgentHandlers
from shoal.agent.settings import CONFIG_ENV, ENV_NAMES, AgentSettings
from shoal.agent.store import intents
from shoal.agent.store.database import AgentDatabase
from shoal.agent.workloads.artifacts import ArtifactCache
from shoal.agent.workloads.certificates import WorkloadCertificates
from shoal.agent.workloads.contact import Contact
from shoal.agent.workloads.executor import Executor, NodeSelf
from shoal.agent.workloads.ports import PortBook
from shoal.core.clock import Clock, SystemClock
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import ShoalError
from shoal.core.ids import NO_SESSION, NodeId, SessionId
from shoal.core.shape import check
from shoal.core.tasks import Signal, TaskScope, first_of
from shoal.core.telemetry import MetricRegistry
from shoal.model.identity import Identity, Role
from shoal.model.nodes import ROOT_POOL, ConditionType, Feature, HeartbeatMark, NodeSpec, StoragePool
from shoal.model.resources import Resources
from shoal.model.workloads import WorkloadType
from shoal.runtimes.base import Runtime, SupportsWorkFiles
from shoal.runtimes.volumes import Volumes
from shoal.wire.addresses import parse_address
from shoal.wire.methods import AgentExec, AgentService, methods_of
from shoal.wire.sockets.http import HttpServer, serve_http
from shoal.wire.transport import Server, Service, Transport
from shoal.wire.trust.access import check_own_identity

if TYPE_CHECKING:
    # Loaded by agents that are given no runtimes.
    from shoal.runtimes.finding import FoundRuntimes

__all__ = ["CONFIG_ENV", "ENV_NAMES", "Agent", "AgentSettings", "run_agent"]

log = logging.getLogger(__name__)

#: The timeout of the heartbeat that reports workloads that were stopped with the agent.
LAST_HEARTBEAT_SECONDS = 2.0

Runtimes = Mapping[WorkloadType, Runtime]

#: Listed one by one: an agent has a feature only once it was built.
FEATURES = frozenset(
    feature.value
    for feature in (
        Feature.GENERATIONS,
        Feature.SESSIONS,
        Feature.PUSH,
        Feature.LOGS,
        Feature.LOG_QUERIES,
        Feature.PORTS,
        Feature.STREAM,
        Feature.STOP_ALONE,
        Feature.SECRETS,
        Feature.EXEC,
        Feature.BATCHES,
    )
)


class Agent:
    """One node agent: its parts, made from settings and joined."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        transport: Transport,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        runtimes: Callable[[AgentSettings, NodeId], Runtimes] | None = None,
        metrics: AgentMetrics | None = None,
        ports: PortBook | None = None,
        database_threads: Threads | None = None,
    ) -> None:
        check(settings)
        self.settings = _with_identity(settings, transport.identity)
        self.clock: Clock = clock or SystemClock()
        self.entropy: Entropy = entropy or SystemEntropy()
        self.metrics = metrics or AgentMetrics(MetricRegistry() if settings.http_address is not None else None)
        self._transport = transport
        self._make_runtimes = runtimes
        self._found: FoundRuntimes | None = None
        self._ports = ports
        self._database = AgentDatabase(settings.directory, threads=database_threads)
        self._volumes = Volumes(
            settings.directory / "volumes", pools={pool.name: pool.place for pool in settings.pools.values()}
        )
        self._scope = TaskScope("agent")
        self._changed = Signal()
        self._contact = Contact(self.clock)
        self._client = ControlClient(transport, settings.control_addresses) if settings.control_addresses else None
        self._is_stopping = False
        self._threads = database_threads
        self._certificates: WorkloadCertificates | None = None
        self._executor: Executor | None = None
        self._watch: NodeWatch | None = None
        self._registration: Registration | None = None
        self._handlers: AgentHandlers | None = None
        self._services: tuple[Service, ...] = ()
        self._terms: Terms | None = None
        self._server: Server | None = None
        self._http: HttpServer | None = None

    # -----------------------------------------------------------------------------------------------------
    # Properties

    @property
    def node_id(self) -> str:
        """The id of this node."""
        return self.executor.node.node_id

    @property
    def address(self) -> str:
        """Where it serves gRPC; empty when it does not listen."""
        if self._server is None and not self.settings.no_listen:
            raise RuntimeError("the agent has not been started")
        return self._server.address if self._server is not None else ""

    @property
    def http_address(self) -> str:
        """Where it serves HTTP; empty without."""
        return self._http.address if self._http is not None else ""

    @property
    def executor(self) -> Executor:
        """Its workloads."""
        if self._executor is None:
            raise RuntimeError("the agent has not been started")
        return self._executor

    @property
    def registration(self) -> Registration | None:
        """Its registration; None for a standalone agent."""
        return self._registration

    @property
    def version(self) -> str:
        """Its version."""
        import shoal

        return self.settings.version or shoal.__version__

    # -----------------------------------------------------------------------------------------------------
    # Starting and stopping

    async def start(self) -> None:
        """Take over stored workloads, serve, and register. Closes everything when it fails."""
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def stop(self) -> None:
        """Stop. Workloads go on, unless the settings say that they are stopped first."""
        if self._server is not None:
            await self._server.stop()
        if self._executor is not None and self.settings.stop_workloads_on_exit:
            self._is_stopping = True  # commands still come through the stream
            await self._scope.close()
            stopped = await self._executor.stop_all(self.settings.stop_grace.total_seconds())
            if self._registration is not None:
                await self._registration.send_last_heartbeat(stopped, seconds=LAST_HEARTBEAT_SECONDS)
        await self._close()

    async def failed(self) -> None:
        """Wait until a background task fails, and raise its error."""
        await first_of(self._scope.failed(), self.executor.failed())

    async def _start(self) -> None:
        settings = self.settings
        await self._database.open()
        node = await self._identify()
        self._certificates = self._make_certificates()
        self._executor = Executor(
            node=node,
            database=self._database,
            runtimes=await self._runtimes(settings, NodeId(node.node_id)),
            contact=self._contact,
            ownership=OwnershipDesk(self._client, self._contact).ask,
            clock=self.clock,
            entropy=self.entropy,
            changed=self._changed.set,
            ports=self._ports,
            metrics=self.metrics,
            certificates=self._certificates,
            volumes=self._volumes,
            artifacts=self._make_artifacts(),
            find_more=self._found.find if self._found is not None and not settings.wanted_runtimes else None,
        )
        self._watch = NodeWatch(
            executor=self._executor,
            database=self._database,
            probes=make_probes(settings.directory),
            data_dir=settings.directory,
            clock=self.clock,
            whole_machine=settings.cpu is None and settings.memory is None,
            control_trouble=self._control_trouble,
            changed=self._changed.set,
            standing=_standing_conditions(settings),
        )
        await self._executor.open()
        await self._watch.look()
        await self._serve(self._executor, self._watch)
        self._scope.start(self._watch.run(), name="health")
        if self._client is not None:
            await self._begin_registration(self._client, self._watch, node)
        else:
            log.warning("this agent stands alone: it registers nowhere")

    async def _serve(self, executor: Executor, watch: NodeWatch) -> None:
        highest = await self._database.read(partial(intents.get_meta, key="term"))
        self._terms = Terms(int(highest or "0"), self._remember_term)
        self._handlers = AgentHandlers(
            executor,
            health=watch.report,
            version=self.version,
            metrics=self.metrics,
            terms=self._terms,
            next_heartbeat=self._next_heartbeat,
            is_stopping=lambda: self._is_stopping,
        )
        exec_handlers = ExecHandlers(executor, check_call=self._handlers.check_call)
        self._services = (
            Service(methods_of(AgentService), self._handlers),
            Service(methods_of(AgentExec), exec_handlers),
        )
        if not self.settings.no_listen:
            self._server = await self._transport.serve(self.settings.grpc_address, self._services)
            self._server.set_serving(True)
        if self.settings.http_address is not None:
            series = self._make_series(executor)
            self._http = await serve_http(
                self.settings.http_address,
                metrics=self._render_metrics,
                health=self.health,
                ready=self.is_ready,
                more=None if series is None else series.own,
                of_job=None if series is None else series.of_job,
            )
            executor.metrics_address = self._http.address_at(executor.node.address)

    def _make_series(self, executor: Executor) -> JobSeries | None:
        runtime = executor.runtime(WorkloadType.PROCESS)
        if not isinstance(runtime, SupportsWorkFiles):
            return None
        return JobSeries(runtime, lambda: tuple(executor.roster.actors), self.clock)

    def _next_heartbeat(self) -> HeartbeatMark:
        return self._registration.next_heartbeat() if self._registration is not None else HeartbeatMark(NO_SESSION, 0)

    async def _begin_registration(self, client: ControlClient, watch: NodeWatch, node: NodeSelf) -> None:
        previous = await self._database.read(partial(intents.get_meta, key="session"))
        assert self._terms is not None  # noqa: S101 it serves already
        self._registration = Registration(
            client=client,
            services=self._services,
            stream_only=self.settings.no_listen,
            spec=lambda: self._node_spec(node, watch.offered_types),
            reports=watch,
            contact=self._contact,
            changed=self._changed,
            clock=self.clock,
            entropy=self.entropy,
            metrics=self.metrics,
            terms=self._terms,
            previous_session=SessionId(previous),
            remember_session=self._remember_session,
        )
        self._scope.start(self._registration.run(), name="registration")
        self._scope.start(self._registration.watch_lease(), name="lease")
        self._scope.start(self._registration.report_outages(), name="outages")
        if self.settings.has_joined and self._transport.identity is not None:
            self._begin_renewal()

    def _begin_renewal(self) -> None:
        # Imported here: an agent that has not joined does not need it.
        from shoal.agent.contact.renewal import Renewal
        from shoal.wire.trust.credentials import CredentialPaths

        paths = CredentialPaths.within(self.settings.credentials_dir)
        renewal = Renewal(paths, self._connect, clock=self.clock, entropy=self.entropy)
        self._scope.start(renewal.run(), name="renewal")

    def _make_certificates(self) -> WorkloadCertificates | None:
        """Gets certificates for workloads; None for an agent without a certificate or a control plane."""
        identity = self._transport.identity
        if identity is None or not self.settings.control_addresses:
            return None
        return WorkloadCertificates(
            self.settings.directory,
            agent=identity,
            connect=self._connect,
            clock=self.clock,
            entropy=self.entropy,
            threads=self._threads,
        )

    def _connect(self) -> ControlClient:
        """A connection of its own for a few calls."""
        return ControlClient(self._transport, self.settings.control_addresses)

    def _make_artifacts(self) -> ArtifactCache | None:
        """Fetches artifacts for workloads; None for an agent without a control plane."""
        if not self.settings.control_addresses:
            return None
        return ArtifactCache(
            self.settings.directory,
            most_bytes=self.settings.artifacts_gb << 30,
            connect=self._connect,
            in_use=self._named_artifacts,
            threads=self._threads,
        )

    def _named_artifacts(self) -> frozenset[str]:
        return self.executor.named_artifacts()

    async def _close(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
        if self._http is not None:
            await self._http.stop()
        await self._scope.close()
        if self._registration is not None:
            await self._registration.close()
        if self._executor is not None:
            await self._executor.close()
        if self._found is not None:
            await self._found.close()
        await self._volumes.close()
        await self._database.close()

    # -----------------------------------------------------------------------------------------------------
    # Identity

    async def _identify(self) -> NodeSelf:
        settings = self.settings
        remembered = await self._database.read(partial(intents.get_meta, key="node_id"))
        node_id = settings.node_id or remembered or default_node_id(socket.gethostname())
        if node_id != remembered:
            await self._database.write(partial(intents.put_meta, key="node_id", value=node_id))
        return NodeSelf(
            node_id=node_id,
            capacity=self._capacity(),
            host_id=settings.host_id or detect_host_id(),
            control=settings.control_addresses,
            workers_per_slot=settings.workers_per_slot,
            address=settings.reachable_host(local_host=self._local_host) if settings.control_addresses else "",
        )

    def _capacity(self) -> Resources:
        settings = self.settings
        return detect_capacity(
            cpu=settings.cpu,
            memory_mb=settings.memory_mb,
            disk_gb=settings.disk_gb,
            slots=settings.slots,
            data_dir=settings.directory,
        )

    def _node_spec(self, node: NodeSelf, types: tuple[str, ...]) -> NodeSpec:
        spec = NodeSpec(
            node_id=node.node_id,
            endpoint=self.settings.endpoint(self.address, local_host=self._local_host) if self.address else "",
            capacity=node.capacity,
            workload_types=types,
            storage_drivers=self._volumes.drivers,
            storage_pools=self._storage_pools(node.capacity),
            labels={"os": platform.system().lower(), "arch": platform.machine().lower(), **self.settings.all_labels},
            agent_version=self.version,
            host_id=node.host_id,
            cluster_id=self.settings.cluster_id,
            features=self._features(),
        )
        check(spec)
        return spec

    def _storage_pools(self, capacity: Resources) -> tuple[StoragePool, ...]:
        declared = [StoragePool(pool.name, pool.driver, pool.total_gb) for pool in self.settings.pools.values()]
        return (StoragePool(ROOT_POOL, total_gb=capacity.disk_gb), *declared) if declared else ()

    def _features(self) -> frozenset[str]:
        found = set(FEATURES)
        if self._certificates is not None:
            found.add(Feature.IDENTITY.value)
        if self.settings.control_addresses:
            found.add(Feature.ARTIFACTS.value)
        return frozenset(found)

    def _local_host(self) -> str:
        """This machine's address as the control plane sees it. Sends nothing: the kernel only looks up the route."""
        towards = parse_address(self.settings.control_addresses[0])
        family = socket.AF_INET6 if ":" in towards.host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((towards.host, towards.port))
                return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()

    async def _remember_session(self, session: SessionId) -> None:
        try:
            await self._database.write(partial(intents.put_meta, key="session", value=session))
        except ShoalError as error:
            log.warning("the session could not be written down: %s", error.message)

    async def _remember_term(self, term: int) -> None:
        await self._database.write(partial(intents.put_meta, key="term", value=str(term)))

    async def _runtimes(self, settings: AgentSettings, node_id: NodeId) -> Runtimes:
        if self._make_runtimes is not None:
            return self._make_runtimes(settings, node_id)
        from shoal.runtimes.finding import FoundRuntimes, RuntimeSettings

        known = RuntimeSettings(
            data_dir=settings.directory,
            node_id=node_id,
            cluster_id=settings.cluster_id,
            pass_env=settings.pass_env,
            default_user=settings.default_user,
            allow_privileged=settings.allow_privileged,
            pools={pool.name: pool.path for pool in settings.pools.values() if not pool.server},
            exports=frozenset(pool.name for pool in settings.pools.values() if pool.server),
        )
        self._found = FoundRuntimes(known, clock=self.clock, wanted=settings.wanted_runtimes)
        return await self._found.find()

    # -----------------------------------------------------------------------------------------------------
    # Health

    def is_ready(self) -> bool:
        """Whether it is healthy and accepts work."""
        return self._watch is not None and self._watch.report().healthy

    def health(self) -> tuple[int, Mapping[str, object]]:
        """The true status, for /health."""
        if self._watch is None or self._executor is None:
            return 503, {"status": "starting"}
        report, registration = self._watch.report(), self._registration
        body = {
            "status": "ok" if report.healthy else "unhealthy",
            "node_id": self.node_id,
            "version": self.version,
            "runtimes": dict(self._watch.runtimes),
            "absent": {kind.value: words for kind, words in self._found.absent.items()} if self._found else {},
            "parts": dict(report.parts),
            "registration": registration.state.value if registration is not None else "standalone",
            "registration_reason": registration.reason if registration is not None else "",
            "draining": self._executor.roster.draining,
            "workloads": len(self._executor.roster.actors),
            "orphans": sorted(self._executor.roster.orphans),
            "conditions": {each.type: each.message for each in self._watch.conditions()},
            **self._slots(self._executor),
        }
        return (200 if report.healthy else 503), body

    def _slots(self, executor: Executor) -> dict[str, object]:
        """The agent as a worker node: its slots, and the workloads that hold one."""
        claims = executor.roster.claims()
        total = executor.node.capacity.slots
        return {
            "agent_id": self.node_id,
            "running": True,
            "active_tasks": sum(claim.request.slots > 0 for claim in claims.values()),
            "available_slots": total - executor.roster.reserved().slots,
            "total_slots": total,
        }

    def _control_trouble(self) -> str:
        """What is wrong with the registration. A control plane that cannot be reached is no fault of the agent."""
        registration = self._registration
        if registration is not None and registration.state in (RegistrationState.SUPERSEDED, RegistrationState.REFUSED):
            return f"{registration.state.value}: {registration.reason}"
        return ""

    def _render_metrics(self) -> bytes:
        if self._watch is not None and self._executor is not None:
            roster, registration = self._executor.roster, self._registration
            self.metrics.refresh(
                reports=roster.reports(),
                orphans=len(roster.orphans),
                runtimes=self._watch.runtimes,
                registered=registration is not None and registration.state is RegistrationState.REGISTERED,
                draining=roster.draining,
                capacity=self._executor.node.capacity,
                reserved=roster.reserved(),
                usage=self._watch.node_usage(),
                health=self._watch.report(),
                lateness=self._executor.lateness(),
                conditions=tuple(each.type for each in self._watch.conditions()),
                open_actions=sum(actor.open_actions for actor in roster.actors.values()),
            )
        return self.metrics.render()


async def run_agent(
    settings: AgentSettings,
    *,
    transport: Transport,
    stop: asyncio.Event,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    runtimes: Callable[[AgentSettings, NodeId], Runtimes] | None = None,
    metrics: AgentMetrics | None = None,
    on_ready: Callable[[Agent], None] | None = None,
) -> None:
    """Run an agent until `stop` is set, or until one of its tasks fails."""
    agent = Agent(settings, transport=transport, clock=clock, entropy=entropy, runtimes=runtimes, metrics=metrics)
    await agent.start()
    try:
        if on_ready is not None:
            on_ready(agent)
        await first_of(stop.wait(), agent.failed())
    finally:
        await agent.stop()


def _standing_conditions(settings: AgentSettings) -> dict[ConditionType, str]:
    """The conditions that follow from how the agent was started."""
    if os.geteuid() != 0 or settings.default_user:
        return {}
    words = "the agent runs as root, and so do workloads that name no `user`; --default-user names another"
    return {ConditionType.RUNS_AS_ROOT: words}


def _with_identity(settings: AgentSettings, identity: Identity | None) -> AgentSettings:
    """The settings, completed from the certificate. Raises `InvalidError` if they contradict it."""
    check_own_identity(
        identity, Role.AGENT, insecure=settings.insecure, cluster_id=settings.cluster_id, node_id=settings.node_id
    )
    if identity is None:
        return settings
    return replace(settings, node_id=identity.name, cluster_id=identity.cluster)

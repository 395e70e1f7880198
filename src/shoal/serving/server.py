"""A serving agent as a process: joins the file, the environment, the tree, the runtime and the agent of the version.

Called by `shoal serve`. `run_serving` returns after a graceful end, and raises when the agent cannot go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from shoal.core.clock import Clock, SystemClock
from shoal.core.disk.locks import FileLock
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import InvalidError, NotFoundError, Problem, problem
from shoal.core.ids import NodeId, WorkloadId
from shoal.core.tasks import TaskScope, first_of, running
from shoal.core.telemetry import MetricRegistry
from shoal.discovery.store import CoordinationStore
from shoal.model.logs import LogQuery
from shoal.runtimes.base import RunPhase
from shoal.runtimes.process import ProcessRuntime
from shoal.serving.agents.layout import LayoutAgent
from shoal.serving.agents.parts import AgentParts
from shoal.serving.agents.roles import PROXY, RoleAgent
from shoal.serving.config.deployment import Deployment, FreePorts, Role, deploy, free_ports
from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import ServingSettings, cautions, read_settings
from shoal.serving.metrics import ServingMetrics
from shoal.serving.models import chosen
from shoal.serving.models.files import ModelFiles
from shoal.serving.models.receiving import ModelReceiver
from shoal.serving.processes.commands import find_program, find_proxy, look_at_program
from shoal.serving.processes.graph import OnExit
from shoal.serving.processes.remembered import Remembered
from shoal.serving.processes.runner import ProcessRunner, child_environment
from shoal.wire.sockets.http import serve_http
from shoal.wire.transport import Transport

log = logging.getLogger(__name__)

NODE_ID = NodeId("serving")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the command line says."""

    conf: str
    data_dir: Path
    #: Where `AgentService` listens. Callers are not known there, so it is loopback unless told otherwise.
    agent_host: str = "127.0.0.1"
    on_exit: OnExit = OnExit.RESTART
    drain: timedelta = timedelta(seconds=1)
    #: The control planes whose tree is used when the file names no ZooKeeper.
    control: tuple[str, ...] = ()
    #: Whether they count only when the file names no ZooKeeper: nobody gave them on the command line.
    prefers_zookeeper: bool = False
    #: How long the tree keeps the addresses of an agent that it does not hear of.
    session_timeout: timedelta = timedelta(seconds=10)
    #: Where metrics and health are served; None: nowhere.
    http_address: str | None = None
    #: Whether models with `latest_once` leave the versions that an earlier agent chose.
    choose_versions: bool = False

    def control_of(self, settings: ServingSettings) -> tuple[str, ...]:
        """The control planes whose tree is used; none when it is ZooKeeper's or one in this process."""
        return () if settings.zk_servers and self.prefers_zookeeper else self.control


class ServingAgent(Protocol):
    """An agent of either version."""

    @property
    def address(self) -> str:
        """Where `AgentService` is served."""
        ...

    async def start(self) -> None:
        """Start everything."""
        ...

    async def failed(self) -> None:
        """Wait until the agent cannot go on. Raises the reason."""
        ...

    async def stop(self) -> None:
        """Withdraw, drain, and end everything."""
        ...


def make_deployment(
    options: ServeOptions, environ: Mapping[str, str], *, take_ports: FreePorts = free_ports
) -> Deployment:
    """Read and check everything before anything starts. Raises `InvalidError` with every problem."""
    deployment = deploy(read_settings(options.conf), read_environment(environ), take_ports=take_ports)
    problems: list[Problem] = []
    hints: list[str] = []
    for check in (find_program, find_proxy, lambda found: _check_tree(found, options), _check_replica_id):
        try:
            check(deployment)
        except InvalidError as error:
            problems.extend(error.problems)
            hints.append(error.hint)
    if problems:
        raise InvalidError(problems, hint="; ".join(filter(None, hints)))
    return deployment


def _check_tree(deployment: Deployment, options: ServeOptions) -> None:
    """Refuse a deployment that names two trees, or none although it needs one. Raises `InvalidError`."""
    hosts, control = deployment.settings.zk_servers, options.control_of(deployment.settings)
    if hosts and control:
        raise InvalidError([problem("zk_servers", hosts, "must not be given together with --control")])
    if not hosts and not control and deployment.deploy_type != "mixed":
        rule = f"is required with deploy_type {deployment.deploy_type}, which does not serve everything by itself"
        hint = "--control names a control plane whose tree is used instead of ZooKeeper's"
        raise InvalidError([problem("zk_servers", None, rule)], hint=hint)


def _check_replica_id(deployment: Deployment) -> None:
    """Refuse replicas without a number: the tree gives one to agents that run an entry only. Raises `InvalidError`."""
    has_replicas = deployment.settings.agent_version == 1
    if has_replicas and deployment.replica_id < 0 and not deployment.servers_of(Role.ENTRY):
        rule = f"or REPLICA_ID is required with deploy_type {deployment.deploy_type}, and differs on each machine"
        raise InvalidError([problem("MY_POD_NAME", None, rule)])


async def run_serving(
    options: ServeOptions,
    *,
    environ: Mapping[str, str],
    transport: Transport,
    stop: asyncio.Event,
    control_transport: Transport | None = None,
    on_ready: Callable[[Deployment, ServingAgent], None] | None = None,
    show_output: Callable[[bytes], None] | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> None:
    """Serve until `stop` is set. Raises `ShoalError` when the agent cannot start or go on.

    `transport` is for model servers and the callers of `AgentService`, `control_transport` for the control plane.
    `show_output` is called with what the processes print, which is kept below the data directory in any case.
    """
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    deployment = make_deployment(options, environ)
    for each in cautions(deployment.settings):
        log.warning("%s", each)
    program = await asyncio.to_thread(look_at_program, find_program(deployment))
    options.data_dir.mkdir(parents=True, exist_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        lock = FileLock(options.data_dir / "serving.lock", what=f"data directory {options.data_dir}")
        lock.acquire()
        stack.callback(lock.release)
        if options.choose_versions:
            chosen.forget(options.data_dir)
        scope = TaskScope("serving")
        stack.push_async_callback(scope.close)
        runtime = ProcessRuntime(options.data_dir, clock=clock, node_id=NODE_ID)
        await runtime.open()
        stack.push_async_callback(runtime.close)
        remembered = Remembered.load(options.data_dir / "remembered.json")
        goes_on = await _anything_runs(runtime)
        ports = _PortsAgain(remembered.ports if goes_on else ())
        deployment = make_deployment(options, environ, take_ports=ports.take)
        remembered.keep_ports(ports.taken)
        store = await stack.enter_async_context(_open_store(deployment, options, control_transport, clock))
        counts = options.http_address is not None and deployment.settings.use_metrics
        registry = MetricRegistry() if counts else None
        metrics = ServingMetrics(clock, registry)
        runner = ProcessRunner(runtime, clock=clock, entropy=entropy, on_exit=options.on_exit, remembered=remembered)
        runner.restarted = metrics.restarted
        parts = AgentParts(
            deployment=deployment,
            store=store,
            transport=transport,
            runner=runner,
            metrics=metrics,
            clock=clock,
            data_dir=options.data_dir,
            program=program,
            child_env=child_environment(environ, agent_port=deployment.agent_port),
            agent_host=options.agent_host,
            drain=options.drain,
            conf_dir=Path(options.conf).parent,
        )
        agent: ServingAgent = LayoutAgent(parts) if deployment.settings.agent_version == 3 else RoleAgent(parts)
        stack.push_async_callback(agent.stop)
        if show_output is not None:
            for name in (*(server.name for server in deployment.servers), PROXY):
                scope.start(_show(runtime, name, show_output, clock), name=f"output of {name}")
        is_ready = asyncio.Event()
        if options.http_address is not None:
            http = await serve_http(
                options.http_address,
                metrics=metrics.render,
                health=lambda: (200, {"status": "ok" if is_ready.is_set() else "starting"}),
                ready=is_ready.is_set,
            )
            stack.push_async_callback(http.stop)
        receiver = _receiver(deployment, clock, metrics)
        if await _start(agent, receiver, scope, stop, keep=goes_on):
            is_ready.set()
            if on_ready is not None:
                on_ready(deployment, agent)
            await first_of(agent.failed(), scope.failed(), stop.wait())


class _PortsAgain:
    """Gives the ports of an earlier agent first, because its model servers listen there and call `PORT2`."""

    def __init__(self, before: tuple[int, ...]) -> None:
        self._before = before
        #: Everything that was given.
        self.taken: tuple[int, ...] = ()

    def take(self, count: int) -> tuple[int, ...]:
        found, self._before = self._before or free_ports(count), ()
        self.taken += found
        return found


async def _anything_runs(runtime: ProcessRuntime) -> bool:
    """Whether an earlier agent left a process running."""
    return any(run.phase is RunPhase.RUNNING for run in await runtime.list_runs())


async def _start(
    agent: ServingAgent, receiver: ModelReceiver | None, scope: TaskScope, stop: asyncio.Event, *, keep: bool
) -> bool:
    """Start the agent, its files first. False when it was told to stop meanwhile."""

    async def start() -> None:
        if receiver is not None:
            await receiver.wait_first(keep=keep)
            scope.start(receiver.run(), name="model files")
        await agent.start()

    async with running(start(), name="start") as starting, running(stop.wait(), name="stop") as stopping:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        return starting.done()


async def _show(runtime: ProcessRuntime, name: str, show: Callable[[bytes], None], clock: Clock) -> None:
    """Pass on what a process prints from now on, once it has been started."""
    query = LogQuery(follow=True, since=clock.wall())
    while True:
        with contextlib.suppress(NotFoundError):
            async for piece in runtime.read_logs(WorkloadId(name), query):
                show(piece.data)
        await clock.sleep(1.0)


def _receiver(deployment: Deployment, clock: Clock, metrics: ServingMetrics) -> ModelReceiver | None:
    """Receives the rough-sort model, if there is one."""
    settings = deployment.settings
    name = settings.rough_sort_model_name
    if not name:
        return None
    source = Path(settings.rough_sort_model_p2p_path or "")
    target = Path(settings.rough_sort_model_local_path or "")
    return ModelReceiver(
        ModelFiles(name, source, target),
        clock=clock,
        received=lambda found: metrics.received(name, found.version),
        missed=lambda: metrics.missed(name),
    )


@contextlib.asynccontextmanager
async def _open_store(
    deployment: Deployment, options: ServeOptions, transport: Transport | None, clock: Clock
) -> AsyncIterator[CoordinationStore]:
    """The tree: ZooKeeper's, the control plane's, or one in this process for a machine that serves everything."""
    hosts, control = deployment.settings.zk_servers, options.control_of(deployment.settings)
    if control and transport is not None:
        from shoal.discovery.remote import RemoteStore

        yield RemoteStore(transport, control, session_timeout=options.session_timeout)
        return
    if hosts:
        from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore

        auth = deployment.environment.zk_auth
        yield ZookeeperStore(ZookeeperSettings(hosts, session_timeout=options.session_timeout, auth=auth))
        return
    from shoal.discovery.embedded import EmbeddedTree

    log.warning("there are no zk_servers: the tree lives in this process, and no other agent sees it")
    tree = EmbeddedTree(clock)
    try:
        yield tree.session()
    finally:
        await tree.close()

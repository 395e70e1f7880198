"""The serving agent by roles (`agent_version` 1): parameter servers, dense and entry of one model.

Start order: the tree and the replicas, `AgentService`, then parameter servers and dense, and entry once every parameter
server has an available replica in this location, and dense has one anywhere. The proxy follows entry. A replica is
registered as UNKNOWN and gets the states that its model server reports. SIGTERM withdraws the replicas first. Made by
`shoal.serving.server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Iterator

from shoal.core import files
from shoal.core.errors import DeadlineError, ShoalError, UnavailableError
from shoal.core.tasks import TaskScope, first_of
from shoal.discovery.registrar import Registrar
from shoal.discovery.replicas.paths import Location, Task, service_root
from shoal.discovery.replicas.records import ModelState, Replica, ServerType
from shoal.discovery.replicas.registrations import owned_tasks
from shoal.discovery.replicas.updater import MISSED_CALLS, ReplicaUpdater, StateOf
from shoal.discovery.replicas.watcher import ReplicaWatcher
from shoal.discovery.service import ServingAgentHandlers
from shoal.discovery.views import ReplicaAddresses
from shoal.serving.agents.parts import AgentParts
from shoal.serving.config import deployment as deployments
from shoal.serving.config.deployment import Deployment, Role
from shoal.serving.models.chosen import ChosenVersions
from shoal.serving.models.client import ModelServerClient
from shoal.serving.models.configs import config_text, model_names, role_config, server_config
from shoal.serving.models.platform import needs_platform_file, platform_text
from shoal.serving.processes.commands import model_server_command, proxy_command
from shoal.serving.processes.graph import ProcessNode, start_order
from shoal.wire.addresses import Address
from shoal.wire.pb.tensorflow import serving_pb2 as pb
from shoal.wire.transport import Server

log = logging.getLogger(__name__)

PROXY = "proxy"
#: Between two looks whether entry may start.
LOOK_SECONDS = 0.1
#: How often it is said what entry still waits for.
REMIND_SECONDS = 10.0
#: How often a model without any version is looked for again.
VERSION_SECONDS = 2.0
_WITHDRAW_SECONDS = 2.0


class RoleAgent:
    """One agent."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        deployment = parts.deployment
        settings, environment = deployment.settings, deployment.environment
        self._root = service_root(deployment.bzid, settings.base_name or "")
        here = Location(environment.idc, environment.cluster) if deployment.location else None
        self._location = here if settings.dc_aware else None
        self._registrar = Registrar(parts.store)
        self._watcher = ReplicaWatcher(parts.store, deployment.bzid, settings.base_name or "")
        self._clients = {
            server.name: ModelServerClient(parts.transport.connect(f"127.0.0.1:{server.ports.grpc}"))
            for server in deployment.servers
        }
        self._configs: dict[str, pb.ModelServerConfig] = {}
        self._chosen = ChosenVersions.load(parts.data_dir)
        #: Held while versions are chosen.
        self._choosing = asyncio.Lock()
        self._scope = TaskScope("serving.roles")
        self._updaters: list[ReplicaUpdater] = []
        #: The models and replicas whose version metrics show, by model server.
        self._shown: dict[str, set[tuple[str, int]]] = {}
        #: Model servers that ended, until the next process answers: what they served is withdrawn without a doubt.
        self._ended: set[str] = set()
        self._agent_server: Server | None = None

    @property
    def address(self) -> str:
        """Where `AgentService` is served."""
        return self._agent_server.address if self._agent_server is not None else ""

    @property
    def states(self) -> dict[Task, ModelState]:
        """The states of the replicas of this agent."""
        return {task: state for updater in self._updaters for task, state in updater.states.items()}

    # --- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register, serve `AgentService`, and start every process in order. Raises `ShoalError`."""
        parts = self._parts
        parts.runner.changed = self._on_process
        parts.runner.prepare = self._before_start
        nodes = await asyncio.to_thread(self._prepare)
        await parts.runner.open(nodes)
        await parts.open_tree(patient=any(parts.runner.is_running(node.name) for node in nodes))
        self._registrar.start()
        await self._register()
        self._watcher.start()
        handlers = ServingAgentHandlers(
            ReplicaAddresses(self._watcher, location=self._location, family=parts.deployment.address_family)
        )
        listening = str(Address(parts.agent_host, parts.deployment.agent_port))
        self._agent_server = await parts.transport.serve(listening, [handlers.service()])
        self._scope.start(self._complete_configs(), name="configurations")
        for node in start_order(nodes):
            if node.name == Role.ENTRY.value:
                await self._wait_for_others()
            log.info("starting %s: %s", node.name, " ".join(node.command))
            await parts.runner.start(node, timeout=parts.deployment.settings.max_waiting_sec)

    async def failed(self) -> None:
        """Wait until the agent cannot go on. Raises the reason."""
        await first_of(
            self._scope.failed(),
            self._parts.runner.failed(),
            self._registrar.failed(),
            *(updater.failed() for updater in self._updaters),
        )

    async def stop(self) -> None:
        """Withdraw, let peers notice, and end the processes."""
        await self._scope.close()
        with contextlib.suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(_WITHDRAW_SECONDS):
                for updater in self._updaters:
                    await updater.close()
                await self._registrar.close()
        await self._parts.clock.sleep(self._parts.drain.total_seconds())
        await self._parts.runner.stop_all()
        if self._agent_server is not None:
            await self._agent_server.stop(0.5)
        self._watcher.close()
        for client in self._clients.values():
            await client.close()
        with contextlib.suppress(ShoalError):
            await self._parts.store.close()

    # --- processes ----------------------------------------------------------------------------------------

    def _prepare(self) -> list[ProcessNode]:
        """Write what the processes read, and make their commands."""
        parts, deployment = self._parts, self._parts.deployment
        if deployment.settings.version_policy != "latest_once":
            self._chosen.keep_only(())
        platform_file = self._platform_file()
        nodes = []
        before: set[str] = set()
        for server in deployment.servers:
            self._configs[server.name] = self._config(server.role)
            self._write_config(server.name)
            is_dense = server.role is Role.DENSE
            command = model_server_command(
                deployment,
                server,
                parts.program,
                config_file=deployment.settings.model_config_file or self._config_file(server.name),
                # Dense services alone batch, unless somebody wrote or named the file for all.
                platform_file=platform_file if deployment.settings.platform_config_file or is_dense else "",
            )
            needs = frozenset(before) if server.role is Role.ENTRY else frozenset()
            config = config_text(self._configs[server.name])
            env = parts.child_env | self._dense_env(server)
            nodes.append(ProcessNode(server.name, command, env, port=server.ports.grpc, needs=needs, config=config))
            before.add(server.name)
        if deployment.proxy_port:
            command = proxy_command(deployment, conf_dir=parts.conf_dir)
            needs = frozenset({Role.ENTRY.value})
            nodes.append(ProcessNode(PROXY, command, parts.child_env, port=deployment.proxy_port, needs=needs))
        return nodes

    def _dense_env(self, server: deployments.Server) -> dict[str, str]:
        """What tells several dense services of one machine apart."""
        deployment = self._parts.deployment
        if len(deployment.servers_of(Role.DENSE)) <= 1:
            return {}
        first = deployment.environment.dense_service_index
        return {"REPLICA_ID": str(deployment.replica_of(server)), "DENSE_SERVICE_IDX": str(first + server.index)}

    def _config(self, role: Role) -> pb.ModelServerConfig:
        # A model is known by its directory: several dense services serve the same one.
        return role_config(self._parts.deployment, role, newest=lambda path: self._chosen.choose(path, path))

    def _config_file(self, name: str) -> str:
        return str(self._parts.data_dir / f"{name}_model_config.pbtxt")

    def _write_config(self, name: str) -> None:
        files.write_atomic(self._config_file(name), config_text(self._configs[name]).encode())

    def _platform_file(self) -> str:
        """The platform config file, written when the configuration asks for one that is not there, or needs it."""
        deployment = self._parts.deployment
        given = deployment.settings.platform_config_file
        if given is None and not needs_platform_file(deployment):
            return ""
        path = given or str(self._parts.data_dir / "platform_config.pbtxt")
        if given is None or not files.exists(path):
            files.write_atomic(path, platform_text(deployment).encode())
        return path

    async def _before_start(self, node: ProcessNode) -> ProcessNode:
        """Have a model server load versions that are there: those of the one before may have been removed."""
        known = self._configs.get(node.name)
        if known is None or self._parts.deployment.settings.version_policy != "latest_once":
            return node
        role = next(server.role for server in self._parts.deployment.servers if server.name == node.name)
        try:
            async with self._choosing:
                self._chosen.look_again(model.base_path for model in known.model_config_list.config)
                found = await asyncio.to_thread(self._config, role)
                if found != self._configs[node.name]:
                    await self._replace_config(node.name, found)
        except ShoalError as error:
            log.warning("%s is started with the versions that it had: %s", node.name, error)
        return dataclasses.replace(node, config=config_text(self._configs[node.name]))

    async def _wait_for_others(self) -> None:
        """Wait until entry can call its parameter servers and dense. Raises `DeadlineError`, which names what lacks."""
        clock, settings = self._parts.clock, self._parts.deployment.settings
        deadline = clock.monotonic() + settings.max_waiting_sec
        remind = clock.monotonic()
        while missing := self._missing():
            self._parts.runner.raise_if_failed()
            if clock.monotonic() >= deadline:
                names = ", ".join(missing)
                raise DeadlineError(
                    f"entry was not started: no available replica of {names} after {settings.max_waiting_sec} s",
                    hint="look at the states with `shoal replicas`, and at the logs of the model servers",
                )
            if clock.monotonic() >= remind:
                log.info("entry waits for an available replica of %s", ", ".join(missing))
                remind = clock.monotonic() + REMIND_SECONDS
            await clock.sleep(LOOK_SECONDS)

    def _missing(self) -> list[str]:
        """The tasks that entry needs and that have no available replica, as far as the tree is known."""
        settings, table = self._parts.deployment.settings, self._watcher.table
        if not self._watcher.is_loaded:  # `AgentService` does not answer yet
            return ["the tree"]
        missing = [
            f"ps:{number}"
            for number in range(settings.num_ps)
            if not table.task_replicas(ServerType.PS, number, location=self._location)
        ]
        if settings.dense_alone and not table.task_replicas(ServerType.DENSE, 0):
            missing.append("dense:0")
        return missing

    async def _complete_configs(self) -> None:
        """Add models that had no version when their model server was started."""
        told = ""
        while self._parts.deployment.settings.version_policy == "latest_once":
            await self._parts.clock.sleep(VERSION_SECONDS)
            try:
                for server in self._parts.deployment.servers:
                    await self._complete_config(server)
            except ShoalError as error:
                if error.message != told:
                    log.warning("models without a version are looked for again in %g s: %s", VERSION_SECONDS, error)
                told = error.message

    async def _complete_config(self, server: deployments.Server) -> None:
        """Raises `ShoalError` for a directory that cannot be read, or a file that cannot be written."""
        async with self._choosing:
            found = await asyncio.to_thread(self._config, server.role)
            known = self._configs[server.name]
            new = [model for model in found.model_config_list.config if model.name not in model_names(known)]
            if not new:
                return
            # Those that are there stay at their version.
            await self._replace_config(server.name, server_config([*known.model_config_list.config, *new]))
        with contextlib.suppress(ShoalError):
            await self._clients[server.name].reload(self._configs[server.name])

    async def _replace_config(self, name: str, config: pb.ModelServerConfig) -> None:
        """Take another configuration, once it is in its file. Raises `ShoalError`."""
        known, self._configs[name] = self._configs[name], config
        try:
            await asyncio.to_thread(self._write_config, name)
        except ShoalError:
            self._configs[name] = known
            raise

    # --- replicas -----------------------------------------------------------------------------------------

    async def _register(self) -> None:
        """Register every task that runs here: the first group may be given its number by the tree."""
        deployment, replica_id = self._parts.deployment, self._parts.deployment.replica_id
        for servers in server_groups(deployment):
            own = replica_id
            if servers[0].role is Role.DENSE:
                own = deployment.replica_of(servers[0], replica_id)
            updater = ReplicaUpdater(
                self._parts.store,
                self._registrar,
                self._root,
                dict(self._replicas(servers)),
                state_of=self._state_of(servers),
                clock=self._parts.clock,
                replica_id=own,
            )
            self._updaters.append(updater)
            await updater.start()
            self._parts.metrics.agent(deployment, updater.replica_id)

    def _replicas(self, servers: tuple[deployments.Server, ...]) -> Iterator[tuple[Task, Replica]]:
        deployment = self._parts.deployment
        for server in servers:
            tasks = owned_tasks(
                [ServerType(server.role.value)],
                location=self._location,
                num_ps=deployment.settings.num_ps,
                num_shard=deployment.shard_num,
                shard_id=deployment.shard_id,
            )
            for task in tasks:
                yield task, replica_of(deployment, server)

    def _state_of(self, servers: tuple[deployments.Server, ...]) -> StateOf:
        number = len(self._updaters)  # of the updater that will ask
        by_type = {server.role.value: server for server in servers}
        missed: dict[str, int] = {}

        async def ask(model: str) -> ModelState:
            server = by_type[model.partition("_")[0]].name
            status = await self._clients[server].status(model)
            missed[model] = 0 if status.was_answered else missed.get(model, 0) + 1
            shown = model, self._updaters[number].replica_id
            if status.is_available and self._parts.runner.is_running(server):
                self._shown.setdefault(server, set()).add(shown)
                self._parts.metrics.available(model, status.version, replica_id=shown[1])
            elif status.was_answered or missed[model] >= MISSED_CALLS:  # one lost call changes nothing
                self._parts.metrics.gone(model, replica_id=shown[1])
            if status.was_answered and self._parts.runner.is_running(server):
                self._ended.discard(server)
                return status.state
            if server in self._ended:
                return ModelState.UNKNOWN
            raise UnavailableError(status.error_message)

        return ask

    def _on_process(self, name: str) -> None:
        """A process started or ended. The versions of a model server that ended are no longer shown."""
        if not self._parts.runner.is_running(name):
            self._ended.add(name)
            for model, replica_id in self._shown.pop(name, ()):
                self._parts.metrics.gone(model, replica_id=replica_id)


def server_groups(deployment: Deployment) -> list[tuple[deployments.Server, ...]]:
    """The model servers that share a replica id: all of them, but each of several dense services for itself."""
    dense = deployment.servers_of(Role.DENSE)
    if len(dense) > 1:
        return [(server,) for server in dense]
    return [deployment.servers]


def replica_of(deployment: Deployment, server: deployments.Server) -> Replica:
    """The addresses of a model server, as replicas have them. An unknown host is written as every address."""
    environment = deployment.environment
    host = deployment.advertised_host
    v4 = host if ":" not in host else "0.0.0.0"  # noqa: S104 - how an unknown address is written
    v6 = environment.host_ipv6 or (host if ":" in host else "::")
    return Replica(
        address=str(Address(v4, server.ports.grpc)),
        address_ipv6=str(Address(v6, server.ports.grpc)),
        archon_address=str(Address(v4, server.ports.archon)),
        archon_address_ipv6=str(Address(v6, server.ports.archon)),
    )

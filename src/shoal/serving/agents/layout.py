"""The serving agent by layouts (`agent_version` 3): one model server whose models follow a layout in the tree.

    layout changes ─► filters ─► configuration file, written whole ─► reload ─► states of the models ─► bindings

Each arrow acts at once. A model that leaves the layout is unbound before it is unloaded. A reload waits inside the
model server until each of its new models is loaded, or cannot be; states are asked for meanwhile, so a slow or a bad
model delays no other of the same configuration. The next configuration has to wait for it. Bindings and addresses are
kept by a registrar, which restores them in every new session. Made by `shoal.serving.server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping

from shoal.core import files
from shoal.core.errors import DeadlineError, ShoalError, UnavailableError, UnsupportedError
from shoal.core.tasks import Signal, TaskScope, first_of
from shoal.discovery.mirror.records import AgentResource
from shoal.discovery.models.bindings import registrations
from shoal.discovery.models.layouts import Layout, LayoutEntry, LayoutWatcher
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.records import LATEST_ONCE, Container, ContainerService, SavedModel
from shoal.discovery.models.service_map import ServiceMap
from shoal.discovery.registrar import Registrar
from shoal.discovery.service import ServingAgentHandlers
from shoal.discovery.views import ModelAddresses
from shoal.serving.agents.parts import AgentParts
from shoal.serving.config.deployment import Role
from shoal.serving.layouts import Bindings, ModelPlan, chosen_entries, plan_models
from shoal.serving.models.chosen import ChosenVersions, Find
from shoal.serving.models.client import ModelServerClient
from shoal.serving.models.configs import config_text, model_names, server_config, versions_in
from shoal.serving.models.directories import Directories, Found
from shoal.serving.models.lifecycle import VersionStatus
from shoal.serving.processes.commands import model_server_command
from shoal.serving.processes.graph import ProcessNode
from shoal.serving.resources import CpuMeter, read_cpus, read_memory
from shoal.wire.addresses import Address
from shoal.wire.pb.tensorflow import serving_pb2 as pb
from shoal.wire.transport import Server

log = logging.getLogger(__name__)

#: How often the states of models are asked for while some of them are not available, and for how long after a change.
EAGER_SECONDS = 0.1
EAGER_FOR = 10.0
#: How long a round waits for the states of models: that of one that answers later counts in a later round.
ROUND_SECONDS = 0.5
#: How often a model without any version is looked for again.
VERSION_SECONDS = 2.0
#: How long directories that nothing is known of are waited for.
LOOK_SECONDS = 1.0
#: How long a reload may take: until every new model is loaded, or cannot be.
RELOAD_SECONDS = 600.0
_RETRY = (0.2, 5.0)
_WITHDRAW_SECONDS = 2.0


class LayoutAgent:
    """One agent."""

    def __init__(self, parts: AgentParts, *, find_versions: Find = versions_in) -> None:
        """`find_versions` lists the versions in the directory of a model."""
        self._parts = parts
        deployment = parts.deployment
        (self._server,) = deployment.servers_of(Role.UNIFIED)
        self._paths = ModelPaths(deployment.bzid)
        self.container = Container(deployment.container_cluster, deployment.container_id)
        self._registrar = Registrar(parts.store)
        self._services = ServiceMap(parts.store, self._paths)
        self._layouts = LayoutWatcher(parts.store, self._paths, deployment.layout_path, changed=self._on_layout)
        self._client = ModelServerClient(parts.transport.connect(f"127.0.0.1:{self._server.ports.grpc}"))
        self._config_file = parts.data_dir / "model_config.pbtxt"
        self._scope = TaskScope("serving.layout")
        self._layout: Layout | None = None
        #: The models of this container's own layout; None while that is not known. Asked for with every heartbeat.
        self._models: frozenset[str] | None = None
        self._chosen = ChosenVersions.load(parts.data_dir)
        self._directories = Directories(find_versions)
        #: The directories that had a version once, by model: they are not looked at again.
        self._filled: dict[SavedModel, str] = {}
        self._unread: dict[SavedModel, str] = {}
        self._plan = ModelPlan(server_config([]), {})
        #: What the model server is told: the plan, once what it no longer has was withdrawn.
        self._config = self._plan.config
        self._bindings = Bindings()
        self._layout_changed, self._plan_changed, self._look = Signal(), Signal(), Signal()
        self._agent_server: Server | None = None
        self._counted: frozenset[str] = frozenset()
        self._adopted = False
        #: How often the model server was started, and for which of its starts the configuration was made.
        self._starts, self._made_for = 0, 0
        self._cpu = CpuMeter(parts.clock)

    @property
    def address(self) -> str:
        """Where `AgentService` is served."""
        return self._agent_server.address if self._agent_server is not None else ""

    @property
    def bound(self) -> frozenset[str]:
        """The models that this container is bound to."""
        return self._bindings.bound

    @property
    def plan(self) -> ModelPlan:
        """What it should serve now."""
        return self._plan

    @property
    def wanted_config(self) -> pb.ModelServerConfig:
        """What the model server is told."""
        return self._config

    # --- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the model server, register, and follow the layout. Raises `ShoalError`."""
        parts = self._parts
        parts.runner.prepare = self._before_start
        parts.runner.changed = self._on_process
        command = model_server_command(
            parts.deployment, self._server, parts.program, config_file=str(self._config_file)
        )
        node = ProcessNode(self._server.name, command, parts.child_env, port=self._server.ports.grpc)
        await parts.runner.open([node])
        # One that was adopted goes on with the models that it has until the layout is known.
        self._adopted = self._is_running()
        await parts.runner.start(node, timeout=parts.deployment.settings.max_waiting_sec)
        await parts.open_tree(patient=self._adopted)
        parts.metrics.agent(parts.deployment, parts.deployment.replica_id)
        self._registrar.start()
        self._register()
        self._services.start()
        self._layouts.start()
        view = ModelAddresses(self._services, models=lambda: self._models, archon=not parts.program.calls_by_grpc)
        handlers = ServingAgentHandlers(view, resource=self._resource)
        listening = str(Address(parts.agent_host, parts.deployment.agent_port))
        self._agent_server = await parts.transport.serve(listening, [handlers.service()])
        self._scope.start(self._configure(), name="configuration")
        self._scope.start(self._reload(), name="reload")
        self._scope.start(self._follow_states(), name="states")

    async def _before_start(self, node: ProcessNode) -> ProcessNode:
        """A model server begins without models.

        It listens only when every model of its file is loaded, and ends when one cannot be.
        """
        await self._write_config(server_config([]))
        return node

    def _on_process(self, _name: str) -> None:
        """The model server started or ended: its models have to be looked at again."""
        if not self._is_running():
            self._bindings = Bindings()
            self._register()
            self._count({})
        elif not self._adopted:
            self._starts += 1
            self._layout_changed.set()
        self._look.set()

    def _is_running(self) -> bool:
        return self._parts.runner.is_running(self._server.name)

    async def failed(self) -> None:
        """Wait until the agent cannot go on. Raises the reason."""
        await first_of(self._scope.failed(), self._parts.runner.failed(), self._registrar.failed())

    async def stop(self) -> None:
        """Withdraw, let peers notice, and end the model server."""
        await self._scope.close()
        self._layouts.close()
        with contextlib.suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(_WITHDRAW_SECONDS):
                await self._registrar.close()
        await self._parts.clock.sleep(self._parts.drain.total_seconds())
        await self._parts.runner.stop_all()
        if self._agent_server is not None:
            await self._agent_server.stop(0.5)
        self._services.close()
        await self._client.close()
        with contextlib.suppress(ShoalError):
            await self._parts.store.close()

    # --- what is told to others ---------------------------------------------------------------------------

    def _register(self) -> None:
        """Register the addresses and the bindings; withdraw what is no longer there."""
        bound = [self._plan.models[name] for name in self._bindings.bound if name in self._plan.models]
        wanted = registrations(self._paths, self.container, self._service(), bound)
        for path in self._registrar.paths:
            if path not in wanted:
                self._registrar.withdraw(path)
        for path, data in wanted.items():
            # A peer that sees a binding can resolve it.
            self._registrar.register(path, data, rank=0 if path == self._paths.container(self.container) else 1)

    def _service(self) -> ContainerService:
        deployment = self._parts.deployment
        ports = self._server.ports
        debug = {
            "layout_path": deployment.layout_path,
            "layout_filters": [each.normal for each in deployment.filters],
        }
        return ContainerService(
            grpc=self._address(ports.grpc),
            http=self._address(ports.http),
            archon=self._address(ports.archon),
            agent=self._address(deployment.agent_port),
            idc=deployment.environment.idc or None,
            debug_info=json.dumps(debug),
        )

    def _address(self, port: int) -> str:
        return str(Address(self._parts.deployment.advertised_host, port))

    def _resource(self) -> AgentResource:
        deployment = self._parts.deployment
        environment = deployment.environment
        return AgentResource(
            address=self._address(deployment.agent_port),
            shard_id=deployment.shard_id,
            replica_id=deployment.replica_id,
            memory=read_memory(limit=environment.memory_limit).available,
            cpu=max(0.0, read_cpus(limit=environment.cpu_limit) - self._cpu.read() / 100),
        )

    # --- from the layout to the bindings ------------------------------------------------------------------

    def _on_layout(self, layout: Layout) -> None:
        self._layout = layout
        self._models = frozenset(entry.saved_model.model_name for entry in layout.entries)
        self._layout_changed.set()

    async def _configure(self) -> None:
        """Write the configuration for each change of the layout."""
        told: tuple[object, ...] = ()
        while True:
            await self._layout_changed.wait(VERSION_SECONDS if self._plan.waiting else None)
            if self._layout is None:
                continue
            starts = self._starts
            is_new = starts != self._made_for
            # The first model makes its server ask for peers, and decide from that one answer how they are called.
            await self._services.wait_loaded()
            entries, problems = chosen_entries(self._layout, self._parts.deployment.filters)
            if is_new:  # versions may be gone that the one before had loaded
                self._chosen.look_again(str(entry.saved_model) for entry in entries)
                self._filled = {}
            looked = await self._look_for_versions(entries)
            before = await self._served_before(entries) if self._adopted else frozenset()
            newest, empty = await asyncio.to_thread(self._choose_versions, entries, looked, before)
            plan = plan_models(entries, problems, newest, empty=empty)
            if (plan.problems, plan.waiting) != told:
                told = (plan.problems, plan.waiting)
                for each in plan.problems:
                    log.warning("an entry of layout %s is not served: %s", self._parts.deployment.layout_path, each)
                for name in plan.waiting:
                    log.warning("model %s has no version yet; it is looked for every %g s", name, VERSION_SECONDS)
            changed = self._adopted or is_new or plan.config != self._plan.config
            self._plan, self._adopted, self._made_for = plan, False, starts
            if changed:
                served = ", ".join(plan.models) or "nothing"
                log.info("layout %s: serving %s", self._parts.deployment.layout_path, served)
                # Peers look elsewhere before a model is unloaded.
                self._bindings = self._bindings.after(plan.models, {})
                self._register()
                if not is_new:  # a new one has nothing to unload
                    await self._wait_registered()
                self._config = plan.config
                self._plan_changed.set()
                self._look.set()

    async def _look_for_versions(self, entries: tuple[LayoutEntry, ...]) -> Found:
        """Look into the directories of which nothing is known yet."""
        unknown = []
        for entry in entries:
            path = entry.config.model_base_path or ""
            if entry.config.version_policy == LATEST_ONCE:
                is_known = self._chosen.is_settled(str(entry.saved_model), path)
            else:
                is_known = self._filled.get(entry.saved_model) == path
            if not is_known:
                unknown.append(path)
        return await self._directories.look(unknown, within=LOOK_SECONDS)

    async def _served_before(self, entries: tuple[LayoutEntry, ...]) -> frozenset[str]:
        """The models that a model server serves that was adopted."""
        found = await self._client.statuses(str(entry.saved_model) for entry in entries)
        return frozenset(name for name, status in found.items() if status.is_available)

    def _choose_versions(
        self, entries: tuple[LayoutEntry, ...], looked: Found, served: frozenset[str]
    ) -> tuple[dict[SavedModel, int], set[SavedModel]]:
        """The versions for `latest_once`, which stay while the model does, and the other models that have none.

        What is served stays although its directory cannot be read now.
        """
        newest: dict[SavedModel, int] = {}
        empty: set[SavedModel] = set()
        once = [entry for entry in entries if entry.config.version_policy == LATEST_ONCE]
        self._chosen.keep_only({str(entry.saved_model) for entry in once})
        filled, self._filled = self._filled, {}

        def find(path: str) -> frozenset[int]:
            found = looked[path]
            if isinstance(found, ShoalError):
                raise found
            return found

        unread: dict[SavedModel, str] = {}
        for entry in entries:
            model, path = entry.saved_model, entry.config.model_base_path or ""
            try:
                if entry.config.version_policy == LATEST_ONCE:
                    version = self._chosen.choose(str(model), path, find=find)
                    if version is not None:
                        newest[model] = version
                elif filled.get(model) == path or self._has_versions(path, find):
                    self._filled[model] = path
                else:
                    empty.add(model)
            except ShoalError as error:
                unread[model] = error.message
                if self._unread.get(model) != error.message:
                    log.warning("the versions of %s cannot be read: %s", model, error)
                if str(model) in served:
                    self._filled[model] = path
                else:
                    empty.add(model)
        self._unread = unread
        return newest, empty

    def _has_versions(self, path: str, find: Find) -> bool:
        try:
            return bool(find(path))
        except UnsupportedError:  # the model server may know such directories
            return True

    async def _wait_registered(self) -> None:
        """Wait until the tree has what was registered. Models do not wait long for a tree that cannot be reached."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WITHDRAW_SECONDS):
                await self._registrar.settled()

    async def _write_config(self, config: pb.ModelServerConfig) -> None:
        await asyncio.to_thread(files.write_atomic, str(self._config_file), config_text(config).encode())

    async def _reload(self) -> None:
        """Tell the model server of each configuration, the latest when it has taken the one before.

        A call that nobody waits for any longer goes on inside a stock model server, which takes configurations one by
        one and in no certain order: so there is never more than one.
        """
        while True:
            await self._plan_changed.wait()
            await self._reload_once()

    async def _reload_once(self) -> None:
        pause = _RETRY[0]
        while True:
            while self._made_for != self._starts or not await self._parts.runner.listens(self._server.name):
                await self._parts.clock.sleep(_RETRY[0])
            config = self._config
            try:
                await self._write_config(config)  # it has read its file when it listens
            except ShoalError as error:
                log.warning("the configuration of the model server cannot be written: %s", error)
                await self._parts.clock.sleep(_RETRY[1])
                continue
            try:
                await self._client.reload(config, timeout=RELOAD_SECONDS)
            except (UnavailableError, DeadlineError) as error:
                log.info("the model server cannot be told of its models now: %s", error)
            except ShoalError as error:
                # It has taken the configuration; the states tell which of the models could not be loaded.
                log.warning("the model server could not load all of its models: %s", error)
                return
            else:
                self._look.set()
                return
            await self._parts.clock.sleep(pause)
            pause = min(pause * 2, _RETRY[1])

    def _count(self, statuses: Mapping[str, VersionStatus]) -> None:
        """Show the versions of the models that are bound, and of no others."""
        for name in self._counted - self._bindings.bound:
            self._parts.metrics.gone(name)
        for name in self._bindings.bound:
            status = statuses.get(name)
            if status is not None and status.is_available:
                self._parts.metrics.available(name, status.version)
        self._counted = self._bindings.bound

    async def _follow_states(self) -> None:
        """Bind the models that are available, and no others."""
        steady = float(self._parts.deployment.settings.update_model_status_interval)
        failures: dict[str, str] = {}
        clock, eager_until, seen = self._parts.clock, 0.0, self._plan
        rounds = self._client.rounds(self._scope)
        while True:
            plan = self._plan
            if plan is not seen or not self._bindings.bound:
                seen, eager_until = plan, clock.monotonic() + EAGER_FOR
            statuses = await rounds.next(model_names(plan.config), within=ROUND_SECONDS)
            if not self._is_running():
                await self._look.wait()  # its start wakes us
                continue
            if plan is not self._plan:
                continue
            after = self._bindings.after(plan.models, statuses)
            if after.bound != self._bindings.bound:
                log.info("bound to %s", ", ".join(sorted(after.bound)) or "nothing")
            changed, self._bindings = after.bound != self._bindings.bound, after
            if changed:
                self._register()
            self._count(statuses)
            broken = {
                name: each.error_message for name, each in statuses.items() if each.version >= 0 and each.error_code
            }
            for name, message in broken.items():
                if failures.get(name) != message:
                    log.warning("model %s cannot be loaded: %s", name, message)
            failures = broken
            settled = after.bound == plan.models.keys() - broken.keys() or clock.monotonic() > eager_until
            await self._look.wait(steady if settled else min(EAGER_SECONDS, steady))

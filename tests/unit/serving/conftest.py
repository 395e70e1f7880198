"""A serving agent in one process: the embedded tree, the fake model server, the fake runtime."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.entropy import SeededEntropy
from shoal.core.telemetry import MetricRegistry
from shoal.discovery.embedded import EmbeddedTree
from shoal.discovery.models.catalog import Catalog
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.store import CoordinationStore
from shoal.serving.agents.layout import LayoutAgent
from shoal.serving.agents.parts import AgentParts
from shoal.serving.config.deployment import deploy
from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import ServingSettings
from shoal.serving.metrics import ServingMetrics
from shoal.serving.models.configs import versions_in
from shoal.serving.processes.commands import Program
from shoal.serving.processes.graph import OnExit
from shoal.serving.processes.runner import ProcessRunner, child_environment
from shoal.testing.model_server import FakeModelServer
from shoal.testing.runtimes import FakeMachine, FakeRuntime
from shoal.wire.local import LocalNetwork

ENV = {"TCE_PSM": "p.s.m", "TCE_INTERNAL_IDC": "lf", "TCE_CLUSTER": "default", "MY_HOST_IP": "10.0.0.1"}


async def until(condition: Callable[[], object], *, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


MakeStore = Callable[[], CoordinationStore]


class Stage:
    """What agents under test share, and one store to look at the tree with."""

    def __init__(self, folder: Path, *, make_store: MakeStore | None = None, bzid: str = "gip") -> None:
        self.folder = folder
        self.bzid = bzid
        self.clock = SystemClock()
        self.tree = EmbeddedTree(self.clock)
        self._make_store = make_store or (lambda: self.tree.session(timeout=timedelta(seconds=2)))
        self.store = self._make_store()
        self.network = LocalNetwork()
        self.paths = ModelPaths(bzid)
        self.catalog = Catalog(self.store, self.paths)
        self.machines: dict[str, FakeMachine] = {}
        self._ports = iter(range(9000, 60000))

    def settings(self, **changes: object) -> ServingSettings:
        given = {"bzid": self.bzid, "deploy_type": "unified", "agent_version": 3, "layout_pattern": "prod", **changes}
        return ServingSettings(**given)  # type: ignore[arg-type]

    def parts(
        self,
        settings: ServingSettings,
        pod: str,
        *,
        on_exit: OnExit = OnExit.RESTART,
        env: Mapping[str, str] | None = None,
    ) -> AgentParts:
        env = ENV | {"MY_POD_NAME": pod} | dict(env or {})
        deployment = deploy(
            settings, read_environment(env), take_ports=lambda count: tuple(next(self._ports) for _ in range(count))
        )
        machine = self.machines[pod] = FakeMachine(self.clock)
        runner = ProcessRunner(
            FakeRuntime(machine),
            clock=self.clock,
            entropy=SeededEntropy(),
            on_exit=on_exit,
            listens=_always,
            is_taken=_never,
        )
        folder = self.folder / pod
        folder.mkdir(exist_ok=True)
        return AgentParts(
            deployment=deployment,
            store=self._make_store(),
            transport=self.network.transport(pod),
            runner=runner,
            clock=self.clock,
            data_dir=folder,
            program=Program(("tensorflow_model_server",)),
            child_env=child_environment(env, agent_port=deployment.agent_port),
            drain=timedelta(0),
            metrics=ServingMetrics(self.clock, MetricRegistry()),
        )

    async def declare(self, model: str, *sub_graphs: str) -> dict[str, str]:
        paths = {name: str(self.folder / "exports" / model / name) for name in sub_graphs}
        for path in paths.values():
            (Path(path) / "1").mkdir(parents=True, exist_ok=True)
        await self.catalog.declare(model, paths, overwrite=True)
        return paths

    async def bindings(self, model: str) -> list[str]:
        try:
            return list(await self.store.children(f"/{self.bzid}/binding/{model}"))
        except Exception:
            return []

    @contextlib.asynccontextmanager
    async def layout_agent(
        self,
        pod: str = "pod-1",
        *,
        find_versions: Callable[[str], frozenset[int]] = versions_in,
        config: str = "model_config_list {}",
        **changes: object,
    ) -> AsyncIterator[tuple[LayoutAgent, FakeModelServer]]:
        parts = self.parts(self.settings(**changes), pod)
        (server,) = parts.deployment.servers
        models = FakeModelServer(config)
        await models.start(self.network.transport(f"{pod}-models"), f"127.0.0.1:{server.ports.grpc}")
        agent = LayoutAgent(parts, find_versions=find_versions)
        await agent.start()
        try:
            yield agent, models
        finally:
            await agent.stop()
            await models.stop()


def shown_versions(parts: AgentParts) -> dict[str, int]:
    """The versions that metrics show, by model and replica."""
    found = {}
    for line in parts.metrics.render().decode().splitlines():
        if line.startswith("shoal_serving_model_latest_version{"):
            labels, _, value = line.rpartition(" ")
            name = labels.partition('model_name="')[2].partition('"')[0]
            found[name] = int(float(value))
    return found


async def _always(_port: int) -> bool:
    return True


async def _never(_port: int) -> bool:
    return False


@pytest.fixture
async def stage(tmp_path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    await made.store.open()
    yield made
    await made.store.close()
    await made.tree.close()

"""Discovery: how soon peers learn of a published model, how many of them one agent answers, and what watching costs.

A private ZooKeeper, one `shoal serve` by layouts with the fake model server of `shoal.testing`, and a peer that follows
the bindings in a session of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench import kafka, zookeeper
from bench.areas import Area, Note
from bench.figures import Figure, at_least, at_most, percentile
from shoal.core.clock import SystemClock
from shoal.core.errors import DeadlineError, UnavailableError
from shoal.discovery.documents import write_record
from shoal.discovery.embedded import EmbeddedStore, EmbeddedTree
from shoal.discovery.models.catalog import Catalog
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.records import SavedModel
from shoal.discovery.models.service_map import ServiceMap
from shoal.discovery.replicas.paths import Task, replica_path
from shoal.discovery.replicas.records import ModelState, Replica, ServerType
from shoal.discovery.replicas.watcher import ReplicaWatcher
from shoal.discovery.service import ServingAgentHandlers
from shoal.discovery.views import ReplicaAddresses
from shoal.discovery.zookeeper import ZookeeperSettings, ZookeeperStore
from shoal.wire.methods import ServingAgent
from shoal.wire.pb.monolith.serving import agent_service_pb2 as pb
from shoal.wire.sockets.channel import GrpcTransport

MB = 2**20
_BZID, _MODEL, _LAYOUT = "bench", "m", "prod"
_PATIENCE = 60.0
_SUB_GRAPHS = 10


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. A test of the measuring itself takes less of everything."""

    #: Sub-graphs that are published and unpublished, one after the other.
    changes: int = 100
    #: Tasks that an agent answers with, and how long it is asked.
    tasks: int = 1000
    seconds: float = 5.0
    callers: int = 8
    #: Replicas that are watched, in tasks of fifty.
    watched: int = 10_000


FULL = Scale()

FIGURES = (
    Figure(
        "layout_to_binding_p50",
        "ms",
        f"From the call that publishes a sub-graph to its address at a peer, on ZooKeeper, {FULL.changes} times: the "
        "median.",
    ),
    Figure("layout_to_binding_p99", "ms", "As `layout_to_binding_p50`, the 99th percentile.", bar=at_most(1000)),
    Figure(
        "heartbeat_rate",
        "calls/s",
        f"HeartBeat calls that one agent with {FULL.tasks:,} tasks answers to {FULL.callers} callers in one other "
        "process, which read the answers.",
        bar=at_least(1000),
    ),
    Figure(
        "watched_memory",
        "MB",
        f"Memory of a watcher that follows {FULL.watched:,} replicas in an embedded tree, its watches included.",
        bar=at_most(50),
        once=True,
    ),
)


def measure(run: int, note: Note) -> dict[str, float]:
    """Every figure once; memory in the first run."""
    del note
    return asyncio.run(measure_all(FULL, with_memory=run == 0))


async def measure_all(scale: Scale, *, with_memory: bool) -> dict[str, float]:
    """Every figure on one scale."""
    with zookeeper.running(await asyncio.to_thread(kafka.find_jars)) as servers:
        delays = await _measure_layout(scale, servers)
    found = {
        "layout_to_binding_p50": percentile(delays, 0.5) * 1000,
        "layout_to_binding_p99": percentile(delays, 0.99) * 1000,
        "heartbeat_rate": await _measure_heartbeats(scale),
    }
    if with_memory:
        found["watched_memory"] = await _measure_memory(scale)
    return found


# ---------------------------------------------------------------------------------------------------------
# From a layout to a binding


async def _measure_layout(scale: Scale, servers: str) -> list[float]:
    async with _session(servers) as operator, _session(servers) as peer:
        with tempfile.TemporaryDirectory(prefix="shoal-bench-discovery-") as folder:
            paths = ModelPaths(_BZID)
            catalog = Catalog(operator, paths)
            await catalog.declare(_MODEL, _exports(Path(folder)))
            changed = asyncio.Event()
            services = ServiceMap(peer, paths, changed=changed.set)
            services.start()
            async with _agent(Path(folder), servers):
                delays = [
                    await _publish(catalog, services, changed, SavedModel(_MODEL, f"ps_{number % _SUB_GRAPHS}"))
                    for number in range(scale.changes)
                ]
            services.close()
            return delays


async def _publish(catalog: Catalog, services: ServiceMap, changed: asyncio.Event, saved_model: SavedModel) -> float:
    """Publish a sub-graph, wait for its address, and take it back. Returns the seconds between the first two."""

    async def wait(bound: bool) -> None:
        async with asyncio.timeout(_PATIENCE):
            while bool(services.containers(saved_model)) is not bound:
                changed.clear()
                await changed.wait()

    started = time.monotonic()
    await catalog.publish(str(saved_model), _LAYOUT)
    await wait(bound=True)
    taken = time.monotonic() - started
    await catalog.unpublish(str(saved_model), _LAYOUT)
    await wait(bound=False)
    return taken


def _exports(folder: Path) -> dict[str, str]:
    exports = {f"ps_{number}": folder / "exports" / f"ps_{number}" for number in range(_SUB_GRAPHS)}
    for path in exports.values():
        (path / "1").mkdir(parents=True)
    return {name: str(path) for name, path in exports.items()}


@contextlib.asynccontextmanager
async def _session(servers: str) -> AsyncIterator[ZookeeperStore]:
    store = ZookeeperStore(ZookeeperSettings(servers))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _agent(folder: Path, servers: str) -> AsyncIterator[None]:
    """One `shoal serve` by layouts, until the end of the block."""
    conf, ready, log = folder / "agent.conf", folder / "ready.json", folder / "log"
    conf.write_text(
        f"deploy_type unified\nagent_version 3\nbzid {_BZID}\nzk_servers {servers}\nlayout_pattern {_LAYOUT}\n"
    )
    command = [sys.executable, "-m", "shoal", "serve", "--conf", str(conf), "--data-dir", str(folder / "data")]
    env = {
        **os.environ,
        "MONOLITH_TFS_BINARY": f"{sys.executable} -m shoal.testing.model_server",
        "MY_HOST_IP": "127.0.0.1",
        "MY_POD_NAME": "pod-1",
    }
    with log.open("wb") as written:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [*command, "--ready-file", str(ready), "--drain", "0s"], env=env, stdout=written, stderr=written
        )
    try:
        deadline = time.monotonic() + _PATIENCE
        while not ready.exists():
            if process.poll() is not None:
                raise UnavailableError(f"the serving agent ended: {log.read_text(errors='replace')[-500:]}")
            if time.monotonic() > deadline:
                raise DeadlineError("the serving agent did not start in time")
            await asyncio.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, _PATIENCE)


# ---------------------------------------------------------------------------------------------------------
# Answers and memory


@contextlib.asynccontextmanager
async def _replicas(tasks: int, each: int) -> AsyncIterator[EmbeddedStore]:
    """A session of a tree with replicas."""
    tree = EmbeddedTree(SystemClock())
    store = tree.session()
    await store.open()
    for number in range(tasks):
        for replica in range(each):
            value = Replica(f"10.0.0.{replica + 1}:8500", "[::]:8500", stat=ModelState.AVAILABLE)
            path = replica_path(f"/{_BZID}/service/{_MODEL}", Task(ServerType.PS, number), replica)
            await store.create(path, write_record(value), ephemeral=True, makepath=True)
    try:
        yield store
    finally:
        await store.close()
        await tree.close()


async def _measure_heartbeats(scale: Scale) -> float:
    async with _replicas(scale.tasks, 1) as store:
        watcher = ReplicaWatcher(store, _BZID, _MODEL)
        watcher.start()
        await watcher.wait_loaded()
        handlers = ServingAgentHandlers(ReplicaAddresses(watcher))
        server = await GrpcTransport().serve("127.0.0.1:0", [handlers.service()])
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            loop = asyncio.get_running_loop()
            rate = await loop.run_in_executor(pool, _ask, server.address, scale.seconds, scale.callers)
        await server.stop()
        watcher.close()
        return rate


def _ask(address: str, seconds: float, callers: int) -> float:
    """Ask an agent for some time, in a process of its own. Returns the calls per second."""

    async def ask() -> float:
        channel = GrpcTransport().connect(address)
        request = pb.HeartBeatRequest(server_type=pb.PS)
        await channel.call(ServingAgent.HEART_BEAT, request)
        started, calls = time.monotonic(), 0

        async def call() -> None:
            nonlocal calls
            while time.monotonic() < started + seconds:
                await channel.call(ServingAgent.HEART_BEAT, request)
                calls += 1

        await asyncio.gather(*(call() for _ in range(callers)))
        taken = time.monotonic() - started
        await channel.close()
        return calls / taken

    return asyncio.run(ask())


async def _measure_memory(scale: Scale) -> float:
    each = 50
    async with _replicas(scale.watched // each, each) as store:
        tracemalloc.start()
        watcher = ReplicaWatcher(store, _BZID, _MODEL)
        watcher.start()
        await watcher.wait_loaded()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        watcher.close()
        return used / MB


AREA = Area(
    name="discovery",
    title="Discovery",
    about=(
        "One private ZooKeeper, one real `shoal serve` by layouts with the fake model server, and a peer that follows "
        "its\nbindings. Answers and memory are measured on an embedded tree."
    ),
    figures=FIGURES,
    measure=measure,
    packages=("grpcio", "kazoo"),
)

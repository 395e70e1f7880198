"""What the figures of a fleet are measured on: one real control plane and very many hollow nodes.

Every node has a connection of its own, shows its own certificate and speaks through its own stream, as a real agent
does. The nodes live in the measuring process, so what they use is not counted as the control plane's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import psutil

from bench.load import PATIENCE, Arrivals
from shoal.cli.local.certificates import CLUSTER, FOLDER
from shoal.cli.local.fleet import CONTROL, LocalFleet
from shoal.client import ControlPlane
from shoal.control.store.base import Batch
from shoal.control.store.select import FILE_NAME, open_store
from shoal.core.clock import SystemClock
from shoal.core.errors import DeadlineError
from shoal.core.ids import NodeId, SessionId, WorkloadId
from shoal.model.identity import Identity, Role
from shoal.model.nodes import NodeRecord, NodeSpec, NodeState
from shoal.model.resources import Resources
from shoal.model.workloads import (
    DesiredState,
    Observation,
    ProcessSpec,
    ResourceRequest,
    RunState,
    RunStatus,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadType,
)
from shoal.testing.hollow import ALL_FEATURES, HollowFleet, HollowNode, HollowRun
from shoal.wire import convert
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.trust.authority import issue
from shoal.wire.trust.credentials import load_authority, write_credentials
from shoal.wire.trust.security import MutualTls

MB = 2**20
#: Of a hollow node, and of a workload. Twenty fill a node to the last millicore, so that one too many would show.
NODE = Resources(cpu_millicores=4000, memory_mb=8000)
WORKLOAD = ResourceRequest(cpu_millicores=200, memory_mb=400)
PER_NODE = 20

_SEEDED_TOGETHER = 100
_MEMORY_DISK = Path("/dev/shm")


def node_name(number: int) -> str:
    """The id of a hollow node."""
    return f"hollow-{number:04d}"


def spec_of(name: str) -> WorkloadSpec:
    """The spec of a workload. All have one size, and each has a spec of its own, as in a real fleet."""
    process = ProcessSpec(command=("sleep", "infinity"), env={"NAME": name})
    return WorkloadSpec(type=WorkloadType.PROCESS, resources=WORKLOAD, process=process, labels={"app": "bench"})


@dataclass(slots=True)
class Stage:
    """A control plane with its hollow nodes."""

    fleet: LocalFleet
    control: ControlPlane
    hollow: HollowFleet
    process: psutil.Process
    arrivals: Arrivals

    @property
    def nodes(self) -> list[HollowNode]:
        """Every node, in the order of arrival."""
        return list(self.hollow.nodes.values())

    @property
    def memory(self) -> float:
        """Resident memory of the control plane, in MB."""
        return float(self.process.memory_info().rss) / MB

    def add_nodes(self, names: Iterable[str], *, seeded: int) -> None:
        """Add nodes, each with the workloads that it runs already."""
        for name in names:
            node = HollowNode(name, cpu_millicores=NODE.cpu_millicores, memory_mb=NODE.memory_mb, measures=True)
            node.runs = {each: _run(each) for each in _seeds(name, seeded)}
            self.hollow.add(node)

    async def wait_ready(self, *, patience: float = 3 * PATIENCE) -> None:
        """Wait until every node has registered, had a heartbeat acknowledged, and is Ready."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while self._missing() or (await self.control.summary()).ready_nodes < len(self.nodes):
            if loop.time() > deadline:
                raise DeadlineError(f"not all {len(self.nodes)} hollow nodes were Ready within {patience:g} s")
            await asyncio.sleep(0.1)

    async def wait_running(self, *, patience: float = 2 * PATIENCE) -> None:
        """Wait until every workload is known to run."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while (found := await self.control.summary()).running_workloads < found.total_workloads:
            if loop.time() > deadline:
                raise DeadlineError(f"{found.running_workloads} of {found.total_workloads} workloads ran in time")
            await asyncio.sleep(0.1)

    def _missing(self) -> int:
        return sum(1 for node in self.nodes if node.last_ack < 0)

    @property
    def database(self) -> Path:
        """The control plane's SQLite file."""
        return self.fleet.directory_of(CONTROL) / "data" / FILE_NAME

    def stored_bytes(self) -> int:
        """Size of the database after a checkpoint of its log."""
        with contextlib.closing(sqlite3.connect(self.database, timeout=10)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        log = self.database.with_name(f"{FILE_NAME}-wal")
        return sum(each.stat().st_size for each in (self.database, log) if each.exists())

    def assigned(self) -> Mapping[str, int]:
        """How many workloads each node owns, read from the database."""
        with contextlib.closing(sqlite3.connect(self.database, timeout=10)) as connection:
            rows = connection.execute(
                "SELECT node_id, count(*) FROM workloads WHERE node_id IS NOT NULL GROUP BY node_id"
            )
            return dict(rows.fetchall())


@contextlib.asynccontextmanager
async def stage(*, nodes: int, seeded: int, interval: float) -> AsyncIterator[Stage]:
    """A control plane with so many nodes.

    Args:
        nodes: how many. The caller waits until they are Ready.
        seeded: workloads that each of them is known to run from the beginning, as after a restart of everything.
        interval: seconds between two heartbeats of a node; its lease is three of them, as it is by default.
    """
    names = [node_name(number) for number in range(nodes)]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-")))
        heartbeats = timedelta(seconds=interval)
        fleet = LocalFleet(folder, agents=0, heartbeat_interval=heartbeats, lease=3 * heartbeats)
        await _seed(fleet, names, seeded)
        await stack.enter_async_context(fleet)
        control = await stack.enter_async_context(fleet.client())
        transports = stack.enter_context(_transports(folder))
        arrivals = Arrivals()
        hollow = HollowFleet(
            GrpcTransport(),
            fleet.control_address,
            streams=True,
            transport_of=transports,
            on_command=arrivals.arrived,
        )
        await hollow.start()
        stack.push_async_callback(hollow.stop)
        here = Stage(fleet, control, hollow, psutil.Process(fleet.pid_of(CONTROL)), arrivals)
        here.add_nodes(names, seeded=seeded)
        stack.enter_context(_without_collections())
        yield here


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Without the garbage collector in this process: it holds every node, and a pause would count as the answer's."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Transports:
    """Makes the transport of each node, with a certificate of its own."""

    def __init__(self, authority: Path, directory: Path) -> None:
        self._authority, self._trusted = load_authority(authority)
        self._directory = directory
        self._now = SystemClock().wall()

    def __call__(self, node_id: str) -> GrpcTransport:
        pair = issue(self._authority, Identity(Role.AGENT, CLUSTER, node_id), now=self._now, hosts=("127.0.0.1",))
        paths = write_credentials(self._directory / node_id, ca=self._trusted, pair=pair)
        return GrpcTransport(security=MutualTls(paths.ca, paths.cert, paths.key))


@contextlib.contextmanager
def _transports(base: Path) -> Iterator[_Transports]:
    # In memory where that is possible: each file is flushed, and there are thousands of them.
    where = str(_MEMORY_DISK) if _MEMORY_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="shoal-bench-", dir=where) as directory:
        yield _Transports(base / FOLDER, Path(directory))


# ---------------------------------------------------------------------------------------------------------
# A fleet that runs its workloads already


def _seeds(node_id: str, count: int) -> list[WorkloadId]:
    return [WorkloadId(f"{node_id}-{number:02d}") for number in range(count)]


def _run(workload_id: str) -> HollowRun:
    return HollowRun(agent.ApplyWorkloadRequest(id=workload_id, generation=1, revision_id="1"))


async def _seed(fleet: LocalFleet, names: list[str], count: int) -> None:
    """Write the records of a control plane that has placed all of this."""
    data = fleet.directory_of(CONTROL) / "data"
    data.mkdir(parents=True)
    store = open_store(None, data, decode_spec=convert.decode_spec_bytes)
    await store.open()
    try:
        for first in range(0, len(names), _SEEDED_TOGETHER):
            seeds = [_seed_of(name, count) for name in names[first : first + _SEEDED_TOGETHER]]
            await asyncio.gather(*(store.commit(each) for each in seeds))  # these share a transaction
    finally:
        await store.close()


def _seed_of(name: str, count: int) -> Batch:
    at = SystemClock().wall()
    node = NodeRecord(
        spec=NodeSpec(
            node_id=name, endpoint="", capacity=NODE, workload_types=("process",), features=frozenset(ALL_FEATURES)
        ),
        session=SessionId(f"{0:015d}-{name}"),
        state=NodeState.READY,
        state_reason="seeded",
        state_by="register",
        state_at=at,
        registered_at=at,
        last_heartbeat=at,
        lease_seconds=30.0,
    )
    records = tuple(_record(each, NodeId(name), at) for each in _seeds(name, count))
    seen = tuple(
        Observation(
            NodeId(name), RunStatus(each.workload_id, RunState.RUNNING, generation=1, revision_id="1", ready=True), at
        )
        for each in records
    )
    return Batch(nodes=(node,), workloads=records, observations=seen)


def _record(workload_id: WorkloadId, node_id: NodeId, at: datetime) -> WorkloadRecord:
    spec = spec_of(workload_id)
    exact = convert.spec_bytes(convert.workload_spec_to_proto(spec))
    return WorkloadRecord(
        workload_id=workload_id,
        spec=spec,
        spec_bytes=exact,
        spec_sha256=convert.spec_sha256(exact),
        revision_id="1",
        desired=DesiredState.RUNNING,
        generation=1,
        placed_generation=1,
        node_id=node_id,
        reserved=spec.request,
        created_at=at,
        updated_at=at,
    )

"""The control plane and the agent: how soon a command arrives, how soon work runs, how soon a loss is noticed, memory.

Two set-ups, each a fleet of real processes in a directory of its own: one control plane with a hundred hollow nodes
(`shoal.testing.hollow`) that live in this process and speak gRPC with it, and one control plane with two real agents.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil

from bench import scheduler
from bench.areas import Area, Note
from bench.figures import Against, Bar, Figure, at_most, percentile
from bench.load import PATIENCE, Arrivals, CpuWatch, Load, Observations, observations
from bench.peers import Peer
from shoal.cli.local.fleet import CONTROL, LocalFleet
from shoal.client import ControlPlane
from shoal.core.errors import DeadlineError
from shoal.model.documents import WorkloadDocument
from shoal.model.events import Event
from shoal.model.workloads import ProcessSpec, ResourceRequest, WorkloadSpec, WorkloadType
from shoal.testing.hollow import COALESCE_SECONDS, HollowFleet, HollowNode
from shoal.wire.sockets.channel import GrpcTransport

MB = 2**20

ECHO = Peer("grpc-echo", ("grpcio==1.85.1", "typing-extensions==4.16.0"), "grpc_echo.py")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. A test of the measuring itself takes less of everything."""

    #: Hollow nodes.
    nodes: int = 100
    #: Operations a second, one kind after the other.
    rate: float = 50.0
    #: Operations of each kind.
    operations: int = 400
    #: Processes that real agents start.
    starts: int = 20
    #: Seconds that a real agent is left alone before its memory is read.
    idle: float = 5.0
    #: Of the control plane that loses a real machine.
    lease: timedelta = timedelta(seconds=3)
    interval: timedelta = timedelta(milliseconds=500)


FULL = Scale()

_OPEN_LOOP = f"{FULL.operations} of them at {FULL.rate:g}/s, counted from the moment each was due"


def _latency(
    name: str, meaning: str, *, bar: Bar | None = None, peer: str | None = None, slowest: str = ""
) -> tuple[Figure, Figure]:
    """The median and the 99th percentile of one latency; the bar is for the latter."""
    halves = []
    for share in ("p50", "p99"):
        words = f"{meaning}: the median." if share == "p50" else f"As `{name}_p50`, the 99th percentile{slowest}."
        against = Against(ECHO.name, f"{peer}_{share}") if peer is not None else None
        halves.append(Figure(f"{name}_{share}", "ms", words, bar=bar if share == "p99" else None, against=against))
    return halves[0], halves[1]


FIGURES = (
    *_latency(
        "apply_to_agent",
        "From the request for a new workload to its command at the agent, with the request and the placement stored "
        f"in between, {_OPEN_LOOP}",
        bar=at_most(500),
        peer="grpc_echo",
    ),
    *_latency(
        "update_to_agent",
        f"From the request for another spec of a running workload to its command at the agent, {_OPEN_LOOP}",
        bar=at_most(500),
    ),
    *_latency(
        "delete_to_agent",
        f"From the request to delete a running workload to its command at the agent, {_OPEN_LOOP}",
        bar=at_most(500),
    ),
    *_latency(
        "delete_to_gone",
        "From the same requests to the event, at the client, that the record is gone; this includes the "
        f"{1000 * COALESCE_SECONDS:g} ms for which a hollow node gathers its reports",
    ),
    *_latency(
        "grpc_echo",
        f"The peer: one call of a bare grpc.aio echo, from one process to another and back, {_OPEN_LOOP}",
    ),
    Figure(
        "control_cpu",
        "% of a core",
        f"CPU of the control plane's process while {FULL.nodes} nodes sent heartbeats and workloads were applied "
        f"at {FULL.rate:g}/s.",
    ),
    *_latency(
        "apply_to_running",
        "With two real agents: from the request for a process (`sleep infinity`) to the event, at the client, that it "
        f"runs, {FULL.starts} processes one after the other",
        slowest=f", which is the slowest of the {FULL.starts}",
    ),
    Figure(
        "loss_noticed",
        "s",
        "An agent, its keeper and its processes are killed right after a heartbeat, at a lease of 3 s and with "
        "heartbeats every 0.5 s: from the kill to the event that the node is NotReady.",
    ),
    Figure(
        "loss_replaced",
        "s",
        f"From the same kill until all workloads of the node, half of the {FULL.starts}, run on the other one.",
    ),
    Figure(
        "loss_noticed_at_defaults",
        "s",
        f"At the default lease of 30 s and heartbeats every 10 s, with {FULL.nodes} hollow nodes of which one falls "
        "silent: from when its last heartbeat was sent to the event that it is NotReady.",
        bar=at_most(35),
        once=True,
    ),
    Figure(
        "agent_memory",
        "MB",
        f"Resident memory (RSS) of an idle agent with certificates and its keeper, added up, {FULL.idle:g} s after the "
        "start; the larger of two agents; MB of 2^20 bytes. Pages that the two processes share are counted twice.",
    ),
    Figure(
        "agent_memory_shared_once",
        "MB",
        "As `agent_memory`, but proportional (PSS): a page that several processes share is divided among them.",
        bar=at_most(80),
    ),
    Figure(
        "control_memory",
        "MB",
        f"Resident memory (RSS) of the control plane with {FULL.nodes} nodes and no workload yet.",
    ),
    Figure(
        "control_memory_after_load",
        "MB",
        f"As `control_memory`, after {FULL.operations} applies, updates and deletes.",
    ),
    Figure(
        "scheduler_same_shape",
        "/s",
        "Placements decided per second for 1,000 workloads of one shape on 1,000 nodes with 20 tenants each, pure code "
        "without store and network.",
    ),
    Figure("scheduler_ten_shapes", "/s", "As `scheduler_same_shape`, for workloads of ten shapes."),
    Figure("scheduler_one", "ms", "One placement alone on the same nodes."),
)


def measure(run: int, _note: Note) -> Mapping[str, float]:
    """Everything once."""
    return {
        **_measure_scheduler(),
        **_measure_echo(),
        **asyncio.run(measure_hollow(FULL, at_defaults=run == 0)),
        **asyncio.run(measure_agents(FULL)),
    }


def _measure_scheduler() -> dict[str, float]:
    found = scheduler.measure()
    return {
        "scheduler_same_shape": found["same_shape_per_s"],
        "scheduler_ten_shapes": found["ten_shapes_per_s"],
        "scheduler_one": found["single_ms"],
    }


def _measure_echo() -> dict[str, float]:
    answer = ECHO.run([str(FULL.rate), str(FULL.operations)], within=FULL.operations / FULL.rate + PATIENCE)
    return _percentiles("grpc_echo", answer["seconds"])


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    return {f"{name}_p50": 1000 * percentile(seconds, 0.5), f"{name}_p99": 1000 * percentile(seconds, 0.99)}


# ---------------------------------------------------------------------------------------------------------
# A hundred hollow nodes


async def measure_hollow(scale: Scale, *, at_defaults: bool) -> dict[str, float]:
    """The figures of a control plane with hollow nodes."""
    found: dict[str, float] = {}
    arrivals = Arrivals()
    names = [f"workload-{number:04d}" for number in range(scale.operations)]
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-"))
        fleet = await stack.enter_async_context(LocalFleet(folder, agents=0, secure=False))
        control = await stack.enter_async_context(fleet.client())
        hollow = HollowFleet(GrpcTransport(), fleet.control_address, on_command=arrivals.arrived)
        await hollow.start()
        stack.push_async_callback(hollow.stop)
        for number in range(scale.nodes):
            hollow.add(HollowNode(f"hollow-{number:03d}"))
        await _wait_until_ready(control, scale.nodes)
        process = psutil.Process(fleet.pid_of(CONTROL))
        found["control_memory"] = process.memory_info().rss / MB

        async def apply(name: str, *, revision: str) -> None:
            await control.apply(_document(name, cpu=50, memory=32, env={"REVISION": revision}))

        load = arrivals.load = Load(names, rate=scale.rate, effects=("apply",))
        watch = CpuWatch(process)
        await load.run(functools.partial(apply, revision="1"))
        found["control_cpu"] = 100 * watch.share()
        found |= _percentiles("apply_to_agent", load.latencies("apply"))

        load = arrivals.load = Load(names, rate=scale.rate, effects=("apply",))
        await load.run(functools.partial(apply, revision="2"))
        found |= _percentiles("update_to_agent", load.latencies("apply"))

        seen = await stack.enter_async_context(observations(control))
        load = arrivals.load = Load(names, rate=scale.rate, effects=("delete", "gone"))
        seen.listen(_tell_of("WorkloadDeleted", functools.partial(load.see, "gone")))
        await load.run(control.delete)
        found |= _percentiles("delete_to_agent", load.latencies("delete"))
        found |= _percentiles("delete_to_gone", load.latencies("gone"))

        found["control_memory_after_load"] = process.memory_info().rss / MB
        if at_defaults:
            found["loss_noticed_at_defaults"] = await _silence(hollow.nodes["hollow-000"], seen)
    return found


async def _wait_until_ready(control: ControlPlane, nodes: int) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while (ready := (await control.summary()).ready_nodes) < nodes:
        if loop.time() > deadline:
            raise DeadlineError(f"{ready} of {nodes} hollow nodes were Ready within {PATIENCE:g} s")
        await asyncio.sleep(0.05)


def _tell_of(kind: str, listener: Callable[[str], None]) -> Callable[[Event], None]:
    def heard(event: Event) -> None:
        if event.kind == kind:
            listener(event.subject_id)

    return heard


async def _silence(node: HollowNode, seen: Observations) -> float:
    """Let a node fall silent right after a heartbeat. Returns the seconds from that heartbeat to its loss."""
    loop = asyncio.get_running_loop()
    last_heartbeat = loop.create_future()

    def acknowledged(taken: float) -> None:
        node.silent = True
        if not last_heartbeat.done():
            last_heartbeat.set_result(loop.time() - taken)

    node.on_heartbeat = acknowledged
    node.changed.set()
    async with asyncio.timeout(PATIENCE):
        sent: float = await last_heartbeat
    lost = await seen.wait_for(lambda event: event.kind == "NodeNotReady" and event.subject_id == node.node_id)
    return lost[0] - sent


# ---------------------------------------------------------------------------------------------------------
# Two real agents


async def measure_agents(scale: Scale) -> dict[str, float]:
    """The figures of a control plane with two real agents."""
    found: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-")))
        fleet = await stack.enter_async_context(
            LocalFleet(folder, agents=2, cpu=8, memory="8GB", lease=scale.lease, heartbeat_interval=scale.interval)
        )
        control = await stack.enter_async_context(fleet.client())
        await asyncio.sleep(scale.idle)
        found |= _agent_memory(fleet)
        seen = await stack.enter_async_context(observations(control))
        found |= await _starts(control, seen, scale.starts)
        found |= await _lose_a_machine(fleet, control, seen)
    return found


def _agent_memory(fleet: LocalFleet) -> dict[str, float]:
    from shoal.runtimes.process import read_keeper_pid

    resident, proportional = [], []
    for name in fleet.names:
        pids = (fleet.pid_of(name), read_keeper_pid(fleet.directory_of(name) / "data"))
        both = [psutil.Process(pid).memory_full_info() for pid in pids if pid is not None]
        if len(both) != len(pids):
            raise DeadlineError(f"the keeper of {name} does not run")
        resident.append(sum(each.rss for each in both))
        proportional.append(sum(each.pss for each in both))
    return {"agent_memory": max(resident) / MB, "agent_memory_shared_once": max(proportional) / MB}


async def _starts(control: ControlPlane, seen: Observations, count: int) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    taken = []
    for number in range(count):
        name = f"process-{number:02d}"
        begun = loop.time()
        await control.apply(_document(name, cpu=100, memory=64))
        running = await seen.wait_for(functools.partial(_runs, name=name))
        taken.append(running[0] - begun)
    return _percentiles("apply_to_running", taken)


def _runs(event: Event, *, name: str) -> bool:
    return event.kind == "WorkloadRunning" and event.subject_id == name


async def _lose_a_machine(fleet: LocalFleet, control: ControlPlane, seen: Observations) -> dict[str, float]:
    """Lose the machine that has just reported a start: its lease was just renewed, which is the worst moment."""
    last = max(seen.events, key=lambda each: each[0] if each[1].kind == "WorkloadRunning" else 0.0)[1]
    victim = (await control.get_workload(last.subject_id)).assigned_node_id
    orphaned = {view.workload_id for view in await control.list_workloads(node_id=victim)}
    seen.events.clear()  # only what happens from here on
    killed = asyncio.get_running_loop().time()
    await fleet.kill_machine(victim)
    lost = await seen.wait_for(lambda event: event.kind == "NodeNotReady" and event.subject_id == victim)
    running = [(await seen.wait_for(functools.partial(_runs, name=name)))[0] for name in sorted(orphaned)]
    return {"loss_noticed": lost[0] - killed, "loss_replaced": max(running) - killed}


def _document(name: str, *, cpu: int, memory: int, env: Mapping[str, str] | None = None) -> WorkloadDocument:
    return WorkloadDocument(
        name,
        WorkloadSpec(
            type=WorkloadType.PROCESS,
            resources=ResourceRequest(cpu_millicores=cpu, memory_mb=memory),
            process=ProcessSpec(command=("sleep", "infinity"), env=env or {}),
        ),
    )


AREA = Area(
    name="control",
    title="Control plane and agent",
    about=(
        f"A real `shoal control` process with SQLite on disk. Its {FULL.nodes} hollow nodes are simulated agents that\n"
        "live in the measuring process, speak the agents' protocol over gRPC and run nothing; the client that sends\n"
        "the requests lives there too. Two agents are real processes where it says so."
    ),
    figures=FIGURES,
    measure=measure,
    packages=("grpcio", "protobuf", "sqlalchemy", "psutil"),
    peers=(ECHO,),
)

"""A whole fleet: what one control plane holds and costs, how fast it places, how soon a dead leader is replaced.

`stage.py` sets up one real control plane and very many hollow nodes; `heartbeats.py`, `placements.py`, `silent.py`
and `leaders.py` measure on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.areas import Area, Note
from bench.figures import Figure, at_least, at_most, percentile
from bench.fleet import heartbeats, leaders, placements, silent
from bench.fleet.heartbeats import HELD_WITHIN, Heartbeats
from bench.fleet.stage import PER_NODE, Stage, stage
from bench.postgres import find_programs

KB = 1024
#: Of the control plane, by default.
INTERVAL = 10.0
LEASE = 30.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. A test of the measuring itself takes less of everything."""

    nodes: int = 1000
    #: Of each node, of which half are there from the beginning and half are placed.
    workloads: int = PER_NODE
    #: Nodes of the attempt that goes further.
    more_nodes: int = 5000
    #: Seconds between heartbeats of a node. Heartbeats are spread over one interval and then watched for a while.
    interval: float = INTERVAL
    steady: float = 15.0
    #: Seconds at rest over which the database must not grow: longer than it takes until the time of each node's
    #: last heartbeat is stored again.
    rest: float = 2 * LEASE + 5.0
    #: Heartbeats a second that are tried, and for how many seconds each.
    rates: Sequence[float] = (300, 450, 600, 800, 1000, 1250, 1500)
    each_rate: float = 2.5
    #: Nodes that answer no command, and updates of workloads on the others.
    silent: int = 100
    updates: int = 400


FULL = Scale()

_NODES = f"{FULL.nodes:,} nodes with {FULL.workloads} workloads each"
_MORE = f"{FULL.more_nodes:,} nodes with {FULL.workloads} workloads each"

FIGURES = (
    Figure(
        "placements",
        "/s",
        f"{FULL.nodes * FULL.workloads // 2:,} requests in flight at once, on {FULL.nodes:,} nodes that they fill to "
        "the last millicore: from the first that is durably accepted to the last that has its node in the database. "
        "The commands go out to the nodes and their reports come in meanwhile.",
        bar=at_least(900),
    ),
    Figure(
        "running",
        "/s",
        "The same requests until the last of them is known to run: commands and reports included.",
        bar=at_least(600),
    ),
    Figure("overcommitted", "nodes", "Nodes that own more than fits on them after that.", bar=at_most(0)),
    Figure("heartbeats", "/s", f"{_NODES} at the default interval of {INTERVAL:g} s: heartbeats answered per second."),
    Figure("heartbeat_p50", "ms", "From when a heartbeat is sent to its answer at the node: the median."),
    Figure("heartbeat_p99", "ms", "As `heartbeat_p50`, the 99th percentile.", bar=at_most(1000 * HELD_WITHIN)),
    Figure("control_cpu", "% of a core", "CPU of the control plane's process meanwhile.", bar=at_most(100)),
    Figure("control_memory", "MB", "Its resident memory (RSS) after that; MB of 2^20 bytes."),
    Figure("not_ready", "nodes", "Nodes that were not Ready after that.", bar=at_most(0)),
    Figure(
        "store_growth",
        "KB",
        f"How much its database grew in {FULL.rest:g} s of that, in which the time of every node's last heartbeat was "
        "stored at least once: the file and its log, with a checkpoint of the log before each look.",
        bar=at_most(0),
        once=True,
    ),
    Figure("store_size", "KB", "The size of that database.", once=True),
    Figure(
        "heartbeats_highest",
        "/s",
        f"The highest of {', '.join(f'{rate:g}' for rate in FULL.rates)} heartbeats per second from the same "
        f"nodes, each for {FULL.each_rate:g} s, that was answered with a 99th percentile of at most "
        f"{1000 * HELD_WITHIN:g} ms, counted from the moment at which each heartbeat was due.",
    ),
    Figure(
        "update_beside_silent_p50",
        "ms",
        f"{FULL.silent} of the nodes send heartbeats and answer no command, and each has {silent.UNANSWERED} updates "
        f"that wait for an answer. {FULL.updates} updates of workloads on the other nodes at {silent.RATE:g}/s: from "
        "the moment each was due to its command at the node, the median.",
    ),
    Figure(
        "update_beside_silent_p99",
        "ms",
        "As `update_beside_silent_p50`, the 99th percentile.",
        bar=at_most(100),
    ),
    Figure(
        "leader_death_to_write",
        "s",
        "Two control planes on one PostgreSQL, the one that leads is killed: from the kill to the next write that is "
        "acknowledged.",
        bar=at_most(10),
        optional=True,
    ),
    Figure(
        "more_ready",
        "s",
        f"A control plane starts with {_MORE} in its database, and all connect at once, each with its certificate: "
        "until every one has registered and is Ready.",
        once=True,
    ),
    Figure("more_heartbeats", "/s", f"{_MORE} at the default interval: heartbeats answered per second.", once=True),
    Figure(
        "more_heartbeat_p99",
        "ms",
        "From when such a heartbeat is sent to its answer: the 99th percentile.",
        bar=at_most(100),
        once=True,
    ),
    Figure("more_control_cpu", "% of a core", "CPU of the control plane's process meanwhile.", once=True),
    Figure("more_control_memory", "MB", "Its resident memory (RSS) after that.", once=True),
)


def measure(run: int, note: Note) -> Mapping[str, float]:
    """Everything once."""
    found = asyncio.run(measure_nodes(FULL, at_rest=run == 0))
    programs = find_programs()
    if programs is None:
        note("`leader_death_to_write` was left out: PostgreSQL is not installed.")
    else:
        found["leader_death_to_write"] = asyncio.run(leaders.next_write(programs))
    if run == 0:
        found |= asyncio.run(measure_more_nodes(FULL, note))
    return found


async def measure_nodes(scale: Scale, *, at_rest: bool) -> dict[str, float]:
    """The figures of a fleet of the size that is promised."""
    already = scale.workloads // 2
    async with stage(nodes=scale.nodes, seeded=already, interval=scale.interval) as here:
        await here.wait_ready()
        placed = await placements.place(here, count=scale.nodes * (scale.workloads - already), prefix="placed")
        await here.wait_running()
        running = placed.count / (asyncio.get_running_loop().time() - placed.began)
        await heartbeats.spread(here, scale.interval)
        before = here.stored_bytes()
        seen = await heartbeats.steady(here, scale.rest if at_rest else scale.steady)
        found = {
            "placements": placed.per_second,
            "running": running,
            "overcommitted": float(placed.overcommitted),
            "heartbeats": seen.per_second,
            "heartbeat_p50": 1000 * seen.p50,
            "heartbeat_p99": 1000 * seen.p99,
            "control_cpu": 100 * seen.control_cpu,
            "control_memory": here.memory,
            "not_ready": float(await _not_ready(here)),
        }
        if at_rest:
            after = here.stored_bytes()
            found |= {"store_growth": (after - before) / KB, "store_size": after / KB}
        held, _failed = await heartbeats.highest(here, scale.rates, scale.each_rate)
        found["heartbeats_highest"] = held.per_second if held is not None else 0.0
        await heartbeats.spread(here, scale.interval)  # those that were paced before all come back at once
        taken = await silent.updates(here, silent=scale.silent, count=scale.updates)
        found["update_beside_silent_p50"] = 1000 * percentile(taken, 0.5)
        found["update_beside_silent_p99"] = 1000 * percentile(taken, 0.99)
    return found


async def measure_more_nodes(scale: Scale, note: Note) -> dict[str, float]:
    """The figures of a fleet beyond that, and what gives way first."""
    loop = asyncio.get_running_loop()
    async with stage(nodes=scale.more_nodes, seeded=scale.workloads, interval=scale.interval) as here:
        begun = loop.time()
        await here.wait_ready()
        ready = loop.time() - begun
        await heartbeats.spread(here, scale.interval)
        seen = await heartbeats.steady(here, scale.steady)
        memory, not_ready = here.memory, await _not_ready(here)
        further = [rate for rate in scale.rates if rate > seen.per_second]
        held, failed = await heartbeats.highest(here, further, scale.each_rate)
        note(_what_breaks(scale, seen, held, failed, memory=memory, not_ready=not_ready))
        return {
            "more_ready": ready,
            "more_heartbeats": seen.per_second,
            "more_heartbeat_p99": 1000 * seen.p99,
            "more_control_cpu": 100 * seen.control_cpu,
            "more_control_memory": memory,
        }


async def _not_ready(here: Stage) -> int:
    return len(here.nodes) - (await here.control.summary()).ready_nodes


def _what_breaks(
    scale: Scale, seen: Heartbeats, held: Heartbeats | None, failed: Heartbeats | None, *, memory: float, not_ready: int
) -> str:
    """What gives way first with the larger fleet, in a sentence or two."""
    size = f"{scale.more_nodes:,} nodes with {scale.workloads} workloads each"
    load = f"{memory:,.0f} MB for {seen.per_second:,.0f} heartbeats/s"
    told = f"{_numbers(seen)} and {load}, with {not_ready} nodes not Ready"
    if not seen.held:
        return f"With {size}, what breaks first at the default interval is {_culprit(seen)}: {told}."
    words = f"{size} are held at the default interval: {told}."
    if failed is None:
        return f"{words} Nothing gave way up to {scale.rates[-1]:g} heartbeats/s."
    highest = f"{held.per_second:,.0f} heartbeats/s are still held; " if held is not None else ""
    asked = f"{_numbers(failed)} and {failed.per_second:,.0f} heartbeats/s answered"
    return f"{words} Beyond that {highest}what breaks first is {_culprit(failed)}: {asked}."


def _numbers(seen: Heartbeats) -> str:
    return (
        f"a 99th percentile of {1000 * seen.p99:,.0f} ms, {100 * seen.control_cpu:.0f} % of a core for the control "
        f"plane ({100 * seen.load_cpu:.0f} % for the nodes)"
    )


def _culprit(seen: Heartbeats) -> str:
    if seen.control_cpu >= _A_FULL_CORE:
        return "the one core on which the control plane decides"
    if seen.load_cpu >= _A_FULL_CORE:
        return "the process that plays the nodes, not the control plane"
    if seen.machine_cpu >= _A_FULL_CORE:
        return "the machine, whose cores were all busy, and not only with this"
    return "the time that a heartbeat waits for its answer, with cores to spare"


#: From this share of a core on, a process with one deciding thread is called busy.
_A_FULL_CORE = 0.85

AREA = Area(
    name="fleet",
    title="A fleet",
    about=(
        f"A real `shoal control` process with SQLite on disk and certificates. Its {FULL.nodes:,} hollow nodes are\n"
        "simulated agents in the measuring process that run nothing. Each has a connection, a certificate and a\n"
        "stream of its own, reports every workload and its usage with each heartbeat, and takes commands."
    ),
    figures=FIGURES,
    measure=measure,
    packages=("grpcio", "protobuf", "sqlalchemy", "psutil"),
)

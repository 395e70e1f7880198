"""Heartbeats: how soon they are answered at their own pace, and how many a second can be at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from bench.figures import percentile
from bench.fleet.stage import Stage
from bench.load import CpuWatch
from shoal.core.errors import ShoalError
from shoal.core.tasks import task_scope
from shoal.testing.hollow import HollowFleet, HollowNode

#: How long a heartbeat may take, in seconds, for a rate to count as held; and the share that must be answered.
HELD_WITHIN = 0.1
HELD_SHARE = 0.98


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """The heartbeats of one period."""

    per_second: float
    p50: float
    p99: float
    #: Of a core: what the control plane used, and what the measuring process did.
    control_cpu: float
    load_cpu: float
    #: Of all cores: what everything on the machine used.
    machine_cpu: float

    @property
    def held(self) -> bool:
        """Whether they were answered in time."""
        return self.p99 <= HELD_WITHIN


async def spread(here: Stage, seconds: float) -> None:
    """Spread the heartbeats of the nodes evenly over an interval: machines do not start all at once."""
    for node in here.nodes:
        node.changed.set()
        await asyncio.sleep(seconds / len(here.nodes))


async def steady(here: Stage, seconds: float) -> Heartbeats:
    """Heartbeats at the interval that the control plane sets."""
    taken: list[float] = []
    for node in here.nodes:
        node.on_heartbeat = taken.append
    control, load = _watches(here)
    await asyncio.sleep(seconds)
    found = _heartbeats(taken, seconds, control, load)
    for node in here.nodes:
        node.on_heartbeat = None
    return found


async def paced(here: Stage, rate: float, seconds: float) -> Heartbeats:
    """Heartbeats at a rate, from one node after the other. Each is counted from the moment at which it was due."""
    loop = asyncio.get_running_loop()
    taken: list[float] = []
    control, load = _watches(here)
    begin = loop.time()
    async with task_scope("paced heartbeats") as scope:
        for number in range(round(rate * seconds)):
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            node = here.nodes[number % len(here.nodes)]
            scope.start(_one(here.hollow, node, due, taken), name=node.node_id)
        await asyncio.sleep(2 * HELD_WITHIN)
        return _heartbeats(taken, loop.time() - begin - 2 * HELD_WITHIN, control, load)


async def highest(here: Stage, rates: Sequence[float], seconds: float) -> tuple[Heartbeats | None, Heartbeats | None]:
    """The last of these rates that is held, and the first that is not, if there is one."""
    last = None
    for node in here.nodes:
        node.mute = True
    try:
        for rate in rates:
            found = await paced(here, rate, seconds)
            if not found.held or found.per_second < HELD_SHARE * rate:
                return last, found
            last = found
    finally:
        for node in here.nodes:
            node.mute = False
            node.changed.set()
    return last, None


async def _one(hollow: HollowFleet, node: HollowNode, due: float, taken: list[float]) -> None:
    try:
        await hollow.heartbeat(node)
    except ShoalError:
        return  # one that is not answered is missing among those that are
    taken.append(asyncio.get_running_loop().time() - due)


def _watches(here: Stage) -> tuple[CpuWatch, CpuWatch]:
    psutil.cpu_percent()  # what it says next is counted from now
    return CpuWatch(here.process), CpuWatch(psutil.Process())


def _heartbeats(taken: Sequence[float], seconds: float, control: CpuWatch, load: CpuWatch) -> Heartbeats:
    return Heartbeats(
        per_second=len(taken) / seconds,
        p50=percentile(taken, 0.5),
        p99=percentile(taken, 0.99),
        control_cpu=control.share(),
        load_cpu=load.share(),
        machine_cpu=psutil.cpu_percent() / 100,
    )

"""Updates of workloads on healthy nodes, beside nodes that send heartbeats and answer no command."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Sequence

from bench.fleet.stage import Stage, spec_of
from bench.load import Load
from shoal.model.documents import WorkloadDocument
from shoal.testing.hollow import HollowNode

#: Updates a second.
RATE = 50.0
#: Workloads of each silent node whose updates it does not answer.
UNANSWERED = 4


async def updates(here: Stage, *, silent: int, count: int) -> list[float]:
    """Seconds from when each update of a workload on a healthy node was due to its command at that node."""
    deaf, healthy = here.nodes[:silent], here.nodes[silent:]
    for node in deaf:
        node.deaf = True
    await asyncio.gather(*(_update(here, name) for name in _some(deaf, silent * UNANSWERED)))
    load = here.arrivals.load = Load(_some(healthy, count), rate=RATE, effects=("apply",))
    try:
        await load.run(functools.partial(_update, here))
    finally:
        here.arrivals.load = None
        for node in deaf:
            node.deaf = False
    return load.latencies("apply")


def _some(nodes: Sequence[HollowNode], count: int) -> list[str]:
    """So many workloads of these nodes, one of each node after the other."""
    runs = [sorted(node.runs) for node in nodes]
    return [run[turn] for turn in range(max(map(len, runs))) for run in runs if turn < len(run)][:count]


async def _update(here: Stage, name: str) -> None:
    spec = spec_of(name)
    assert spec.process is not None
    process = dataclasses.replace(spec.process, env={**spec.process.env, "UPDATED": "yes"})
    await here.control.apply(WorkloadDocument(name, dataclasses.replace(spec, process=process)))

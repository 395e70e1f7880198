"""How fast the scheduler decides: pure code, one core, no store and no network.

`measure` builds a fleet in memory and times whole calls of `place` and `place_together`. Called by the bench runner.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence

from shoal.control.placement.scheduler import place, place_together
from shoal.control.state.facts import NodeFacts, PlacementPlan, PlacementRequest, Strategy
from shoal.core.ids import WorkloadId
from shoal.model.nodes import Feature, NodeSpec, NodeState
from shoal.model.resources import Resources
from shoal.model.workloads import Affinity, PlacementRules, ProcessSpec, ResourceRequest, WorkloadSpec, WorkloadType

TENANTS_PER_NODE = 20


def fleet(size: int, *, tenants: int = TENANTS_PER_NODE) -> list[NodeFacts]:
    """Nodes of three sizes in ten zones, each with tenants already."""
    return [
        NodeFacts(
            spec=NodeSpec(
                node_id=f"node-{index:05d}",
                endpoint=f"10.0.{index // 250}.{index % 250}:50051",
                capacity=Resources(16_000 << index % 3, 65_536 << index % 3, 1_000, 64 << index % 3),
                workload_types=("process", "container"),
                labels={"zone": f"zone-{index % 10}", "disk": "ssd" if index % 2 else "hdd"},
                host_id=f"host-{index // 2}",
                features=frozenset(feature.value for feature in Feature),
            ),
            state=NodeState.READY,
            reserved=Resources(100 * tenants, 128 * tenants, 0, 0),
            tenants={WorkloadId(f"tenant-{index}-{each}"): {"app": f"app-{each}"} for each in range(tenants)},
        )
        for index in range(size)
    ]


def batch(size: int, *, shapes: int = 1, placement: PlacementRules | None = None) -> list[PlacementRequest]:
    """Requests of a few shapes, in turn. Each has a spec object of its own, as requests off the wire do."""
    return [
        PlacementRequest(
            workload_id=WorkloadId(f"workload-{index:06d}"),
            spec=WorkloadSpec(
                type=WorkloadType.PROCESS,
                resources=ResourceRequest(cpu_millicores=100 + index % shapes, memory_mb=64),
                process=ProcessSpec(command=("sleep", "infinity")),
                placement=placement or PlacementRules(),
                labels={"app": "bench"},
            ),
        )
        for index in range(size)
    ]


def measure(nodes: int = 1000, requests: int = 1000) -> dict[str, float]:
    """Placements per second for several kinds of batch, and the time of one placement alone in milliseconds."""
    known = fleet(nodes)
    apart_on_nodes = PlacementRules(affinities=(Affinity(workloads={"app": "bench"}, scope="node"),))
    apart_in_zones = PlacementRules(affinities=(Affinity(workloads={"app": "bench"}, scope="zone"),))
    impossible = [
        PlacementRequest(
            workload_id=WorkloadId(f"huge-{index}"),
            spec=WorkloadSpec(type=WorkloadType.PROCESS, resources=ResourceRequest(memory_mb=90_000_000)),
        )
        for index in range(requests)
    ]
    same = batch(requests)
    rates: dict[str, Callable[[], PlacementPlan]] = {
        "same_shape_per_s": lambda: place(same, known),
        "same_shape_binpack_per_s": lambda: place(same, known, strategy=Strategy.BINPACK),
        "same_shape_together_per_s": lambda: place_together(same, known),
        "ten_shapes_per_s": lambda: place(batch(requests, shapes=10), known),
        "apart_on_nodes_per_s": lambda: place(batch(requests, placement=apart_on_nodes), known),
        "apart_in_zones_per_s": lambda: place(batch(requests, placement=apart_in_zones), known),
        "explained_per_s": lambda: place(same, known, explain=True),
        "unplaceable_per_s": lambda: place(impossible, known),
    }
    alone = batch(20, shapes=20)
    single = _seconds(lambda: [place([each], known) for each in alone])
    return {
        **{name: requests / _seconds(call) for name, call in rates.items()},
        "single_ms": 1000 * single / len(alone),
    }


def _seconds(call: Callable[[], object]) -> float:
    gc.collect()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main(arguments: Sequence[str] = ()) -> None:
    """Print the figures."""
    for name, value in measure(*(int(each) for each in arguments)).items():
        print(f"{name:28} {value:12,.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])

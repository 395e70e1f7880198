"""Fleets and requests for the tests of the scheduler, and a scheduler too simple to be wrong."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

from shoal.control.placement import feasible, rank
from shoal.control.placement.demand import Demand
from shoal.control.state.facts import NodeFacts, PlacementDecision, PlacementPlan, PlacementRequest, Strategy
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.nodes import Feature, NodeSpec, NodeState
from shoal.model.resources import Resources
from shoal.model.workloads import (
    Affinity,
    Constraint,
    NamedPort,
    PlacementRules,
    ProcessSpec,
    Rejection,
    ResourceRequest,
    WorkloadSpec,
    WorkloadType,
)

T = TypeVar("T")

EVERY_FEATURE = frozenset(feature.value for feature in Feature)


def node(node_id: str = "n1", **changes: object) -> NodeFacts:
    """A ready node with room; fields of the spec or of the facts may be given."""
    spec = NodeSpec(
        node_id=node_id,
        endpoint="127.0.0.1:50051",
        capacity=Resources(4000, 8192, 100, 8),
        workload_types=("process", "container", "compose"),
        features=EVERY_FEATURE,
    )
    facts = NodeFacts(spec=spec, state=NodeState.READY)
    of_spec = {field.name for field in dataclasses.fields(NodeSpec)}
    spec = dataclasses.replace(spec, **{key: value for key, value in changes.items() if key in of_spec})
    return dataclasses.replace(facts, spec=spec, **{key: value for key, value in changes.items() if key not in of_spec})


def request(
    workload_id: str = "w1",
    *,
    cpu: int = 0,
    memory: int = 0,
    disk: int = 0,
    slots: int = 0,
    ports: Sequence[int] = (),
    rules: PlacementRules | None = None,
    labels: Mapping[str, str] | None = None,
    at_most_one: bool = False,
    **changes: object,
) -> PlacementRequest:
    """A request for a process."""
    spec = WorkloadSpec(
        type=WorkloadType.PROCESS,
        resources=ResourceRequest(cpu, memory, disk),
        process=ProcessSpec(
            command=("true",), ports=tuple(NamedPort(f"p{index}", port) for index, port in enumerate(ports))
        ),
        slots=slots,
        placement=rules or PlacementRules(),
        labels=labels or {},
        at_most_one=at_most_one,
    )
    return PlacementRequest(workload_id=WorkloadId(workload_id), spec=spec, **changes)


def requiring(*affinities: Affinity) -> PlacementRules:
    return PlacementRules(affinities=affinities)


def apart(scope: str = "node", *, required: bool = True, weight: int = 50, **labels: str) -> Affinity:
    return Affinity(workloads=labels, scope=scope, direction="apart", required=required, weight=weight)


def near(scope: str = "node", *, required: bool = True, weight: int = 50, **labels: str) -> Affinity:
    return Affinity(workloads=labels, scope=scope, direction="near", required=required, weight=weight)


# ---------------------------------------------------------------------------------------------------------
# The reference: weigh every node for every request, count everything anew each time


def place_simply(
    requests: Iterable[PlacementRequest], nodes: Iterable[NodeFacts], *, strategy: Strategy = Strategy.SPREAD
) -> PlacementPlan:
    """What `place(…, explain=True)` must return."""
    fleet = {each.node_id: each for each in sorted(nodes, key=lambda each: each.spec.node_id)}
    return PlacementPlan(tuple(_settle_simply(each, fleet, strategy) for each in requests))


def _settle_simply(asked: PlacementRequest, fleet: dict[NodeId, NodeFacts], strategy: Strategy) -> PlacementDecision:
    demand = Demand.of(asked)
    rejections, standings = [], []
    for node_id, facts in fleet.items():
        staying = node_id == asked.current
        weighed = facts
        if staying:
            weighed = facts.without_tenant(
                asked.workload_id, request=asked.current_request or Resources(), ports=asked.current_ports
            )
        rejection = _reject_simply(weighed, asked, fleet, staying=staying)
        if rejection is not None:
            rejections.append(rejection)
            continue
        share = rank.reserved_share(weighed.spec.capacity, weighed.reserved, asked.spec.request)
        cpu = weighed.spec.capacity.cpu_millicores or rank.LEAST_MILLICORES
        crowded = cpu + rank.LEAST_MILLICORES * len(weighed.tenants)
        # In the order in which it is worked out there: the last digit depends on it.
        total = 100.0 * share if strategy is Strategy.BINPACK else 100.0 * (1.0 - share) * cpu / crowded
        for rule in asked.spec.placement.affinities:
            if not rule.required:
                found = count_simply(rule, weighed, asked, fleet.values())
                total += rule.weight / (1 + found) if rule.direction == "apart" else rule.weight * found / (1 + found)
        total = round(total + rank.STAYING if staying else total, 6)
        standings.append((-total, len(weighed.tenants), node_id, weighed))
    if not standings:
        return PlacementDecision(asked.workload_id, None, rejections=tuple(rejections))
    standings.sort(key=lambda each: each[:3])
    chosen, weighed = standings[0][2], standings[0][3]
    fleet[chosen] = weighed.with_tenant(
        asked.workload_id, request=demand.request, ports=demand.ports, labels=asked.spec.labels
    )
    scores = tuple((standing[2], -standing[0]) for standing in standings[:5])
    return PlacementDecision(asked.workload_id, chosen, scores=scores)


def _reject_simply(
    facts: NodeFacts, asked: PlacementRequest, fleet: Mapping[NodeId, NodeFacts], *, staying: bool
) -> Rejection | None:
    filters = (feasible.gone, *feasible.FILTERS[1:]) if staying else feasible.FILTERS
    rejection = feasible.first_failure(filters, facts, Demand.of(asked))
    if rejection is not None:
        return rejection
    for rule in asked.spec.placement.affinities:
        if not rule.required:
            continue
        found = count_simply(rule, facts, asked, fleet.values())
        if rule.direction == "apart" and found:
            return Rejection(facts.node_id, "apart", "")
        everywhere = sum(_matches(rule, each, asked) for each in fleet.values())
        begins = rule.workloads.items() <= asked.spec.labels.items() and not everywhere
        if rule.direction == "near" and not found and not begins:
            return Rejection(facts.node_id, "near", "")
    if facts.node_id in asked.refused_by:
        return Rejection(facts.node_id, "refused", asked.refused_by[facts.node_id])
    return None


def count_simply(rule: Affinity, here: NodeFacts, asked: PlacementRequest, fleet: Iterable[NodeFacts]) -> int:
    return sum(_matches(rule, each, asked) for each in fleet if _share(here.spec, each.spec, rule.scope))


def _matches(rule: Affinity, facts: NodeFacts, asked: PlacementRequest) -> int:
    return sum(
        rule.workloads.items() <= labels.items()
        for tenant, labels in facts.tenants.items()
        if tenant != asked.workload_id
    )


def _share(one: NodeSpec, other: NodeSpec, scope: str) -> bool:
    if one.node_id == other.node_id:
        return True
    if scope == "host":
        return bool(one.host_id) and one.host_id == other.host_id
    return scope != "node" and scope in one.labels and one.labels[scope] == other.labels.get(scope)


# ---------------------------------------------------------------------------------------------------------
# Scenes: few different values, so that they meet. Each scene has a few kinds of trouble and not all of them, because
# where everything is wrong nothing is ever placed.

TROUBLES = ("state", "type", "feature", "label", "driver", "port", "slots", "affinities", "refusal", "home", "room")


@dataclass(frozen=True)
class Scene:
    """A fleet and what is asked of it."""

    nodes: tuple[NodeFacts, ...]
    requests: tuple[PlacementRequest, ...]
    strategy: Strategy


@dataclass(frozen=True)
class _Setting:
    """Draws the parts of a scene. Seeded: drawing each value by the strategy itself would be ten times as slow."""

    chance: random.Random
    troubles: frozenset[str]

    def maybe(self, trouble: str, values: Sequence[T], otherwise: T) -> T:
        """One of `values` in about half of the draws, if the scene has this trouble."""
        return self.chance.choice(values) if trouble in self.troubles and self.chance.random() < 0.5 else otherwise

    def labels(self) -> dict[str, str]:
        return self.chance.choice([{}, {"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}])

    def ports(self) -> tuple[int, ...]:
        return self.maybe("port", [(80,), (81,)], ())

    def affinity(self) -> Affinity:
        return Affinity(
            workloads=self.chance.choice([{"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}]),
            scope=self.chance.choice(["node", "host", "zone"]),
            direction=self.chance.choice(["near", "apart"]),
            required=self.chance.random() < 0.5,
            weight=self.chance.choice([1, 50, 100]),
        )

    def spec(self) -> WorkloadSpec:
        chance = self.chance
        constraints = [
            Constraint("zone", "in", ("z1",)),
            Constraint("zone", "not_in", ("z1", "z2")),
            Constraint("zone", "exists"),
            Constraint("zone", "not_exists"),
            Constraint("node_id", "not_in", ("n0",)),
            Constraint("host_id", "in", ("h1",)),
        ]
        affinities = chance.randint(0, 2) if "affinities" in self.troubles else 0
        return WorkloadSpec(
            type=self.maybe("type", [WorkloadType.VM, WorkloadType.COMPOSE], WorkloadType.PROCESS),
            resources=ResourceRequest(
                chance.choice([0, 100, 500]), chance.choice([0, 256, 600, 1500]), self.maybe("room", [1, 2], 0)
            ),
            process=ProcessSpec(command=("true",), ports=tuple(NamedPort("p", port) for port in self.ports())),
            slots=self.maybe("slots", [1, 2], 0),
            placement=PlacementRules(
                constraints=tuple(chance.sample(constraints, self.maybe("label", [1], 0))),
                affinities=tuple(self.affinity() for _ in range(affinities)),
                storage_drivers=self.maybe("driver", [("local",), ("nfs",)], ()),
            ),
            at_most_one=self.maybe("feature", [True], False),
            labels=self.labels(),
        )

    def node(self, name: str) -> NodeFacts:
        chance = self.chance
        labels = {"zone": chance.choice(["z1", "z2"])} if chance.random() < 0.8 else {}
        return node(
            name,
            capacity=Resources(
                self.maybe("room", [0, 1000], 4000), self.maybe("room", [512, 1024], 4096), 4, chance.randint(0, 4)
            ),
            state=self.maybe("state", [NodeState.SUSPECT, NodeState.NOT_READY], NodeState.READY),
            workload_types=self.maybe("type", [(), ("process", "vm"), ("container",)], ("process",)),
            features=self.maybe("feature", [frozenset()], EVERY_FEATURE),
            host_id=chance.choice(["", "h1", "h2"]),
            labels=labels | self.maybe("driver", [{"storage.nfs": "true"}, {"storage.nfs": "no"}], {}),
        )


def make_scene(*, seed: int, troubles: frozenset[str], nodes: int, requests: int, strategy: Strategy) -> Scene:
    """A scene that the same arguments always make again."""
    draw = _Setting(random.Random(seed), troubles)
    chance = draw.chance
    fleet, tenants = [], {}
    for name in [f"n{index}" for index in range(nodes)]:
        facts = draw.node(name)
        for tenant in [WorkloadId(f"{name}-t{index}") for index in range(chance.randint(0, 3))]:
            held = Resources(chance.choice([0, 300]), chance.choice([0, 300]), 0, chance.randint(0, 1))
            ports = frozenset((port, "tcp") for port in draw.ports()) - facts.ports
            tenants[tenant] = (name, held, ports)
            facts = facts.with_tenant(tenant, request=held, ports=ports, labels=draw.labels())
        fleet.append(facts)
    shapes = [draw.spec() for _ in range(chance.randint(1, 3))]
    asked = [
        PlacementRequest(
            workload_id=WorkloadId(f"w{index}"),
            spec=chance.choice(shapes),
            needs_generations=draw.maybe("feature", [True], False),
            refused_by=draw.maybe("refusal", [{NodeId("n0"): "no room"}, {NodeId("n1"): "", NodeId("n9"): "no"}], {}),
        )
        for index in range(requests)
    ]
    at_home = chance.sample(sorted(tenants), min(len(tenants), 4)) if "home" in troubles else []
    for tenant in at_home:
        home, held, ports = tenants[tenant]
        known = chance.random() < 0.8
        asked.append(
            PlacementRequest(
                workload_id=tenant,
                spec=chance.choice(shapes),
                current=chance.choice([NodeId(home)] * 4 + [None, NodeId("n9")]),
                current_request=held if known else None,
                current_ports=ports if known else frozenset(),
                refused_by=draw.maybe("refusal", [{NodeId(home): "no"}], {}),
            )
        )
    chance.shuffle(asked)
    return Scene(nodes=tuple(fleet), requests=tuple(asked), strategy=strategy)


def scenes(*always: str) -> st.SearchStrategy[Scene]:
    """Scenes with a few kinds of trouble, among them those named."""
    return st.builds(
        make_scene,
        seed=st.integers(0, 2**32),
        troubles=st.frozensets(st.sampled_from(TROUBLES), max_size=4).map(lambda some: some | set(always)),
        nodes=st.integers(0, 7),
        requests=st.integers(0, 14),
        strategy=st.sampled_from(list(Strategy)),
    )

"""What must never happen when work is placed."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shoal.control.placement.scheduler import Memory, place, place_together
from shoal.control.state.facts import NodeFacts, PlacementDecision, PlacementPlan, PlacementRequest, Strategy
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.nodes import Feature, NodeState
from shoal.model.resources import Resources
from shoal.model.workloads import ResourceRequest
from tests.unit.control.placing import Scene, apart, near, node, place_simply, request, requiring, scenes

often = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
very_often = settings(often, max_examples=800)


def bare(decisions: Iterable[PlacementDecision]) -> list[tuple[object, ...]]:
    """Decisions in the form that the reference gives them: scores as pairs, affinities rejections without words."""
    return [
        (
            each.workload_id,
            each.node_id,
            [(r.node_id, r.code, "" if r.code in ("near", "apart") else r.message) for r in each.rejections],
            [(score.node_id, score.total) if not isinstance(score, tuple) else score for score in each.scores],
        )
        for each in decisions
    ]


def refused_words(plan: PlacementPlan) -> PlacementPlan:
    """The reference knows no words for a refusal without any."""
    return PlacementPlan(
        tuple(
            dataclasses.replace(
                each,
                rejections=tuple(
                    dataclasses.replace(r, message=r.message or "its agent refused it lately")
                    if r.code == "refused"
                    else r
                    for r in each.rejections
                ),
            )
            for each in plan.decisions
        )
    )


@very_often
@given(st.one_of(scenes(), scenes("affinities"), scenes("home", "room"), scenes("home", "affinities")))
def test_it_decides_as_weighing_every_node_for_every_request_would(scene: Scene) -> None:
    expected = refused_words(place_simply(scene.requests, scene.nodes, strategy=scene.strategy))
    explained = place(scene.requests, scene.nodes, strategy=scene.strategy, explain=True)
    assert bare(explained.decisions) == bare(expected.decisions)
    for decision in explained.decisions:
        for score in decision.scores:
            assert abs(sum(score.parts.values()) - score.total) < 1e-4


@often
@given(st.one_of(scenes(), scenes("home", "room"), scenes("affinities")), st.randoms(use_true_random=False))
def test_a_plan_is_the_same_with_what_earlier_plans_have_found(scene: Scene, chance: random.Random) -> None:
    memory = Memory()
    nodes = {each.node_id: each for each in scene.nodes}
    for _ in range(4):
        fresh = place(scene.requests, nodes, strategy=scene.strategy)
        assert place(scene.requests, nodes, strategy=scene.strategy, memory=memory) == fresh
        for node_id in [each for each in nodes if chance.random() < 0.3]:
            if chance.random() < 0.2:
                del nodes[node_id]
            else:
                used = Resources(cpu_millicores=chance.choice((0, 100, 1000)), memory_mb=100)
                tenant = WorkloadId(f"tenant-{chance.random()}")
                nodes[node_id] = nodes[node_id].with_tenant(tenant, request=used, labels={"app": "web"})


@often
@given(scenes())
def test_an_explanation_changes_nothing(scene: Scene) -> None:
    explained = place(scene.requests, scene.nodes, strategy=scene.strategy, explain=True)
    plain = place(scene.requests, scene.nodes, strategy=scene.strategy)
    assert plain.decisions == tuple(dataclasses.replace(each, scores=()) for each in explained.decisions)


@often
@given(scenes(), st.randoms(use_true_random=False))
def test_the_same_facts_give_the_same_plan_in_any_order_of_nodes(scene: Scene, chance: random.Random) -> None:
    first = place(scene.requests, scene.nodes, strategy=scene.strategy)
    shuffled = list(scene.nodes)
    chance.shuffle(shuffled)
    by_id = {each.node_id: each for each in shuffled}
    assert place(scene.requests, scene.nodes, strategy=scene.strategy) == first
    assert place(scene.requests, shuffled, strategy=scene.strategy) == first
    assert place(scene.requests, by_id, strategy=scene.strategy) == first
    together = place_together(scene.requests, scene.nodes, strategy=scene.strategy)
    assert place_together(scene.requests, by_id, strategy=scene.strategy) == together


@often
@given(scenes(), st.sampled_from([place, place_together]))
def test_no_request_is_lost_and_each_is_placed_or_told_why_not(scene: Scene, how: type[place]) -> None:
    plan = how(scene.requests, scene.nodes, strategy=scene.strategy)
    known = sorted(each.node_id for each in scene.nodes)
    assert [each.workload_id for each in plan.decisions] == [each.workload_id for each in scene.requests]
    for decision in plan.decisions:
        if decision.node_id is not None:
            assert decision.node_id in known
            assert decision.rejections == ()
        elif how is place:
            assert [each.node_id for each in decision.rejections] == known
            assert all(each.code and each.message for each in decision.rejections)


@often
@given(st.one_of(scenes(), scenes("room"), scenes("room", "home")), st.sampled_from([place, place_together]))
def test_nothing_is_ever_promised_twice(scene: Scene, how: type[place]) -> None:
    plan = how(scene.requests, scene.nodes, strategy=scene.strategy)
    asked = {each.workload_id: each for each in scene.requests}
    taken: dict[NodeId, list[PlacementRequest]] = defaultdict(list)
    for decision in plan.decisions:
        if decision.node_id is not None:
            taken[decision.node_id].append(asked[decision.workload_id])
    for facts in scene.nodes:
        newcomers = taken[facts.node_id]
        stayed = [each for each in newcomers if each.current == facts.node_id and each.workload_id in facts.tenants]
        reserved = facts.reserved
        ports = Counter(facts.ports)
        for each in stayed:
            reserved -= each.current_request or Resources()
            ports -= Counter(each.current_ports)
        for each in newcomers:
            reserved += each.spec.request
            ports += Counter(each.spec.host_ports)
        for kind in ("cpu_millicores", "memory_mb", "disk_gb", "slots"):
            if any(getattr(each.spec.request, kind) for each in newcomers):
                assert getattr(reserved, kind) <= getattr(facts.spec.capacity, kind)
        assert all(count == 1 for count in ports.values())


@often
@given(
    st.one_of(scenes(), scenes("slots", "room"), scenes("driver"), scenes("label")),
    st.sampled_from([place, place_together]),
)
def test_no_node_gets_what_it_may_not_have(scene: Scene, how: type[place]) -> None:
    plan = how(scene.requests, scene.nodes, strategy=scene.strategy)
    nodes = {each.node_id: each for each in scene.nodes}
    for asked, decision in zip(scene.requests, plan.decisions, strict=True):
        if decision.node_id is None:
            continue
        facts, spec = nodes[decision.node_id], asked.spec
        stays = asked.current == decision.node_id
        assert facts.state is NodeState.READY or (stays and facts.state is NodeState.SUSPECT)
        assert decision.node_id not in asked.refused_by
        assert spec.type.value in (facts.spec.workload_types or ("process", "container", "compose"))
        if spec.at_most_one or asked.needs_generations:
            assert facts.spec.has(Feature.GENERATIONS)
        if spec.process and spec.process.ports:
            assert facts.spec.has(Feature.PORTS)
        if spec.slots:
            assert spec.resources.memory_mb * facts.spec.capacity.slots <= facts.spec.capacity.memory_mb * spec.slots
        if "nfs" in spec.storage_drivers:
            assert facts.spec.labels.get("storage.nfs") == "true"
        labels = {**facts.spec.labels, "node_id": facts.spec.node_id}
        if facts.spec.host_id:
            labels["host_id"] = facts.spec.host_id
        for rule in spec.placement.constraints:
            value = labels.get(rule.key)
            held = {
                "in": value in rule.values,
                "not_in": value not in rule.values,
                "exists": value is not None,
                "not_exists": value is None,
            }
            assert held[rule.operator]


@often
@given(scenes())
def test_a_group_is_placed_whole_or_not_at_all(scene: Scene) -> None:
    plan = place_together(scene.requests, scene.nodes, strategy=scene.strategy)
    placed = [each.node_id is not None for each in plan.decisions]
    assert all(placed) or not any(placed)
    alone = place(scene.requests, scene.nodes, strategy=scene.strategy)
    if alone.complete:
        assert plan == alone
    if scene.requests and not plan.complete and scene.nodes:
        assert any(each.rejections for each in plan.decisions)


@often
@given(scenes("home", "room"))
@example(
    Scene((node("n1", state=NodeState.SUSPECT, tenants={"w1": {}}),), (request("w1", current="n1"),), Strategy.SPREAD)
)
def test_who_fits_where_it_is_stays_there(scene: Scene) -> None:
    """Alone in its plan, with its own reservation free, and nothing else asked of the node."""
    for asked in scene.requests:
        if asked.current is None:
            continue
        home = next((each for each in scene.nodes if each.node_id == asked.current), None)
        if home is None or asked.workload_id not in home.tenants or asked.current_request is None:
            continue
        unchanged = dataclasses.replace(
            asked.spec,
            resources=ResourceRequest(asked.current_request.cpu_millicores, asked.current_request.memory_mb),
            slots=0,
            placement=type(asked.spec.placement)(),
        )
        fits = (
            home.state in (NodeState.READY, NodeState.SUSPECT)
            and asked.spec.type.value in home.spec.workload_types
            and not asked.refused_by
            and home.spec.has(Feature.GENERATIONS)
            and not unchanged.host_ports & (home.ports - asked.current_ports)
        )
        overfull = home.spec.capacity.missing(home.reserved)
        if fits and not overfull:
            plan = place([dataclasses.replace(asked, spec=unchanged)], scene.nodes, strategy=scene.strategy)
            assert plan.decisions[0].node_id == home.node_id


def crowd(seed: int, *, size: int, tenants: int) -> list[NodeFacts]:
    chance = random.Random(seed)
    nodes = []
    for index in range(size):
        facts = node(
            f"n{index:03d}",
            capacity=Resources(1000 * chance.randint(1, 8), 1024 * chance.randint(1, 8), 50, chance.randint(0, 16)),
            host_id=f"h{index // 3}" if chance.random() < 0.8 else "",
            labels={"zone": f"z{chance.randint(0, 3)}"} if chance.random() < 0.9 else {},
        )
        for each in range(tenants):
            facts = facts.with_tenant(
                WorkloadId(f"t{index}-{each}"),
                request=Resources(chance.randint(0, 200), chance.randint(0, 200), 0, 0),
                labels={"app": chance.choice("abc")},
            )
        nodes.append(facts)
    return nodes


def flood(seed: int, *, size: int, shapes: int) -> list[PlacementRequest]:
    chance = random.Random(seed)
    rules = [
        None,
        None,
        requiring(apart("host", required=False, app="a")),
        requiring(apart("zone", required=False, weight=90, app="b"), near("host", required=False, app="a")),
        requiring(apart("node", app="c")),
        requiring(near("zone", app="d")),
    ]
    specs = [
        request(
            cpu=chance.randint(0, 400),
            memory=chance.randint(0, 400),
            slots=chance.choice([0, 0, 1]),
            rules=chance.choice(rules),
            labels={"app": chance.choice("abcd")},
        ).spec
        for _ in range(shapes)
    ]
    return [PlacementRequest(WorkloadId(f"w{index}"), chance.choice(specs)) for index in range(size)]


def check_crowd(
    seed: int, requests: Sequence[PlacementRequest], nodes: Sequence[NodeFacts], strategy: Strategy
) -> None:
    expected = place_simply(requests, nodes, strategy=strategy)
    plan = place(requests, nodes, strategy=strategy, explain=bool(seed % 2))
    if not seed % 2:
        expected = PlacementPlan(tuple(dataclasses.replace(each, scores=()) for each in expected.decisions))
    assert bare(plan.decisions) == bare(expected.decisions)


def test_a_long_batch_of_few_shapes_is_placed_as_the_reference_does() -> None:
    """Long enough for heaps to fill with old standings and be built anew."""
    for seed in range(4):
        strategy = list(Strategy)[seed // 2]
        check_crowd(seed, flood(seed, size=250, shapes=4), crowd(seed, size=12, tenants=2), strategy)


def test_a_batch_of_more_shapes_than_are_kept_is_placed_as_the_reference_does() -> None:
    check_crowd(0, flood(7, size=220, shapes=100), crowd(7, size=10, tenants=1), Strategy.SPREAD)


@given(
    count=st.integers(1, 80),
    nodes=st.integers(1, 7),
    cpu=st.sampled_from([0, 1, 10]),
    memory=st.sampled_from([0, 1, 16]),
)
def test_equal_workloads_however_small_are_spread_evenly_over_equal_nodes(
    count: int, nodes: int, cpu: int, memory: int
) -> None:
    asked = [request(f"w{index:03}", cpu=cpu, memory=memory) for index in range(count)]
    plan = place(asked, [node(f"n{index}") for index in range(nodes)], strategy=Strategy.SPREAD)
    found = Counter(decision.node_id for decision in plan.decisions)
    counts = [found[NodeId(f"n{index}")] for index in range(nodes)]
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1


def test_small_workloads_do_not_all_go_where_nothing_else_is() -> None:
    busy = [node(f"n{index}", reserved=Resources(100, 256), tenants={f"t{index}": {}}) for index in (1, 2)]
    plan = place([request(f"w{index:02}", memory=1) for index in range(60)], [*busy, node("n3")])
    found = Counter(decision.node_id for decision in plan.decisions)
    assert min(found[NodeId(name)] for name in ("n1", "n2", "n3")) >= 15

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.control.placement import rank
from shoal.control.placement.affinity import AffinityIndex
from shoal.control.placement.demand import Demand
from shoal.control.state.facts import NodeFacts, PlacementRequest, Strategy
from shoal.model.resources import Resources
from shoal.model.workloads import Affinity, PlacementRules
from tests.unit.control.placing import apart, near, node, request, requiring


def total(facts: NodeFacts, asked: PlacementRequest, strategy: Strategy = Strategy.SPREAD, *others: NodeFacts) -> float:
    return rank.total(facts, Demand.of(asked), strategy=strategy, affinities=AffinityIndex([facts, *others]))


def test_the_share_is_the_mean_of_the_kinds_a_node_has() -> None:
    capacity, reserved = Resources(1000, 1000, 10, 10), Resources(100, 200, 9, 1)
    assert rank.reserved_share(capacity, reserved, Resources(100, 100, 1, 1)) == pytest.approx((0.2 + 0.3 + 0.2) / 3)
    assert rank.reserved_share(Resources(1000, 0, 0, 0), Resources(), Resources(250)) == pytest.approx(0.25)
    assert rank.reserved_share(Resources(), Resources(), Resources()) == 0.0


def test_spread_prefers_the_emptier_node_and_binpack_the_fuller() -> None:
    empty, half = node("a"), node("b", reserved=Resources(2000, 4096, 0, 4))
    asked = request(cpu=100)
    assert total(empty, asked) > total(half, asked)
    assert total(empty, asked, Strategy.BINPACK) < total(half, asked, Strategy.BINPACK)
    assert total(half, request()) == 50.0
    assert total(half, request(), Strategy.BINPACK) == 50.0


def test_preferred_affinities_weigh_as_they_say() -> None:
    lonely = node("a", labels={"zone": "z1"})
    crowded = node("b", labels={"zone": "z2"}, tenants={f"w{index}": {"app": "web"} for index in range(3)})
    away = request(rules=requiring(apart("zone", required=False, weight=40, app="web")))
    assert total(lonely, away, Strategy.SPREAD, crowded) == 140.0
    emptiness = 100 * 4000 / (4000 + 3 * rank.LEAST_MILLICORES)
    assert total(crowded, away, Strategy.SPREAD, lonely) == pytest.approx(emptiness + 10, abs=1e-6)
    close = request(rules=requiring(near("zone", required=False, weight=40, app="web")))
    assert total(lonely, close, Strategy.SPREAD, crowded) == 100.0
    assert total(crowded, close, Strategy.SPREAD, lonely) == pytest.approx(emptiness + 30, abs=1e-6)


def test_required_rules_give_no_points() -> None:
    assert total(node(), request(rules=requiring(apart(app="web")))) == 100.0


def test_the_parts_are_named_and_make_up_the_total() -> None:
    rules = (apart("zone", required=False, weight=10, app="web"), near("node", required=False, weight=20, app="db"))
    facts = node(tenants={"db": {"app": "db"}}, reserved=Resources(2000, 4096, 0, 4))
    demand = Demand.of(request(rules=requiring(*rules, rules[0])))
    score = rank.explain(facts, demand, strategy=Strategy.SPREAD, affinities=AffinityIndex([facts]), staying=True)
    assert score.parts == {
        "spread": round(50 * 4000 / 4100, 6),
        "apart from app=web by zone": 20.0,
        "near app=db by node": 10.0,
        "current": rank.STAYING,
    }
    assert score.total == pytest.approx(sum(score.parts.values()))


@given(reserved=st.integers(0, 4000), tenants=st.integers(0, 500), more=st.integers(1, 500))
def test_each_tenant_more_makes_a_node_fuller_when_work_is_spread(reserved: int, tenants: int, more: int) -> None:
    some, many = (
        node(reserved=Resources(reserved, reserved), tenants={f"w{index}": {} for index in range(count)})
        for count in (tenants, tenants + more)
    )
    asked = request(memory=1)
    assert 0.0 <= total(many, asked) <= total(some, asked) <= 100.0
    if reserved < 4000:
        assert total(many, asked) < total(some, asked)
    assert total(many, asked, Strategy.BINPACK) == total(some, asked, Strategy.BINPACK)


@given(
    weights=st.lists(st.integers(1, 100), max_size=64),
    directions=st.sampled_from(["near", "apart"]),
    tenants=st.integers(0, 5),
    strategy=st.sampled_from(list(Strategy)),
)
def test_nothing_outweighs_staying(weights: list[int], directions: str, tenants: int, strategy: Strategy) -> None:
    rules = PlacementRules(
        affinities=tuple(Affinity(workloads={"app": "a"}, direction=directions, weight=weight) for weight in weights)
    )
    facts = node(tenants={f"w{index}": {"app": "a"} for index in range(tenants)})
    demand, affinities = Demand.of(request(rules=rules)), AffinityIndex([facts])
    elsewhere = rank.total(facts, demand, strategy=strategy, affinities=affinities)
    full = node(reserved=Resources(4000, 8192, 0, 8))
    at_home = rank.total(full, demand, strategy=strategy, affinities=AffinityIndex([full]), staying=True)
    assert at_home > elsewhere

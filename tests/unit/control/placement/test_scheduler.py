from __future__ import annotations

import gc
from collections import Counter

import pytest

from bench.scheduler import measure
from shoal.control.placement import scheduler
from shoal.control.placement.scheduler import place, place_together
from shoal.control.state.facts import NodeFacts, PlacementRequest, Strategy
from shoal.core.errors import InvalidError
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.nodes import NodeState
from shoal.model.resources import Resources
from tests.unit.control.placing import apart, near, node, request, requiring


def where(requests: list[PlacementRequest], nodes: list[NodeFacts], **options: object) -> list[str | None]:
    return [each.node_id for each in place(requests, nodes, **options).decisions]


def where_together(requests: list[PlacementRequest], nodes: list[NodeFacts], **options: object) -> list[str | None]:
    return [each.node_id for each in place_together(requests, nodes, **options).decisions]


def some(count: int, **options: object) -> list[PlacementRequest]:
    return [request(f"w{index}", **options) for index in range(count)]


def fleet(*names: str, **options: object) -> list[NodeFacts]:
    return [node(name, **options) for name in names]


def test_requests_see_what_those_before_them_took() -> None:
    """A burst does not land on one node."""
    assert Counter(where(some(9, cpu=100), fleet("a", "b", "c"))) == {"a": 3, "b": 3, "c": 3}


def test_who_asks_for_nothing_goes_where_the_fewest_are() -> None:
    nodes = [node("a", tenants={WorkloadId("t"): {}}), node("b"), node("c")]
    assert where(some(5), nodes) == ["b", "c", "a", "b", "c"]


@pytest.mark.parametrize("plan", [place, place_together])
@pytest.mark.parametrize("cpu", [100, 3000, 9000], ids=["fits", "tries again", "fits nowhere"])
def test_a_plan_leaves_nothing_to_the_garbage_collector(plan, cpu: int) -> None:
    """A pause for it delays every heartbeat."""

    def alive() -> set[int]:
        return {id(each) for each in gc.get_objects() if isinstance(each, NodeFacts | scheduler._Shortlist)}

    gc.collect()
    gc.disable()
    try:
        before = alive()
        plan(some(5, cpu=cpu), fleet("a", "b", "c"))
        assert alive() <= before
    finally:
        gc.enable()


def test_binpack_fills_one_node_before_the_next() -> None:
    placed = where(some(6, cpu=1000), fleet("a", "b"), strategy=Strategy.BINPACK)
    assert placed == ["a", "a", "a", "a", "b", "b"]


def test_the_unplaceable_lists_every_node_with_its_reason() -> None:
    nodes = [node("c"), node("a", state=NodeState.NOT_READY), node("b", workload_types=("vm",)), node("d")]
    refused = {NodeId("d"): "disk is failing", NodeId("gone"): "no"}
    (decision,) = place([request(slots=9, memory=1, refused_by=refused)], nodes).decisions
    assert decision.node_id is None
    assert [(each.node_id, each.code) for each in decision.rejections] == [
        ("a", "not_ready"),
        ("b", "type"),
        ("c", "slots"),
        ("d", "slots"),
    ]
    (decision,) = place([request(refused_by={NodeId("c"): "no", **refused})], nodes).decisions
    assert [(each.node_id, each.code) for each in decision.rejections][2:] == [("c", "refused"), ("d", "refused")]


def test_one_that_fits_nowhere_does_not_stop_the_others() -> None:
    requests = [request("big", cpu=5000), request("small", cpu=100)]
    assert where(requests, fleet("a")) == [None, "a"]


def test_an_empty_fleet_and_an_empty_batch_are_answered() -> None:
    (decision,) = place([request()], []).decisions
    assert (decision.node_id, decision.rejections) == (None, ())
    assert place([], fleet("a")).decisions == ()
    assert place_together([], fleet("a")).complete


def test_requests_of_one_shape_share_one_list_of_rejections() -> None:
    decisions = place(some(3, cpu=99_999), fleet("a", "b")).decisions
    assert decisions[0].rejections is decisions[2].rejections
    assert len(decisions[0].rejections) == 2


def test_twins_are_refused() -> None:
    with pytest.raises(InvalidError, match="requests: is given twice \\(got 'w1'\\)"):
        place([request("w1"), request("w1")], fleet("a"))
    with pytest.raises(InvalidError, match="requests"):
        place_together([request("w1"), request("w1")], fleet("a"))
    with pytest.raises(InvalidError, match="nodes: is given twice \\(got 'a'\\)"):
        place([], fleet("a", "a"))


# ---------------------------------------------------------------------------------------------------------
# Staying


def at_home(**options: object) -> PlacementRequest:
    return request(
        "w1", current=NodeId("a"), current_request=Resources(3000), current_ports=frozenset({(80, "tcp")}), **options
    )


def home(**options: object) -> NodeFacts:
    facts = node("a", **options)
    return facts.with_tenant(
        WorkloadId("w1"), request=Resources(3000), ports=frozenset({(80, "tcp")}), labels={"app": "web"}
    )


def test_an_update_stays_where_it_is_with_its_own_reservation_free() -> None:
    assert where([at_home(cpu=3500, ports=(80,))], [home(), node("b")]) == ["a"]


def test_an_update_that_no_longer_fits_moves() -> None:
    nodes = [home(), node("b", capacity=Resources(8000, 8192, 0, 0))]
    assert where([at_home(cpu=4500)], nodes) == ["b"]
    (decision,) = place([at_home(cpu=9000)], nodes).decisions
    assert [each.message for each in decision.rejections] == [
        "needs 9000 millicores of cpu, 4000 free",
        "needs 9000 millicores of cpu, 8000 free",
    ]


def test_what_moved_away_keeps_its_old_place_reserved() -> None:
    nodes = [home(), node("b", capacity=Resources(4500, 8192, 0, 0))]
    assert where([at_home(cpu=4500), request("w2", cpu=2000)], nodes) == ["b", None]


def test_what_shrank_leaves_room_for_the_next() -> None:
    assert where([at_home(cpu=1000), request("w2", cpu=3000)], [home()]) == ["a", "a"]
    assert where([request("w2", cpu=3000), at_home(cpu=1000)], [home()]) == [None, "a"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (NodeState.READY, "a"),
        (NodeState.SUSPECT, "a"),
        (NodeState.NOT_READY, "b"),
        (NodeState.DRAINING, "b"),
        (NodeState.DRAINED, "b"),
    ],
)
def test_an_update_leaves_only_a_node_that_is_lost_or_to_be_emptied(state: NodeState, expected: str) -> None:
    assert where([at_home(cpu=3000)], [home(state=state), node("b")]) == [expected]


def test_an_update_leaves_a_node_that_refused_it() -> None:
    assert where([at_home(refused_by={NodeId("a"): "no"})], [home(), node("b")]) == ["b"]


def test_a_current_node_that_is_gone_counts_for_nothing() -> None:
    assert where([at_home()], fleet("b")) == ["b"]


def test_nothing_is_given_back_that_the_node_does_not_hold() -> None:
    stranger = node("a", reserved=Resources(3000))
    assert where([at_home(cpu=2000)], [stranger]) == [None]


def test_it_is_not_kept_apart_from_itself() -> None:
    rules = requiring(apart("host", app="web"))
    both = [home(host_id="h"), node("b", host_id="h", capacity=Resources(8000, 8192, 0, 0))]
    assert where([at_home(cpu=100, rules=rules, labels={"app": "web"})], both) == ["a"]
    assert where([at_home(cpu=5000, rules=rules, labels={"app": "web"})], both) == ["b"]


# ---------------------------------------------------------------------------------------------------------
# AffinityIndex


def test_replicas_that_must_be_apart_take_one_node_each() -> None:
    rules = requiring(apart("node", app="web"))
    placed = where(some(4, rules=rules, labels={"app": "web"}), fleet("a", "b", "c"))
    assert placed == ["a", "b", "c", None]


def test_replicas_that_would_rather_be_apart_spread_over_zones_evenly() -> None:
    names = ("x1", "x2", "x3", "x4", "x5", "y1", "z1")
    nodes = [node(name, labels={"zone": name[0]}) for name in names]
    rules = requiring(apart("zone", required=False, weight=100, app="web"))
    placed = where(some(6, cpu=10, rules=rules, labels={"app": "web"}), nodes)
    assert Counter(str(each)[0] for each in placed) == {"x": 2, "y": 2, "z": 2}


def test_those_who_must_be_together_follow_the_first() -> None:
    nodes = [node(name, host_id=f"h{name[0]}") for name in ("a1", "a2", "b1", "b2")]
    rules = requiring(near("host", app="job"))
    placed = where(some(4, cpu=100, rules=rules, labels={"app": "job"}), nodes)
    assert placed == ["a1", "a2", "a1", "a2"]


# ---------------------------------------------------------------------------------------------------------
# Together


def test_a_group_that_fits_in_the_given_order_is_placed_in_it() -> None:
    requests = some(4, cpu=1000)
    assert where_together(requests, fleet("a", "b")) == where(requests, fleet("a", "b")) == ["a", "b", "a", "b"]


def test_the_largest_go_first_when_the_given_order_fails() -> None:
    requests = [request("s1", cpu=2000), request("s2", cpu=2000), request("large", cpu=4000)]
    assert where(requests, fleet("a", "b")) == ["a", "b", None]
    assert where_together(requests, fleet("a", "b")) == ["b", "b", "a"]


def test_those_with_the_fewest_choices_go_first_when_that_fails_too() -> None:
    picky = requiring(apart("node", app="old"))
    nodes = [
        node("a", capacity=Resources(3000, 8192, 0, 0)),
        node("b", capacity=Resources(3000, 8192, 0, 0), tenants={WorkloadId("t"): {"app": "old"}}),
    ]
    requests = [request("large", cpu=3000), request("picky", cpu=2000, rules=picky)]
    assert where_together(requests, nodes) == ["b", "a"]


def test_a_group_that_only_fits_packed_is_packed() -> None:
    requests = [request(f"w{index}", cpu=cpu) for index, cpu in enumerate((3000, 3000, 2000, 2000, 2000))]
    nodes = fleet("a", "b", capacity=Resources(6000, 8192, 0, 0))
    assert where(requests, nodes)[-1] is None
    assert where_together(requests, nodes) == ["a", "a", "b", "b", "b"]


def test_a_member_that_must_be_near_another_is_placed_after_it() -> None:
    follower = request("follower", cpu=2000, rules=requiring(near("node", app="leader")))
    leader = request("leader", cpu=100, labels={"app": "leader"})
    assert where_together([follower, leader], fleet("a", "b")) == ["a", "a"]


def test_a_group_that_does_not_fit_leaves_nothing_placed_and_says_who_was_left_over() -> None:
    requests = [*some(2, cpu=3000), request("third", cpu=3000)]
    plan = place_together(requests, fleet("a", "b"), explain=True)
    assert not plan.complete
    assert [each.node_id for each in plan.decisions] == [None, None, None]
    assert [[r.message for r in each.rejections] for each in plan.decisions] == [
        [],
        [],
        ["needs 3000 millicores of cpu, 1000 free", "needs 3000 millicores of cpu, 1000 free"],
    ]


def test_the_try_that_left_over_the_fewest_tells_why() -> None:
    """Largest first, both small ones are left over; in the given order only the large one is."""
    requests = [*some(2, cpu=2000), request("large", cpu=4000)]
    plan = place_together(requests, fleet("a"))
    assert [bool(each.rejections) for each in plan.decisions] == [False, False, True]


def test_an_unchanged_member_keeps_its_place_in_a_larger_group() -> None:
    nodes = [home(), node("b")]
    requests = [request("w2", cpu=2000), request("w3", cpu=2000), at_home(cpu=3000)]
    assert where_together(requests, nodes) == ["b", "b", "a"]


# ---------------------------------------------------------------------------------------------------------
# Explaining


def test_an_explanation_shows_the_best_five_and_puts_home_first() -> None:
    nodes = [home(), *fleet("b", "c", "d", "e", "f", "g")]
    new, update = place([request("w2", cpu=100), at_home(cpu=3000)], nodes, explain=True).decisions
    assert [score.node_id for score in new.scores] == ["b", "c", "d", "e", "f"]
    assert new.scores[0].parts.keys() == {"spread"}
    assert [score.node_id for score in update.scores] == ["a", "c", "d", "e", "f"]
    assert update.scores[0].parts.keys() == {"spread", "current"}


def test_shortlists_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    built = Counter[object]()
    real = scheduler._Shortlist

    def counted(fleet: object, demand: object, **options: object) -> object:
        built[demand] += 1
        return real(fleet, demand, **options)

    monkeypatch.setattr(scheduler, "_Shortlist", counted)
    shapes = [request(f"w{index}", cpu=index) for index in range(scheduler._MOST_SHORTLISTS + 1)]
    again = [request(f"again-{index}", cpu=index) for index in (0, scheduler._MOST_SHORTLISTS)]
    place([*shapes, *again], fleet("a"))
    assert sorted(built.values())[-2:] == [1, 2]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_MOST_REMEMBERED", 2)
    memory = scheduler.Memory()
    for number in range(100):
        nodes = [node(f"n{number}-{each}") for each in range(3)]
        place([request(f"w{cpu}", cpu=cpu) for cpu in (1, 2, 3)], nodes, memory=memory)
    assert len(memory._found) == 2
    assert max(map(len, memory._found.values())) < 30


def test_the_benchmark_runs() -> None:
    figures = measure(nodes=6, requests=8)
    assert figures.keys() >= {"same_shape_per_s", "single_ms"}
    assert all(value > 0 for value in figures.values())

from __future__ import annotations

from shoal.control.placement.affinity import AffinityIndex
from shoal.control.placement.demand import Demand, Neighbors
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.resources import Resources
from tests.unit.control.placing import apart, node, request, requiring

WEB = Neighbors(labels=(("app", "web"),), scope="host")
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
W1 = WorkloadId("w1")


def affinities() -> AffinityIndex:
    return AffinityIndex(
        [
            node("n1", host_id="h1", tenants={W1: {"app": "web"}, WorkloadId("db"): {"app": "db"}}),
            node("n2", host_id="h1", tenants={WorkloadId("w2"): {"app": "web"}}),
            node("n3", host_id="h3"),
        ]
    )


def test_it_counts_within_the_scope_and_in_all() -> None:
    known = affinities()
    assert [known.count(WEB, each) for each in (N1, N2, N3)] == [2, 2, 0]
    assert known.total(WEB) == 2
    assert sorted(known.within("host", N1)) == [N1, N2]


def test_it_leaves_one_out_when_asked() -> None:
    known = affinities()
    assert [known.count(WEB, each, besides=W1) for each in (N1, N2, N3)] == [1, 1, 0]
    assert known.total(WEB, besides=W1) == 1
    assert known.total(WEB, besides=WorkloadId("stranger")) == 2


def test_it_follows_a_placement_and_says_which_counts_changed() -> None:
    known = affinities()
    known.count(WEB, N1)
    db = Neighbors(labels=(("app", "db"),), scope="node")
    known.count(db, N1)
    newcomer = WorkloadId("w3")
    after = node("n3", host_id="h3").with_tenant(newcomer, request=Resources(), labels={"app": "web"})
    assert known.change(after, newcomer) == {WEB}
    assert (known.count(WEB, N3), known.total(WEB)) == (1, 3)
    assert known.count(WEB, N3, besides=newcomer) == 0
    relabelled = node("n3", host_id="h3").with_tenant(newcomer, request=Resources(), labels={"app": "db"})
    assert known.change(relabelled, newcomer) == {WEB, db}
    assert (known.count(WEB, N3), known.total(WEB), known.count(db, N3)) == (0, 2, 1)
    assert known.change(relabelled, newcomer) == frozenset()


def test_it_knows_who_would_find_itself() -> None:
    known = affinities()
    rules = Demand.of(request(rules=requiring(apart("host", app="web")))).required
    assert known.counts_itself(rules, W1)
    assert not known.counts_itself(rules, WorkloadId("db"))
    assert not known.counts_itself(rules, WorkloadId("stranger"))

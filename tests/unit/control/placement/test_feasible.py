from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from shoal.control.placement import feasible
from shoal.control.placement.affinity import AffinityIndex
from shoal.control.placement.demand import Demand
from shoal.control.state.facts import NodeFacts, PlacementRequest
from shoal.core.ids import WorkloadId
from shoal.model.nodes import Feature, NodeState, StoragePool
from shoal.model.resources import PoolShare, Resources
from shoal.model.workloads import (
    Constraint,
    ContainerSpec,
    Failover,
    ManagedVolume,
    PlacementRules,
    PortMapping,
    Rejection,
    VmDisk,
    VmSpec,
    WorkloadSpec,
    WorkloadType,
)
from tests.unit.control.placing import apart, near, node, request, requiring


def check(facts: NodeFacts, asked: PlacementRequest) -> str | None:
    """The first failure as `code: message`."""
    rejection = feasible.first_failure(feasible.FILTERS, facts, Demand.of(asked))
    return words(rejection)


def words(rejection: Rejection | None) -> str | None:
    return f"{rejection.code}: {rejection.message}" if rejection is not None else None


def of_type(kind: WorkloadType) -> PlacementRequest:
    return PlacementRequest(WorkloadId("w1"), WorkloadSpec(type=kind))


def test_a_node_with_room_takes_it() -> None:
    assert check(node(), request(cpu=4000, memory=8192, disk=100, slots=8, ports=(80,), at_most_one=True)) is None


@pytest.mark.parametrize("state", [NodeState.SUSPECT, NodeState.NOT_READY])
def test_a_node_that_is_not_ready_says_its_state(state: NodeState) -> None:
    assert check(node(state=state), request()) == f"not_ready: the node is {state.value}"


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.DRAINED])
def test_a_node_that_an_operator_wants_empty_says_so(state: NodeState) -> None:
    assert check(node(state=state), request()) == f"draining: the node is {state.value}"


def test_a_node_under_disk_pressure_takes_nothing_new_and_keeps_what_it_has() -> None:
    full = dataclasses.replace(node(), disk_pressure="12 MB are free")
    assert check(full, request()) == "disk_pressure: the node is under disk pressure: 12 MB are free"
    assert feasible.gone(full, Demand.of(request())) is None


def test_a_cordoned_node_takes_nothing_new_and_keeps_what_it_has() -> None:
    cordoned = dataclasses.replace(node(), cordoned=True)
    assert check(cordoned, request()) == "cordoned: the node is cordoned"
    assert feasible.gone(cordoned, Demand.of(request())) is None
    lost = dataclasses.replace(node(state=NodeState.NOT_READY), cordoned=True)
    assert feasible.gone(lost, Demand.of(request())) is not None


def test_what_is_stopped_without_contact_needs_an_agent_that_does_so() -> None:
    asked = request()
    spec = dataclasses.replace(asked.spec, failover=Failover("stop", timedelta(minutes=1)))
    asked = dataclasses.replace(asked, spec=spec)
    older = node(features=frozenset({"generations"}))
    assert (check(older, asked) or "").startswith("stop_alone")
    assert check(node(features=frozenset({"generations", "stop_alone"})), asked) is None


@pytest.mark.parametrize("state", list(NodeState))
def test_what_lives_on_a_suspect_node_may_stay(state: NodeState) -> None:
    stays = feasible.gone(node(state=state), Demand.of(request())) is None
    assert stays == (state in (NodeState.READY, NodeState.SUSPECT))


@pytest.mark.parametrize("kind", list(WorkloadType))
def test_an_agent_that_names_no_types_runs_all_but_virtual_machines(kind: WorkloadType) -> None:
    foreign = node(workload_types=(), features=frozenset())
    expected = "type: cannot run vm: the agent names no types, which means all but vm"
    assert check(foreign, of_type(kind)) == (expected if kind is WorkloadType.VM else None)


def test_an_agent_runs_the_types_it_names() -> None:
    assert check(node(workload_types=("vm",)), of_type(WorkloadType.VM)) is None
    refused = check(node(workload_types=("vm", "compose")), of_type(WorkloadType.PROCESS))
    assert refused == "type: cannot run process: the agent runs only compose, vm"


def test_groups_and_at_most_one_work_need_generations() -> None:
    foreign = node(features=frozenset())
    assert check(foreign, request()) is None
    assert (check(foreign, request(needs_generations=True)) or "").startswith("generations: ")
    assert (check(foreign, request(at_most_one=True)) or "").startswith("generations: ")
    knows = node(features=frozenset({Feature.GENERATIONS.value}))
    assert check(knows, request(needs_generations=True, at_most_one=True)) is None


def test_named_ports_need_an_agent_that_gives_them() -> None:
    foreign = node(features=frozenset())
    assert (check(foreign, request(ports=(0,))) or "").startswith("named_ports: ")
    assert check(node(features=frozenset({Feature.PORTS.value})), request(ports=(0,))) is None


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (Constraint("zone", "in", ("a", "b")), None),
        (Constraint("zone", "in", ("b",)), "label: zone is a; must be in b"),
        (Constraint("rack", "in", ("b", "c")), "label: rack is not set; must be in b, c"),
        (Constraint("zone", "not_in", ("a",)), "label: zone is a; must not be in a"),
        (Constraint("zone", "not_in", ("b",)), None),
        (Constraint("rack", "not_in", ("a",)), None),
        (Constraint("zone", "exists"), None),
        (Constraint("rack", "exists"), "label: rack is not set; must be set"),
        (Constraint("zone", "not_exists"), "label: zone is a; must not be set"),
        (Constraint("rack", "not_exists"), None),
        (Constraint("node_id", "in", ("n1",)), None),
        (Constraint("node_id", "not_in", ("n1",)), "label: node_id is n1; must not be in n1"),
        (Constraint("host_id", "in", ("h1",)), None),
        (Constraint("host_id", "in", ("h2",)), "label: host_id is h1; must be in h2"),
        (Constraint("zone", "in", tuple("bcdefgh")), "label: zone is a; must be in b, c, d, e, f, …"),
    ],
)
def test_constraints_on_labels(constraint: Constraint, expected: str | None) -> None:
    facts = node(host_id="h1", labels={"zone": "a", "node_id": "a lie"})
    assert check(facts, request(rules=PlacementRules(constraints=(constraint,)))) == expected


def test_a_node_without_a_host_has_no_host_label() -> None:
    asked = request(rules=PlacementRules(constraints=(Constraint("host_id", "exists"),)))
    assert check(node(), asked) == "label: host_id is not set; must be set"


def test_storage_drivers_come_from_the_list_or_a_label_and_local_is_everywhere() -> None:
    volumes = tuple(ManagedVolume(name=f"v{driver}", driver=driver) for driver in ("", "local", "nfs"))
    spec = WorkloadSpec(
        type=WorkloadType.CONTAINER,
        container=ContainerSpec(image="i", managed_volumes=volumes),
        placement=PlacementRules(storage_drivers=("ceph",)),
    )
    asked = PlacementRequest(WorkloadId("w1"), spec)
    assert check(node(storage_drivers=("nfs",), labels={"storage.ceph": "true"}), asked) is None
    assert check(node(storage_drivers=("nfs", "ceph")), asked) is None
    assert check(node(storage_drivers=("nfs",), labels={"storage.ceph": "no"}), asked) == (
        "storage_driver: has no storage driver ceph"
    )
    assert check(node(storage_drivers=("ceph",)), asked) == "storage_driver: has no storage driver nfs"


def test_disks_and_volumes_reserve_space_in_storage_pools() -> None:
    disks = (VmDisk(pool_name="fast", size_gb=30), VmDisk(pool_name="fast"), VmDisk(size_gb=500))
    volumes = (ManagedVolume("v", size_gb=5, pool_name="slow"), ManagedVolume("w", size_gb=999))
    spec = WorkloadSpec(type=WorkloadType.VM, vm=VmSpec(memory_mb=1, disks=disks, managed_volumes=volumes))
    asked = PlacementRequest(WorkloadId("w1"), spec)
    assert spec.request.pools == (PoolShare("fast", 50), PoolShare("slow", 5))
    pools = (StoragePool("fast", total_gb=100), StoragePool("slow", total_gb=5))
    types = ("vm",)
    free = node(workload_types=types, storage_pools=pools)
    assert check(free, asked) is None
    assert check(node(workload_types=types), asked) == "storage_pool: the node has no storage pool 'fast': it has none"
    used = free.with_tenant(WorkloadId("other"), request=spec.request, labels={})
    assert check(used, asked) == "storage_pool: needs 5 GB of storage pool 'slow', 0 free"
    again = used.without_tenant(WorkloadId("other"), request=spec.request)
    assert check(again, asked) is None
    # A foreign agent reports one pool and does not go by names.
    assert check(node(workload_types=types, storage_pools=pools[:1], features=frozenset()), asked) is None


def test_an_agent_of_ours_that_names_no_types_runs_nothing_now() -> None:
    assert check(node(workload_types=()), request()) == "type: cannot run process: the agent runs nothing now"


def test_a_host_port_is_taken_once_for_each_protocol() -> None:
    ports = tuple(PortMapping(container_port=53, host_port=53, protocol=protocol) for protocol in ("tcp", "udp"))
    spec = WorkloadSpec(type=WorkloadType.CONTAINER, container=ContainerSpec(image="i", ports=ports))
    asked = PlacementRequest(WorkloadId("w1"), spec)
    assert check(node(ports=frozenset({(54, "tcp")})), asked) is None
    assert check(node(ports=frozenset({(53, "udp")})), asked) == "port: host port 53/udp is taken"
    both = node(ports=frozenset({(53, "udp"), (53, "tcp")}))
    assert check(both, asked) == "port: host port 53/tcp, 53/udp is taken"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (request(cpu=500), "cpu: needs 500 millicores of cpu, 200 free"),
        (request(memory=500), "memory: needs 500 MB of memory, 300 free"),
        (request(disk=50), "disk: needs 50 GB of disk, 40 free"),
        (request(slots=2), "slots: needs 2 slots, 1 free"),
        (request(slots=2, cpu=500, memory=500, disk=50), "slots: needs 2 slots, 1 free"),
        (request(cpu=200, memory=300, disk=40, slots=1), None),
    ],
)
def test_resources_count_by_reservation(asked: PlacementRequest, expected: str | None) -> None:
    facts = node(capacity=Resources(1000, 1000, 100, 3), reserved=Resources(800, 700, 60, 2))
    assert check(facts, asked) == expected


def test_a_node_that_shrank_has_nothing_and_still_takes_what_asks_for_nothing() -> None:
    facts = node(capacity=Resources(100, 100, 0, 0), reserved=Resources(800, 700, 0, 0))
    assert check(facts, request(cpu=1)) == "cpu: needs 1 millicores of cpu, 0 free"
    assert check(facts, request()) is None


def test_a_task_fits_into_the_memory_of_its_slots() -> None:
    facts = node(capacity=Resources(1000, 1000, 0, 3))
    assert check(facts, request(slots=1, memory=333)) is None
    assert check(facts, request(slots=1, memory=334)) == (
        "slot_memory: needs 334 MB but 1 of 3 slots have 333 MB of the node's 1000 MB"
    )
    assert check(facts, request(slots=2, memory=666)) is None
    assert check(facts, request(memory=1000)) is None


def test_only_the_first_failure_is_told_in_a_fixed_order() -> None:
    facts = node(state=NodeState.DRAINING, workload_types=("vm",), capacity=Resources())
    asked = request(cpu=1, slots=1, memory=1)
    assert (check(facts, asked) or "").startswith("draining")
    assert (check(dataclasses.replace(facts, state=NodeState.READY), asked) or "").startswith("type")
    assert (check(node(capacity=Resources()), asked) or "").startswith("slots")


def test_filters_that_cannot_fail_are_left_out() -> None:
    plain = feasible.filters_for(Demand.of(request(cpu=1)))
    assert plain == (feasible.not_ready, feasible.workload_type, feasible.resources)
    staying = feasible.filters_for(Demand.of(request(cpu=1)), staying=True)
    assert staying == (feasible.gone, feasible.workload_type, feasible.resources)


# ---------------------------------------------------------------------------------------------------------
# AffinityIndex


def meet(asked: PlacementRequest, *nodes: NodeFacts, itself: str | None = None) -> dict[str, str | None]:
    neighbors = AffinityIndex(nodes)
    demand = Demand.of(asked)
    own = WorkloadId(itself) if itself is not None else None
    return {each.spec.node_id: words(feasible.affinity(each, demand, neighbors, itself=own)) for each in nodes}


def test_apart_by_node_host_and_label() -> None:
    nodes = (
        node("a", host_id="h1", labels={"zone": "z1"}, tenants={"web-1": {"app": "web"}, "web-2": {"app": "web"}}),
        node("b", host_id="h1", labels={"zone": "z1"}),
        node("c", host_id="h2", labels={"zone": "z1"}),
        node("d"),
    )
    assert meet(request(rules=requiring(apart("node", app="web"))), *nodes) == {
        "a": "apart: 2 workloads with app=web on this node",
        "b": None,
        "c": None,
        "d": None,
    }
    by_host = meet(request(rules=requiring(apart("host", app="web"))), *nodes)
    assert [name for name, rejection in by_host.items() if rejection] == ["a", "b"]
    by_zone = meet(request(rules=requiring(apart("zone", app="web"))), *nodes)
    assert [name for name, rejection in by_zone.items() if rejection] == ["a", "b", "c"]
    assert by_zone["c"] == "apart: 2 workloads with app=web in zone=z1"


def test_near_by_host_and_what_it_says() -> None:
    nodes = (
        node("a", host_id="h1", tenants={"db": {"app": "db", "tier": "x"}}),
        node("b", host_id="h1"),
        node("c", host_id="h2"),
    )
    found = meet(request(rules=requiring(near("host", app="db", tier="x"))), *nodes)
    assert found == {"a": None, "b": None, "c": "near: no workload with app=db,tier=x on this host"}
    missing = meet(request(rules=requiring(near("rack", app="db"))), *nodes)
    assert missing["c"] == "near: no workload with app=db in rack=(not set)"


@pytest.mark.parametrize("scope", ["host", "zone"])
def test_nodes_that_do_not_say_are_hosts_and_zones_of_their_own(scope: str) -> None:
    nodes = (node("a", tenants={"web-1": {"app": "web"}}), node("b"))
    found = meet(request(rules=requiring(apart(scope, app="web"))), *nodes)
    assert [bool(each) for each in found.values()] == [True, False]


def test_the_first_of_those_who_want_to_be_together_may_go_anywhere() -> None:
    together = request(rules=requiring(near("host", app="job")), labels={"app": "job"})
    empty = (node("a", host_id="h1"), node("b", host_id="h2"))
    assert meet(together, *empty) == {"a": None, "b": None}
    begun = (node("a", host_id="h1", tenants={"job-1": {"app": "job"}}), node("b", host_id="h2"))
    assert [bool(each) for each in meet(together, *begun).values()] == [False, True]
    stranger = request(rules=requiring(near("host", app="job")))
    assert all(meet(stranger, *empty).values())


def test_no_workload_is_its_own_neighbor() -> None:
    alone = request("web-1", rules=requiring(apart("host", app="web")), labels={"app": "web"})
    nodes = (node("a", host_id="h1", tenants={"web-1": {"app": "web"}}), node("b", host_id="h1"))
    assert meet(alone, *nodes, itself="web-1") == {"a": None, "b": None}
    pair = request("web-1", rules=requiring(near("node", app="web")), labels={"app": "web"})
    assert meet(pair, *nodes, itself="web-1") == {"a": None, "b": None}


def test_a_refusal_repeats_the_words_of_the_node() -> None:
    assert words(feasible.refused(node(), "disk is failing")) == "refused: disk is failing"
    assert words(feasible.refused(node(), "")) == "refused: its agent refused it lately"

"""Decides where workloads go: requests and nodes in, placements out. Pure.

Requests are placed one after another on a working copy, so each sees what the previous ones took, and nothing is
promised twice. Most requests of a batch are alike: each distinct `Demand` has a `_Shortlist`, a heap of the nodes that
suit it, and after a placement only the nodes that changed are scored again. The result is the same as scoring every
node for every request.

A workload that has a node (`current`) stays there if it fits, with its own reservation counted as free. If it has to
move, its old reservation is kept for the rest of the plan: it is free only once the workload has stopped.

Called by `shoal.control.placement.placer` and for plans (`--dry-run`); calls `feasible` and `rank`.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence

from shoal.control.placement import feasible, rank
from shoal.control.placement.affinity import AffinityIndex
from shoal.control.placement.demand import Demand, Neighbors
from shoal.control.state.facts import NodeFacts, PlacementDecision, PlacementPlan, PlacementRequest, Score, Strategy
from shoal.core.errors import InvalidError, problem
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import Rejection

Nodes = Mapping[NodeId, NodeFacts] | Iterable[NodeFacts]

#: How many nodes an explanation shows.
EXPLAINED = 5

#: Shortlists kept at a time. Each holds an entry per node, so a batch of all-different demands must not keep them all.
_MOST_SHORTLISTS = 64

#: Demands whose nodes are remembered from one plan to the next. Each holds an entry per node.
_MOST_REMEMBERED = 8

#: Best first: the total turned round, the number of tenants, the node's id.
_Standing = tuple[float, int, NodeId]


class Memory:
    """What was found about each node for the last few demands, so that the next plan scores only those that changed.

    It holds for a node as long as its facts are the same object. Demands with affinities are not remembered: what they
    find depends on other nodes too.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[Demand, Strategy], _Remembered] = OrderedDict()

    def of(self, demand: Demand, strategy: Strategy) -> _Remembered:
        """What is remembered for a demand: for the scheduler to read and to fill."""
        found = self._found.setdefault((demand, strategy), {})
        self._found.move_to_end((demand, strategy))
        if len(self._found) > _MOST_REMEMBERED:
            self._found.popitem(last=False)
        return found


_Remembered = dict[NodeId, tuple[NodeFacts, "_Standing | Rejection"]]


def place(
    requests: Sequence[PlacementRequest],
    nodes: Nodes,
    *,
    strategy: Strategy = Strategy.SPREAD,
    explain: bool = False,
    memory: Memory | None = None,
) -> PlacementPlan:
    """Place each request that can be placed, in the order given.

    A decision without a node lists every node with its first reason. `explain` adds the best few nodes with their
    scores. `memory` makes a plan cheaper and changes nothing else. Raises `InvalidError` when a workload or a node is
    given twice.
    """
    fleet = _Fleet(_by_id(nodes), strategy, memory)
    _refuse_twins("requests", [request.workload_id for request in requests])
    plan = PlacementPlan(tuple(fleet.settle(request, explain=explain) for request in requests))
    fleet.close()
    return plan


def place_together(
    requests: Sequence[PlacementRequest],
    nodes: Nodes,
    *,
    strategy: Strategy = Strategy.SPREAD,
    explain: bool = False,
) -> PlacementPlan:
    """Place all requests or none.

    The order given is tried first. If somebody is left over, the largest go first, because small ones spread over
    the fleet leave no room for them; and last, those with the fewest nodes to choose from go first and nodes are
    filled up one by one. Workloads that must be near others go last in both. This is a search of three
    tries, not of all orders: a group that only fits in one particular arrangement may be turned down.

    When all fail, every decision is without a node, and those that could not be placed in the best try carry their
    rejections.
    """
    known = _by_id(nodes)
    _refuse_twins("requests", [request.workload_id for request in requests])
    best: list[PlacementDecision] | None = None
    for order, chosen in _tries(requests, known, strategy):
        fleet = _Fleet(known, chosen)
        decided = {index: fleet.settle(requests[index], explain=explain) for index in order}
        decisions = [decided[index] for index in range(len(requests))]
        fleet.close()
        if _left_over(decisions) == 0:
            return PlacementPlan(tuple(decisions))
        if best is None or _left_over(decisions) < _left_over(best):
            best = decisions
    return PlacementPlan(
        tuple(PlacementDecision(each.workload_id, None, each.rejections) for each in best or ()),
    )


def _tries(
    requests: Sequence[PlacementRequest], nodes: Mapping[NodeId, NodeFacts], strategy: Strategy
) -> Iterable[tuple[Sequence[int], Strategy]]:
    # A generator: the better orders are worked out only when they are needed.
    yield range(len(requests)), strategy
    fleet = _Fleet(nodes, strategy)
    total = sum((node.spec.capacity for node in nodes.values()), Resources())
    demands = [fleet.demand_of(request) for request in requests]
    size = {demand: _size(demand.request, total) for demand in set(demands)}
    waits = {demand: any(not rule.apart and not rule.names_itself for rule in demand.required) for demand in size}
    yield sorted(range(len(requests)), key=lambda i: (waits[demands[i]], -size[demands[i]], i)), strategy
    choices = {demand: fleet.choices(demand) for demand in size}
    fleet.close()
    yield (
        sorted(range(len(requests)), key=lambda i: (waits[demands[i]], choices[demands[i]], -size[demands[i]], i)),
        Strategy.BINPACK,
    )


class _Fleet:
    """A working copy of the nodes that placements are reserved on."""

    def __init__(self, nodes: Mapping[NodeId, NodeFacts], strategy: Strategy, memory: Memory | None = None) -> None:
        self.nodes = dict(nodes)
        self.strategy = strategy
        self.memory = memory
        #: Every change so far: the node, and the counts of neighbors that changed with it.
        self.changes: list[tuple[NodeId, frozenset[Neighbors]]] = []
        self._affinities: AffinityIndex | None = None
        self._shortlists: OrderedDict[Demand, _Shortlist] = OrderedDict()
        # By identity of the spec: the requests keep theirs alive for as long as this lives.
        self._demands: dict[tuple[int, bool], Demand] = {}

    def close(self) -> None:
        """Drop the shortlists. They refer to this fleet, and only a pause for the garbage collector would free both."""
        self._shortlists.clear()

    def demand_of(self, request: PlacementRequest) -> Demand:
        """What a request asks for."""
        key = (id(request.spec), request.needs_generations)
        demand = self._demands.get(key)
        if demand is None:
            demand = self._demands[key] = Demand.of(request)
        return demand

    def affinity_index(self, demand: Demand) -> AffinityIndex | None:
        """The index of neighbors, if the demand has affinity rules."""
        if not demand.required and not demand.preferred:
            return None
        if self._affinities is None:
            self._affinities = AffinityIndex(self.nodes.values())
        return self._affinities

    def choices(self, demand: Demand) -> int:
        """On how many nodes it fits now."""
        return self._shortlist(demand).choices

    def settle(self, request: PlacementRequest, *, explain: bool) -> PlacementDecision:
        """Decide on one request and reserve for it."""
        demand = self.demand_of(request)
        home = self._home(request)
        no_longer = None
        if home is not None:
            no_longer = self._cannot_stay(home, request, demand)
            if no_longer is None:
                scores = self._scores_at_home(home, request, demand) if explain else ()
                self._reserve(home, request, demand)
                return PlacementDecision(request.workload_id, home.node_id, scores=scores)
        # A node that cannot keep it, with its own reservation counted as free, cannot take it anew either.
        shortlist, itself = self._shortlist_for(request, demand)
        found = shortlist.best(EXPLAINED if explain else 1, request.refused_by)
        if not found:
            rejections = self._overlay(shortlist, request, no_longer)
            return PlacementDecision(request.workload_id, None, rejections=rejections)
        scores = tuple(self._score(self.nodes[each], demand, itself) for each in found) if explain else ()
        self._reserve(self.nodes[found[0]], request, demand)
        return PlacementDecision(request.workload_id, found[0], scores=scores)

    def _home(self, request: PlacementRequest) -> NodeFacts | None:
        node = self.nodes.get(request.current) if request.current is not None else None
        if node is None:
            return None
        held = request.current_request or Resources()
        return node.without_tenant(request.workload_id, request=held, ports=request.current_ports)

    def _cannot_stay(self, home: NodeFacts, request: PlacementRequest, demand: Demand) -> Rejection | None:
        rejection = feasible.first_failure(feasible.filters_for(demand, staying=True), home, demand)
        affinities = self.affinity_index(demand)
        if rejection is None and affinities is not None:
            rejection = feasible.affinity(home, demand, affinities, itself=request.workload_id)
        if rejection is None and home.node_id in request.refused_by:
            rejection = feasible.refused(home, request.refused_by[home.node_id])
        return rejection

    def _shortlist(self, demand: Demand) -> _Shortlist:
        shortlist = self._shortlists.get(demand)
        if shortlist is None:
            shortlist = self._shortlists[demand] = _Shortlist(self, demand)
            if len(self._shortlists) > _MOST_SHORTLISTS:
                self._shortlists.popitem(last=False)
        else:
            self._shortlists.move_to_end(demand)
            shortlist.catch_up()
        return shortlist

    def _shortlist_for(self, request: PlacementRequest, demand: Demand) -> tuple[_Shortlist, WorkloadId | None]:
        affinities = self.affinity_index(demand)
        if affinities is not None and affinities.counts_itself(
            (*demand.required, *demand.preferred), request.workload_id
        ):
            # Its old place is a neighbor to all others: no other request sees the fleet as this one does.
            return _Shortlist(self, demand, itself=request.workload_id), request.workload_id
        return self._shortlist(demand), None

    def _overlay(
        self, shortlist: _Shortlist, request: PlacementRequest, no_longer: Rejection | None
    ) -> tuple[Rejection, ...]:
        shared = shortlist.rejections
        own: dict[NodeId, Rejection] = {}
        for node_id, words in request.refused_by.items():
            if node_id in self.nodes and not shortlist.rejects(node_id):
                own[node_id] = feasible.refused(self.nodes[node_id], words)
        if no_longer is not None:
            own[no_longer.node_id] = no_longer
        if not own:
            return shared
        merged = {each.node_id: each for each in shared} | own
        return tuple(merged[node_id] for node_id in sorted(merged))

    def _score(self, node: NodeFacts, demand: Demand, itself: WorkloadId | None, *, staying: bool = False) -> Score:
        affinities = self.affinity_index(demand)
        return rank.explain(node, demand, strategy=self.strategy, affinities=affinities, itself=itself, staying=staying)

    def _scores_at_home(self, home: NodeFacts, request: PlacementRequest, demand: Demand) -> tuple[Score, ...]:
        shortlist, itself = self._shortlist_for(request, demand)
        others = shortlist.best(EXPLAINED - 1, {home.node_id, *request.refused_by})
        return (
            self._score(home, demand, request.workload_id, staying=True),
            *(self._score(self.nodes[each], demand, itself) for each in others),
        )

    def _reserve(self, node: NodeFacts, request: PlacementRequest, demand: Demand) -> None:
        changed = node.with_tenant(
            request.workload_id, request=demand.request, ports=demand.ports, labels=request.spec.labels
        )
        self.nodes[changed.node_id] = changed
        moved = self._affinities.change(changed, request.workload_id) if self._affinities is not None else frozenset()
        self.changes.append((changed.node_id, moved))


class _Shortlist:
    """The nodes that suit one demand, best first, and the reasons of the others."""

    def __init__(self, fleet: _Fleet, demand: Demand, *, itself: WorkloadId | None = None) -> None:
        self._fleet = fleet
        self._demand = demand
        self._itself = itself
        self._filters = feasible.filters_for(demand)
        self._affinities = fleet.affinity_index(demand)
        self._remembered: _Remembered | None = (
            fleet.memory.of(demand, fleet.strategy) if fleet.memory is not None and self._affinities is None else None
        )
        self._neighbors = {rule.neighbors for rule in (*demand.required, *demand.preferred)}
        # Rules that hold anywhere until the first such workload has a place, and nowhere else after that.
        self._beginnings = [rule.neighbors for rule in demand.required if rule.names_itself and not rule.apart]
        self._standings: dict[NodeId, _Standing] = {}
        self._rejections: dict[NodeId, Rejection] = {}
        self._listed: tuple[Rejection, ...] | None = None
        self._heap: list[_Standing] = []
        self._had_begun: list[bool] = []
        self._caught_up = 0
        self._rebuild()

    @property
    def choices(self) -> int:
        """How many nodes suit."""
        return len(self._standings)

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """Why each of the other nodes does not, in order of their ids."""
        if self._listed is None:
            self._listed = tuple(self._rejections[node_id] for node_id in sorted(self._rejections))
        return self._listed

    def rejects(self, node_id: NodeId) -> bool:
        """Whether a node does not suit."""
        return node_id in self._rejections

    def best(self, count: int, avoid: Collection[NodeId]) -> list[NodeId]:
        """The best nodes that are not to be avoided, at most `count`."""
        found: list[NodeId] = []
        seen: list[_Standing] = []
        while self._heap and len(found) < count:
            top = self._heap[0]
            if self._standings.get(top[2]) is not top:  # the node was scored again since
                heapq.heappop(self._heap)
                continue
            if top[2] not in avoid:
                found.append(top[2])
                if len(found) == count:
                    break
            seen.append(heapq.heappop(self._heap))
        for each in seen:
            heapq.heappush(self._heap, each)
        return found

    def catch_up(self) -> None:
        """Score the nodes again that changed since the last time."""
        changes = self._fleet.changes
        if self._caught_up == len(changes):
            return
        if self._beginnings and self._begun() != self._had_begun:
            self._rebuild()
            return
        stale: set[NodeId] = set()
        for node_id, moved in changes[self._caught_up :]:
            stale.add(node_id)
            if moved and self._affinities is not None:
                for neighbors in moved & self._neighbors:
                    stale.update(self._affinities.within(neighbors.scope, node_id))
        if len(self._heap) + len(stale) > 2 * len(self._fleet.nodes) + 16:
            self._rebuild()  # the heap is full of standings that no longer count
            return
        self._caught_up = len(changes)
        for node_id in stale:
            standing = self._weigh(node_id)
            if standing is not None:
                heapq.heappush(self._heap, standing)

    def _rebuild(self) -> None:
        self._standings.clear()
        self._rejections.clear()
        self._listed = None
        self._had_begun = self._begun()
        self._caught_up = len(self._fleet.changes)
        self._heap = [standing for standing in map(self._weigh, self._fleet.nodes) if standing is not None]
        heapq.heapify(self._heap)
        if self._remembered is not None and len(self._remembered) > len(self._fleet.nodes):
            for gone in self._remembered.keys() - self._fleet.nodes.keys():
                del self._remembered[gone]

    def _begun(self) -> list[bool]:
        if self._affinities is None:
            return []
        return [self._affinities.total(each, besides=self._itself) > 0 for each in self._beginnings]

    def _weigh(self, node_id: NodeId) -> _Standing | None:
        node = self._fleet.nodes[node_id]
        known = self._remembered.get(node_id) if self._remembered is not None else None
        found = known[1] if known is not None and known[0] is node else self._look_at(node)
        if isinstance(found, Rejection):
            self._rejections[node_id] = found
            self._standings.pop(node_id, None)
            self._listed = None
            return None
        if self._rejections.pop(node_id, None) is not None:
            self._listed = None
        self._standings[node_id] = found
        return found

    def _look_at(self, node: NodeFacts) -> _Standing | Rejection:
        demand, affinities = self._demand, self._affinities
        rejection = feasible.first_failure(self._filters, node, demand)
        if rejection is None and affinities is not None:
            rejection = feasible.affinity(node, demand, affinities, itself=self._itself)
        found: _Standing | Rejection
        if rejection is None:
            total = rank.total(node, demand, strategy=self._fleet.strategy, affinities=affinities, itself=self._itself)
            found = (-total, len(node.tenants), node.node_id)
        else:
            found = rejection
        if self._remembered is not None:
            self._remembered[node.node_id] = node, found
        return found


def _by_id(nodes: Nodes) -> Mapping[NodeId, NodeFacts]:
    if isinstance(nodes, Mapping):
        return nodes
    listed = list(nodes)
    _refuse_twins("nodes", [node.node_id for node in listed])
    return {node.node_id: node for node in listed}


def _refuse_twins(field: str, ids: Sequence[str]) -> None:
    if len(set(ids)) == len(ids):
        return
    twins = [each for each, count in Counter(ids).items() if count > 1]
    raise InvalidError(problem(field, each, "is given twice") for each in twins)


def _left_over(decisions: Iterable[PlacementDecision]) -> int:
    return sum(decision.node_id is None for decision in decisions)


def _size(request: Resources, total: Resources) -> float:
    """A request's share of the whole fleet, summed over the kinds, so that amounts of different kinds compare."""
    return sum(
        asked / there
        for asked, there in (
            (request.cpu_millicores, total.cpu_millicores),
            (request.memory_mb, total.memory_mb),
            (request.disk_gb, total.disk_gb),
            (request.slots, total.slots),
        )
        if there
    )

"""Counts the workloads that affinity rules are about, and keeps the counts up to date as placements are made.

Counting the tenants of a thousand nodes for each node that is scored would be the slowest part of scheduling. So each
pair of labels and scope is counted once, when first needed, and changed with each placement. Made by
`shoal.control.placement.scheduler` for one plan; read by `feasible` and `rank`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from shoal.control.placement.demand import AffinityRule, Neighbors, domain_of
from shoal.control.state.facts import NodeFacts
from shoal.core.ids import NodeId, WorkloadId


class AffinityIndex:
    """Counts the tenants that affinity rules are about."""

    def __init__(self, nodes: Iterable[NodeFacts]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._homes: dict[WorkloadId, set[NodeId]] = defaultdict(set)
        for node_id, node in self._nodes.items():
            for tenant in node.tenants:
                self._homes[tenant].add(node_id)
        self._domains: dict[str, dict[NodeId, str]] = {}
        self._members: dict[str, dict[str, list[NodeId]]] = {}
        self._counts: dict[Neighbors, dict[str, int]] = {}
        self._totals: dict[Neighbors, int] = {}

    def count(self, neighbors: Neighbors, node_id: NodeId, *, besides: WorkloadId | None = None) -> int:
        """How many of them are within the scope of a node, not counting `besides`."""
        found = self._counted(neighbors).get(self._domains[neighbors.scope][node_id], 0)
        return found - self._own(neighbors, node_id, besides) if found and besides is not None else found

    def total(self, neighbors: Neighbors, *, besides: WorkloadId | None = None) -> int:
        """How many of them are on any node, not counting `besides`."""
        self._counted(neighbors)
        found = self._totals[neighbors]
        return found - self._own(neighbors, None, besides) if found and besides is not None else found

    def within(self, scope: str, node_id: NodeId) -> Sequence[NodeId]:
        """The nodes that share a scope with a node, itself included."""
        return self._members_by_domain(scope)[self._domains[scope][node_id]]

    def counts_itself(self, rules: Iterable[AffinityRule], workload_id: WorkloadId) -> bool:
        """Whether a workload has a node and is counted by one of its own rules."""
        homes = self._homes.get(workload_id, ())
        return any(rule.neighbors.include(self._nodes[home].tenants[workload_id]) for rule in rules for home in homes)

    def change(self, node: NodeFacts, workload_id: WorkloadId) -> frozenset[Neighbors]:
        """Take over a node on which one workload was reserved anew. Returns the counts that are not what they were."""
        before = self._nodes[node.node_id].tenants.get(workload_id)
        after = node.tenants[workload_id]
        self._nodes[node.node_id] = node
        self._homes[workload_id].add(node.node_id)
        changed = set()
        for neighbors, counts in self._counts.items():
            step = neighbors.include(after) - (before is not None and neighbors.include(before))
            if step:
                domain = self._domains[neighbors.scope][node.node_id]
                counts[domain] = counts.get(domain, 0) + step
                self._totals[neighbors] += step
                changed.add(neighbors)
        return frozenset(changed)

    def _own(self, neighbors: Neighbors, node_id: NodeId | None, workload_id: WorkloadId) -> int:
        domains = self._domains[neighbors.scope]
        return sum(
            neighbors.include(self._nodes[home].tenants[workload_id])
            for home in self._homes.get(workload_id, ())
            if node_id is None or domains[home] == domains[node_id]
        )

    def _counted(self, neighbors: Neighbors) -> dict[str, int]:
        counts = self._counts.get(neighbors)
        if counts is None:
            counts = {}
            self._members_by_domain(neighbors.scope)
            domains = self._domains[neighbors.scope]
            for node_id, node in self._nodes.items():
                found = sum(map(neighbors.include, node.tenants.values()))
                if found:
                    counts[domains[node_id]] = counts.get(domains[node_id], 0) + found
            self._counts[neighbors] = counts
            self._totals[neighbors] = sum(counts.values())
        return counts

    def _members_by_domain(self, scope: str) -> dict[str, list[NodeId]]:
        members = self._members.get(scope)
        if members is None:
            members = defaultdict(list)
            self._domains[scope] = {node_id: domain_of(node.spec, scope) for node_id, node in self._nodes.items()}
            for node_id, domain in self._domains[scope].items():
                members[domain].append(node_id)
            self._members[scope] = members
        return members

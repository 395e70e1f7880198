"""Reduces a placement request to what filters and scores look at.

Requests with equal `Demand`s are interchangeable for the scheduler: a node that suits one suits the other equally well.
Made by `shoal.control.placement.scheduler`, read by `feasible` and `rank`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.control.state.facts import PlacementRequest
from shoal.model.nodes import NodeSpec
from shoal.model.resources import Resources
from shoal.model.workloads import Affinity, AffinityDirection, ComposeSource, Constraint, FailoverPolicy

#: The keys `node_id` and `host_id` are the node's own id and host, whatever its labels say.
_PSEUDO_KEYS = {"node": "node_id", "host": "host_id"}


@dataclass(frozen=True, slots=True)
class Neighbors:
    """Workloads that carry all of these labels, as far as `scope` reaches."""

    #: Sorted, so that equal demands are equal values.
    labels: tuple[tuple[str, str], ...]
    scope: str

    def include(self, labels: Mapping[str, str]) -> bool:
        """Whether a workload with `labels` is one of them."""
        return all(labels.get(key) == value for key, value in self.labels)

    def __str__(self) -> str:
        """Which workloads, for people."""
        return ",".join(f"{key}={value}" for key, value in self.labels)


@dataclass(frozen=True, slots=True)
class AffinityRule:
    """One affinity of a workload."""

    neighbors: Neighbors
    apart: bool
    weight: int
    #: The workload carries the labels itself, as the members of a group that wants to be together do.
    names_itself: bool


@dataclass(frozen=True, slots=True)
class Demand:
    """What a node must have, and what is preferred."""

    type: str
    needs_git: bool
    needs_generations: bool
    needs_stop_alone: bool
    needs_named_ports: bool
    needs_secrets: bool
    needs_identity: bool
    needs_artifacts: bool
    request: Resources
    ports: frozenset[tuple[int, str]]
    #: Without `local`, which every node has.
    storage_drivers: frozenset[str]
    constraints: tuple[Constraint, ...]
    required: tuple[AffinityRule, ...]
    preferred: tuple[AffinityRule, ...]

    @classmethod
    def of(cls, request: PlacementRequest) -> Demand:
        """Reduce a request."""
        spec = request.spec
        affinities = spec.placement.affinities
        return cls(
            type=spec.type.value,
            needs_git=spec.compose is not None and spec.compose.source_type == ComposeSource.GIT,
            needs_generations=request.needs_generations or spec.at_most_one,
            needs_stop_alone=spec.failover.policy == FailoverPolicy.STOP,
            needs_named_ports=bool(spec.body.named_ports),
            needs_secrets=bool(spec.body.secret_names),
            needs_identity=spec.body.identity,
            needs_artifacts=bool(spec.body.artifacts),
            request=spec.request,
            ports=spec.host_ports,
            storage_drivers=spec.storage_drivers - {"local"},
            constraints=spec.placement.constraints,
            required=tuple(_rule(each, spec.labels) for each in affinities if each.required),
            preferred=tuple(_rule(each, spec.labels) for each in affinities if not each.required),
        )


def _rule(affinity: Affinity, own_labels: Mapping[str, str]) -> AffinityRule:
    neighbors = Neighbors(labels=tuple(sorted(affinity.workloads.items())), scope=affinity.scope)
    return AffinityRule(
        neighbors=neighbors,
        apart=affinity.direction == AffinityDirection.APART,
        weight=affinity.weight,
        names_itself=neighbors.include(own_labels),
    )


def label_of(node: NodeSpec, key: str) -> str | None:
    """The value of a node's label, or of the pseudo keys `node_id` and `host_id`; None when it has none."""
    if key == "node_id":
        return node.node_id
    if key == "host_id":
        return node.host_id or None
    return node.labels.get(key)


def domain_of(node: NodeSpec, scope: str) -> str:
    """The name of the set of nodes that are within one `scope`.

    A scope is `node`, `host` or the key of a node label. A node without that label is a set of its own, so a
    workload that must be apart from another is at least on another node.
    """
    value = label_of(node, _PSEUDO_KEYS.get(scope, scope))
    return f"={value}" if value is not None else f"!{node.node_id}"

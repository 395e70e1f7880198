"""The values that decisions are made from: pure data, shared by the scheduler, the reconciler and their callers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.ids import NodeId, WorkloadId
from shoal.model.nodes import NodeSpec, NodeState
from shoal.model.resources import Resources
from shoal.model.workloads import Rejection, WorkloadSpec


class Removal(enum.Enum):
    """What a foreign agent's list of actions says about the removal of a workload."""

    DONE = "done"
    BUSY = "busy"  # an action about the workload waits or is under way
    FAILED = "failed"
    UNLISTED = "unlisted"  # it was done inside the call, or lost when the agent restarted


class Strategy(enum.Enum):
    """How nodes are ranked."""

    SPREAD = "spread"  # the emptiest node first
    BINPACK = "binpack"  # the fullest node that still fits first


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node as the scheduler sees it: its capacity, its reservations and its tenants."""

    spec: NodeSpec
    state: NodeState
    reserved: Resources = Resources()
    ports: frozenset[tuple[int, str]] = frozenset()
    #: The labels of each workload that is reserved there.
    tenants: Mapping[WorkloadId, Mapping[str, str]] = field(default_factory=dict)
    #: An operator wants no new work there; what is there may stay.
    cordoned: bool = False
    #: Why its disk is nearly full, in the node's own words; empty when it is not.
    disk_pressure: str = ""
    #: Types of workload that its agent has refused as unsupported since it registered.
    unsupported_types: tuple[str, ...] = ()

    @property
    def node_id(self) -> NodeId:
        """The node's id."""
        return NodeId(self.spec.node_id)

    @property
    def free(self) -> Resources:
        """What is not reserved."""
        return self.spec.capacity - self.reserved

    def with_tenant(
        self,
        workload_id: WorkloadId,
        *,
        request: Resources,
        ports: frozenset[tuple[int, str]] = frozenset(),
        labels: Mapping[str, str],
    ) -> NodeFacts:
        """The same node with a reservation more."""
        return NodeFacts(
            spec=self.spec,
            state=self.state,
            reserved=self.reserved + request,
            ports=self.ports | ports if ports else self.ports,
            tenants={**self.tenants, workload_id: labels},
            cordoned=self.cordoned,
            disk_pressure=self.disk_pressure,
            unsupported_types=self.unsupported_types,
        )

    def without_tenant(
        self, workload_id: WorkloadId, *, request: Resources, ports: frozenset[tuple[int, str]] = frozenset()
    ) -> NodeFacts:
        """The same node with a reservation less. A workload that is not there takes nothing away."""
        if workload_id not in self.tenants:
            return self
        return NodeFacts(
            spec=self.spec,
            state=self.state,
            reserved=self.reserved - request,
            ports=self.ports - ports,
            tenants={tenant: labels for tenant, labels in self.tenants.items() if tenant != workload_id},
            cordoned=self.cordoned,
            disk_pressure=self.disk_pressure,
            unsupported_types=self.unsupported_types,
        )


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A workload that needs a node."""

    workload_id: WorkloadId
    spec: WorkloadSpec
    #: Only agents that know generations will do: groups and at-most-one workloads.
    needs_generations: bool = False
    #: Nodes that refused it lately, with their reasons.
    refused_by: Mapping[NodeId, str] = field(default_factory=dict)
    #: Stay here if it fits: an update of a workload that runs already.
    current: NodeId | None = None
    #: What is reserved for it on `current` now, as part of that node's facts. It counts as free when the workload
    #: is scored there again. None: nothing is reserved for it.
    current_request: Resources | None = None
    current_ports: frozenset[tuple[int, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Score:
    """How well a node suits, with the parts it is made of."""

    node_id: NodeId
    total: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """Where one workload goes; or, without a node, why nowhere: every node with its reason."""

    workload_id: WorkloadId
    node_id: NodeId | None
    rejections: tuple[Rejection, ...] = ()
    #: The best few, best first; filled only when the caller asked for an explanation.
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """Decisions on a list of requests, in the order they were asked."""

    decisions: tuple[PlacementDecision, ...]

    @property
    def complete(self) -> bool:
        """Whether every request found a node."""
        return all(decision.node_id is not None for decision in self.decisions)

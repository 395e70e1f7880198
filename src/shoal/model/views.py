"""What people see: nodes, workloads and groups with everything known of them, put together at one moment.

Made by `shoal.control.api.views`, carried by the wire as the messages of the same names, and shown by the command line
and the dashboard, which never see a protobuf message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shoal.core.ids import SessionId
from shoal.model.nodes import NodeCondition, NodeUsage
from shoal.model.resources import Resources
from shoal.model.workloads import MemberChanges, Rejection, RunStatus, Usage, WorkloadSpec


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a workload is as it is."""

    code: str = ""
    message: str = ""
    last_transition: datetime | None = None
    next_retry_at: datetime | None = None
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """A workload: its desired state, its owner, and the last report."""

    workload_id: str
    type: str
    desired_state: str
    #: In the names of the published contract: Pending, Scheduled, Updating, Running, Stopping, and so on.
    status: str
    #: A `WorkloadPhase`; or what a newer control plane calls it.
    state: str = ""
    assigned_node_id: str = ""
    revision_id: str = ""
    #: The revision its agent reports: equal to revision_id once a change has arrived.
    observed_revision_id: str = ""
    generation: int = 0
    group_id: str = ""
    retry_attempts: int = 0
    retry_max_attempts: int = 0
    retry_next_at: datetime | None = None
    failure_reason: str = ""
    created_at: datetime | None = None
    last_updated: datetime | None = None
    reason: Reason | None = None
    usage: Usage | None = None
    #: From the last report of the owner; None when there is none.
    run: RunStatus | None = None
    rejections: tuple[Rejection, ...] = ()
    spec: WorkloadSpec | None = None
    spec_sha256: bytes = b""
    #: The node that it is being moved away from.
    moving_from: str = ""
    #: Nodes that may still hold an older copy.
    left_on: tuple[str, ...] = ()
    #: Of its spec; also in lists, where the spec is missing.
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A storage pool of a node, and what is not reserved of it."""

    name: str
    total_gb: int = 0
    available_gb: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: what it has, what is free, and whether it is heard of."""

    node_id: str
    status: str
    status_reason: str = ""
    status_updated_by: str = ""
    status_updated_at: datetime | None = None
    last_heartbeat: datetime | None = None
    lease_expires_at: datetime | None = None
    grpc_endpoint: str = ""
    total: Resources = Resources()
    available: Resources = Resources()
    supported_workload_types: tuple[str, ...] = ()
    storage_drivers: tuple[str, ...] = ()
    storage_pools: tuple[PoolView, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    host_id: str = ""
    #: The last letters of the session, enough to tell two apart and no more.
    session: SessionId = SessionId("")
    agent_version: str = ""
    features: tuple[str, ...] = ()
    clock_skew_ms: int = 0
    usage: NodeUsage | None = None
    workload_count: int = 0
    orphans: tuple[str, ...] = ()
    #: What is wrong with the node, in its own words.
    conditions: tuple[NodeCondition, ...] = ()
    cluster_id: str = ""
    #: What an operator wants of it: empty, cordoned, draining or drained.
    desired: str = ""
    desired_updated_at: datetime | None = None
    #: When what is left on a draining node is moved by force.
    drain_deadline: datetime | None = None
    #: Workloads that still have to leave a draining node.
    leaving: int = 0
    #: Of a lost node: held (nothing is moved yet), moving or dead; else empty.
    failover: str = ""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group and its members."""

    group_id: str
    generation: int
    #: Pending, Running, Degraded, Stopped, Completed, Failed or Deleting.
    status: str
    message: str = ""
    members: tuple[WorkloadView, ...] = ()
    #: What its members may change with their own certificates.
    member_changes: MemberChanges | None = None


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """The fleet in numbers."""

    total_nodes: int = 0
    ready_nodes: int = 0
    not_ready_nodes: int = 0
    suspect_nodes: int = 0
    total_workloads: int = 0
    running_workloads: int = 0
    pending_workloads: int = 0
    failed_workloads: int = 0
    #: Deletions that wait for a lost node.
    deleted_workloads: int = 0
    stopped_workloads: int = 0
    completed_workloads: int = 0
    deleting_workloads: int = 0
    lost_workloads: int = 0
    groups: int = 0
    cluster_id: str = ""
    generated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodeScore:
    """How well a node would suit, with the parts of its score."""

    node_id: str
    score: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedPlacement:
    """Where a workload would go. Without a node, why nowhere."""

    workload_id: str
    node_id: str
    #: create, update or unchanged.
    change: str
    rejections: tuple[Rejection, ...] = ()
    scores: tuple[NodeScore, ...] = ()

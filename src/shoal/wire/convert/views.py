"""Views and events, written by the control plane's service and read by its clients."""

from __future__ import annotations

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import NodeId, SessionId, WorkloadId
from shoal.model.events import Event
from shoal.model.resources import MAX_CPU_MILLICORES, Resources
from shoal.model.views import (
    ClusterSummary,
    GroupView,
    NodeScore,
    NodeView,
    PlannedPlacement,
    PoolView,
    WorkloadView,
)
from shoal.model.workloads import MemberChanges, Rejection, RunState, RunStatus, WorkloadSpec
from shoal.wire.convert.fields import failure_from_text, path, read_timestamp, timestamp_to_proto, writing
from shoal.wire.convert.nodes import (
    node_condition_to_proto,
    node_conditions_from_proto,
    node_usage_to_proto,
    read_node_usage,
)
from shoal.wire.convert.specs import workload_spec_from_proto, workload_spec_to_proto
from shoal.wire.convert.statuses import (
    read_run_status,
    reason_from_proto,
    reason_to_proto,
    run_detail_to_proto,
    state_from_text,
)
from shoal.wire.convert.usages import usage_from_control, usage_to_control
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import run_pb2 as run

_MAX_CORES = MAX_CPU_MILLICORES // 1000


def node_view_to_proto(view: NodeView) -> control.NodeView:
    """A node for a client."""
    with writing(view.node_id):
        return control.NodeView(
            node_id=view.node_id,
            status=view.status,
            status_reason=view.status_reason,
            status_updated_by=view.status_updated_by,
            status_updated_at=timestamp_to_proto(view.status_updated_at),
            last_heartbeat=timestamp_to_proto(view.last_heartbeat),
            grpc_endpoint=view.grpc_endpoint,
            total_cpu_cores=view.total.cpu_millicores / 1000,
            available_cpu_cores=view.available.cpu_millicores / 1000,
            total_memory_mb=view.total.memory_mb,
            available_memory_mb=view.available.memory_mb,
            supported_workload_types=view.supported_workload_types,
            labels=view.labels,
            total_slots=view.total.slots,
            available_slots=view.available.slots,
            host_id=view.host_id,
            session=view.session,
            agent_version=view.agent_version,
            features=view.features,
            clock_skew_ms=view.clock_skew_ms,
            total_disk_gb=view.total.disk_gb,
            available_disk_gb=view.available.disk_gb,
            usage=node_usage_to_proto(view.usage) if view.usage is not None else None,
            workload_count=view.workload_count,
            lease_expires_at=timestamp_to_proto(view.lease_expires_at),
            orphans=view.orphans,
            conditions=[node_condition_to_proto(each) for each in view.conditions],
            cluster_id=view.cluster_id,
            storage_drivers=view.storage_drivers,
            storage_pools=[
                control.StoragePool(name=each.name, total_gb=each.total_gb, available_gb=each.available_gb)
                for each in view.storage_pools
            ],
            wish=view.desired,
            wish_updated_at=timestamp_to_proto(view.desired_updated_at),
            drain_deadline=timestamp_to_proto(view.drain_deadline),
            leaving=view.leaving,
            failover=view.failover,
        )


def node_view_from_proto(pb: control.NodeView) -> NodeView:
    """The inverse. Raises `InvalidError`."""
    problems: list[Problem] = []
    view = NodeView(
        node_id=pb.node_id,
        status=pb.status,
        status_reason=pb.status_reason,
        status_updated_by=pb.status_updated_by,
        status_updated_at=read_timestamp(pb, "status_updated_at", "", problems),
        last_heartbeat=read_timestamp(pb, "last_heartbeat", "", problems),
        grpc_endpoint=pb.grpc_endpoint,
        total=Resources(
            _read_cores(pb.total_cpu_cores, "total_cpu_cores", problems),
            pb.total_memory_mb,
            pb.total_disk_gb,
            pb.total_slots,
        ),
        available=Resources(
            _read_cores(pb.available_cpu_cores, "available_cpu_cores", problems),
            pb.available_memory_mb,
            pb.available_disk_gb,
            pb.available_slots,
        ),
        supported_workload_types=tuple(pb.supported_workload_types),
        labels=dict(pb.labels),
        host_id=pb.host_id,
        session=SessionId(pb.session),
        agent_version=pb.agent_version,
        features=tuple(pb.features),
        clock_skew_ms=pb.clock_skew_ms,
        usage=read_node_usage(pb.usage, "usage", problems) if pb.HasField("usage") else None,
        workload_count=pb.workload_count,
        lease_expires_at=read_timestamp(pb, "lease_expires_at", "", problems),
        orphans=tuple(pb.orphans),
        conditions=node_conditions_from_proto(pb.conditions),
        cluster_id=pb.cluster_id,
        storage_drivers=tuple(pb.storage_drivers),
        storage_pools=tuple(PoolView(each.name, each.total_gb, each.available_gb) for each in pb.storage_pools),
        desired=pb.wish,
        desired_updated_at=read_timestamp(pb, "wish_updated_at", "", problems),
        drain_deadline=read_timestamp(pb, "drain_deadline", "", problems),
        leaving=pb.leaving,
        failover=pb.failover,
    )
    if problems:
        raise InvalidError(problems)
    return view


def _read_cores(cores: float, field: str, problems: list[Problem]) -> int:
    """Cores in thousandths. Free cores are negative when a node returned with less capacity."""
    if not abs(cores) <= _MAX_CORES:
        problems.append(problem(field, cores, f"must be a number of cores up to {_MAX_CORES:,}"))
        return 0
    return round(cores * 1000)


def workload_view_to_proto(view: WorkloadView) -> control.WorkloadView:
    """A workload for a client."""
    with writing(view.workload_id):
        return control.WorkloadView(
            workload_id=view.workload_id,
            type=view.type,
            desired_state=view.desired_state,
            status=view.status,
            state=view.state,
            assigned_node_id=view.assigned_node_id,
            revision_id=view.revision_id,
            retry_attempts=view.retry_attempts,
            retry_max_attempts=view.retry_max_attempts,
            retry_next_at=timestamp_to_proto(view.retry_next_at),
            failure_reason=view.failure_reason,
            last_updated=timestamp_to_proto(view.last_updated),
            reason=reason_to_proto(view.reason),
            usage=usage_to_control(view.usage, view.workload_id, view.type),
            generation=view.generation,
            group_id=view.group_id,
            run=run_detail_to_proto(view.run) if view.run is not None else None,
            rejections=[rejection_to_proto(each) for each in view.rejections],
            spec=workload_spec_to_proto(view.spec) if view.spec is not None else None,
            created_at=timestamp_to_proto(view.created_at),
            observed_revision_id=view.observed_revision_id,
            spec_sha256=view.spec_sha256,
            moving_from=view.moving_from,
            left_on=view.left_on,
            labels=view.labels,
        )


def workload_view_from_proto(pb: control.WorkloadView) -> WorkloadView:
    """The inverse. Raises `InvalidError`."""
    problems: list[Problem] = []
    view = WorkloadView(
        workload_id=pb.workload_id,
        type=pb.type,
        desired_state=pb.desired_state,
        status=pb.status,
        state=pb.state or pb.status,  # an earlier control plane says no more
        assigned_node_id=pb.assigned_node_id,
        revision_id=pb.revision_id,
        retry_attempts=pb.retry_attempts,
        retry_max_attempts=pb.retry_max_attempts,
        retry_next_at=read_timestamp(pb, "retry_next_at", "", problems),
        failure_reason=pb.failure_reason,
        last_updated=read_timestamp(pb, "last_updated", "", problems),
        reason=reason_from_proto(pb.reason, "reason", problems) if pb.HasField("reason") else None,
        usage=usage_from_control(pb.usage, "usage", problems) if pb.HasField("usage") else None,
        generation=pb.generation,
        group_id=pb.group_id,
        run=_read_run(pb, problems) if pb.HasField("run") else None,
        rejections=tuple(rejection_from_proto(each) for each in pb.rejections),
        spec=_spec_or_none(pb),
        created_at=read_timestamp(pb, "created_at", "", problems),
        observed_revision_id=pb.observed_revision_id,
        spec_sha256=pb.spec_sha256,
        moving_from=pb.moving_from,
        left_on=tuple(pb.left_on),
        labels=dict(pb.labels),
    )
    if problems:
        raise InvalidError(problems)
    return view


def _read_run(pb: control.WorkloadView, problems: list[Problem]) -> RunStatus:
    """The owner's last report. Its state and reason are those of the view, as far as they have names for them."""
    return read_run_status(
        pb.run,
        "run",
        problems,
        workload_id=WorkloadId(pb.workload_id),
        state=RunState.STOPPED if pb.run.completed else state_from_text(pb.status),
        failure=failure_from_text(pb.reason.code),
        message=pb.reason.message,
        last_transition=read_timestamp(pb.reason, "last_transition", "reason", []),
        usage=usage_from_control(pb.usage, "usage", []) if pb.HasField("usage") else None,
    )


def _spec_or_none(pb: control.WorkloadView) -> WorkloadSpec | None:
    """The spec; None for a type that only a newer server knows."""
    try:
        return workload_spec_from_proto(pb.spec) if pb.HasField("spec") else None
    except InvalidError:
        return None


def rejection_to_proto(rejection: Rejection) -> control.NodeRejection:
    """Why a node was refused."""
    return control.NodeRejection(node_id=rejection.node_id, code=rejection.code, message=rejection.message)


def rejection_from_proto(pb: control.NodeRejection) -> Rejection:
    """The inverse."""
    return Rejection(NodeId(pb.node_id), pb.code, pb.message)


def group_view_to_proto(view: GroupView) -> control.GroupView:
    """A group for a client."""
    with writing(view.group_id):
        return control.GroupView(
            group_id=view.group_id,
            generation=view.generation,
            status=view.status,
            message=view.message,
            members=[workload_view_to_proto(each) for each in view.members],
            member_changes=member_changes_to_proto(view.member_changes) if view.member_changes is not None else None,
        )


def member_changes_to_proto(bounds: MemberChanges) -> run.MemberChanges:
    """What members of a group may change."""
    return run.MemberChanges(
        min_members=bounds.min_members, max_members=bounds.max_members, arg_prefixes=bounds.arg_prefixes
    )


def member_changes_from_proto(pb: run.MemberChanges) -> MemberChanges:
    """The inverse. Its rules are not checked."""
    return MemberChanges(pb.min_members, pb.max_members, tuple(pb.arg_prefixes))


def group_view_from_proto(pb: control.GroupView) -> GroupView:
    """The inverse. Raises `InvalidError`."""
    return GroupView(
        group_id=pb.group_id,
        generation=pb.generation,
        status=pb.status,
        message=pb.message,
        members=tuple(workload_view_from_proto(each) for each in pb.members),
        member_changes=member_changes_from_proto(pb.member_changes) if pb.HasField("member_changes") else None,
    )


def cluster_summary_to_proto(summary: ClusterSummary) -> control.ClusterSummary:
    """The fleet in numbers, for a client."""
    with writing("summary"):
        return control.ClusterSummary(
            total_nodes=summary.total_nodes,
            ready_nodes=summary.ready_nodes,
            not_ready_nodes=summary.not_ready_nodes,
            total_workloads=summary.total_workloads,
            running_workloads=summary.running_workloads,
            pending_workloads=summary.pending_workloads,
            failed_workloads=summary.failed_workloads,
            deleted_workloads=summary.deleted_workloads,
            generated_at=timestamp_to_proto(summary.generated_at),
            suspect_nodes=summary.suspect_nodes,
            stopped_workloads=summary.stopped_workloads,
            completed_workloads=summary.completed_workloads,
            deleting_workloads=summary.deleting_workloads,
            lost_workloads=summary.lost_workloads,
            groups=summary.groups,
            cluster_id=summary.cluster_id,
        )


def cluster_summary_from_proto(pb: control.ClusterSummary) -> ClusterSummary:
    """The inverse. Raises `InvalidError`."""
    problems: list[Problem] = []
    summary = ClusterSummary(
        total_nodes=pb.total_nodes,
        ready_nodes=pb.ready_nodes,
        not_ready_nodes=pb.not_ready_nodes,
        total_workloads=pb.total_workloads,
        running_workloads=pb.running_workloads,
        pending_workloads=pb.pending_workloads,
        failed_workloads=pb.failed_workloads,
        deleted_workloads=pb.deleted_workloads,
        generated_at=read_timestamp(pb, "generated_at", "", problems),
        suspect_nodes=pb.suspect_nodes,
        stopped_workloads=pb.stopped_workloads,
        completed_workloads=pb.completed_workloads,
        deleting_workloads=pb.deleting_workloads,
        lost_workloads=pb.lost_workloads,
        groups=pb.groups,
        cluster_id=pb.cluster_id,
    )
    if problems:
        raise InvalidError(problems)
    return summary


def planned_placement_to_proto(planned: PlannedPlacement) -> control.PlannedPlacement:
    """A planned placement."""
    with writing(planned.workload_id):
        return control.PlannedPlacement(
            workload_id=planned.workload_id,
            node_id=planned.node_id,
            rejections=[rejection_to_proto(each) for each in planned.rejections],
            scores=[
                control.NodeScore(node_id=each.node_id, score=each.score, parts=each.parts) for each in planned.scores
            ],
            change=planned.change,
        )


def planned_placement_from_proto(pb: control.PlannedPlacement) -> PlannedPlacement:
    """The inverse."""
    return PlannedPlacement(
        workload_id=pb.workload_id,
        node_id=pb.node_id,
        rejections=tuple(rejection_from_proto(each) for each in pb.rejections),
        scores=tuple(NodeScore(each.node_id, each.score, dict(each.parts)) for each in pb.scores),
        change=pb.change,
    )


def event_to_proto(event: Event) -> control.Event:
    """An event for a client."""
    with writing(event.kind):
        return control.Event(
            cursor=event.cursor,
            time=timestamp_to_proto(event.time),
            subject_kind=event.subject_kind,
            subject_id=event.subject_id,
            kind=event.kind,
            message=event.message,
            source=event.source,
            cause=event.cause,
            facts=event.facts,
            labels=event.labels,
        )


def event_from_proto(pb: control.Event, *, at: str = "") -> Event:
    """The inverse. Raises `InvalidError`."""
    problems: list[Problem] = []
    time = read_timestamp(pb, "time", at, problems)
    if time is None:
        raise InvalidError(problems or [problem(path(at, "time"), None, "is required")])
    return Event(
        time=time,
        subject_kind=pb.subject_kind,
        subject_id=pb.subject_id,
        kind=pb.kind,
        message=pb.message,
        source=pb.source,
        cause=pb.cause,
        facts=dict(pb.facts),
        labels=dict(pb.labels),
        cursor=pb.cursor,
    )

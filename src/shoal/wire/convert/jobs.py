"""Views of jobs."""

from __future__ import annotations

from shoal.core.errors import InvalidError, problem
from shoal.core.ids import JobId, WorkloadId
from shoal.model.jobs import JobAction, JobDesired, JobRecord, JobRequest, JobView, job_state
from shoal.wire.convert.fields import timestamp_from_proto, timestamp_to_proto
from shoal.wire.pb.shoal.v1 import jobs_pb2 as jobs


def job_to_proto(record: JobRecord, *, brief: bool = False) -> jobs.JobView:
    """A job as people see it. `brief`: without the engine's own bytes."""
    request = record.request
    return jobs.JobView(
        job_id=record.job_id,
        engine=record.engine,
        format=record.format,
        state=record.state.value,
        desired=record.desired.value,
        message=record.message,
        transition=record.transition,
        request=jobs.JobRequestView(
            action=request.action.value,
            number=request.number,
            width=request.width,
            operator=request.operator,
            stop=request.stop,
            cause=request.cause,
        ),
        workload_ids=record.workloads,
        spec=b"" if brief else record.spec,
        progress=b"" if brief else record.progress,
        created_at=timestamp_to_proto(record.created_at),
        updated_at=timestamp_to_proto(record.updated_at),
        state_at=timestamp_to_proto(record.state_at) if record.state_at is not None else None,
        taken_request=record.taken,
    )


def job_from_proto(pb: jobs.JobView) -> JobView:
    """The same for a client."""
    try:
        state, desired = job_state(pb.state), JobDesired(pb.desired)
        action = JobAction(pb.request.action)
    except ValueError as error:
        raise InvalidError(
            [problem("job", pb.job_id, f"has a state that this program does not know: {error}")]
        ) from None
    return JobView(
        job_id=JobId(pb.job_id),
        engine=pb.engine,
        format=pb.format,
        state=state,
        desired=desired,
        message=pb.message,
        transition=pb.transition,
        request=JobRequest(
            action, pb.request.number, pb.request.width, pb.request.operator, pb.request.stop, pb.request.cause
        ),
        workloads=tuple(WorkloadId(each) for each in pb.workload_ids),
        spec=pb.spec,
        progress=pb.progress,
        created_at=timestamp_from_proto(pb.created_at) if pb.HasField("created_at") else None,
        updated_at=timestamp_from_proto(pb.updated_at) if pb.HasField("updated_at") else None,
        state_at=timestamp_from_proto(pb.state_at) if pb.HasField("state_at") else None,
        taken=pb.taken_request,
    )

"""`shoal.v1.Jobs`: convert, call, convert. Answers as soon as a request is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

from shoal.control.api.event_feed import EventFeed
from shoal.control.api.pages import check_page, first_page
from shoal.control.api.parsing import check_id
from shoal.control.jobs.board import ReportBoard, Speaker
from shoal.control.jobs.requests import JobRequests
from shoal.control.jobs.steps import owns
from shoal.control.state.causes import cause_of_call
from shoal.control.state.fleet import Fleet
from shoal.control.store.base import EventQuery
from shoal.control.trust.job_keys import JobKeys
from shoal.core.errors import InvalidError, problem
from shoal.core.ids import JobId, WorkloadId
from shoal.model.events import SubjectKind
from shoal.model.jobs import JobAction, JobRequest
from shoal.wire import convert
from shoal.wire.pb.shoal.v1 import jobs_pb2 as pb
from shoal.wire.transport import Call

MAX_WIDTH = 100_000
MAX_OPERATOR = 256
MAX_READ = 200


class JobService:
    """The handlers."""

    def __init__(self, fleet: Fleet, requests: JobRequests, feed: EventFeed, board: ReportBoard, keys: JobKeys) -> None:
        self._fleet = fleet
        self._keys = keys
        self._requests = requests
        self._feed = feed
        self._board = board

    async def submit(self, request: pb.SubmitJobRequest, call: Call) -> pb.SubmitJobResponse:
        """Store a job."""
        record, created = await self._requests.submit(
            request.job_id,
            request.engine,
            request.spec,
            client_key=request.client_key,
            cause=cause_of_call(call),
        )
        return pb.SubmitJobResponse(job=convert.job_to_proto(record), created=created)

    async def get(self, request: pb.GetJobRequest, _call: Call) -> pb.GetJobResponse:
        """One job."""
        check_id("job_id", request.job_id)
        record = self._fleet.job(request.job_id)
        said = self._board.reports(record.job_id, record.workloads)
        reports = {str(workload_id): each.content for workload_id, each in said.items()}
        return pb.GetJobResponse(job=convert.job_to_proto(record), reports=reports)

    async def list(self, request: pb.ListJobsRequest, _call: Call) -> pb.ListJobsResponse:
        """Every job, or a page of them."""
        check_page(request.page_size, request.page_token)
        found = sorted(
            (each for each in self._fleet.jobs.values() if each.job_id > request.page_token),
            key=lambda each: each.job_id,
        )
        entries = (
            (each.job_id, convert.job_to_proto(each, brief=True))
            for each in found
            if not request.engine or each.engine == request.engine
        )
        page, token = await first_page(entries, request.page_size)
        return pb.ListJobsResponse(jobs=page, next_page_token=token)

    async def watch(self, request: pb.WatchJobRequest, _call: Call) -> AsyncIterator[pb.JobView]:
        """A job as it is, and after each change."""
        check_id("job_id", request.job_id)
        self._fleet.job(request.job_id)
        newest = await self._feed.newest_cursor()
        sent = self._fleet.job(request.job_id)  # at least as new as that event
        yield convert.job_to_proto(sent)
        query = EventQuery(newest, 0, SubjectKind.JOB, request.job_id)
        async for _event in self._feed.follow(query):
            found = self._fleet.jobs.get(sent.job_id)
            if found is None:
                return
            if found.version != sent.version:
                sent = found
                yield convert.job_to_proto(found)

    async def cancel(self, request: pb.CancelJobRequest, call: Call) -> pb.JobResponse:
        """End a job and remove its workloads."""
        return await self._ask(request.job_id, JobRequest(JobAction.CANCEL, cause=cause_of_call(call)))

    async def savepoint(self, request: pb.SavepointJobRequest, call: Call) -> pb.JobResponse:
        """Take a checkpoint that is kept, and perhaps stop."""
        asked = JobRequest(JobAction.SAVEPOINT, stop=request.stop, cause=cause_of_call(call))
        return await self._ask(request.job_id, asked)

    async def resume(self, request: pb.ResumeJobRequest, call: Call) -> pb.JobResponse:
        """Begin again after a stop, a failure or a pause."""
        return await self._ask(request.job_id, JobRequest(JobAction.RESUME, cause=cause_of_call(call)))

    async def rescale(self, request: pb.RescaleJobRequest, call: Call) -> pb.JobResponse:
        """Give a job another width."""
        problems = []
        if not 0 <= request.width <= MAX_WIDTH:
            problems.append(problem("width", request.width, f"must be between 0 and {MAX_WIDTH:,}"))
        if len(request.operator) > MAX_OPERATOR:
            problems.append(problem("operator", request.operator, f"must have at most {MAX_OPERATOR} characters"))
        if problems:
            raise InvalidError(problems)
        asked = JobRequest(JobAction.RESCALE, width=request.width, operator=request.operator, cause=cause_of_call(call))
        return await self._ask(request.job_id, asked)

    async def upgrade(self, request: pb.UpgradeJobRequest, call: Call) -> pb.JobResponse:
        """Give a job another spec."""
        asked = JobRequest(JobAction.UPGRADE, cause=cause_of_call(call))
        return await self._ask(request.job_id, asked, spec=request.spec)

    async def report(self, request: pb.ReportJobRequest, call: Call) -> pb.ReportJobResponse:
        """A workload of a job says how it is, and learns what is asked of the job."""
        check_id("job_id", request.job_id)
        check_id("workload_id", request.workload_id)
        if len(request.read) > MAX_READ:
            raise InvalidError([problem("read", len(request.read), f"must have at most {MAX_READ:,} entries")])
        speaker = Speaker(JobId(request.job_id), WorkloadId(request.workload_id), request.node_id, request.revision_id)
        self._board.post(speaker, request.report)
        record = self._fleet.job(request.job_id)
        wanted = [WorkloadId(each) for each in request.read if each in record.workloads]
        said = self._board.reports(record.job_id, wanted)
        key, generation = await self._key_for(request, call)
        return pb.ReportJobResponse(
            job_key=key,
            key_generation=generation,
            state=record.state.value,
            desired=record.desired.value,
            action=record.request.action.value,
            request_number=record.request.number,
            stop=record.request.stop,
            taken_request=record.taken,
            reports={workload_id: each.content for workload_id, each in said.items()},
        )

    async def _key_for(self, request: pb.ReportJobRequest, call: Call) -> tuple[bytes, int]:
        """The key that a caller asks for: only for a process of the job, on the node that it says it is on."""
        who, record = call.identity, self._fleet.workloads.get(WorkloadId(request.key_of))
        is_own = who is not None and (who.job, who.node) == (request.job_id, request.node_id)
        if not request.key_of or not is_own or record is None or not owns(JobId(request.job_id), record):
            return b"", 0
        key = await self._keys.key_of(request.job_id, request.key_of, record.generation)
        return key, record.generation if key else 0

    async def _ask(self, job_id: str, request: JobRequest, *, spec: bytes | None = None) -> pb.JobResponse:
        check_id("job_id", job_id)
        record = await self._requests.request(job_id, request, spec=spec)
        return pb.JobResponse(job=convert.job_to_proto(record))

"""The calls about jobs: one coroutine for each RPC of `shoal.v1.Jobs`, and a watch that survives the control plane.

The base of `shoal.client.ControlPlane`. Engines have their own forms of a spec: this passes their bytes on. Called by
`shoal job`, `shoal service` and the programs that submit jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable

from shoal.client.calls import Calls
from shoal.client.reconnect import Reconnect
from shoal.core.durations import format_duration
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import DeadlineError, NotLeaderError, UnavailableError
from shoal.model.jobs import JobView
from shoal.wire import convert
from shoal.wire.methods import Jobs
from shoal.wire.pb.shoal.v1 import jobs_pb2 as pb


class JobCalls(Calls):
    """The part of the client that is about jobs."""

    async def submit_job(
        self, engine: str, spec: bytes, *, job_id: str = "", client_key: str = ""
    ) -> tuple[JobView, bool]:
        """Store a job, and say whether it is new.

        A submit with the key of an earlier one is that one. Without a key it gets one, so that a call whose answer was
        lost can be made again.
        """
        request = pb.SubmitJobRequest(
            job_id=job_id, engine=engine, spec=spec, client_key=client_key or f"call-{SystemEntropy().token()}"
        )
        answer = await self._call(Jobs.SUBMIT, request, look="shoal job list")
        return convert.job_from_proto(answer.job), answer.created

    async def get_job(self, job_id: str) -> JobView:
        """One job. Raises `NotFoundError`."""
        answer = await self._call(Jobs.GET, pb.GetJobRequest(job_id=job_id), live=True)
        return convert.job_from_proto(answer.job)

    async def job_reports(self, job_id: str) -> dict[str, bytes]:
        """What the workloads of a job last said, in its engine's own form, by workload. Raises `NotFoundError`."""
        answer = await self._call(Jobs.GET, pb.GetJobRequest(job_id=job_id), live=True)
        return dict(answer.reports)

    async def list_jobs(self, *, engine: str = "") -> tuple[JobView, ...]:
        """Every job, or those of one engine, without `spec` and `progress`."""
        pages = self._pages(Jobs.LIST, pb.ListJobsRequest(engine=engine))
        return tuple([convert.job_from_proto(view) async for page in pages for view in page.jobs])

    async def cancel_job(self, job_id: str) -> JobView:
        """End a job and remove its workloads."""
        answer = await self._call(Jobs.CANCEL, pb.CancelJobRequest(job_id=job_id), look=_look(job_id))
        return convert.job_from_proto(answer.job)

    async def savepoint_job(self, job_id: str, *, stop: bool = False) -> JobView:
        """Take a savepoint of a job; with `stop`, stop it after that."""
        request = pb.SavepointJobRequest(job_id=job_id, stop=stop)
        answer = await self._call(Jobs.SAVEPOINT, request, once=True, look=_look(job_id))
        return convert.job_from_proto(answer.job)

    async def resume_job(self, job_id: str) -> JobView:
        """Let a job go on that was stopped, has failed or is paused."""
        answer = await self._call(Jobs.RESUME, pb.ResumeJobRequest(job_id=job_id), once=True, look=_look(job_id))
        return convert.job_from_proto(answer.job)

    async def rescale_job(self, job_id: str, width: int, *, operator: str = "") -> JobView:
        """Give a job, or one operator of it, another width."""
        request = pb.RescaleJobRequest(job_id=job_id, width=width, operator=operator)
        answer = await self._call(Jobs.RESCALE, request, look=_look(job_id))
        return convert.job_from_proto(answer.job)

    async def upgrade_job(self, job_id: str, spec: bytes) -> JobView:
        """Give a job another spec."""
        request = pb.UpgradeJobRequest(job_id=job_id, spec=spec)
        answer = await self._call(Jobs.UPGRADE, request, look=_look(job_id))
        return convert.job_from_proto(answer.job)

    async def watch_job(
        self, job_id: str, *, patience: float = 60.0, since_request: int = 0
    ) -> AsyncGenerator[JobView, None]:
        """A job as it is, and after each change, until it is gone.

        When the control plane goes away, the watch continues as soon as it is back. After `patience` seconds without
        it, the error is raised. Raises `NotFoundError` when there is no such job at first. A follower may answer with
        the job as it was a moment ago: views from before the request of number `since_request` are left out.
        """
        reconnect = Reconnect(self._clock, patience=patience)
        seen: JobView | None = None
        while True:
            reconnect.opening()
            try:
                request = pb.WatchJobRequest(job_id=job_id)
                async with contextlib.aclosing(self._stream(Jobs.WATCH, request)) as stream:
                    async for each in stream:
                        reconnect.received()
                        view = convert.job_from_proto(each)
                        if view != seen and view.request.number >= since_request:
                            seen = view
                            yield view
            except (UnavailableError, DeadlineError, NotLeaderError):
                if reconnect.lost():
                    raise
            # A server that stops ends its streams without an error. A job that is gone is not found next time.
            await reconnect.wait()

    async def wait_for_job(
        self,
        job_id: str,
        condition: Callable[[JobView], bool],
        *,
        timeout: float | None = None,
        since_request: int = 0,
    ) -> JobView:
        """Wait until the condition holds, and return the job as it was then. Raises `DeadlineError`.

        `since_request`: the number of a request that the job must have; see `watch_job`.
        """
        last: JobView | None = None
        try:
            async with (
                asyncio.timeout(timeout),
                contextlib.aclosing(self.watch_job(job_id, patience=math.inf, since_request=since_request)) as changes,
            ):
                async for last in changes:
                    if condition(last):
                        return last
        except TimeoutError:
            pass
        seen = f": it is {last.state}" if last is not None else ""
        raise DeadlineError(
            f"job {job_id!r} did not get there within {format_duration(timeout or 0.0)}{seen}", job_id=job_id
        )


def _look(job_id: str) -> str:
    return f"shoal job get {job_id}"

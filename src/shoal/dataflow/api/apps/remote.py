"""Dataflows as jobs of a fleet: submitted, upgraded, waited for and stopped through its control plane.

A `RemoteFlow` stands for a job where a running flow stands for one of this process; its calls block. The job outlives
this program. Used by `shoal.dataflow.api.apps.app` when an app has a control plane.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shoal.client import ControlPlane
from shoal.core.errors import PreconditionError
from shoal.dataflow.execution.remote.submitting import CollectedJob, deployed_spec, submit_job, upgrade_job
from shoal.dataflow.fleet.progress import went_back
from shoal.jobs.states import ENDED
from shoal.model.jobs import JobState, JobView

T = TypeVar("T")

#: States in which nothing of a job runs, or not yet.
_NOT_RUNNING = ENDED | {JobState.SUBMITTED, JobState.PENDING, JobState.DEPLOYING}


class RemoteFlow:
    """A job on a fleet.

    Args:
        job_id: its name.
        connect: makes a client of the control plane.
        request: the number of the request that started it. What an earlier life of the job ended with does not count.
    """

    def __init__(self, job_id: str, connect: Callable[[], ControlPlane], *, request: int) -> None:
        self.job_id = job_id
        self._request = request
        self._connect = connect
        #: Whether the job was seen to have ended.
        self.is_done = False
        #: What `wait` or `stop` has raised.
        self.failed: BaseException | None = None

    def wait(self) -> JobView:
        """Block until the job has ended. Raises `PreconditionError` if it has failed."""
        return self._told(
            self._with(lambda control: control.wait_for_job(self.job_id, _has_ended, since_request=self._request))
        )

    def stop(self, timeout: float | None = None) -> JobView:
        """Stop the job with a savepoint, and block until it is stopped. A job without checkpoints is canceled."""
        return self._told(self._with(lambda control: self._stop(control, timeout)))

    def abort(self) -> None:
        """Cancel the job: nobody waits for it."""
        self._with(lambda control: control.cancel_job(self.job_id))
        self.is_done = True

    async def _stop(self, control: ControlPlane, timeout: float | None) -> JobView:
        view = await control.wait_for_job(self.job_id, _is_its_own, timeout=timeout, since_request=self._request)
        if view.state not in _NOT_RUNNING:
            try:
                asked = await control.savepoint_job(self.job_id, stop=True)
                return await control.wait_for_job(
                    self.job_id, _has_ended, timeout=timeout, since_request=asked.request.number
                )
            except PreconditionError:  # it has no checkpoints, or has ended meanwhile
                view = await control.get_job(self.job_id)
        if view.state in ENDED:
            return view
        # There is nothing new to save. What earlier runs have saved stays.
        asked = await control.cancel_job(self.job_id)
        return await control.wait_for_job(self.job_id, _is_over, timeout=timeout, since_request=asked.request.number)

    def _told(self, view: JobView) -> JobView:
        self.is_done = True
        if view.state is JobState.FAILED:
            self.failed = PreconditionError(
                f"job {self.job_id!r} has failed: {view.message}",
                hint=f"`shoal job logs {self.job_id}` shows its output",
                job_id=self.job_id,
            )
            raise self.failed
        return view

    def _with(self, work: Callable[[ControlPlane], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with self._connect() as control:
                return await work(control)

        return asyncio.run(run())


def submit(job: CollectedJob, addresses: str) -> RemoteFlow:
    """Submit a job to the control plane at these addresses, under its own name. Blocks until it is stored."""
    connect = _connector(addresses)

    async def run() -> JobView:
        async with connect() as control:
            return await submit_job(control, job)

    view = asyncio.run(run())
    return RemoteFlow(view.job_id, connect, request=view.request.number)


def upgrade(
    pack: Callable[[int], CollectedJob], job_id: str, addresses: str, *, parallelism: int | None = None
) -> RemoteFlow:
    """Give a job another program on its state; without a parallelism it keeps its width. Blocks until it runs.

    Raises `InvalidError` with the texts of both before the old job stops if its state does not fit, and
    `PreconditionError` if the job has failed with the new program, or goes on with the old one.
    """
    connect = _connector(addresses)

    async def run() -> JobView:
        async with connect() as control:
            width = parallelism or (await deployed_spec(control, job_id)).parallelism
            asked = (await upgrade_job(control, pack(width), job_id=job_id)).request.number
            return await control.wait_for_job(
                job_id,
                lambda view: view.taken >= asked and (view.state is JobState.RUNNING or view.state in ENDED),
                since_request=asked,
            )

    view = asyncio.run(run())
    if went_back(view):
        hint = "make room, or lower the parallelism, and upgrade it again"
        raise PreconditionError(
            f"there is no room for the new program of job {job_id!r}; it goes on with the old one", hint=hint
        )
    flow = RemoteFlow(job_id, connect, request=view.request.number)
    if view.state in ENDED:
        flow._told(view)  # noqa: SLF001  its own kind
    return flow


def _connector(addresses: str) -> Callable[[], ControlPlane]:
    """The certificate is that of the environment: SHOAL_CA, SHOAL_CERT and SHOAL_KEY, or SHOAL_INSECURE."""

    def connect() -> ControlPlane:
        return ControlPlane.from_environment({**os.environ, "SHOAL_CONTROL": addresses})

    return connect


def _has_ended(view: JobView) -> bool:
    """Whether it has ended since it was last asked for something; what it ended with before is no answer."""
    return view.state in ENDED and view.taken >= view.request.number


def _is_its_own(view: JobView) -> bool:
    return view.state not in ENDED or _has_ended(view)


def _is_over(view: JobView) -> bool:
    return _has_ended(view) and view.state is not JobState.STOPPED

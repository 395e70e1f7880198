"""A flow that is a job of a fleet: what an earlier life of the job ended with is no answer about this one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.core.errors import PreconditionError
from shoal.core.ids import JobId
from shoal.dataflow.api.apps.remote import RemoteFlow
from shoal.model.jobs import JobAction, JobDesired, JobRequest, JobState, JobView


def view(state: JobState, *, taken: int, action: JobAction = JobAction.SUBMIT, number: int = 2) -> JobView:
    """The job in its second life, which request 2 began."""
    request = JobRequest(action, number)
    words = f"{state} by request {taken}"
    return JobView(JobId("a.b"), "dataflow", 1, state, JobDesired.RUNNING, words, 1, request, (), b"", b"", taken=taken)


class Control:
    """A control plane that shows a job as it is, one state after the other."""

    def __init__(self, *views: JobView) -> None:
        self.left = list(views)
        self.asked: list[str] = []

    async def __aenter__(self) -> Control:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def wait_for_job(
        self, _job_id: str, condition: Any, *, timeout: float | None = None, since_request: int = 0
    ) -> JobView:
        del timeout
        while self.left:
            if self.left[0].request.number >= since_request and condition(self.left[0]):
                return self.left[0]
            self.left.pop(0)
            await asyncio.sleep(0)
        raise AssertionError("the job never gets there")

    async def get_job(self, _job_id: str) -> JobView:
        return self.left[0]

    async def savepoint_job(self, _job_id: str, *, stop: bool) -> JobView:
        assert stop
        self.asked.append("stop")
        return view(JobState.RUNNING, taken=2, action=JobAction.SAVEPOINT, number=3)

    async def cancel_job(self, _job_id: str) -> JobView:
        self.asked.append("cancel")
        return view(JobState.PENDING, taken=2, action=JobAction.CANCEL, number=3)


def flow_of(control: Any) -> RemoteFlow:
    return RemoteFlow("a.b", lambda: control, request=2)


#: As it was left, and then as it is: a copy without the request, and the request not taken in.
EARLIER = [
    view(JobState.FAILED, taken=1, number=1),
    view(JobState.FAILED, taken=1),
]


def test_wait_does_not_end_with_the_end_of_an_earlier_life() -> None:
    control = Control(*EARLIER, view(JobState.RUNNING, taken=2), view(JobState.FINISHED, taken=2))
    assert flow_of(control).wait().state is JobState.FINISHED


def test_wait_raises_for_a_failure_of_this_life() -> None:
    with pytest.raises(PreconditionError, match="Failed by request 2"):
        flow_of(Control(*EARLIER, view(JobState.FAILED, taken=2))).wait()


def test_a_job_that_just_began_again_is_stopped() -> None:
    stopped = view(JobState.STOPPED, taken=3, action=JobAction.SAVEPOINT, number=3)
    control = Control(*EARLIER, view(JobState.RUNNING, taken=2), stopped)
    assert flow_of(control).stop() == stopped
    assert control.asked == ["stop"]


def test_a_job_that_does_not_run_yet_is_canceled() -> None:
    asked = view(JobState.PENDING, taken=2, action=JobAction.CANCEL, number=3)
    canceled = view(JobState.CANCELED, taken=3, action=JobAction.CANCEL, number=3)
    control = Control(*EARLIER, view(JobState.PENDING, taken=2), asked, canceled)
    assert flow_of(control).stop() == canceled
    assert control.asked == ["cancel"]

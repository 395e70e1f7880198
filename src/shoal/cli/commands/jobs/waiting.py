"""Waits until a job is as it was asked to be: `judge` decides, `wait_for` shows progress, `explain` tells why not.

`judge` is pure. Called by the commands of jobs and services that change something; calls `shoal.client`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli import output
from shoal.cli.commands.common.waiting import GRACE, Judgement, Verdict
from shoal.core.durations import format_duration
from shoal.core.tasks import Signal, task_scope
from shoal.model.jobs import JOB_LABEL, NO_SAVEPOINT, JobAction, JobState, JobView
from shoal.model.views import WorkloadView

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.core.clock import Clock

DEFAULT_TIMEOUT = 600.0
"""Seconds a wait lasts by default: an update of many replicas takes its time."""


class JobGoal(enum.Enum):
    """What a wait is for."""

    RUNNING = "running"
    STOPPED = "stopped"
    CANCELED = "canceled"


_REACHED: Mapping[JobGoal, frozenset[JobState]] = {
    JobGoal.RUNNING: frozenset({JobState.RUNNING, JobState.FINISHED}),
    JobGoal.STOPPED: frozenset({JobState.STOPPED, JobState.FINISHED}),
    JobGoal.CANCELED: frozenset({JobState.CANCELED}),
}
_AT_REST = frozenset({JobState.PAUSED, JobState.STOPPED, JobState.CANCELED, JobState.FINISHED, JobState.FAILED})
"""States that a job does not leave by itself."""


def judge(job: JobView, goal: JobGoal) -> Judgement:
    """Whether a job is at its goal, and why not. A request that no transition has taken in is waited for."""
    state = job.state.value
    if job.taken < job.request.number:
        return Judgement(Verdict.WAITING, state, "the request is stored")
    if job.request.action is JobAction.SAVEPOINT and job.message.startswith(NO_SAVEPOINT):
        return Judgement(Verdict.FAILED, state, job.message)
    if job.state in _REACHED[goal]:
        return Judgement(Verdict.DONE, state, job.message)
    if job.state in _AT_REST:
        return Judgement(Verdict.FAILED, state, job.message)
    return Judgement(Verdict.WAITING, state, job.message)


@dataclass(frozen=True, slots=True)
class JobWait:
    """How a wait ended."""

    job: JobView
    judgement: Judgement
    timeout: float
    #: The workloads for which no node has room.
    unplaced: tuple[WorkloadView, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 done, 1 failed, 3 no node has room, 4 timed out."""
        return {Verdict.DONE: 0, Verdict.FAILED: 1, Verdict.UNPLACED: 3, Verdict.WAITING: 4}[self.judgement.verdict]


async def wait_for(
    control: ControlPlane, job: JobView, goal: JobGoal, *, clock: Clock, timeout: float, grace: float | None = GRACE
) -> JobWait:
    """Wait until a job is at its goal or at rest elsewhere, or has had workloads without a node for `grace` seconds.

    Without a grace, the wait for nodes lasts as long as the timeout.
    """
    follower = _Follower(control, job)
    deadline = clock.monotonic() + timeout
    pending_since: float | None = None
    try:
        with output.progress() as display:
            async with task_scope("wait") as scope:
                scope.start(follower.run(), name="watch")
                while True:
                    job, now = follower.look(), clock.monotonic()
                    found = judge(job, goal)
                    display.show([output.ProgressRow(job.job_id, found.state, found.detail)])
                    if found.verdict is not Verdict.WAITING or now >= deadline:
                        return JobWait(job, found, timeout)
                    ends = deadline
                    if job.state is JobState.PENDING and grace is not None:
                        pending_since = now if pending_since is None else pending_since
                        if now >= pending_since + grace:
                            unplaced = await _unplaced(control, job.job_id)
                            if unplaced or not job.workloads:  # a group that does not fit is not stored
                                words = Judgement(Verdict.UNPLACED, found.state, found.detail)
                                return JobWait(job, words, timeout, unplaced)
                            pending_since = now
                        ends = min(deadline, pending_since + grace)
                    else:
                        pending_since = None
                    await follower.wake.wait(max(0.001, ends - now))
    except asyncio.CancelledError:
        output.words("no longer waiting; the request stays")
        raise


class _Follower:
    """Keeps the newest view of a job."""

    def __init__(self, control: ControlPlane, job: JobView) -> None:
        self._control = control
        self._job = job
        self._error: Exception | None = None
        self.wake = Signal()

    async def run(self) -> None:
        """Follow it until the wait ends."""
        try:
            watch = self._control.watch_job(self._job.job_id, patience=math.inf, since_request=self._job.request.number)
            async with contextlib.aclosing(watch) as changes:
                async for self._job in changes:
                    self.wake.set()
        except Exception as error:  # noqa: BLE001  raised by `look`
            self._error = error
            self.wake.set()

    def look(self) -> JobView:
        """The job as it was last seen."""
        if self._error is not None:
            raise self._error
        return self._job


async def _unplaced(control: ControlPlane, job_id: str) -> tuple[WorkloadView, ...]:
    found = await control.list_workloads()
    return tuple(each for each in found if each.labels.get(JOB_LABEL) == job_id and each.rejections)


def explain(waited: JobWait) -> None:
    """Print what went wrong, if anything did."""
    judgement, job_id = waited.judgement, waited.job.job_id
    detail = f": {judgement.detail}" if judgement.detail else ""
    if judgement.verdict is Verdict.FAILED:
        output.fail_with(f"job {job_id} is {judgement.state}{detail}", hint=_next_step(job_id, judgement.state))
    elif judgement.verdict is Verdict.WAITING:
        output.fail_with(
            f"job {job_id} is still {judgement.state}{detail}, after {format_duration(waited.timeout)}",
            hint="nothing was undone: it continues; a longer --timeout waits for it",
        )
    elif judgement.verdict is Verdict.UNPLACED and not waited.unplaced:
        output.fail_with(
            f"job {job_id} was accepted, but there is no room for it{detail}",
            hint="it stays Pending and goes on as soon as there is",
        )
    elif judgement.verdict is Verdict.UNPLACED:
        first = waited.unplaced[0]
        more = f" and {len(waited.unplaced) - 1} more" if len(waited.unplaced) > 1 else ""
        output.fail_with(
            f"job {job_id} was accepted, but no node can take {first.workload_id}{more}",
            rejections=[(each.node_id, each.message) for each in first.rejections],
            hint="it stays Pending and goes on as soon as a node can",
        )


def _next_step(job_id: str, state: str) -> str:
    if state == JobState.PAUSED:
        return f"`shoal job resume {job_id}` tries it again; applying another spec replaces it"
    if state == JobState.FAILED:
        return f"`shoal job logs {job_id}` shows its output, `shoal events --job {job_id}` what happened"
    return f"`shoal job resume {job_id}` starts it again" if state == JobState.STOPPED else ""

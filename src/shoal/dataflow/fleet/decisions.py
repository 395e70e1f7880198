"""Decides the next transition of a dataflow job: deploy, run, recover, move a part, rescale, upgrade, stop. Pure.

A job's coordinator recovers lost task hosts by itself, under a new epoch; what is decided here is what needs another
node, another layout, or an end. A part that others of the job could not reach for `SILENCE` seconds is placed anew away
from its node, without waiting for the node's lease (`silence` says which part that is); where there is no room for it
elsewhere, it begins again where it may be. Called by `shoal.dataflow.fleet.engine`.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from shoal.dataflow.fleet import progress as progresses
from shoal.dataflow.fleet import spec as specs
from shoal.dataflow.fleet.progress import COORDINATOR, Progress, workload_of
from shoal.dataflow.fleet.reports import CoordinatorReport, Phase
from shoal.dataflow.fleet.silence import Parts
from shoal.jobs.engine import Decision, Facts, Job, Next
from shoal.jobs.states import ENDED, Transition
from shoal.model.jobs import NO_SAVEPOINT, JobAction, JobDesired, JobState
from shoal.model.phases import WorkloadPhase

LOOK_SECONDS = 1.0
"""How often a job that is not as it should be is looked at without a report."""
WATCH_SECONDS = 2.5
"""How often a job that runs is looked at without a report."""
FAILED_CHECKPOINTS = 3
"""How many checkpoints fail one after the other until people are told."""
UNHEARD = timedelta(seconds=5)
"""For how long it is known that nobody hears of a coordinator, until it is placed anew."""

_CHANGES = {
    JobAction.RESCALE: (Transition.RESCALE, JobState.RESCALING),
    JobAction.UPGRADE: (Transition.UPGRADE, JobState.UPGRADING),
}
_HOLDING = {
    JobState.RESCALING: Transition.RESCALE,
    JobState.UPGRADING: Transition.UPGRADE,
    JobState.RECOVERING: Transition.RECOVER,
    JobState.DEPLOYING: Transition.DEPLOY,
    JobState.PENDING: Transition.PLACE,
    JobState.STOPPING: Transition.STOP,
}
"""The transition that leaves a state as it is."""


def decide(job: Job, progress: Progress, facts: Facts, now: datetime) -> Next:
    """The next transition of a dataflow job."""
    if job.desired is not JobDesired.RUNNING:
        return _Look(job, progress, facts, now).end()
    if job.state in ENDED:
        if job.request.number <= progress.request:
            return Next()
        return _next(job, Transition.RESUME, JobState.SUBMITTED, progress, "")
    if job.state is JobState.SUBMITTED:
        return _place(job, progress, now)
    return _Look(job, progress, facts, now).decide()


def _place(job: Job, progress: Progress, now: datetime) -> Next:
    deployed = progress.deployed(job.spec, job.request.number, now)
    width = specs.decode(job.spec).parallelism
    words = f"a coordinator and {width} task host{'s' if width > 1 else ''} are requested"
    return _next(job, Transition.PLACE, JobState.PENDING, deployed, words)


def _has_stopped(report: CoordinatorReport, request: int) -> bool:
    return report.phase is Phase.FINISHED or (report.phase is Phase.STOPPED and report.request >= request)


class _Look:
    """One look at a job."""

    def __init__(self, job: Job, progress: Progress, facts: Facts, now: datetime) -> None:
        self._job = job
        self._progress = progress
        self._facts = facts
        self._now = now
        width = specs.decode(progress.spec.encode()).parallelism if progress.spec else 0
        self._names = [COORDINATOR, *(str(number) for number in range(width))]
        self._parts = Parts(job.job_id, width, facts, moves=progress.moves, is_deployed=bool(progress.spec))
        self._report = self._parts.report

    # -- ending ---------------------------------------------------------------------------------------------------

    def end(self) -> Next:
        """The next transition of a job that is not to run."""
        job, progress, facts, report = self._job, self._progress, self._facts, self._report
        after = JobState.CANCELED if job.desired is JobDesired.CANCELED else JobState.STOPPED
        if job.state in ENDED and (job.state is after or job.state in (JobState.CANCELED, JobState.FINISHED)):
            return Next()
        if report is not None and report.savepoint:
            progress = dataclasses.replace(progress, savepoint=report.savepoint)
        number = job.request.number
        if progress.spec and after is JobState.STOPPED and facts.workloads and job.state not in ENDED:
            if job.state is not JobState.STOPPING:
                # Its processes stay: the coordinator makes the last checkpoint.
                asked = dataclasses.replace(progress, request=number)
                return _next(job, Transition.STOP, JobState.STOPPING, asked, "it stops with a savepoint")
            if report is not None and report.phase is Phase.FAILED:
                return _next(job, Transition.FAIL, JobState.FAILED, progress.ended(number), report.message)
            if report is None or not _has_stopped(report, number):
                # What is lost meanwhile is replaced: there is no last checkpoint without it.
                return self._keep_parts() or Next(look_in=LOOK_SECONDS)
        if progress.spec and facts.workloads:
            words = f"the last checkpoint is {report.checkpoint}" if report is not None and report.checkpoint else ""
            return _next(job, Transition.STOP, JobState.STOPPING, progress.ended(number), words)
        if facts.workloads:
            return Next(look_in=LOOK_SECONDS)
        if job.state in (JobState.STOPPING, JobState.SUBMITTED, *ENDED):
            return _next(job, Transition.END, after, progress.ended(number), progress.savepoint)
        return _next(job, Transition.STOP, JobState.STOPPING, progress.ended(number), "")

    # -- keeping it as it should be -------------------------------------------------------------------------------

    def decide(self) -> Next:
        """The next transition of a job that is to run."""
        job, progress = self._job, self._progress
        if not progress.spec:
            return _place(job, progress, self._now)
        if self._is_new and job.request.action is not JobAction.SAVEPOINT:
            return self._take_in()
        if job.state in (JobState.RESCALING, JobState.UPGRADING) and progress.deployed_for < progress.request:
            return self._change_layout()
        return self._ended() or self._keep_parts() or self._save() or self._follow()

    @property
    def _is_new(self) -> bool:
        """Whether a person asked for something that was not taken in."""
        return self._job.request.number > self._progress.request

    def _ended(self) -> Next | None:
        """The coordinator says that the job is over."""
        job, report = self._job, self._report
        ended = self._progress.ended(job.request.number)
        if report is not None and report.phase is Phase.FAILED:
            return _next(job, Transition.FAIL, JobState.FAILED, ended, report.message)
        if report is None or report.phase is not Phase.FINISHED:
            return None
        if job.state is not JobState.RUNNING:
            return _next(job, Transition.RUN, JobState.RUNNING, self._progress, "")
        words = "its input has come to an end" + ("; there was nothing to save any more" if self._is_new else "")
        return _next(job, Transition.END, JobState.FINISHED, ended, words)

    def _follow(self) -> Next:
        """It is as the coordinator says that it is."""
        job, progress, report = self._job, self._progress, self._report
        if report is not None and report.phase is Phase.RUNNING and not report.missing:
            if job.state is JobState.RUNNING:
                told = self._tell_of_checkpoints(report)
                return told or Next(look_in=WATCH_SECONDS)  # the one that would wake this may be what is lost
            width = len(self._names) - 1
            words = f"epoch {report.epoch}, {width} task host{'s' if width > 1 else ''}"
            return _next(job, Transition.RUN, JobState.RUNNING, progress, words)
        if job.state is JobState.PENDING and self._parts.have_nodes:
            return _next(job, Transition.DEPLOY, JobState.DEPLOYING, progress, "")
        if job.state is JobState.RUNNING and report is not None and report.phase is Phase.RECOVERING:
            return _next(job, Transition.RECOVER, JobState.RECOVERING, progress, report.message)
        return Next(look_in=LOOK_SECONDS)

    def _tell_of_checkpoints(self, report: CoordinatorReport) -> Next | None:
        """Say once that checkpoints fail, as on a full disk, and once that they are made again."""
        progress, failed = self._progress, report.failed_checkpoints
        if progress.lacks_checkpoints and report.checkpoint_age is not None and not failed:
            words = f"checkpoints are made again: {report.checkpoint}"
            return self._told(dataclasses.replace(progress, lacks_checkpoints=False), words)
        if progress.lacks_checkpoints or failed < FAILED_CHECKPOINTS:
            return None
        words = f"it goes on, and {failed} checkpoints failed: {report.checkpoint_error}; the last good one is "
        words += f"{report.checkpoint}, {report.checkpoint_age or 0:.0f} s ago"
        return self._told(dataclasses.replace(progress, lacks_checkpoints=True), words)

    # -- requests -------------------------------------------------------------------------------------------------

    def _take_in(self) -> Next:
        """Take in what a person asked for."""
        job, progress = self._job, self._progress
        taken = dataclasses.replace(progress, request=job.request.number)
        change = _CHANGES.get(job.request.action)
        if change is None:
            return self._told(taken, "")
        transition, state = change
        if not self._facts.workloads:  # nothing runs yet, so there is nothing to save
            return _next(job, transition, state, progress.deployed(job.spec, job.request.number, self._now), "")
        return _next(job, transition, state, taken, "it makes a last checkpoint")

    def _save(self) -> Next | None:
        """Take in the request for a savepoint, when the coordinator has carried it out or says that it cannot."""
        number, report = self._job.request.number, self._report
        if not self._is_new or report is None or report.request < number:
            return None
        taken = dataclasses.replace(self._progress, request=number)
        if report.refusal:
            return self._told(taken, NO_SAVEPOINT + report.refusal)
        return self._told(dataclasses.replace(taken, savepoint=report.savepoint), f"savepoint {report.savepoint}")

    def _change_layout(self) -> Next:
        """Deploy the new layout when everything of the old one is in a checkpoint."""
        job, progress, report = self._job, self._progress, self._report
        if report is not None and report.phase is Phase.FAILED:
            return _next(job, Transition.FAIL, JobState.FAILED, progress.ended(progress.request), report.message)
        if report is None or not _has_stopped(report, progress.request):
            return self._keep_parts() or Next(look_in=LOOK_SECONDS)
        if self._facts.waits:  # the new layout finds no room: the old one goes on, wherever there is room for it
            back = progress.deployed(progress.spec.encode(), progress.request, self._now, anywhere=True)
            words = f"it stays as it was: {self._facts.waits}"
            return _next(job, Transition.RECOVER, JobState.RECOVERING, back, words, instead=True)
        width = specs.decode(job.spec).parallelism
        words = f"from checkpoint {report.checkpoint} to {width} task host{'s' if width > 1 else ''}"
        deployed = progress.deployed(job.spec, progress.request, self._now)
        return _next(job, _HOLDING[job.state], job.state, deployed, words)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _keep_parts(self) -> Next | None:
        """Have every part there, where others hear of it."""
        missing = [part for part in self._names if not self._parts.is_there(part, self._progress.revision(part))]
        if missing:
            return self._request_again(missing)
        return self._move_silent() or self._note_silence() or self._free_homeless()

    def _request_again(self, missing: list[str]) -> Next:
        """Parts that are not stored: the group did not fit, or somebody deleted them. A deletion ends first."""
        if any(each.phase is WorkloadPhase.DELETING for each in self._facts.workloads.values()):
            return Next(look_in=LOOK_SECONDS)
        names = ", ".join(workload_of(self._job.job_id, part) for part in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        progress = self._progress
        for part in missing:
            if self._avoids_too_much(part):
                progress = progress.moved(part, None, self._now, anywhere=bool(self._facts.waits))
        instead = progress is not self._progress and bool(self._facts.waits)
        return self._recover(progress, f"{names}{more} are requested", instead=instead)

    def _avoids_too_much(self, part: str) -> bool:
        """Whether a part without a node keeps away from nodes for longer than it has to, or than there is room for."""
        avoid = self._progress.avoid_of(part)
        if self._facts.waits:
            return bool(avoid)
        return any(node not in self._progress.avoided or self._progress.avoided[node] <= self._now for node in avoid)

    def _free_homeless(self) -> Next | None:
        """A part that no node takes may be anywhere again, once the time is over for which it had to keep away."""
        progress = self._progress
        found = [part for part in self._names if not self._parts.has_node(part) and self._avoids_too_much(part)]
        if not found:
            return None
        for part in found:
            progress = progress.moved(part, None, self._now, anywhere=bool(self._facts.waits))
        return self._recover(progress, f"task host {', '.join(found)} may be on any node again")

    def _move_silent(self) -> Next | None:
        """Place parts anew that the others could not reach for too long."""
        silent = self._parts.silent()
        since = self._progress.silent_since
        if not silent and self._parts.is_unheard and since is not None and self._now - since >= UNHEARD:
            silent = {COORDINATOR: "nobody hears of the coordinator", **self._parts.gone_with_coordinator()}
        if not silent:
            return None
        progress, anywhere = self._progress, bool(self._facts.waits)
        for part in silent:
            progress = progress.moved(part, self._parts.node_of(part), self._now, anywhere=anywhere)
        if COORDINATOR in silent:
            progress = dataclasses.replace(progress, silent_since=None)
        words = "; ".join(dict.fromkeys(silent.values()))
        if anywhere:
            words += "; there is no room for it on another node, so it begins again where it was"
        return self._recover(progress, words, instead=anywhere)

    def _note_silence(self) -> Next | None:
        """Remember since when nobody hears of the coordinator."""
        since = self._progress.silent_since
        if (since is not None) == self._parts.is_unheard:
            return None
        if since is None:
            noted = dataclasses.replace(self._progress, silent_since=self._now)
            return self._recover(noted, "nobody hears of the coordinator")
        words = "the coordinator is heard again" if self._report is not None else "the coordinator begins again"
        return self._told(dataclasses.replace(self._progress, silent_since=None), words)

    # -- states ---------------------------------------------------------------------------------------------------

    def _told(self, progress: Progress, words: str) -> Next:
        """The state stays, and the message says why."""
        if self._job.state is JobState.RUNNING:
            return _next(self._job, Transition.RUN, JobState.RUNNING, progress, words)
        return _next(self._job, _HOLDING[self._job.state], self._job.state, progress, words)

    def _recover(self, progress: Progress, words: str, *, instead: bool = False) -> Next:
        """The plan is carried out once more, and the message says why."""
        state = self._job.state
        after = JobState.RECOVERING if state in (JobState.RUNNING, JobState.DEPLOYING) else state
        return _next(self._job, _HOLDING[after], after, progress, words, instead=instead)


def _next(
    job: Job, transition: Transition, state: JobState, progress: Progress, message: str, *, instead: bool = False
) -> Next:
    takes = progress.request >= job.request.number
    return Next(Decision(transition, state, progresses.encode(progress), message, takes_request=takes, instead=instead))

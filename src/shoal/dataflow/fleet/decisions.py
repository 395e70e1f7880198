"""Decides the next transition of a dataflow job: deploy, run, recover, move a part, rescale, upgrade, stop. Pure.

A job's coordinator recovers lost task hosts by itself, under a new epoch; what is decided here is what needs another
node, another layout, or an end. A part that others of the job could not reach for `SILENCE` seconds is placed anew away
from its node, without waiting for the node's lease. Called by `shoal.dataflow.fleet.engine`.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime

from shoal.core.errors import InvalidError
from shoal.core.ids import WorkloadId
from shoal.dataflow.fleet import progress as progresses
from shoal.dataflow.fleet import spec as specs
from shoal.dataflow.fleet.progress import COORDINATOR, Progress, workload_of
from shoal.dataflow.fleet.reports import CoordinatorReport, HostReport, Phase, decode_coordinator, decode_host
from shoal.jobs.engine import Decision, Facts, Job, Next, WorkloadFacts
from shoal.jobs.states import ENDED, Transition
from shoal.model.jobs import JobAction, JobDesired, JobState
from shoal.model.phases import WorkloadPhase

SILENCE = 3.0
"""Seconds without a part after which it is placed anew."""
STARTING = 10.0
"""Seconds that a part may take to start after it was placed: it is not silent before."""
FRESH = 5.0
"""Seconds after which what a process said is no longer true."""
LOOK_SECONDS = 1.0
"""How often a job that is not as it should be is looked at without a report."""

_WITHOUT_NODE = frozenset({WorkloadPhase.PENDING, WorkloadPhase.UNPLACEABLE})
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
}
"""The transition that leaves a state as it is."""


def decide(job: Job, progress: Progress, facts: Facts, now: datetime) -> Next:
    """The next transition of a dataflow job."""
    if job.desired is not JobDesired.RUNNING:
        return _ending(job, progress, facts)
    if job.state in ENDED:
        if job.request.number <= progress.request:
            return Next()
        return _next(Transition.RESUME, JobState.SUBMITTED, progress, "")
    if job.state is JobState.SUBMITTED:
        return _place(job, progress)
    return _Look(job, progress, facts, now).decide()


def _place(job: Job, progress: Progress) -> Next:
    deployed = progress.deployed(job.spec, job.request.number)
    width = specs.decode(job.spec).parallelism
    words = f"a coordinator and {width} task host{'s' if width > 1 else ''} are requested"
    return _next(Transition.PLACE, JobState.PENDING, deployed, words)


# ---------------------------------------------------------------------------------------------------------
# Ending


def _ending(job: Job, progress: Progress, facts: Facts) -> Next:
    after = JobState.CANCELED if job.desired is JobDesired.CANCELED else JobState.STOPPED
    if job.state in ENDED and (job.state is after or job.state in (JobState.CANCELED, JobState.FINISHED)):
        return Next()
    report = coordinator_report(job, progress, facts)
    if report is not None and report.savepoint:
        progress = dataclasses.replace(progress, savepoint=report.savepoint)
    number = job.request.number
    if progress.spec and after is JobState.STOPPED and facts.workloads and job.state not in ENDED:
        if job.state is not JobState.STOPPING:
            # Its processes stay: the coordinator makes the last checkpoint.
            asked = dataclasses.replace(progress, request=number)
            return _next(Transition.STOP, JobState.STOPPING, asked, "it stops with a savepoint")
        if report is not None and report.phase is Phase.FAILED:
            return _next(Transition.FAIL, JobState.FAILED, progress.ended(number), report.message)
        if report is None or not _has_stopped(report, number):
            return Next(look_in=LOOK_SECONDS)
    if progress.spec and facts.workloads:
        words = f"the last checkpoint is {report.checkpoint}" if report is not None and report.checkpoint else ""
        return _next(Transition.STOP, JobState.STOPPING, progress.ended(number), words)
    if facts.workloads:
        return Next(look_in=LOOK_SECONDS)
    if job.state in (JobState.STOPPING, JobState.SUBMITTED, *ENDED):
        return _next(Transition.END, after, progress.ended(number), progress.savepoint)
    return _next(Transition.STOP, JobState.STOPPING, progress.ended(number), "")


def _has_stopped(report: CoordinatorReport, request: int) -> bool:
    return report.phase is Phase.FINISHED or (report.phase is Phase.STOPPED and report.request >= request)


# ---------------------------------------------------------------------------------------------------------
# Keeping it as it should be


class _Look:
    """One look at a job that is to run."""

    def __init__(self, job: Job, progress: Progress, facts: Facts, now: datetime) -> None:
        self._job = job
        self._progress = progress
        self._facts = facts
        self._now = now
        width = specs.decode(progress.spec.encode()).parallelism if progress.spec else 0
        self._parts = [COORDINATOR, *(str(number) for number in range(width))]
        self._report = coordinator_report(job, progress, facts)

    def decide(self) -> Next:
        """The next transition."""
        job, progress = self._job, self._progress
        if not progress.spec:
            return _place(job, progress)
        if job.request.number > progress.request:
            return self._take_in()
        if job.state in (JobState.RESCALING, JobState.UPGRADING) and progress.deployed_for < progress.request:
            return self._change_layout()
        missing = [part for part in self._parts if not self._is_there(part)]
        if missing:
            return self._request_again(missing)
        return self._ended() or self._move_silent() or self._follow()

    def _ended(self) -> Next | None:
        """The coordinator says that the job is over."""
        report = self._report
        if report is not None and report.phase is Phase.FAILED:
            ended = self._progress.ended(self._progress.request)
            return _next(Transition.FAIL, JobState.FAILED, ended, report.message)
        return self._finish() if report is not None and report.phase is Phase.FINISHED else None

    def _follow(self) -> Next:
        report = self._report
        if report is not None and report.phase is Phase.RUNNING and not report.missing:
            return self._run(report)
        return self._wait()

    # -- requests -------------------------------------------------------------------------------------------------

    def _take_in(self) -> Next:
        """Take in what a person asked for."""
        job, progress = self._job, self._progress
        taken = dataclasses.replace(progress, request=job.request.number)
        change = _CHANGES.get(job.request.action)
        if change is not None:
            transition, state = change
            if not self._facts.workloads:  # nothing runs yet, so there is nothing to save
                return _next(transition, state, progress.deployed(job.spec, job.request.number), "")
            return _next(transition, state, taken, "it makes a savepoint")
        if job.request.action is JobAction.SAVEPOINT:
            report = self._report
            if report is None or report.request < job.request.number:
                return Next(look_in=LOOK_SECONDS)  # the coordinator makes it
            taken = dataclasses.replace(taken, savepoint=report.savepoint)
            return self._same(taken, f"savepoint {report.savepoint}")
        return self._same(taken, "")

    def _change_layout(self) -> Next:
        """Deploy the new layout when everything of the old one is in a savepoint."""
        job, progress, report = self._job, self._progress, self._report
        transition = _HOLDING[job.state]
        if report is not None and report.phase is Phase.FAILED:
            return _next(Transition.FAIL, JobState.FAILED, progress.ended(progress.request), report.message)
        if report is None or not _has_stopped(report, progress.request):
            moved = self._move_silent()
            return moved if moved is not None else Next(look_in=LOOK_SECONDS)
        saved = dataclasses.replace(progress, savepoint=report.savepoint)
        if self._facts.waits:  # the new layout finds no room: the old one goes on
            back = saved.deployed(progress.spec.encode(), progress.request)
            return _next(Transition.RECOVER, JobState.RECOVERING, back, f"it stays as it was: {self._facts.waits}")
        width = specs.decode(job.spec).parallelism
        words = f"from checkpoint {report.checkpoint} to {width} task host{'s' if width > 1 else ''}"
        return _next(transition, job.state, saved.deployed(job.spec, progress.request), words)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _is_there(self, part: str) -> bool:
        """Whether a part is stored with the revision that it is to have."""
        found = self._facts_of(part)
        return (
            found is not None
            and found.phase is not WorkloadPhase.DELETING
            and found.revision == self._progress.revision(part)
        )

    def _facts_of(self, part: str) -> WorkloadFacts | None:
        return self._facts.workloads.get(workload_of(self._job.job_id, part))

    def _request_again(self, missing: list[str]) -> Next:
        """Parts that are not stored: the group did not fit, or somebody deleted them. A deletion ends first."""
        if any(each.phase is WorkloadPhase.DELETING for each in self._facts.workloads.values()):
            return Next(look_in=LOOK_SECONDS)
        names = ", ".join(workload_of(self._job.job_id, part) for part in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return self._same(self._progress, f"{names}{more} are requested")

    def _move_silent(self) -> Next | None:
        """Place parts anew that the others could not reach for too long."""
        progress, why = self._progress, []
        report = self._report
        complaints = [each for each in self._complaints() if report is None or each.term >= report.term]
        if complaints:
            worst = max(complaints, key=lambda each: each.misses)
            progress = self._moved(progress, COORDINATOR)
            why.append(f"the coordinator was silent for {worst.misses:.0f} s")
        elif report is not None:
            silent = [part for part, seconds in report.missing.items() if seconds >= SILENCE and self._is_settled(part)]
            for part in silent:
                progress = self._moved(progress, part)
            if silent:
                why.append(f"task host {', '.join(silent)} was silent for {SILENCE:g} s")
        if progress is self._progress:
            return None
        words = "; ".join(why)
        if self._job.state in (JobState.RESCALING, JobState.UPGRADING):
            return self._same(progress, words)
        return _next(Transition.RECOVER, JobState.RECOVERING, progress, words)

    def _is_settled(self, part: str) -> bool:
        """Whether a part has had the time to start where it is."""
        facts = self._facts_of(part) if part in self._parts else None
        lasted = 0.0 if facts is None else max(facts.ready_for or 0.0, facts.unready_for)
        return lasted >= STARTING

    def _moved(self, progress: Progress, part: str) -> Progress:
        facts = self._facts_of(part)
        return progress.moved(part, None if facts is None else facts.node_id, self._now)

    def _complaints(self) -> list[HostReport]:
        """What task hosts say about the coordinator that is there now."""
        coordinator = self._facts_of(COORDINATOR)
        found = []
        for part in self._parts[1:]:
            said = self._facts.reports.get(workload_of(self._job.job_id, part))
            if said is None or said.age > FRESH or coordinator is None:
                continue
            try:
                report = decode_host(said.content)
            except InvalidError:
                continue
            if report.misses >= SILENCE and report.term == coordinator.generation:
                found.append(report)
        return found

    # -- states ---------------------------------------------------------------------------------------------------

    def _run(self, report: CoordinatorReport) -> Next:
        if self._job.state is JobState.RUNNING:
            return Next()
        words = f"epoch {report.epoch}, {len(self._parts) - 1} task hosts"
        return _next(Transition.RUN, JobState.RUNNING, self._progress, words)

    def _finish(self) -> Next:
        if self._job.state is not JobState.RUNNING:
            return _next(Transition.RUN, JobState.RUNNING, self._progress, "")
        ended = self._progress.ended(self._progress.request)
        return _next(Transition.END, JobState.FINISHED, ended, "its input has come to an end")

    def _wait(self) -> Next:
        """It does not run just now."""
        state, report = self._job.state, self._report
        parts = [self._facts_of(part) for part in self._parts]
        if state is JobState.PENDING and all(each is not None and each.phase not in _WITHOUT_NODE for each in parts):
            return _next(Transition.DEPLOY, JobState.DEPLOYING, self._progress, "")
        if state is JobState.RUNNING and report is not None and report.phase is Phase.RECOVERING:
            return _next(Transition.RECOVER, JobState.RECOVERING, self._progress, report.message)
        return Next(look_in=LOOK_SECONDS)

    def _same(self, progress: Progress, words: str) -> Next:
        """The plan is carried out once more, and the message says why."""
        state = self._job.state
        if state is JobState.RUNNING and progress.savepoint != self._progress.savepoint:
            return _next(Transition.RUN, JobState.RUNNING, progress, words)
        if state is JobState.RUNNING:
            return _next(Transition.RECOVER, JobState.RECOVERING, progress, words)
        return _next(_HOLDING[state], state, progress, words)


def coordinator_report(job: Job, progress: Progress, facts: Facts) -> CoordinatorReport | None:
    """What the coordinator that is deployed now has said lately."""
    said = facts.reports.get(coordinator_id(job))
    if said is None or said.age > FRESH or not progress.spec:
        return None
    try:
        return decode_coordinator(said.content)
    except InvalidError:
        return None


def coordinator_id(job: Job) -> WorkloadId:
    """The workload of a job's coordinator."""
    return workload_of(job.job_id, COORDINATOR)


def _next(transition: Transition, state: JobState, progress: Progress, message: str) -> Next:
    return Next(Decision(transition, state, progresses.encode(progress), message))

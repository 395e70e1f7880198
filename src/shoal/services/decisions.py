"""Decides the next transition of a service: deploy, recover, scale, roll a revision out, revert it, stop. Pure.

An update changes at most `update.parallel` replicas at a time, and goes on when each of them has been ready for
`update.settle`. Replicas that are not ready are changed first, because that costs nothing. A replica with the new
revision fails when its workload fails, restarts twice, or is not ready within `update.deadline`; then the revision is
reverted, or the update pauses. Called by `shoal.services.engine`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from shoal.jobs.engine import Decision, Facts, Job, Next, WorkloadFacts
from shoal.jobs.states import ENDED, Transition
from shoal.model.jobs import JobAction, JobDesired, JobRequest, JobState
from shoal.model.phases import WorkloadPhase
from shoal.services import progress as progresses
from shoal.services.progress import Progress, Revision, RevisionState, replica_id
from shoal.services.spec import OnFailure, ServiceSpec

MAX_RESTARTS = 2
"""A replica with a new revision that was restarted so often has failed."""
LOOK_SECONDS = 5.0
"""How often a service that is not as it should be is looked at without a report."""

_WITHOUT_NODE = frozenset({WorkloadPhase.PENDING, WorkloadPhase.UNPLACEABLE})
_BY_STATE = {
    JobState.PENDING: Transition.PLACE,
    JobState.DEPLOYING: Transition.DEPLOY,
    JobState.RECOVERING: Transition.RECOVER,
    JobState.RESCALING: Transition.RESCALE,
    JobState.UPGRADING: Transition.UPGRADE,
    JobState.REVERTING: Transition.REVERT,
    JobState.PAUSED: Transition.PAUSE,
}
"""The transition that leaves a state as it is."""


@dataclass(frozen=True, slots=True)
class _Replica:
    """One replica: what it is to be, and what is known of it."""

    index: int
    revision: int
    facts: WorkloadFacts | None

    @property
    def is_there(self) -> bool:
        """Whether its workload is stored with the revision that it is to have."""
        return (
            self.facts is not None
            and self.facts.phase is not WorkloadPhase.DELETING
            and self.facts.revision == f"r{self.revision}"
        )

    @property
    def is_ready(self) -> bool:
        return self.is_there and self.facts is not None and self.facts.ready_for is not None

    def has_settled(self, seconds: float) -> bool:
        """Whether it has been ready for so long."""
        return self.is_ready and self.facts is not None and (self.facts.ready_for or 0.0) >= seconds

    def settles_in(self, seconds: float) -> float:
        """When it will have been ready for so long, if it stays so."""
        ready_for = self.facts.ready_for if self.facts is not None else None
        return max(0.0, seconds - (ready_for or 0.0))

    def why_failed(self, deadline: float) -> str:
        """Why the revision failed in it; empty when it did not."""
        facts = self.facts
        if facts is None or not self.is_there:
            return ""
        if facts.phase is WorkloadPhase.FAILED:
            return f"replica {facts.workload_id} failed: {facts.message or 'its agent does not start it again'}"
        if facts.restarts >= MAX_RESTARTS:
            return f"replica {facts.workload_id} was restarted {facts.restarts} times: {facts.message or facts.phase}"
        if facts.ready_for is None and facts.unready_for >= deadline:
            return f"replica {facts.workload_id} was not ready within {deadline:g} s: {facts.message or facts.phase}"
        return ""


def decide(job: Job, spec: ServiceSpec, progress: Progress, facts: Facts, now: datetime) -> Next:
    """The next transition of a service."""
    if job.desired is not JobDesired.RUNNING:
        return _ending(job, progress, facts)
    if job.state in ENDED:
        return _resume(job, progress)
    if job.state is JobState.SUBMITTED or job.has_new_request:
        return _take_in(job, spec, progress, now)
    return _Look(job, spec, progress, facts, now).decide()


# ---------------------------------------------------------------------------------------------------------
# Beginning and ending


def _ending(job: Job, progress: Progress, facts: Facts) -> Next:
    after = JobState.CANCELED if job.desired is JobDesired.CANCELED else JobState.STOPPED
    if job.state in ENDED and (job.state is after or job.state in (JobState.CANCELED, JobState.FINISHED)):
        return Next()
    if facts.workloads and job.state is not JobState.STOPPING:
        stopping = dataclasses.replace(progress, replicas=(), failing=())
        return _next(Transition.STOP, JobState.STOPPING, stopping, "its replicas are being removed")
    if facts.workloads:
        return Next(look_in=LOOK_SECONDS)
    if job.state in (JobState.STOPPING, JobState.SUBMITTED, *ENDED):
        ended = dataclasses.replace(progress, replicas=(), failing=())
        return _next(Transition.END, after, ended, "")
    return _next(Transition.STOP, JobState.STOPPING, dataclasses.replace(progress, replicas=()), "")


def _resume(job: Job, progress: Progress) -> Next:
    """Begin again, if that was asked for after it had ended."""
    if not job.has_new_request:
        return Next()
    return _next(Transition.RESUME, JobState.SUBMITTED, dataclasses.replace(progress, failing=()), "")


def _take_in(job: Job, spec: ServiceSpec, progress: Progress, now: datetime) -> Next:
    """Take in what a person asked for."""
    taken = progress
    known = next((each for each in progress.revisions if each.number == progress.target), None)
    is_new = (known is None or known.template != spec.template) and not _is_rejected(job, spec, progress)
    if is_new:
        taken = _with_new_revision(taken, spec, now, job.request)
    count = spec.outline.count
    if job.state is JobState.SUBMITTED:
        taken = dataclasses.replace(taken, replicas=(taken.target,) * count, failing=())
        return _next(Transition.PLACE, JobState.PENDING, taken, f"{count} replicas of r{taken.target} are requested")
    stays = taken.good or taken.target
    resized = (*taken.replicas[:count], *((stays,) * max(0, count - len(taken.replicas))))
    taken = dataclasses.replace(taken, replicas=resized, failing=())
    if len(progress.replicas) != count:
        words = f"from {len(progress.replicas)} to {count} replicas"
        return _next(Transition.RESCALE, JobState.RESCALING, taken, words)
    if is_new or any(each != taken.target for each in resized):
        # A revision that failed and is asked for again gets another chance.
        taken = taken.with_revision(taken.target, state=RevisionState.ROLLING, message="")
        return _next(Transition.UPGRADE, JobState.UPGRADING, taken, f"to r{taken.target}")
    if job.state in _BY_STATE:
        return _next(_BY_STATE[job.state], job.state, taken, "")
    return _next(Transition.UPGRADE, JobState.UPGRADING, taken, "nothing differs")


def _is_rejected(job: Job, spec: ServiceSpec, progress: Progress) -> bool:
    """Whether the revision that the spec asks for has failed and was reverted. Only an upgrade gives it another try."""
    newest = progress.revisions[-1] if progress.revisions else None
    return (
        job.request.action is not JobAction.UPGRADE
        and newest is not None
        and newest.state is RevisionState.FAILED
        and newest.template == spec.template
    )


def _with_new_revision(progress: Progress, spec: ServiceSpec, now: datetime, request: JobRequest) -> Progress:
    # A submit begins without revisions: those of the service's earlier life have numbers below its request's.
    number = max((each.number for each in progress.revisions), default=request.number - 1) + 1
    if progress.target and progress.revision(progress.target).state is RevisionState.ROLLING:
        progress = progress.with_revision(progress.target, state=RevisionState.REPLACED)
    made = Revision(number, spec.template, RevisionState.ROLLING, now, request.cause)
    return dataclasses.replace(progress, revisions=(*progress.revisions, made), target=number).trimmed()


# ---------------------------------------------------------------------------------------------------------
# Keeping it as it should be


class _Look:
    """One look at a service that is to run and has taken in every request."""

    def __init__(self, job: Job, spec: ServiceSpec, progress: Progress, facts: Facts, now: datetime) -> None:
        self._job = job
        self._progress = progress
        self._policy = spec.outline.update
        self._now = now
        self._replicas = [
            _Replica(index, revision, facts.workloads.get(replica_id(job.job_id, index)))
            for index, revision in enumerate(progress.replicas)
        ]
        self._settle = self._policy.settle.total_seconds()
        self._deadline = self._policy.deadline.total_seconds()

    def decide(self) -> Next:
        """The next transition."""
        progress, state = self._progress, self._job.state
        # One that a person deleted is requested again. Its deletion ends first.
        missing = [each for each in self._replicas if not each.is_there and not _is_deleting(each)]
        if missing:
            words = f"{_names(self._job, missing)} is missing" if len(missing) == 1 else f"{len(missing)} are missing"
            return self._same(words) if state in _BY_STATE else self._recover(words)
        outdated = [each for each in self._replicas if each.revision != progress.target]
        failed = self._failed()
        if state is JobState.PAUSED:
            return Next(look_in=None)
        if failed and progress.good and progress.target != progress.good:
            return self._give_up(failed)
        if outdated and state is not JobState.REVERTING:
            return self._roll(outdated)
        return self._steady(failed)

    def _steady(self, failed: list[tuple[_Replica, str]]) -> Next:
        """Every replica has the revision that it is to have."""
        state = self._job.state
        ready = [each for each in self._replicas if each.is_ready]
        words = f"{len(ready)} of {len(self._replicas)} replicas are ready"
        failing = tuple(each.index for each, _why in failed)
        if len(ready) == len(self._replicas):
            rolling = self._progress.target != self._progress.good
            waiting = [each for each in self._replicas if rolling and not each.has_settled(self._settle)]
            if waiting:
                return Next(look_in=max(each.settles_in(self._settle) for each in waiting))
            if state is JobState.RUNNING:
                return Next()
            settled = self._progress.with_revision(self._progress.target, state=RevisionState.HEALTHY, message="")
            settled = dataclasses.replace(settled, good=settled.target, failing=())
            return _next(Transition.RUN, JobState.RUNNING, settled, words)
        if state is JobState.RUNNING:
            return self._recover(words)
        placed = all(each.facts is not None and each.facts.phase not in _WITHOUT_NODE for each in self._replicas)
        if state is JobState.PENDING and placed:
            return _next(Transition.DEPLOY, JobState.DEPLOYING, self._progress, words)
        if failing != self._progress.failing:
            return self._same("; ".join([words, *(why for _each, why in failed[:3])]), failing=failing)
        return Next(look_in=LOOK_SECONDS)

    def _roll(self, outdated: list[_Replica]) -> Next:
        """Give the next replicas the new revision, as many as may be unavailable."""
        new = [each for each in self._replicas if each.revision == self._progress.target]
        unsettled = [each for each in new if not each.has_settled(self._settle)]
        down = len(unsettled) + sum(not each.is_ready for each in outdated)
        free = self._policy.parallel - len(unsettled)
        chosen: list[int] = []
        for each in sorted(outdated, key=lambda replica: (replica.is_ready, replica.index)):
            if len(chosen) >= free or (each.is_ready and down >= self._policy.parallel):
                break
            down += each.is_ready
            chosen.append(each.index)
        if not chosen:
            soon = [each.settles_in(self._settle) for each in unsettled if each.is_ready]
            return Next(look_in=min((*soon, LOOK_SECONDS)))
        target = self._progress.target
        replicas = tuple(target if each.index in chosen else each.revision for each in self._replicas)
        words = f"to r{target}: {sum(each == target for each in replicas)} of {len(replicas)} replicas have it"
        rolled = dataclasses.replace(self._progress, replicas=replicas, failing=())
        return _next(Transition.UPGRADE, JobState.UPGRADING, rolled, words)

    def _give_up(self, failed: list[tuple[_Replica, str]]) -> Next:
        """The new revision failed."""
        progress, why = self._progress, failed[0][1]
        marked = progress.with_revision(progress.target, state=RevisionState.FAILED, message=why)
        if self._policy.on_failure is OnFailure.PAUSE:
            if self._job.state is not JobState.UPGRADING:  # such as a scale within the update
                return _next(Transition.UPGRADE, JobState.UPGRADING, progress, why)
            marked = dataclasses.replace(marked, failing=tuple(each.index for each, _why in failed))
            return _next(Transition.PAUSE, JobState.PAUSED, marked, f"r{progress.target} failed: {why}")
        if self._job.state not in (JobState.UPGRADING, JobState.PAUSED, JobState.REVERTING):
            return _next(Transition.UPGRADE, JobState.UPGRADING, progress, why)
        reverted = dataclasses.replace(
            marked, target=progress.good, replicas=(progress.good,) * len(progress.replicas), failing=()
        )
        words = f"r{progress.target} failed and is reverted to r{progress.good}: {why}"
        return _next(Transition.REVERT, JobState.REVERTING, reverted, words)

    def _failed(self) -> list[tuple[_Replica, str]]:
        """The replicas in which the newest revision failed, with the reasons."""
        new = [each for each in self._replicas if each.revision == self._progress.target]
        found = [(each, each.why_failed(self._deadline)) for each in new]
        return [(each, why) for each, why in found if why]

    def _recover(self, words: str) -> Next:
        return _next(Transition.RECOVER, JobState.RECOVERING, self._progress, words)

    def _same(self, words: str, *, failing: tuple[int, ...] = ()) -> Next:
        """The plan is carried out once more, and the message says why."""
        noted = dataclasses.replace(self._progress, failing=failing)
        return _next(_BY_STATE[self._job.state], self._job.state, noted, words)


def _is_deleting(replica: _Replica) -> bool:
    return replica.facts is not None and replica.facts.phase is WorkloadPhase.DELETING


def _names(job: Job, replicas: Iterable[_Replica]) -> str:
    return ", ".join(replica_id(job.job_id, each.index) for each in replicas)


def _next(transition: Transition, state: JobState, progress: Progress, message: str) -> Next:
    return Next(Decision(transition, state, progresses.encode(progress), message))

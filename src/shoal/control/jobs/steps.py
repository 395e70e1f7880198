"""The steps of a transition: plan the workloads, request them, remove what is surplus, store the new state.

Each may be carried out more than once, and by another leader than began it. Every write checks the term, so a step of
a replaced leader changes nothing. A failure of the store is waited out. A refusal (such as a spec that breaks a rule)
is the result of the step, and ends the transition in `Failed`. A group that fits nowhere now is waited for: nothing of
it is stored, the job says why, and its engine decides again. Run by `shoal.jobs.workflows`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

from shoal.control.jobs.changes import JobChange, StoredWorkload
from shoal.control.state.events import Origin, job_event
from shoal.control.state.ledger import Ledger
from shoal.control.state.loops import Rounds
from shoal.control.store.base import Batch
from shoal.control.workloads.groups import Groups
from shoal.control.workloads.requests import WorkloadRequest, Workloads
from shoal.core import faults
from shoal.core.clock import Clock
from shoal.core.errors import (
    ConflictError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    PreconditionError,
    Problem,
    ShoalError,
    UnavailableError,
    problem,
)
from shoal.core.ids import IDENTIFIER_RULE, GroupId, JobId, NodeId, WorkloadId, is_identifier
from shoal.jobs.engine import Engines, Job, NodeCapacity, Plan, PlannedWorkload
from shoal.jobs.states import Transition, check
from shoal.jobs.workflows import Document
from shoal.model.events import EventKind, EventSource
from shoal.model.jobs import JOB_LABEL, MAX_JOB_WORKLOADS, MAX_MESSAGE, MAX_PROGRESS_BYTES, JobRecord, JobState
from shoal.model.nodes import NodeState
from shoal.model.workloads import DesiredState, WorkloadRecord
from shoal.wire import convert

#: Requests that are made together: they share transactions of the store.
AT_ONCE = 50
#: The pause before a step is tried again after the store failed.
RETRY_SECONDS = 1.0

#: What a plan may be refused for. Anything else is a failure of the store or a bug.
_REFUSALS = (InvalidError, PreconditionError)


class TransitionSteps:
    """Carries out the steps for one leadership."""

    def __init__(self, ledger: Ledger, workloads: Workloads, groups: Groups, engines: Engines, *, clock: Clock) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._workloads = workloads
        self._groups = groups
        self._engines = engines
        self._clock = clock
        #: Jobs whose last transition waits for room, and why.
        self.waiting: dict[JobId, str] = {}
        self._rounds = Rounds("steps of jobs")

    async def run(self, name: str, change: Document, done: Mapping[str, Document]) -> Document:
        """Carry out one step. A failure of the store is waited out; a lost leadership is raised."""
        about = JobChange.from_document(change)
        while True:
            try:
                result = await self._run(name, about, done)
            except NotLeaderError:
                raise
            except (UnavailableError, ConflictError) as error:
                self._rounds.failed(error, about.job_id)
                await self._clock.sleep(RETRY_SECONDS)
            else:
                self._rounds.succeeded(about.job_id)
                return result

    async def _run(self, name: str, change: JobChange, done: Mapping[str, Document]) -> Document:
        if not self._is_due(change):
            return {"skipped": True}  # made already, or its job is gone
        if name == "plan":
            result = self._plan(change)
            faults.reach("jobs.planned")
        elif name == "apply":
            result = await self._apply(change, done["plan"])
            faults.reach("jobs.applied")
        elif name == "remove":
            result = await self._remove(change, done["plan"], done["apply"])
            faults.reach("jobs.removed")
        else:
            result = await self._settle(change, done)
            faults.reach("jobs.settled")
        return result

    def _is_due(self, change: JobChange) -> bool:
        record = self._fleet.jobs.get(change.job_id)
        return record is not None and record.transition == change.number - 1

    def _plan(self, change: JobChange) -> Document:
        record = self._fleet.job(change.job_id)
        engine = self._engines.get(record.engine)
        job = Job(
            record.job_id, record.spec, change.progress, change.after, record.desired, record.request, change.request
        )
        try:
            planned = stored_plan(record.job_id, engine.plan(job, capacities(self._ledger)))
        except _REFUSALS as error:
            return {"refused": _sentence(error)}
        return {"workloads": [each.to_document() for each in planned]}

    async def _apply(self, change: JobChange, plan: Document) -> Document:
        """Request every workload of the plan. One that is stored so already is left alone."""
        if _is_void(plan):
            return {}
        cause = f"job {change.job_id}: {change.transition}"
        wanted = [StoredWorkload.from_document(each) for each in plan["workloads"]]
        known = self._fleet.job(change.job_id).workloads
        try:
            requests = [(each, self._request(change.job_id, each, known)) for each in wanted]
            for group_id in dict.fromkeys(each.group_id for each in wanted if each.group_id is not None):
                members = tuple(request for each, request in requests if each.group_id == group_id)
                await self._groups.apply(group_id, members, cause=cause)
            single = [request for each, request in requests if each.group_id is None]
            for start in range(0, len(single), AT_ONCE):
                await _all(self._workloads.apply(each, cause=cause) for each in single[start : start + AT_ONCE])
        except NotLeaderError:
            raise
        except ExhaustedError as error:
            return {"waits": error.message}
        except _REFUSALS as error:
            return {"refused": _sentence(error)}
        return {}

    def _request(self, job_id: JobId, wanted: StoredWorkload, known: tuple[WorkloadId, ...]) -> WorkloadRequest:
        stored = self._fleet.workloads.get(wanted.workload_id)
        if stored is not None and wanted.workload_id not in known and not owns(job_id, stored):
            raise PreconditionError(
                f"workload {wanted.workload_id!r} exists and is not part of job {job_id!r}",
                hint="delete it, or give the job another id",
                workload_id=wanted.workload_id,
            )
        if stored is not None and stored.desired is not DesiredState.DELETED and stored.revision_id == wanted.revision:
            # A later program may write the same revision in another way. It stays what it was when it was stored.
            return WorkloadRequest(
                wanted.workload_id,
                stored.spec,
                stored.spec_bytes,
                stored.spec_sha256,
                stored.revision_id,
                DesiredState.RUNNING,
            )
        return WorkloadRequest(
            wanted.workload_id,
            convert.decode_spec_bytes(wanted.spec),
            wanted.spec,
            convert.spec_sha256(wanted.spec),
            wanted.revision,
            DesiredState.RUNNING,
        )

    async def _remove(self, change: JobChange, plan: Document, applied: Document) -> Document:
        """Request the deletion of workloads of the job that are not in the plan."""
        if _is_void(plan) or _is_void(applied):
            return {}
        wanted = [StoredWorkload.from_document(each) for each in plan["workloads"]]
        cause = f"job {change.job_id}: {change.transition}"
        surplus = self._surplus(change.job_id, {each.workload_id for each in wanted})
        groups = {group for each in surplus if (group := self._group_of(each)) is not None}
        for group_id in sorted(groups - {each.group_id for each in wanted if each.group_id}):
            await _unless_gone(self._groups.delete(group_id, cause=cause))
        single = [each for each in surplus if self._group_of(each) is None]
        for start in range(0, len(single), AT_ONCE):
            await _all(
                _unless_gone(self._workloads.delete(each, cause=cause)) for each in single[start : start + AT_ONCE]
            )
        return {}

    def _surplus(self, job_id: JobId, wanted: set[WorkloadId]) -> list[WorkloadId]:
        record = self._fleet.job(job_id)
        return [
            each
            for each in record.workloads
            if each not in wanted
            and (stored := self._fleet.workloads.get(each)) is not None
            and stored.desired is not DesiredState.DELETED
            and owns(job_id, stored)
        ]

    def _group_of(self, workload_id: WorkloadId) -> GroupId | None:
        stored = self._fleet.workloads.get(workload_id)
        if stored is None or stored.group_id not in self._fleet.groups:
            return None
        return stored.group_id

    async def _settle(self, change: JobChange, done: Mapping[str, Document]) -> Document:
        """Store the state after the transition."""
        refused = str(done["plan"].get("refused", "") or done["apply"].get("refused", ""))
        waits = str(done["apply"].get("waits", ""))
        transition, after = (Transition.FAIL, JobState.FAILED) if refused else (change.transition, change.after)
        planned = [] if waits else [WorkloadId(each["id"]) for each in done["plan"].get("workloads", ())]
        self.waiting.pop(change.job_id, None)
        if waits:
            self.waiting[change.job_id] = waits

        def decide() -> Batch | None:
            record = self._fleet.jobs.get(change.job_id)
            if record is None or record.transition != change.number - 1:
                return None
            check(transition, record.state, after)
            now = self._clock.wall()
            # What does not fit has changed nothing. A job that was only stored waits for its first place.
            is_kept = bool(waits) and transition is not Transition.PLACE
            # What is being deleted stays in the row until it is gone, so that a job has ended only when nothing runs.
            left = [each for each in record.workloads if each in self._fleet.workloads and each not in planned]
            settled = dataclasses.replace(
                record,
                state=record.state if is_kept else after,
                transition=change.number,
                # Also after a refusal: what was asked for is taken in.
                progress=record.progress if is_kept else change.progress,
                taken=record.taken if is_kept else change.request,
                workloads=(*planned, *left),
                message=(refused or waits or change.message)[:MAX_MESSAGE],
                updated_at=now,
            )
            if settled.state is not record.state:
                settled = dataclasses.replace(settled, state_at=now)
            elif waits and settled.message == record.message:
                return Batch(jobs=(settled,))  # it has been told
            words = f"{record.state} to {settled.state} by {transition}"
            told = f"{words}: {settled.message}" if settled.message else words
            origin = Origin(now, EventSource.JOB, record.request.cause)
            return Batch(jobs=(settled,), events=(job_event(settled, EventKind.JOB_CHANGED, told, origin),))

        await self._ledger.change(decide)
        return {}


def owns(job_id: JobId, workload: WorkloadRecord) -> bool:
    """Whether a stored workload is one of this job."""
    return workload.spec.labels.get(JOB_LABEL) == job_id


def capacities(ledger: Ledger) -> dict[NodeId, NodeCapacity]:
    """What every node that takes work offers now."""
    return {
        facts.node_id: NodeCapacity(
            facts.node_id, facts.spec.host_id, facts.spec.capacity, facts.free, dict(facts.spec.labels)
        )
        for facts in ledger.fleet.facts().values()
        if facts.state is NodeState.READY and not facts.cordoned and not facts.disk_pressure
    }


def stored_plan(job_id: JobId, plan: Plan) -> list[StoredWorkload]:
    """A plan as it is stored, with the label of the job. Raises `InvalidError` with every problem in it."""
    problems: list[Problem] = []
    if len(plan.workloads) > MAX_JOB_WORKLOADS:
        rule = f"a job may have at most {MAX_JOB_WORKLOADS:,} workloads"
        raise InvalidError([problem("workloads", len(plan.workloads), rule)])
    found: dict[WorkloadId, StoredWorkload] = {}
    for each in plan.workloads:
        if not is_identifier(each.workload_id):
            problems.append(problem("workload_id", each.workload_id, IDENTIFIER_RULE))
        elif each.workload_id in found:
            problems.append(problem("workload_id", each.workload_id, "is in the plan twice"))
        else:
            found[each.workload_id] = _stored(job_id, each)
    if problems:
        raise InvalidError(problems)
    return list(found.values())


def _stored(job_id: JobId, planned: PlannedWorkload) -> StoredWorkload:
    labeled = dataclasses.replace(planned.spec, labels={**planned.spec.labels, JOB_LABEL: job_id})
    exact = convert.spec_bytes(convert.workload_spec_to_proto(labeled))
    return StoredWorkload(planned.workload_id, exact, planned.revision, planned.group_id)


def check_progress(record: JobRecord, progress: bytes) -> None:
    """Raise `ExhaustedError` if an engine wants to remember too much."""
    if len(progress) > MAX_PROGRESS_BYTES:
        raise ExhaustedError(
            f"job {record.job_id!r}: its engine wants to keep {len(progress):,} bytes; "
            f"at most {MAX_PROGRESS_BYTES:,} are kept"
        )


def _is_void(result: Document) -> bool:
    return not {"refused", "skipped", "waits"}.isdisjoint(result)


def _sentence(error: ShoalError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


async def _unless_gone(work: Any) -> None:
    try:
        await work
    except NotFoundError:
        return


async def _all(works: Any) -> None:
    """Run requests together. All of them end before the first error is raised."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for each in results:
        if isinstance(each, BaseException):
            raise each

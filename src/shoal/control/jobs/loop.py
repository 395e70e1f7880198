"""Asks engines what comes next for each job, and has it carried out as durable workflows.

A job is looked at when its row or one of its workloads changed, and when its engine asked for it. One transition of a
job is carried out at a time, several jobs side by side. The workflows are opened with the first job, because DBOS needs
50 MB. An engine that fails is a bug of that engine: it is logged, and the job is looked at again later.

Started by `shoal.control.leadership.leader` for one term.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Coroutine
from dataclasses import dataclass

from shoal.control.jobs.changes import JobChange
from shoal.control.jobs.job_facts import JobFacts
from shoal.control.jobs.steps import TransitionSteps, check_progress
from shoal.control.state.ledger import Ledger
from shoal.control.state.loops import Rounds
from shoal.control.store.base import Batch
from shoal.control.workloads.work_queue import DueQueue
from shoal.core.clock import Clock
from shoal.core.errors import PreconditionError, ShoalError
from shoal.core.ids import JobId, WorkloadId
from shoal.core.tasks import TaskScope
from shoal.jobs.engine import Decision, Engine, Engines, Next, job_of
from shoal.jobs.states import Transition, check
from shoal.jobs.workflows import Workflows
from shoal.model.jobs import JOB_LABEL, JobRecord

log = logging.getLogger(__name__)

#: Transitions that are carried out side by side.
AT_ONCE = 8
#: When a job is looked at again after its engine or its workflow failed.
AFTER_FAILURE_SECONDS = 5.0
#: The most transitions of a job within that time.
MOST_TRANSITIONS = 100


@dataclass(frozen=True, slots=True)
class _Held:
    """A transition that found no room: it is not tried again before a while, except for another request."""

    until: float
    request: int
    transition: Transition
    instead: bool
    why: str


class JobLoop:
    """Drives the jobs of one leadership."""

    def __init__(
        self,
        ledger: Ledger,
        facts: JobFacts,
        engines: Engines,
        workflows: Workflows,
        steps: TransitionSteps,
        *,
        scope: TaskScope,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._facts = facts
        self._engines = engines
        self._workflows = workflows
        self._steps = steps
        self._scope = scope
        self._clock = clock
        self._queue: DueQueue[JobId] = DueQueue()
        #: The job of each workload that has one, also before its row says so.
        self._owners: dict[WorkloadId, JobId] = {}
        self._workloads: dict[JobId, set[WorkloadId]] = {}
        self._opened: asyncio.Task[ShoalError | None] | None = None
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._rounds = Rounds("jobs")
        #: When each job began to make transitions, and how many since then.
        self._pace: dict[JobId, tuple[float, int]] = {}
        #: Jobs whose last transition found no room.
        self._held: dict[JobId, _Held] = {}
        ledger.on_batch(self._changed)
        ledger.on_reload(self.look_at_all)

    def look_at_all(self) -> None:
        """Look at every job: a leadership has begun, or memory was read anew."""
        self._owners.clear()
        self._workloads.clear()
        for job in self._fleet.jobs.values():
            self._note_all(job)
            self._queue.enqueue(job.job_id)
        for record in self._fleet.workloads.values():
            job_id = record.spec.labels.get(JOB_LABEL)
            if job_id and JobId(job_id) in self._fleet.jobs:
                self._note(JobId(job_id), record.workload_id)

    def look_at(self, job_id: JobId) -> None:
        """Look at a job: one of its workloads said something."""
        self._queue.enqueue(job_id)

    async def run(self) -> None:
        """Look at jobs until the leadership ends."""
        while True:
            for job_id, context in await self._queue.take():
                self._queue.begin(job_id)
                self._scope.start(self._work(job_id), name=f"job-{job_id}", context=context)

    async def close(self) -> None:
        """End. What is unfinished is left to the next leader."""
        self._queue.close()
        await self._workflows.close()

    async def _work(self, job_id: JobId) -> None:
        try:
            async with self._turns:
                await self._look(job_id)
            self._rounds.succeeded(job_id)
        except ShoalError as error:
            self._rounds.failed(error, job_id)
            self._queue.look_again_in(job_id, AFTER_FAILURE_SECONDS)
        except Exception:  # an engine's bug must not end the control plane
            log.exception("job %s: its engine failed; it is looked at again in %g s", job_id, AFTER_FAILURE_SECONDS)
            self._queue.look_again_in(job_id, AFTER_FAILURE_SECONDS)
        finally:
            self._queue.end(job_id)

    async def _look(self, job_id: JobId) -> None:
        """Carry out the next transition of a job, if there is one."""
        record = self._fleet.jobs.get(job_id)
        if record is None:
            self._facts.forget(job_id)
            self._rounds.forget(job_id)
            self._pace.pop(job_id, None)
            self._held.pop(job_id, None)
            if self._opened is not None:
                await self._workflows.forget(job_id)
            return
        await self._open()
        record = self._fleet.jobs.get(job_id)  # a workflow that was resumed may have changed it
        if record is None:
            return
        if record.engine not in self._engines:
            raise PreconditionError(f"its engine {record.engine!r} is not installed in this control plane")
        engine = self._engines.get(record.engine)
        if record.format != engine.format:
            await self._migrate(record, engine)
            return
        found = self._ask(record, engine)
        if found.decision is None:
            if found.look_in is not None:
                self._queue.look_again_in(job_id, found.look_in)
            return
        if self._is_held(record, found.decision):
            self._queue.look_again_in(job_id, AFTER_FAILURE_SECONDS)
            return
        check(found.decision.transition, record.state, found.decision.state)
        check_progress(record, found.decision.progress)
        await self._workflows.run(JobChange.of(record, found.decision).to_document())
        waits = self._steps.waiting.pop(job_id, "")
        if waits:
            # The same again, now, would find the same. A request of a person, or another transition, may not.
            until = self._clock.monotonic() + AFTER_FAILURE_SECONDS
            made = found.decision
            self._held[job_id] = _Held(until, record.request.number, made.transition, made.instead, waits)
            self._queue.enqueue(job_id)
        elif self._is_restless(job_id):
            self._queue.look_again_in(job_id, AFTER_FAILURE_SECONDS)
        else:
            self._queue.enqueue(job_id)

    def _is_held(self, record: JobRecord, made: Decision) -> bool:
        """Whether this transition of a job found no room a moment ago."""
        held = self._held.get(record.job_id)
        if held is None:
            return False
        given = (record.request.number, made.transition, made.instead)
        is_same = (held.request, held.transition, held.instead) == given
        if self._clock.monotonic() < held.until and is_same:
            return True
        del self._held[record.job_id]
        return False

    def _is_restless(self, job_id: JobId) -> bool:
        """Whether a job makes transitions without end, as after a bug of its engine. Then it has to wait."""
        now = self._clock.monotonic()
        began, count = self._pace.get(job_id, (now, 0))
        if now - began > AFTER_FAILURE_SECONDS:
            began, count = now, 0
        self._pace[job_id] = (began, count + 1)
        return count >= MOST_TRANSITIONS

    def _ask(self, record: JobRecord, engine: Engine) -> Next:
        facts = self._facts.of(record, sorted(self._workloads.get(record.job_id, ())))
        held = self._held.get(record.job_id)
        if held is not None and held.request == record.request.number and self._clock.monotonic() < held.until:
            facts = dataclasses.replace(facts, waits=held.why)
        return engine.decide(job_of(record), facts, self._clock.wall())

    async def _open(self) -> None:
        """Open the workflows once, with the first job."""
        if self._opened is None:
            self._opened = self._scope.start(_outcome_of(self._workflows.open(self._steps)), name="workflows")
        failure = await asyncio.shield(self._opened)
        if failure is not None:
            self._opened = None
            raise failure

    async def _migrate(self, record: JobRecord, engine: Engine) -> None:
        """Bring what an earlier version of the engine wrote into its present form."""
        if record.format > engine.format:
            raise PreconditionError(
                f"it has format {record.format} of engine {record.engine!r}; this program knows {engine.format}",
                hint="run the version of shoal that wrote it, or a newer one",
            )

        def decide() -> Batch | None:
            current = self._fleet.jobs.get(record.job_id)
            if current is None or current.version != record.version:
                return None
            spec, progress = engine.migrate(current.spec, current.progress, current.format)
            return Batch(jobs=(dataclasses.replace(current, spec=spec, progress=progress, format=engine.format),))

        await self._ledger.change(decide)
        self._queue.enqueue(record.job_id)

    # -----------------------------------------------------------------------------------------------------
    # What wakes it

    def _changed(self, batch: Batch) -> None:
        for job in batch.jobs:
            self._note_all(job)
            self._queue.enqueue(job.job_id)
        for job_id in batch.removed_jobs:
            self._drop(job_id)
        if not self._fleet.jobs:
            return
        for record in batch.workloads:
            named = record.spec.labels.get(JOB_LABEL)
            if named and JobId(named) in self._fleet.jobs:
                self._note(JobId(named), record.workload_id)
        touched = {each.workload_id for each in batch.workloads}
        touched.update(each.status.workload_id for each in batch.observations)
        touched.update(batch.removed_workloads, batch.forgotten_observations)
        for node in batch.nodes:
            touched.update(self._fleet.owned_by(node.node_id))
        for job_id in {self._owners[each] for each in touched if each in self._owners}:
            self._queue.enqueue(job_id)
        for workload_id in batch.removed_workloads:
            owner = self._owners.pop(workload_id, None)
            if owner is not None:
                self._workloads.get(owner, set()).discard(workload_id)

    def _note_all(self, job: JobRecord) -> None:
        for workload_id in job.workloads:
            if workload_id in self._fleet.workloads:
                self._note(job.job_id, workload_id)

    def _note(self, job_id: JobId, workload_id: WorkloadId) -> None:
        self._owners[workload_id] = job_id
        self._workloads.setdefault(job_id, set()).add(workload_id)

    def _drop(self, job_id: JobId) -> None:
        for workload_id in self._workloads.pop(job_id, ()):
            self._owners.pop(workload_id, None)
        self._queue.enqueue(job_id)


async def _outcome_of(work: Coroutine[None, None, None]) -> ShoalError | None:
    """What it raised. A task of the scope that raises ends the control plane."""
    try:
        await work
    except ShoalError as error:
        return error
    return None

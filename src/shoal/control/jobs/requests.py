"""Carries out requests of people about jobs: submit, cancel, savepoint, resume, rescale, upgrade.

A request is checked by the engine, stored and answered; the loop then makes it true. Success means that the request is
stored; the state of the job says whether it came true. Called by `shoal.control.jobs.service`.
"""

from __future__ import annotations

import dataclasses

from shoal.control.state.events import Origin, job_event
from shoal.control.state.ledger import Ledger
from shoal.control.store.base import Batch
from shoal.core import faults
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.errors import ExhaustedError, InvalidError, problem
from shoal.core.ids import IDENTIFIER_RULE, JobId, is_identifier
from shoal.jobs.engine import Engines, job_of
from shoal.jobs.states import ENDED, check_action, desired_after
from shoal.model.events import EventKind, EventSource
from shoal.model.jobs import (
    MAX_JOB_ID,
    MAX_KEY,
    MAX_SPEC_BYTES,
    JobAction,
    JobDesired,
    JobRecord,
    JobRequest,
)

MAX_JOBS = 10_000
"""The most jobs that have not ended."""
MAX_ENDED = 1000
"""How many jobs that have ended are kept; the oldest go first."""


class JobRequests:
    """Requests about jobs."""

    def __init__(self, ledger: Ledger, engines: Engines, *, clock: Clock, entropy: Entropy) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._engines = engines
        self._clock = clock
        self._entropy = entropy

    async def submit(
        self, job_id: str, engine_name: str, spec: bytes, *, client_key: str = "", cause: str
    ) -> tuple[JobRecord, bool]:
        """Store a job, and say whether it is new. A second submit with the same key changes nothing."""
        self._check_submit(job_id, spec, client_key)
        engine = self._engines.get(engine_name)
        checked = engine.validate(spec)
        chosen = JobId(job_id or f"{engine_name}-{self._entropy.token(6)}")
        result: JobRecord | None = None
        created = False

        def decide() -> Batch | None:
            nonlocal result, created
            same = self._with_key(client_key)
            if same is not None:
                _check_same(same, engine_name, checked, job_id)
                result, created = same, False
                return None
            known = self._fleet.jobs.get(chosen)
            if known is not None:
                check_action(chosen, JobAction.SUBMIT, known.state)
            now = self._clock.wall()
            number = known.request.number + 1 if known is not None else 1
            record = JobRecord(
                job_id=chosen,
                engine=engine_name,
                format=engine.format,
                spec=checked,
                desired=JobDesired.RUNNING,
                request=JobRequest(JobAction.SUBMIT, number, cause=cause),
                created_at=now,
                updated_at=now,
                client_key=client_key,
                state_at=now,
            )
            if known is not None:  # its transitions go on counting: each has a workflow of its own
                record = dataclasses.replace(
                    record,
                    state=known.state,
                    transition=known.transition,
                    taken=known.taken,
                    workloads=known.workloads,
                    version=known.version,
                )
            removed = self._surplus(keep=chosen)
            result, created = record, True
            origin = Origin(now, EventSource.API, cause)
            told = job_event(record, EventKind.JOB_SUBMITTED, f"engine {engine_name}", origin)
            dropped = [
                job_event(each, EventKind.JOB_REMOVED, f"more than {MAX_ENDED:,} jobs have ended", origin)
                for each in removed
            ]
            return Batch(
                jobs=(record,),
                removed_jobs={each.job_id: each.version for each in removed},
                events=(told, *dropped),
            )

        await self._ledger.change(decide)
        assert result is not None  # noqa: S101 decide has run at least once
        faults.reach("jobs.requested")
        return self._fleet.jobs.get(result.job_id, result), created

    async def request(self, job_id: str, request: JobRequest, *, spec: bytes | None = None) -> JobRecord:
        """Store what a person asks of a job. `spec`: of an upgrade."""
        if spec is not None and len(spec) > MAX_SPEC_BYTES:
            raise InvalidError([problem("spec", None, f"must have at most {MAX_SPEC_BYTES:,} bytes")])

        def decide() -> Batch | None:
            record = self._fleet.job(job_id)
            check_action(job_id, request.action, record.state)
            engine = self._engines.get(record.engine)
            numbered = dataclasses.replace(request, number=record.request.number + 1)
            checked = engine.validate(record.spec if spec is None else spec, job=job_of(record), request=numbered)
            desired = desired_after(request.action, record.desired, stop=request.stop)
            changes_nothing = checked == record.spec and desired is record.desired
            if changes_nothing and request.action in (JobAction.CANCEL, JobAction.RESCALE):
                return None
            now = self._clock.wall()
            stored = dataclasses.replace(record, spec=checked, desired=desired, request=numbered, updated_at=now)
            origin = Origin(now, EventSource.API, request.cause)
            event = job_event(stored, EventKind.JOB_REQUESTED, _words(numbered), origin)
            return Batch(jobs=(stored,), events=(event,))

        await self._ledger.change(decide)
        faults.reach("jobs.requested")
        return self._fleet.job(job_id)

    def _check_submit(self, job_id: str, spec: bytes, client_key: str) -> None:
        problems = []
        if job_id and (not is_identifier(job_id) or len(job_id) > MAX_JOB_ID):
            rule = IDENTIFIER_RULE if len(job_id) <= MAX_JOB_ID else f"must have at most {MAX_JOB_ID} characters"
            problems.append(problem("job_id", job_id, rule))
        if len(spec) > MAX_SPEC_BYTES:
            problems.append(problem("spec", None, f"must have at most {MAX_SPEC_BYTES:,} bytes"))
        if len(client_key) > MAX_KEY or not client_key.isprintable():
            problems.append(problem("client_key", client_key, f"must be at most {MAX_KEY} printable characters"))
        if problems:
            raise InvalidError(problems)
        if sum(each.state not in ENDED for each in self._fleet.jobs.values()) >= MAX_JOBS:
            raise ExhaustedError(f"there are {MAX_JOBS:,} jobs already", hint="cancel some of them first")

    def _with_key(self, client_key: str) -> JobRecord | None:
        if not client_key:
            return None
        return next((each for each in self._fleet.jobs.values() if each.client_key == client_key), None)

    def _surplus(self, *, keep: JobId) -> list[JobRecord]:
        ended = [
            each
            for each in self._fleet.jobs.values()
            if each.state in ENDED and each.desired is not JobDesired.RUNNING and each.job_id != keep
        ]
        ended.sort(key=lambda each: (each.updated_at, each.job_id))
        return ended[: max(0, len(ended) - MAX_ENDED)]


def _check_same(known: JobRecord, engine: str, spec: bytes, job_id: str) -> None:
    """The same key means the same submit."""
    first = known.request.action is JobAction.SUBMIT
    differs = known.engine != engine or (first and known.spec != spec) or (job_id and known.job_id != job_id)
    if differs:
        rule = f"was used for another submit, of job {known.job_id!r}; a new submit needs a new key"
        raise InvalidError([problem("client_key", known.client_key, rule)])


def _words(request: JobRequest) -> str:
    if request.action is JobAction.RESCALE:
        return f"rescale to {request.width}" + (f" of {request.operator}" if request.operator else "")
    if request.action is JobAction.SAVEPOINT and request.stop:
        return "stop with a savepoint"
    return request.action.value

"""Gathers what an engine decides from: the state of each workload of a job, and for how long it has been so.

Durations are counted by this leader on its monotonic clock, from when it first saw the state: a new leader counts anew.
Called by `shoal.control.jobs.loop` for every look at a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shoal.control.jobs.board import ReportBoard
from shoal.control.jobs.steps import owns
from shoal.control.state.fleet import Fleet
from shoal.control.state.lifecycle.phases import Waiting, phase_of
from shoal.core.clock import Clock
from shoal.core.ids import JobId, WorkloadId
from shoal.jobs.engine import Facts, WorkloadFacts
from shoal.model.jobs import JobRecord
from shoal.model.nodes import NodeState
from shoal.model.phases import WorkloadPhase
from shoal.model.workloads import Observation, RunStatus, WorkloadRecord

MAX_LINE = 200
"""How much of the last line that a workload printed is kept in the message of its job."""

_SILENT = frozenset({NodeState.SUSPECT, NodeState.NOT_READY})


@dataclass(frozen=True, slots=True)
class _Seen:
    """How a workload was seen, and since when it has been so."""

    generation: int
    ready: bool
    restarts: int
    since: float
    #: The count of restarts when its generation was first seen.
    base: int
    #: How its last run ended, if this generation had one that did; kept while the next run starts.
    ended: str = ""


class JobFacts:
    """The facts about each job, as they are now."""

    def __init__(self, fleet: Fleet, waiting: Callable[[], Waiting], board: ReportBoard, *, clock: Clock) -> None:
        self._fleet = fleet
        self._board = board
        self._waiting = waiting
        self._clock = clock
        self._seen: dict[JobId, dict[WorkloadId, _Seen]] = {}

    def of(self, job: JobRecord, more: Iterable[WorkloadId] = ()) -> Facts:
        """The facts about one job. `more`: workloads that are its own although its row does not say so yet."""
        waiting = self._waiting()
        before = self._seen.get(job.job_id, {})
        seen: dict[WorkloadId, _Seen] = {}
        found: dict[WorkloadId, WorkloadFacts] = {}
        for workload_id in dict.fromkeys((*job.workloads, *more)):
            record = self._fleet.workloads.get(workload_id)
            if record is None or not owns(job.job_id, record) or self._fleet.is_buried(record):
                continue
            observation = self._fleet.observations.get(workload_id)
            phase = phase_of(record, observation, self._fleet.owner_of(record), waiting)
            now = self._look(record, observation, phase, before.get(workload_id))
            seen[workload_id] = now
            found[workload_id] = self._facts(record, observation, phase, now)
        self._seen[job.job_id] = seen
        self._board.keep_only(job.job_id, found)
        return Facts(found, self._board.reports(job.job_id, found))

    def forget(self, job_id: JobId) -> None:
        """A job is gone."""
        self._seen.pop(job_id, None)
        self._board.keep_only(job_id, ())

    def _look(
        self, record: WorkloadRecord, observation: Observation | None, phase: WorkloadPhase, before: _Seen | None
    ) -> _Seen:
        ready = phase is WorkloadPhase.RUNNING
        restarts = observation.status.restarts if observation is not None else 0
        base = before.base if before is not None and before.generation == record.generation else restarts
        base = min(base, restarts)
        same = (
            before is not None
            and before.generation == record.generation
            and before.ready == ready
            and (before.restarts == restarts or not ready)
        )
        since = before.since if same and before is not None else self._clock.monotonic()
        is_own = observation is not None and observation.status.generation in (0, record.generation)
        ended = _how_it_ended(observation.status) if observation is not None and is_own else ""
        if not ended and before is not None and before.generation == record.generation:
            ended = before.ended
        return _Seen(record.generation, ready, restarts, since, base, ended)

    def _facts(
        self, record: WorkloadRecord, observation: Observation | None, phase: WorkloadPhase, seen: _Seen
    ) -> WorkloadFacts:
        lasted = self._clock.monotonic() - seen.since
        owner = self._fleet.owner_of(record)
        return WorkloadFacts(
            workload_id=record.workload_id,
            revision=record.revision_id,
            phase=phase,
            node_id=record.node_id,
            node_answers=owner is None or owner.state not in _SILENT,
            ready_for=lasted if seen.ready else None,
            unready_for=0.0 if seen.ready else lasted,
            restarts=seen.restarts - seen.base,
            message=(seen.ended if not seen.ready else "")
            or (observation.status.message if observation is not None else ""),
            generation=record.generation,
        )


def _how_it_ended(status: RunStatus) -> str:
    """How the last run of a workload ended, with the last line that it printed; empty while it runs."""
    ended = status.exit
    if ended is None or ended.unknown:
        return ""
    words = f"it was ended by signal {ended.signal}" if ended.signal else f"it ended with exit code {ended.code}"
    words += ", out of memory" if ended.out_of_memory else ""
    printed = status.last_output.strip().rpartition("\n")[2].strip()
    return f"{words}: {printed[:MAX_LINE]}" if printed else words

"""Holds the last report of each workload of a job, in memory. The next leader gets new reports from the workloads.

A report counts only from the current workload of the job: of the same revision, on the node that owns it. Reports are
in the form of the job's engine. Called by `shoal.control.jobs.service` for `Jobs.Report`; read
by `shoal.control.jobs.job_facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shoal.control.jobs.steps import owns
from shoal.control.state.fleet import Fleet
from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.core.ids import JobId, WorkloadId
from shoal.jobs.engine import WorkloadReport
from shoal.model.workloads import DesiredState, WorkloadRecord

MAX_REPORT = 64 * 1024
"""The largest report."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """The process that reports."""

    job_id: JobId
    workload_id: WorkloadId
    node_id: str
    revision_id: str


@dataclass(frozen=True, slots=True)
class _Said:
    speaker: Speaker
    content: bytes
    at: float


class ReportBoard:
    """The reports of every job."""

    def __init__(self, fleet: Fleet, *, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock
        self._said: dict[JobId, dict[WorkloadId, _Said]] = {}
        self._heard: list[Callable[[JobId], None]] = []

    def on_report(self, heard: Callable[[JobId], None]) -> None:
        """Call this with the job of each report that says something new."""
        self._heard.append(heard)

    def post(self, speaker: Speaker, content: bytes) -> None:
        """Keep what a workload says; nothing when it says nothing. Raises `PreconditionError` for a replaced one."""
        if len(content) > MAX_REPORT:
            raise InvalidError([problem("report", None, f"must have at most {MAX_REPORT:,} bytes")])
        self._fleet.job(speaker.job_id)
        record = self._fleet.workload(speaker.workload_id)
        if not owns(speaker.job_id, record):
            rule = f"must be a workload of job {speaker.job_id!r}"
            raise InvalidError([problem("workload_id", speaker.workload_id, rule)])
        if not _is_current(speaker, record):
            raise PreconditionError(
                f"workload {speaker.workload_id!r} was replaced: revision {record.revision_id} on node "
                f"{record.node_id or 'none'} is the newest one",
                workload_id=speaker.workload_id,
            )
        if not content:
            return
        before = self._said.setdefault(speaker.job_id, {}).get(speaker.workload_id)
        self._said[speaker.job_id][speaker.workload_id] = _Said(speaker, content, self._clock.monotonic())
        if before is None or before.content != content:
            for heard in self._heard:
                heard(speaker.job_id)

    def reports(self, job_id: JobId, workloads: Iterable[WorkloadId]) -> dict[WorkloadId, WorkloadReport]:
        """What these workloads of a job last said. Those that were replaced since are not heard."""
        said, now = self._said.get(job_id, {}), self._clock.monotonic()
        found = {}
        for workload_id in workloads:
            each, record = said.get(workload_id), self._fleet.workloads.get(workload_id)
            if each is not None and record is not None and _is_current(each.speaker, record):
                found[workload_id] = WorkloadReport(each.content, now - each.at)
        return found

    def keep_only(self, job_id: JobId, workloads: Iterable[WorkloadId]) -> None:
        """Forget what other workloads of a job said."""
        said = self._said.get(job_id)
        if said is not None:
            kept = {each: said[each] for each in workloads if each in said}
            if kept:
                self._said[job_id] = kept
            else:
                del self._said[job_id]


def _is_current(speaker: Speaker, record: WorkloadRecord) -> bool:
    return (
        record.desired is not DesiredState.DELETED
        and record.revision_id == speaker.revision_id
        and record.node_id == speaker.node_id
    )

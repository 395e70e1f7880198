"""How jobs look: rows of lists, facts, and plain values for JSON. Pure. Called by the commands of jobs and services."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shoal.cli import output
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column
from shoal.dataflow.fleet import progress as progresses
from shoal.dataflow.fleet.progress import COORDINATOR, workload_of
from shoal.dataflow.fleet.reports import decode_coordinator
from shoal.dataflow.fleet.spec import ENGINE
from shoal.model.jobs import JobAction, JobRequest, JobView

COLUMNS = (
    Column("JOB"),
    Column("STATE"),
    Column("ENGINE"),
    Column("WORKLOADS", right=True, rank=3),
    Column("AGE", right=True, rank=2),
    Column("MESSAGE", rank=1, least=24),
)


def row(job: JobView, now: datetime) -> list[str | Cell]:
    """A row of a table with `COLUMNS`."""
    return [
        job.job_id,
        output.state(job.state.value),
        job.engine,
        str(len(job.workloads)),
        output.ago(job.created_at, now) or "-",
        job.message,
    ]


def facts(job: JobView, now: datetime) -> list[tuple[str, str | Cell]]:
    """What is known about a job, whatever its engine."""
    return [
        ("job", job.job_id),
        ("state", output.state(job.state.value)),
        ("message", job.message),
        ("desired", job.desired.value),
        ("engine", job.engine),
        ("workloads", str(len(job.workloads))),
        ("last request", request_words(job.request)),
        ("asked by", job.request.cause),
        ("not begun", "the last request" if job.taken < job.request.number else ""),
        ("transitions", str(job.transition)),
        ("in this state", output.ago(job.state_at, now)),
        ("age", output.ago(job.created_at, now)),
    ]


def dataflow_facts(job: JobView, said: Mapping[str, bytes]) -> list[tuple[str, str | Cell]]:
    """What is known about a job of the engine `dataflow` only. `said`: what its workloads said."""
    if job.engine != ENGINE:
        return []
    told = said.get(workload_of(job.job_id, COORDINATOR))
    metrics = decode_coordinator(told).metrics if told is not None else ""
    return [("savepoint", progresses.decode(job.progress).savepoint), ("metrics", metrics)]


def request_words(request: JobRequest) -> str:
    """What a person asked for, in a few words."""
    if request.action is JobAction.RESCALE:
        return f"rescale to {request.width}" + (f" of {request.operator}" if request.operator else "")
    if request.action is JobAction.SAVEPOINT and request.stop:
        return "stop with a savepoint"
    return request.action.value


def plain(job: JobView, *, brief: bool = False) -> dict[str, Any]:
    """A job for JSON. Its spec and progress are shown as what they are, or in base64 when they are not JSON."""
    found: dict[str, Any] = output.to_plain(job)
    for name in ("spec", "progress"):
        if brief:
            del found[name]
        else:
            found[name] = _read(getattr(job, name))
    return found


def _read(data: bytes) -> Any:
    if not data:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return base64.b64encode(data).decode("ascii")

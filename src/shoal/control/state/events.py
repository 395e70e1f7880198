"""Makes the events of nodes, workloads and groups, each with the facts that identify its subject. Pure.

Called by everything that stores a change.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shoal.model.events import Event, EventKind, EventSource, SubjectKind
from shoal.model.jobs import JobRecord
from shoal.model.workloads import GroupRecord, WorkloadRecord


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an event comes from: when it happened, which part of the fleet caused it, and why."""

    at: datetime
    source: EventSource
    cause: str


def node_event(node_id: str, kind: EventKind, message: str, origin: Origin) -> Event:
    """An event about a node."""
    return Event(origin.at, SubjectKind.NODE, node_id, kind, message, origin.source, origin.cause)


def workload_event(record: WorkloadRecord, kind: EventKind, message: str, origin: Origin) -> Event:
    """An event about a workload."""
    facts = {"revision": record.revision_id, "generation": str(record.generation)}
    if record.node_id is not None:
        facts["node"] = record.node_id
    if record.group_id is not None:
        facts["group"] = record.group_id
    name, labels = record.workload_id, record.spec.labels
    return Event(origin.at, SubjectKind.WORKLOAD, name, kind, message, origin.source, origin.cause, facts, labels)


def group_event(record: GroupRecord, kind: EventKind, message: str, origin: Origin) -> Event:
    """An event about a group."""
    facts = {"generation": str(record.generation), "members": str(len(record.members))}
    name = record.group_id
    return Event(origin.at, SubjectKind.GROUP, name, kind, message, origin.source, origin.cause, facts)


def job_event(record: JobRecord, kind: EventKind, message: str, origin: Origin) -> Event:
    """An event about a job."""
    facts = {"engine": record.engine, "state": record.state.value, "transition": str(record.transition)}
    return Event(origin.at, SubjectKind.JOB, record.job_id, kind, message, origin.source, origin.cause, facts)

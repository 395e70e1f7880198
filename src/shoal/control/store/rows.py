"""Converts records to rows and back: which field is a column, which is in the document, what a batch writes where.

A field that queries or compare-and-set need has a column; the rest is one document (`codec.py`). No field is stored
twice, except the state in `observations` and the subject of an event, which only serve to find rows. Pure: no
connection comes here. Called by `shoal.control.store.sql` and `shoal.control.store.database`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from shoal.control.store import coordination
from shoal.control.store.base import Batch
from shoal.control.store.codec import FORMAT, DocumentCodec
from shoal.core.errors import InternalError
from shoal.core.ids import GroupId, JobId, NodeId, WorkloadId
from shoal.model.events import RENAMED, Event
from shoal.model.jobs import JobRecord, job_state
from shoal.model.nodes import NodeRecord, NodeState
from shoal.model.trust import JoinToken, Revocation, SecretRecord
from shoal.model.workloads import DesiredState, GroupRecord, Observation, WorkloadRecord, WorkloadSpec

T = TypeVar("T")

SpecDecoder = Callable[[bytes], WorkloadSpec]
"""Reads the exact bytes of an accepted spec. The store keeps the bytes alone; the control plane knows their form."""

Row = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_NODE = DocumentCodec(NodeRecord, columns=("state", "last_heartbeat", "version"))
_WORKLOAD = DocumentCodec(
    WorkloadRecord,
    columns=("workload_id", "spec", "spec_bytes", "desired", "generation", "node_id", "group_id", "version"),
)
_GROUP = DocumentCodec(GroupRecord, columns=("group_id", "desired", "generation", "version"))
_TOKEN = DocumentCodec(JoinToken, columns=("token_id", "version"))
_SECRET = DocumentCodec(SecretRecord, columns=("name", "sealed", "version"))
_REVOCATION = DocumentCodec(Revocation, columns=("node_id", "version"))
_JOB = DocumentCodec(JobRecord, columns=("job_id", "engine", "state", "spec", "progress", "version"))
_OBSERVATION = DocumentCodec(Observation, columns=("node_id",))
_EVENT = DocumentCodec(Event, columns=("cursor",))


@dataclass(slots=True)
class Changes:
    """What one or several batches do, as rows by the name of the step in `sql.Statements.steps`."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    #: Everything that is touched, as (table, id): batches without a common one may be applied in one go.
    keys: set[tuple[str, str]] = field(default_factory=set)
    events: tuple[Event, ...] = ()
    event_rows: tuple[Row, ...] = ()

    def add(self, step: str, row: Row) -> None:
        """Note one row for a step."""
        rows = self.rows.get(step)
        if rows is None:
            self.rows[step] = [row]
        else:
            rows.append(row)


def merge(several: Iterable[Changes]) -> dict[str, list[Row]]:
    """The rows of several batches by step, in the order of the batches."""
    rows: dict[str, list[Row]] = {}
    for changes in several:
        for step, more in changes.rows.items():
            mine = rows.get(step)
            if mine is None:
                rows[step] = list(more)
            else:
                mine.extend(more)
    return rows


def prepare(batch: Batch) -> Changes:
    """The rows of a batch."""
    changes = Changes()
    _prepare_records(changes, batch)
    _prepare_removals(changes, batch)
    for workload_id in (*batch.removed_workloads, *batch.forgotten_observations):
        changes.keys.add(("workloads", workload_id))
        changes.add("observations.forget", {"key": workload_id})
    for observation in batch.observations:
        changes.keys.add(("workloads", observation.status.workload_id))
        changes.add("observations.put", _observation_row(observation))
    for node_id, moment in batch.heartbeats.items():
        changes.keys.add(("nodes", node_id))
        changes.add("nodes.heartbeat", {"key": node_id, "last_beat": moment * 1000})
    if batch.coordination is not None:
        changes.keys.add(("coordination", "order"))
        for step, row in coordination.rows_of(batch.coordination):
            changes.add(step, row)
    if batch.generation_floor:
        changes.add("meta.floor", {"floor": batch.generation_floor})
    if batch.events:
        changes.events = batch.events
        changes.event_rows = tuple(map(_event_row, batch.events))
    return changes


def _prepare_records(changes: Changes, batch: Batch) -> None:
    for node in batch.nodes:
        _put(changes, "nodes", node.spec.node_id, node.version, _node_row(node))
    for workload in batch.workloads:
        _put(changes, "workloads", workload.workload_id, workload.version, _workload_row(workload))
    for group in batch.groups:
        _put(changes, "groups", group.group_id, group.version, _group_row(group))
    for token in batch.tokens:
        _put(changes, "join_tokens", token.token_id, token.version, {"document": _TOKEN.encode(token)})
    for secret in batch.secrets:
        row = {"document": _SECRET.encode(secret), "sealed": secret.sealed}
        _put(changes, "secrets", secret.name, secret.version, row)
    for revocation in batch.revocations:
        row = {"document": _REVOCATION.encode(revocation)}
        _put(changes, "revocations", revocation.node_id, revocation.version, row)
    for job in batch.jobs:
        _put(changes, "jobs", job.job_id, job.version, _job_row(job))


def _prepare_removals(changes: Changes, batch: Batch) -> None:
    tables: tuple[tuple[str, Mapping[Any, int]], ...] = (
        ("nodes", batch.removed_nodes),
        ("workloads", batch.removed_workloads),
        ("groups", batch.removed_groups),
        ("join_tokens", batch.removed_tokens),
        ("secrets", batch.removed_secrets),
        ("revocations", batch.removed_revocations),
        ("jobs", batch.removed_jobs),
    )
    for table, removed in tables:
        for key, expected in removed.items():
            changes.keys.add((table, key))
            changes.add(f"{table}.remove", {"key": key, "expected": expected})


def _put(changes: Changes, table: str, key: str, version: int, row: Row) -> None:
    changes.keys.add((table, key))
    row["version"] = version + 1
    row["format"] = FORMAT
    if version:
        row["key"], row["expected"] = key, version
        changes.add(f"{table}.update", row)
    else:
        row["id"] = key
        changes.add(f"{table}.insert", row)


def _node_row(record: NodeRecord) -> Row:
    return {
        "state": record.state.value,
        "last_beat": _microseconds(record.last_heartbeat),
        "document": _NODE.encode(record),
    }


def _workload_row(record: WorkloadRecord) -> Row:
    return {
        "generation": record.generation,
        "node_id": record.node_id,
        "group_id": record.group_id,
        "desired": record.desired.value,
        "spec": record.spec_bytes,
        "document": _WORKLOAD.encode(record),
    }


def _group_row(record: GroupRecord) -> Row:
    return {
        "generation": record.generation,
        "desired": record.desired.value,
        "document": _GROUP.encode(record),
    }


def _job_row(record: JobRecord) -> Row:
    return {
        "engine": record.engine,
        "state": record.state.value,
        "spec": record.spec,
        "progress": record.progress,
        "document": _JOB.encode(record),
    }


def _observation_row(observation: Observation) -> Row:
    return {
        "key": observation.status.workload_id,
        "new_node_id": observation.node_id,
        "new_state": observation.status.state.value,
        "new_format": FORMAT,
        "new_document": _OBSERVATION.encode(observation),
    }


def _event_row(event: Event) -> Row:
    return {
        "subject_kind": searchable(event.subject_kind),
        "subject_id": searchable(event.subject_id),
        "format": FORMAT,
        "document": _EVENT.encode(event),
    }


def searchable(text: str) -> str:
    """A text as a column can hold it: events may name what somebody tried to use as an id."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "?")


class Records:
    """What the rows of one reading were made into. A row that is the same in the next one is the same record."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[tuple[Any, ...], Any]] = {}
        self._read: dict[tuple[str, str], tuple[tuple[Any, ...], Any]] = {}

    def of(self, table: str, key: str, row: Any, make: Callable[[Any], T]) -> T:
        """The record of a row."""
        raw, found = tuple(row), self._known.get((table, key))
        record: T = found[1] if found is not None and found[0] == raw else make(row)
        self._read[table, key] = raw, record
        return record

    def end_reading(self, *, keep: bool) -> None:
        """Everything was read. What is gone is forgotten; without `keep` all of it."""
        self._known, self._read = self._read if keep else {}, {}


def node_from_row(row: Any) -> NodeRecord:
    """A stored node."""
    return _NODE.decode(
        row.document,
        written_as=row.format,
        state=NodeState(row.state),
        last_heartbeat=_EPOCH + timedelta(microseconds=row.last_beat),
        version=row.version,
    )


def workload_from_row(row: Any, decode_spec: SpecDecoder) -> WorkloadRecord:
    """A stored workload, its spec rebuilt from the exact bytes."""
    spec_bytes = bytes(row.spec)
    return _WORKLOAD.decode(
        row.document,
        written_as=row.format,
        workload_id=WorkloadId(row.id),
        spec=decode_spec(spec_bytes),
        spec_bytes=spec_bytes,
        desired=DesiredState(row.desired),
        generation=row.generation,
        node_id=None if row.node_id is None else NodeId(row.node_id),
        group_id=None if row.group_id is None else GroupId(row.group_id),
        version=row.version,
    )


def group_from_row(row: Any) -> GroupRecord:
    """A stored group."""
    return _GROUP.decode(
        row.document,
        written_as=row.format,
        group_id=GroupId(row.id),
        desired=DesiredState(row.desired),
        generation=row.generation,
        version=row.version,
    )


def token_from_row(row: Any) -> JoinToken:
    """A stored join token."""
    return _TOKEN.decode(row.document, written_as=row.format, token_id=row.id, version=row.version)


def secret_from_row(row: Any) -> SecretRecord:
    """A stored secret."""
    return _SECRET.decode(
        row.document, written_as=row.format, name=row.id, sealed=bytes(row.sealed), version=row.version
    )


def revocation_from_row(row: Any) -> Revocation:
    """A stored revocation."""
    return _REVOCATION.decode(row.document, written_as=row.format, node_id=NodeId(row.id), version=row.version)


def job_from_row(row: Any) -> JobRecord:
    """A stored job."""
    return _JOB.decode(
        row.document,
        written_as=row.format,
        job_id=JobId(row.id),
        engine=row.engine,
        state=job_state(row.state),
        spec=bytes(row.spec),
        progress=bytes(row.progress),
        version=row.version,
    )


def observation_from_row(row: Any) -> Observation:
    """A stored observation."""
    return _OBSERVATION.decode(row.document, written_as=row.format, node_id=NodeId(row.node_id))


def event_from_row(row: Any) -> Event:
    """A stored event, under the present name of its kind."""
    event = _EVENT.decode(row.document, written_as=row.format, cursor=row.cursor)
    return dataclasses.replace(event, kind=RENAMED[event.kind]) if event.kind in RENAMED else event


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InternalError("a moment without a time zone cannot be stored", moment=moment)
    return (moment - _EPOCH) // _MICROSECOND

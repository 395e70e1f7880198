"""Topics: ordered, partitioned, replayable logs of records. The one protocol that every backend speaks.

A `Topics` is a connection to a backend: the local log (`shoal.topics.local`, a directory of one host) or Kafka
(`shoal.topics.kafka`). From it come writers, readers and members of consumer groups:

    topics.create("clicks", partitions=4)
    with topics.writer() as writer:
        writer.append("clicks", records([b"…", b"…"], keys=[b"u1", b"u2"]))
        writer.flush()
    with topics.reader() as reader:
        reader.assign({TopicPartition("clicks", 0): 0})
        for fetched in reader.read(timeout=1.0):
            fetched.batch["value"], fetched.batch["offset"]

Everything is synchronous and comes in batches: one Arrow RecordBatch holds many records. Writers, readers and members
belong to one thread each; a `Topics` may be shared between threads.

What every backend promises (`shoal.testing.suites.topics.TopicsSuite` checks it):

- Order: a partition is one order, the same for all readers, and offsets in it only grow. They may have holes, so a
  fetched batch says the offset of each record.
- Visibility: readers see committed records only. A transaction becomes visible as a whole or never. What a writer has
  flushed survives the death of any process.
- Partitioning: a key goes to `murmur2(key) % partitions` in every backend (`shoal.topics.partitioning`). Records
  without a key go, append by append, to one partition after another.
- Fencing: of the writers with one transactional id only the newest may write. A group's offsets are committed under its
  current generation only.

Called by the engines and by `shoal.cli`; the backends import only `shoal.core`.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, problem

HEADERS = pa.map_(pa.utf8(), pa.binary())

RECORDS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("headers", HEADERS),
    ]
)
"""What is appended. `key` may be null. A null `value` is a tombstone. `timestamp` is microseconds since 1970; where it
is null the backend writes the time of the append. `headers` may be null; names may repeat."""

FETCHED = pa.schema([pa.field("offset", pa.int64(), nullable=False), *RECORDS])
"""What is read: the records with their offsets. No timestamp is null; Kafka keeps milliseconds of it."""

TRACE_HEADER = "x-shoal-trace-id"
"""The trace that a record belongs to, as text; carried through operators and sinks."""

EVENT_TIME_HEADER = "x-shoal-event-time"
"""When the event happened, in microseconds since 1970, as decimal digits; freshness is counted from it."""

DEFAULT_MAX_RECORDS = 65_536
DEFAULT_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long records are kept. Both bounds are about whole segments: records go somewhat later than a bound says."""

    age: timedelta | None = None
    """Records that were appended longer ago are removed. None: never for their age."""

    size: int | None = None
    """The oldest records of a partition are removed while it has more bytes than this. None: never for their size."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """What a topic is."""

    name: str
    partitions: int
    retention: Retention

    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """All of its partitions, in order."""
        return tuple(TopicPartition(self.name, number) for number in range(self.partitions))


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of one partition, in the order of their offsets. Never empty."""

    topic: str
    partition: int
    batch: Any
    """A RecordBatch of schema `FETCHED`. It stays readable after the reader is closed and the records are removed."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Where they come from."""
        return TopicPartition(self.topic, self.partition)

    @property
    def next_offset(self) -> int:
        """What to commit once all of these are done: the offset to read next."""
        return int(self.batch.column(0)[-1].as_py()) + 1


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member of a group has to read."""

    generation: int
    """Grows with every change in the group; a commit carries it."""

    partitions: frozenset[TopicPartition]


class Reset(enum.Enum):
    """What a reader does whose offset is gone."""

    FAIL = "fail"
    """Raise `OffsetOutOfRangeError`."""

    EARLIEST = "earliest"
    """Go on with the first record that is left."""

    LATEST = "latest"
    """Go on with the records to come."""


class Writer(Protocol):
    """Appends records.

    Without a transactional id every append stands for itself, is visible at `flush` at the latest, and survives the
    death of the process once `flush` returned. With one, appends belong to the transaction between `begin` and
    `commit`; a writer that is opened with the same id fences the older and aborts what it left open.
    """

    def append(self, topic: str, batch: Any, *, partition: int | Any | None = None) -> None:
        """Append records: a RecordBatch of schema `RECORDS`.

        `partition` is one number for all, or an integer Array with one for each record; else the keys decide. Records
        that one writer appends to one partition keep their order. May return before they are written: `flush` or
        `commit` waits. Raises `FencedError`, `LogFullError`, `NotFoundError`; nothing of this append becomes visible
        then, except where a backend had accepted some of it before it noticed (Kafka, without a transaction).
        """
        ...

    def flush(self) -> None:
        """Wait until everything that was appended is written, as durably as the backend is set to."""
        ...

    def begin(self) -> None:
        """Open a transaction. Raises `PreconditionError` without a transactional id, or when one is open."""
        ...

    def commit(
        self,
        *,
        offsets: Mapping[str, Mapping[TopicPartition, int]] | None = None,
        member: Member | None = None,
    ) -> None:
        """Make the transaction visible, and with it store the offsets of groups; all of it or nothing.

        Offsets of the group that `member` belongs to are stored only if its generation is still current, else
        `RebalancedError` is raised and the transaction is aborted. Other groups are not checked, so a name that nobody
        joins can hold a marker. After `FencedError` nothing is visible. After another error whether it was committed
        is not known; open a new writer with the same id and look at the offsets.
        """
        ...

    def abort(self) -> None:
        """Throw the open transaction away. Does nothing when none is open."""
        ...

    def close(self) -> None:
        """Flush, abort an open transaction, and let go. Safe to call twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Reader(Protocol):
    """Reads partitions from explicit offsets; knows of no group."""

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, each from its offset. What was assigned and paused before is forgotten."""
        ...

    def read(
        self,
        *,
        max_records: int = DEFAULT_MAX_RECORDS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        timeout: float = 0.0,
    ) -> Sequence[Fetched]:
        """What there is, without waiting for more; if there is nothing, wait up to `timeout` seconds for something.

        No partition starves another. Both bounds are kept, except that one record larger than `max_bytes` comes
        alone. Raises `OffsetOutOfRangeError` as `reset` says, `NotFoundError` for a topic that is gone; then no
        position has moved.
        """
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Give nothing of these until they are resumed. Their positions stay."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Give what these have, again."""
        ...

    def positions(self) -> dict[TopicPartition, int]:
        """The offset that each assigned partition goes on with.

        When a position has reached what `next_offsets` returned, everything that was visible then has been read.
        """
        ...

    def at_end(self) -> set[TopicPartition]:
        """The assigned partitions that are read to the end the reader knows of. Makes no request."""
        ...

    def confirm_end(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of these that are read to their end now, as their leader says.

        A partition without a leader, or whose leader does not answer in about half a second, is not among them. Raises
        nothing for that: who asks wants to know, not to read.
        """
        ...

    def wake(self) -> None:
        """End a `read` that waits, or the next one that would. The only method that another thread may call."""
        ...

    def close(self) -> None:
        """Let go. Safe to call twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Member(Protocol):
    """One member of a consumer group: says which partitions are its own, and commits their offsets.

    It does not read: give the partitions to a `Reader`, from `start_offsets` on, whenever the assignment changed. The
    process keeps the membership alive in the background; a process that dies or is stopped loses it within 5 seconds.
    """

    @property
    def group(self) -> str:
        """The group's name."""
        ...

    @property
    def member_id(self) -> str:
        """Its own name, unlike any other."""
        ...

    def poll(self, timeout: float = 0.0) -> Assignment:
        """The assignment as it is now.

        Waits up to `timeout` seconds while it is the one that the last call returned. To be called all the time, at
        least every 5 minutes: who does not is taken for hung and loses its partitions. A member that was given up as
        dead joins again here.
        """
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store the group's offsets: the next to read, each for a partition of this member.

        Commits under the generation of the last `poll`. Raises `RebalancedError` when the group has moved on.
        """
        ...

    def close(self) -> None:
        """Leave: the others take over at once. Safe to call twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Topics(Protocol):
    """A connection to a backend."""

    @property
    def spans_hosts(self) -> bool:
        """Whether processes on other machines reach the same topics. A job on many hosts is refused where not."""
        ...

    def create(self, topic: str, *, partitions: int = 1, retention: Retention | None = None) -> TopicDescription:
        """Make a topic. Raises `PreconditionError` when it exists, `InvalidError` for a name that may not be one."""
        ...

    def names(self) -> tuple[str, ...]:
        """The topics, sorted."""
        ...

    def describe(self, topic: str) -> TopicDescription:
        """What a topic is. Raises `NotFoundError`."""
        ...

    def delete(self, topic: str) -> None:
        """Remove a topic, its records and every group's offsets of it. Raises `NotFoundError`."""
        ...

    def first_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each that can still be read; where nothing is, the next one."""
        ...

    def next_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last visible record of each."""
        ...

    def writer(self, *, transactional_id: str | None = None) -> Writer:
        """A writer. One with a transactional id fences and aborts what older ones with that id have left open."""
        ...

    def reader(self, *, reset: Reset = Reset.FAIL, columns: Collection[str] = FETCHED.names) -> Reader:
        """A reader, with nothing assigned.

        `columns` says which of `FETCHED` are looked at. Of the others `timestamp` and `headers` may be null: some
        backends are quicker without them.
        """
        ...

    def member(self, group: str, topics: Sequence[str]) -> Member:
        """Join a group. Its members share the partitions of the topics that each names."""
        ...

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that are stored for a group; empty for an unknown group."""
        ...

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets of a group that has no members: the next to read of each partition.

        For callers that keep their places themselves and let others see them. Raises `InvalidError`, `NotFoundError`
        for a topic that is not there, and `PreconditionError` when the group has members.
        """
        ...

    def close(self) -> None:
        """Close everything that came from it, and let go. Safe to call twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


# ---------------------------------------------------------------------------------------------------------
# What the callers of every backend need


def records(
    values: Any,
    *,
    keys: Any = None,
    timestamps: Any = None,
    headers: Any = None,
) -> Any:
    """A batch of schema `RECORDS` from columns: Arrow arrays, or lists of Python values; what is not given is null."""
    value = _column(values, pa.binary())
    count = len(value)
    columns = [
        _nulls(count, pa.binary()) if keys is None else _column(keys, pa.binary()),
        value,
        _nulls(count, pa.int64()) if timestamps is None else _column(timestamps, pa.int64()),
        _nulls(count, HEADERS) if headers is None else _column(headers, HEADERS),
    ]
    problems = [
        problem(field.name, len(column), f"must have {count} entries, as many as there are values")
        for field, column in zip(RECORDS, columns, strict=True)
        if len(column) != count
    ]
    if problems:
        raise InvalidError(problems, what="records")
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def check_records(batch: Any) -> Any:
    """The batch if it has the schema `RECORDS`, else `InvalidError`. Field metadata does not matter."""
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidError([problem("batch", type(batch).__name__, "must be a pyarrow RecordBatch")], what="append")
    if batch.schema.equals(RECORDS):
        return batch
    if batch.schema.names == RECORDS.names and batch.schema.types == RECORDS.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=RECORDS)
    rule = f"must have the columns {', '.join(f'{field.name} {field.type}' for field in RECORDS)}"
    raise InvalidError([problem("batch", ", ".join(batch.schema.names), rule)], what="append")


def ensure_topic(
    topics: Topics, name: str, *, partitions: int = 1, retention: Retention | None = None
) -> TopicDescription:
    """The topic; made if it is not there yet. One that is there is left as it is, whatever its settings are."""
    try:
        return topics.describe(name)
    except NotFoundError:
        pass
    try:
        return topics.create(name, partitions=partitions, retention=retention)
    except PreconditionError:  # another process was faster
        return topics.describe(name)


def start_offsets(
    topics: Topics, group: str, partitions: Iterable[TopicPartition], *, otherwise: Reset = Reset.EARLIEST
) -> dict[TopicPartition, int]:
    """Where a group goes on: its committed offsets, and for the rest the first or the next one, as `otherwise` says."""
    wanted = set(partitions)
    stored = topics.committed(group)
    missing = wanted - stored.keys()
    if missing and otherwise is Reset.FAIL:
        rules = [problem("offset", str(each), f"group {group!r} has none") for each in sorted(missing)]
        raise InvalidError(rules, what="start", hint="say where to begin: Reset.EARLIEST or Reset.LATEST")
    ends = topics.first_offsets(missing) if otherwise is Reset.EARLIEST else topics.next_offsets(missing)
    return {each: stored[each] for each in wanted & stored.keys()} | ends


def _column(values: Any, kind: Any) -> Any:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    return pa.array(values, type=kind)


def _nulls(count: int, kind: Any) -> Any:
    return pa.nulls(count, kind)

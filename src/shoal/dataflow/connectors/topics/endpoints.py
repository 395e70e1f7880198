"""Topics as sources and sinks: Kafka, or the local log.

A source reads each partition as a split, from offsets that lie in the checkpoint. What a sink writes with is in
`shoal.dataflow.connectors.topics.writers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, problem
from shoal.dataflow.connectors.base import CommitContext, Fetched, SinkContext, SinkMode, Split
from shoal.dataflow.connectors.topics.brokers import return_topics, take_topics, topics_of, transaction_timeout
from shoal.dataflow.connectors.topics.commits import Target, TopicCommitter
from shoal.dataflow.connectors.topics.metadata import Metadata, MetadataColumns, with_metadata
from shoal.dataflow.connectors.topics.offsets import GroupOffsets
from shoal.dataflow.connectors.topics.samples import columns_of_objects, columns_of_streams
from shoal.dataflow.connectors.topics.writers import ExactTopicWriter, Recording, TopicWriter
from shoal.dataflow.errors import refuse
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.functions import find_location
from shoal.dataflow.language.logical import OnError
from shoal.dataflow.settings import CheckpointSettings
from shoal.topics.base import (
    Reader,
    Reset,
    TopicPartition,
    start_offsets,
)
from shoal.topics.codecs import Codec, codec
from shoal.topics.headers import event_times, trace_ids

#: Records that are looked at for the columns of a topic that declares none.
_SAMPLE = 100
_SAMPLE_SECONDS = 1.0
_FETCH_BYTES = 8 * 1024 * 1024

_STARTS = ("earliest", "latest", "committed")

#: Codecs whose rows have one column.
_ONE_COLUMN = ("raw", "bytes", "string")

_NOTHING: frozenset[Split] = frozenset()


# ---------------------------------------------------------------------------------------------------------
# Source


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A topic to be read."""

    topic: str
    broker: str
    group: str = ""
    codec: str = "json"
    #: Where to begin without a checkpoint: earliest, latest, or committed (the group's offsets, else the earliest).
    start: str = "earliest"
    #: Options of the codec.
    options: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()
    schema: Schema | None = None
    on_error: OnError = OnError.FAIL
    #: Read up to what was there at the start, and end.
    bounded: bool = False
    columns: tuple[str, ...] | None = None
    #: Facts of records that become columns.
    metadata: Metadata = ()

    def __post_init__(self) -> None:
        if self.start not in _STARTS:
            hint = "earliest is all that is there, latest what comes from now on, committed where the group has stopped"
            raise refuse("start", self.start, f"must be one of {', '.join(_STARTS)}", at=find_location(), hint=hint)

    @property
    def is_bounded(self) -> bool:
        """Whether it ends."""
        return self.bounded

    @property
    def label(self) -> str:
        """What explain() calls it."""
        return f"topic {self.topic}"

    def with_columns(self, names: tuple[str, ...]) -> TopicSource:
        """The same with these columns only."""
        return replace(self, columns=names)

    def make_codec(self) -> Codec:
        """What decodes its records."""
        return codec(self.codec, **dict(self.options))

    def find_schema(self) -> Schema:
        """The declared columns, else those of a sample. An empty topic has none to show."""
        schema = with_metadata(self.schema if self.schema is not None else self._sample(), self.metadata)
        return schema if self.columns is None else pa.schema([schema.field(name) for name in self.columns])

    def find_splits(self) -> Sequence[Split]:
        """Its partitions."""
        with topics_of(self.broker) as topics:
            try:
                count = topics.describe(self.topic).partitions
            except NotFoundError as error:
                hint = f"write to it first, or name it in the program: app.topic({self.topic!r}, schema=…) makes it"
                raise NotFoundError("topic", self.topic, hint=hint) from error
        return tuple(Split(str(number)) for number in range(count))

    def open_reader(self, splits: Sequence[Split], schema: Schema, *, clock: Clock) -> TopicReader:
        """Begin to read."""
        return TopicReader(self, splits, schema)

    def _sample(self) -> Schema:
        with topics_of(self.broker) as topics:
            partitions = topics.describe(self.topic).topic_partitions()
            with topics.reader(reset=Reset.EARLIEST) as reader:
                reader.assign(topics.first_offsets(partitions))
                fetched = reader.read(max_records=_SAMPLE, timeout=_SAMPLE_SECONDS)
        if not fetched:
            raise InvalidError(
                [problem(f"topic {self.topic}", None, "is empty, so its columns are not known")],
                hint=f'say them: app.topic("{self.topic}", schema=pa.schema([("id", pa.int64()), …]))',
            )
        values = [value for value in fetched[0].batch.column("value").to_pylist() if value is not None]
        return _guess(self.codec, values, self.topic, self.on_error)


def _guess(name: str, values: list[bytes], topic: str, policy: OnError) -> Schema:
    """The columns that a sample of values has. Values that the policy lets pass do not count: they are met again."""
    try:
        if name == "json":
            return columns_of_objects(values, leaves_out=policy is not OnError.FAIL)
        if name == "arrow":
            return columns_of_streams(values, leaves_out=policy is not OnError.FAIL)
        if name in {"raw", "bytes"}:
            return pa.schema([pa.field("value", pa.binary())])
        if name == "string":
            return pa.schema([pa.field("value", pa.utf8())])
    except (pa.ArrowException, ValueError) as error:
        rule = f"has records that are no {name}: {error}"
        raise InvalidError([problem(f"topic {topic}", None, rule)], hint="say its codec and its columns") from error
    hint = f'say them: app.topic("{topic}", schema=pa.schema([("id", pa.int64()), …]))'
    raise InvalidError([problem(f"topic {topic}", name, "the columns of this codec must be declared")], hint=hint)


class TopicReader:
    """Reads partitions. The position of one is its next offset."""

    def __init__(self, source: TopicSource, splits: Sequence[Split], schema: Schema) -> None:
        self._source = source
        self._codec = source.make_codec()
        self._metadata = MetadataColumns(schema, source.metadata)
        self._payload = self._metadata.payload
        if not self._payload.names and source.codec in _ONE_COLUMN:
            self._payload = pa.schema([pa.field("value", pa.binary())])
        self._splits = {self._partition(split): split for split in splits}
        self._sought: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._waiting: deque[Any] = deque()
        self._needs_times = self._needs_traces = True
        self._has_headers = False
        self._reader: Reader | None = None
        self._topics = take_topics(source.broker)
        self._offsets = GroupOffsets(self._topics, source.group)

    def need(self, *, times: bool, traces: bool) -> None:
        """What of a record is read beside its value."""
        self._needs_times, self._needs_traces = times, traces

    def seek(self, split: Split, position: Any) -> None:
        """Go on with an offset."""
        self._sought[self._partition(split)] = int(position)

    def places(self) -> Mapping[str, Any]:
        """Where it begins: without it a topic that is read from its end would lose what came before a restart."""
        return {str(each.partition): offset for each, offset in self._begin().positions().items()}

    def add(self, splits: Sequence[Split]) -> None:
        """Read new partitions too."""
        self._splits |= {self._partition(split): split for split in splits}
        first = self._topics.first_offsets([self._partition(split) for split in splits])
        if self._reader is None:
            self._sought |= first
        else:
            self._reader.assign(dict(self._reader.positions()) | first)

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """The records of one partition."""
        if not self._splits:
            return None
        reader = self._begin()
        if not self._waiting:
            if self._source.bounded:
                timeout = min(timeout, 0.2)
            self._waiting.extend(reader.read(max_records=max_rows, max_bytes=_FETCH_BYTES, timeout=timeout))
        if not self._waiting:
            return None
        fetched = self._waiting.popleft()
        return self._decode(fetched.topic_partition, self._before_end(fetched), fetched.next_offset)

    def ended(self) -> frozenset[Split]:
        """Of a bounded source: the partitions that were read up to where they ended at the start."""
        if not self._source.bounded or self._reader is None or self._waiting:
            return frozenset(self._splits.values()) if self._source.bounded and not self._splits else _NOTHING
        here = self._reader.positions()
        return frozenset(self._splits[each] for each, end in self._ends.items() if here.get(each, 0) >= end)

    def at_end(self) -> frozenset[str]:
        """The partitions that are read to the end that is known, with nothing left in the buffer."""
        if self._reader is None:
            return frozenset()
        waiting = {each.topic_partition for each in self._waiting}
        return frozenset(self._splits[each].name for each in self._reader.at_end() - waiting)

    def confirm_end(self, splits: Collection[str]) -> frozenset[str]:
        """Those of these whose leader says that nothing follows."""
        if self._reader is None:
            return frozenset()
        asked = [each for each, split in self._splits.items() if split.name in splits]
        return frozenset(self._splits[each].name for each in self._reader.confirm_end(asked)) & self.at_end()

    def hold(self, splits: Collection[str]) -> None:
        """Pause these partitions, and resume the others."""
        reader = self._begin()
        named = {each for each, split in self._splits.items() if split.name in splits}
        reader.pause(named)
        reader.resume(self._splits.keys() - named)

    def commit_offsets(self, positions: Mapping[str, Any]) -> None:
        """Let the consumer group of the source show how far it was read."""
        offsets = {self._partition(Split(name)): int(at) for name, at in positions.items() if at is not None}
        if self._source.group and offsets:
            self._offsets.commit(offsets)

    def wake(self) -> None:
        """End a read that waits."""
        if self._reader is not None:
            self._reader.wake()

    def close(self) -> None:
        """Let go of the partitions."""
        try:
            self._offsets.close()
            if self._reader is not None:
                self._reader.close()
        finally:
            return_topics(self._source.broker)

    def _partition(self, split: Split) -> TopicPartition:
        return TopicPartition(self._source.topic, int(split.name))

    def _begin(self) -> Reader:
        if self._reader is None:
            rest = self._splits.keys() - self._sought.keys()
            self._reader = self._topics.reader(columns=self._columns())
            self._reader.assign(self._sought | self._start(rest))
            if self._source.bounded:
                self._ends = self._topics.next_offsets(self._splits)
        return self._reader

    def _columns(self) -> list[str]:
        """Those of a record that are looked at. What cannot be read is shown with its key."""
        columns = ["offset", "key", "value"]
        if self._needs_times or "timestamp" in self._metadata.wanted:
            columns.append("timestamp")
        if self._needs_times or self._needs_traces or "headers" in self._metadata.wanted:  # event times are there, too
            columns.append("headers")
        return columns

    def _start(self, partitions: Any) -> dict[TopicPartition, int]:
        if self._source.start == "committed" and self._source.group:
            return start_offsets(self._topics, self._source.group, partitions)
        if self._source.start == "latest":
            return self._topics.next_offsets(partitions)
        return self._topics.first_offsets(partitions)

    def _before_end(self, fetched: Any) -> Batch:
        """Of a bounded source what was there at the start; what came since is left out."""
        end = self._ends.get(fetched.topic_partition)
        batch = fetched.batch
        if end is None or fetched.next_offset <= end:
            return batch
        offsets = batch.column(0).to_numpy()
        return batch.slice(0, int(offsets.searchsorted(end)))

    def _decode(self, partition: TopicPartition, batch: Batch, position: int) -> Fetched:
        decoded = self._codec.decode(batch, self._payload)
        traces = self._traces(batch)
        times = event_times(batch) if self._needs_times or traces is not None else None
        if len(decoded.records) != batch.num_rows or decoded.poison.num_rows:
            times = None if times is None else times.take(decoded.records)
            traces = None if traces is None else traces.take(decoded.records)
        poison = decoded.poison if decoded.poison.num_rows else None
        return Fetched(
            self._splits[partition],
            self._metadata.add(decoded.rows, partition.partition, batch, decoded.records),
            position,
            poison=poison,
            times=times,
            traces=traces,
            records=batch,
            record_of=decoded.records,
        )

    def _traces(self, batch: Batch) -> Any:
        """The traces, from the first batch on that has one: rows without headers carry no column for them."""
        headers = batch.column(batch.schema.get_field_index("headers"))
        if not self._needs_traces:
            return None
        if not self._has_headers and headers.null_count == len(headers):
            return None
        self._has_headers = True
        return trace_ids(batch)


# ---------------------------------------------------------------------------------------------------------
# Sink


@dataclass(frozen=True, slots=True)
class TopicSink:
    """A topic to be written. It is made when it is not there."""

    topic: str
    broker: str
    codec: str = "json"
    #: The column that decides the partition; empty for records without a key.
    key: str | None = None
    #: Options of the codec.
    options: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()
    partitions: int = 1
    #: The engine's own columns become headers and timestamps of the records.
    takes_hidden: bool = True

    @property
    def modes(self) -> frozenset[SinkMode]:
        """A log holds rows that stay, and changes too where a key says whose they are."""
        return frozenset({SinkMode.APPEND, SinkMode.UPSERT} if self.key else {SinkMode.APPEND})

    @property
    def label(self) -> str:
        """What explain() calls it."""
        return f"topic {self.topic}"

    def open_writer(self, schema: Schema | None, context: SinkContext) -> TopicWriter | ExactTopicWriter:
        """Begin to write."""
        recording = Recording(codec(self.codec, **dict(self.options)), self.key)
        target = Target(self.topic, self.broker, self.partitions)
        return ExactTopicWriter(target, recording, context) if context.exactly_once else TopicWriter(target, recording)

    def check_checkpoints(self, settings: CheckpointSettings) -> None:
        """Refuse checkpoints that come so seldom that brokers would abort the transactions that wait for them."""
        timeout = transaction_timeout(self.broker) if settings.exactly_once else None
        longest = max(settings.interval, settings.min_pause)
        if timeout is not None and 2 * longest > timeout:
            raise PreconditionError(
                f"{self.label} {longest:g} s from one checkpoint to the next is too long: its transactions stay open "
                f"for as long, and brokers abort them after {timeout:g} s",
                hint=f"an interval of at most {timeout / 2:g} s, or KafkaSettings(transaction_timeout=…) of at "
                f"least {2 * longest:g}",
                interval=settings.interval,
                transaction_timeout=timeout,
            )

    def open_committer(self, context: CommitContext) -> TopicCommitter | None:
        """The coordinator's end, for exactly once."""
        target = Target(self.topic, self.broker, self.partitions)
        return TopicCommitter(target, context) if context.exactly_once else None

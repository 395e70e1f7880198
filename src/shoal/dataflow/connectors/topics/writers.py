"""What tasks write topics with: at once, or exactly once.

A writer that is exact writes into an open transaction and, the same rows, into the write-ahead of the checkpoint. When
that is complete the transaction is committed, and with it a marker (`shoal.dataflow.connectors.topics.commits`). A
start looks at the marker: if it is smaller than the checkpoint, the transaction was lost, and the coordinator sends its
rows again. Opened by `shoal.dataflow.connectors.topics.endpoints`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import pyarrow as pa

from shoal.core.errors import PreconditionError
from shoal.dataflow.connectors.base import SinkContext
from shoal.dataflow.connectors.markers import Marker
from shoal.dataflow.connectors.topics.brokers import return_topics, transaction_timeout
from shoal.dataflow.connectors.topics.commits import SinkNames, Target, taken
from shoal.dataflow.connectors.write_ahead import Segment, WriteAhead
from shoal.dataflow.language.elements import HIDDEN_PREFIX, TIME, TRACE, Batch
from shoal.topics.base import EVENT_TIME_HEADER, TRACE_HEADER, Writer, records
from shoal.topics.codecs import Codec
from shoal.topics.headers import make_headers


class Recording:
    """Rows to records: values by the codec, keys, times and headers by columns."""

    def __init__(self, values: Codec, key: str | None) -> None:
        self._codec = values
        self._key = key

    def records(self, batch: Batch) -> Batch:
        """The records of a batch."""
        names = batch.schema.names
        hidden = [name for name in names if name.startswith(HIDDEN_PREFIX)]
        encoded = self._codec.encode(batch.drop_columns(hidden) if hidden else batch)
        one_each = len(encoded.values) == batch.num_rows

        def of(name: str) -> Any:
            column = batch.column(name)
            return column if one_each else column.take(encoded.rows)

        return records(
            encoded.values,
            keys=None if not self._key else as_key(of(self._key)),
            timestamps=of(TIME) if TIME in names else None,
            headers=_headers(of(TRACE), of(TIME) if TIME in names else None) if TRACE in names else None,
        )


def _headers(traces: Any, times: Any) -> Any:
    columns = {TRACE_HEADER: traces}
    if times is not None:
        columns[EVENT_TIME_HEADER] = times
    return make_headers(columns, len(traces))


def as_key(column: Any) -> Any:
    """A column as the keys of records: bytes as they are, everything else as its text."""
    if pa.types.is_binary(column.type):
        return column
    return (column if pa.types.is_string(column.type) else column.cast(pa.utf8())).cast(pa.binary())


class TopicWriter:
    """Writes at once. After a crash what came after the last checkpoint is written again."""

    def __init__(self, target: Target, recording: Recording) -> None:
        self._target = target
        self._recording = recording
        with taken(target) as topics:
            self._writer = topics.writer()

    def write(self, batch: Batch) -> None:
        """Append."""
        self._writer.append(self._target.topic, self._recording.records(batch))

    def prepare(self, checkpoint: int) -> bytes:
        """Everything is in the topic before the checkpoint is complete."""
        self._writer.flush()
        return b""

    def commit(self, checkpoint: int) -> None:
        """Nothing waits for it."""

    def flush(self) -> None:
        """Everything is in the topic."""
        self._writer.flush()

    def close(self) -> None:
        """Let go of it."""
        try:
            self._writer.close()
        finally:
            return_topics(self._target.broker)


class ExactTopicWriter:
    """Writes into a transaction that is committed with the checkpoint.

    There are two writers, which take turns: while one's transaction waits for its checkpoint to become complete the
    other takes the rows that come. When both wait, because a checkpoint failed, rows are in the write-ahead only.
    """

    def __init__(self, target: Target, recording: Recording, context: SinkContext) -> None:
        self._target = target
        self._context = context
        self._recording = recording
        self._names = SinkNames(context.job, context.sink, target.topic)
        self._write_ahead = WriteAhead(context)
        self._free: deque[Writer] = deque()
        with taken(target) as topics:
            ids = (self._names.transactional_id(context.subtask, turn) for turn in (0, 1))
            self._free.extend(topics.writer(transactional_id=each) for each in ids)
        #: The writer that takes rows now, with its transaction open.
        self._current: Writer | None = None
        #: Writers whose transaction waits for a checkpoint, in order.
        self._pending: deque[tuple[int, Writer]] = deque()
        #: When each open transaction was begun, by its writer; and how old one may become. In microseconds.
        self._begun: dict[Writer, int] = {}
        timeout = transaction_timeout(target.broker)
        self._most_age = None if timeout is None else int(timeout * 1_000_000 / 2)
        #: The checkpoint whose output could not be committed, and why: what became of it only a restart finds out.
        self._failed: tuple[int, Exception] | None = None

    # -- rows -------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Append to the open transaction, and to the write-ahead."""
        made = self._recording.records(batch)
        self._write_ahead.add(made)
        writer = self._writer()
        if writer is not None:
            writer.append(self._target.topic, made)

    def _writer(self) -> Writer | None:
        """The writer whose turn it is; None while both wait for their checkpoints."""
        if self._current is None and self._free:
            self._current = self._free.popleft()
            self._begin(self._current)
            for batch in self._write_ahead.open_batches[:-1]:  # the last one is the caller's
                self._current.append(self._target.topic, batch)
        return self._current

    def prepare(self, checkpoint: int) -> bytes:
        """Seal what came since the last checkpoint. Its transaction stays open until the checkpoint is complete."""
        has_rows = bool(self._write_ahead.open_batches)
        if has_rows and self._current is not None:
            self._current.flush()
            self._pending.append((checkpoint, self._current))
            self._current = None
        return self._write_ahead.seal(checkpoint)

    def commit(self, checkpoint: int) -> None:
        """Commit the transactions up to this checkpoint, in order; rows that are in none are sent now.

        Once that has failed it is refused: what is sent again might come twice.
        """
        if self._failed is not None:
            number, error = self._failed
            raise PreconditionError(
                f"topic {self._target.topic!r}: the output of checkpoint {number} could not be committed: {error}",
                hint="let the job go on from its newest checkpoint: what is missing is written then",
                topic=self._target.topic,
                checkpoint=number,
            ) from error
        for segment in [each for each in self._write_ahead.sealed if each.checkpoint <= checkpoint]:
            try:
                self._commit(segment)
            except Exception as error:
                self._failed = segment.checkpoint, error
                raise
            self._write_ahead.forget(segment.checkpoint)

    def _commit(self, segment: Segment) -> None:
        if not self._pending or self._pending[0][0] != segment.checkpoint:
            self._send(segment)
        _checkpoint, writer = self._pending[0]
        marker = Marker(self._context.incarnation, segment.checkpoint)
        writer.commit(offsets=self._names.offsets(self._context.subtask, marker))
        self._free.append(self._pending.popleft()[1])

    def _send(self, segment: Segment) -> None:
        """Write rows that are in no transaction."""
        writer = self._take_back_one()
        self._pending.appendleft((segment.checkpoint, writer))
        self._begin(writer)
        for batch in segment.batches():
            writer.append(self._target.topic, batch)

    def _take_back_one(self) -> Writer:
        """A writer without a transaction. When both have one the later is aborted: its rows are in the write-ahead."""
        if self._free:
            return self._free.popleft()
        if self._current is not None:
            writer, self._current = self._current, None
        else:
            writer = self._pending.pop()[1]
        writer.abort()
        return writer

    # -- transactions that wait for long ----------------------------------------------------------------------

    def _begin(self, writer: Writer) -> None:
        writer.begin()
        self._begun[writer] = int(self._context.clock.wall().timestamp() * 1_000_000)

    def next_tick(self) -> int | None:
        """When the oldest open transaction is half as old as brokers let one become."""
        waiting = [writer for _checkpoint, writer in self._pending]
        if self._current is not None:
            waiting.append(self._current)
        if self._most_age is None or not waiting:
            return None
        return min(self._begun[writer] for writer in waiting) + self._most_age

    def on_tick(self, now: int) -> None:
        """Abort transactions that have waited so long, as while a disk is full: their rows are in the write-ahead."""
        oldest = now - (self._most_age or 0)
        for entry in [each for each in self._pending if self._begun[each[1]] <= oldest]:
            entry[1].abort()
            self._pending.remove(entry)
            self._free.append(entry[1])
        if self._current is not None and self._begun[self._current] <= oldest:
            writer, self._current = self._current, None
            writer.abort()
            self._free.append(writer)

    def flush(self) -> None:
        """Only with checkpoints is there anything exact."""

    def close(self) -> None:
        """Let go of the writers; transactions that are open are aborted."""
        writers = [*self._free, *(writer for _checkpoint, writer in self._pending)]
        if self._current is not None:
            writers.append(self._current)
        with contextlib.ExitStack() as each:  # all of them, although one fails
            each.callback(return_topics, self._target.broker)
            for writer in writers:
                each.callback(writer.close)

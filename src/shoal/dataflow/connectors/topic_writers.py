"""What tasks write topics with: at once, or exactly once.

A writer that is exact writes into an open transaction and, the same rows, ahead into the checkpoint. When that is
complete the transaction is committed, and with it the checkpoint's number as the offset of a group that nobody reads
with. A restart looks at that number: if it is smaller than the checkpoint's, the transaction was lost, and its rows are
sent again. Opened by `shoal.dataflow.connectors.topics`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.core.errors import PreconditionError
from shoal.dataflow.connectors.ahead import Ahead, Segment, decode_segments, from_stream
from shoal.dataflow.connectors.base import SinkContext
from shoal.dataflow.connectors.brokers import return_topics, take_topics
from shoal.dataflow.language.elements import HIDDEN_PREFIX, TIME, TRACE, Batch
from shoal.topics.base import (
    EVENT_TIME_HEADER,
    TRACE_HEADER,
    TopicPartition,
    Topics,
    Writer,
    ensure_topic,
    records,
)
from shoal.topics.codecs import Codec
from shoal.topics.headers import make_headers

#: A sink that has written so much ahead asks for a checkpoint before its time.
_ASK_AT = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """The topic that is written, and how many partitions it gets if it has to be made."""

    topic: str
    broker: str
    partitions: int


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


@contextlib.contextmanager
def _taken(target: Target) -> Iterator[Topics]:
    """The connection, with the topic made. It is given back if that fails, or what is opened with it."""
    topics = take_topics(target.broker)
    try:
        ensure_topic(topics, target.topic, partitions=target.partitions)
        yield topics
    except BaseException:
        return_topics(target.broker)
        raise


class TopicWriter:
    """Writes at once. After a crash what came after the last checkpoint is written again."""

    def __init__(self, target: Target, recording: Recording) -> None:
        self._target = target
        self._recording = recording
        with _taken(target) as topics:
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

    def restore(self, prepared: Sequence[tuple[int, int, bytes]]) -> None:
        """There is nothing to go on from."""

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
    other takes the rows that come. When both wait, because a checkpoint failed, rows are only written ahead.
    """

    def __init__(self, target: Target, recording: Recording, context: SinkContext) -> None:
        self._target = target
        self._context = context
        self._recording = recording
        self._ahead = Ahead()
        with _taken(target) as topics:
            self._topics = topics
        self._free: deque[Writer] = deque()
        #: The writer that takes rows now, with its transaction open.
        self._current: Writer | None = None
        #: Writers whose transaction waits for a checkpoint, in order.
        self._pending: deque[tuple[int, Writer]] = deque()
        #: The checkpoint whose output could not be committed, and why: what became of it only a restart finds out.
        self._failed: tuple[int, Exception] | None = None
        self._asked = False

    # -- names that never change ------------------------------------------------------------------------------

    def _id(self, subtask: int, turn: int) -> str:
        return f"{self._context.job}.{self._context.sink}.{subtask}.{turn}"

    def _group(self, subtask: int) -> str:
        return f"shoal.{self._context.job}.{self._context.sink}.{subtask}"

    def _marker(self, subtask: int, checkpoint: int) -> dict[str, dict[TopicPartition, int]]:
        return {self._group(subtask): {TopicPartition(self._target.topic, 0): checkpoint}}

    def _committed(self, subtask: int) -> int:
        """The last checkpoint whose output a task has committed; 0 for none."""
        return self._topics.committed(self._group(subtask)).get(TopicPartition(self._target.topic, 0), 0)

    # -- rows -------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Append to the open transaction, and ahead."""
        made = self._recording.records(batch)
        self._ahead.add(made)
        writer = self._writer()
        if writer is not None:
            writer.append(self._target.topic, made)
        if self._ahead.waiting_bytes > _ASK_AT and not self._asked:
            self._asked = True
            self._context.ask_checkpoint()

    def _writer(self) -> Writer | None:
        """The writer whose turn it is; None while both wait for their checkpoints."""
        if self._current is None and self._free:
            self._current = self._free.popleft()
            self._current.begin()
            for batch in self._ahead.open_batches[:-1]:  # the last one is the caller's
                self._current.append(self._target.topic, batch)
        return self._current

    def prepare(self, checkpoint: int) -> bytes:
        """Seal what came since the last checkpoint. Its transaction stays open until the checkpoint is complete."""
        self._asked = False
        has_rows = bool(self._ahead.open_batches)
        if has_rows and self._current is not None:
            self._current.flush()
            self._pending.append((checkpoint, self._current))
            self._current = None
        return self._ahead.seal(checkpoint)

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
        for segment in [each for each in self._ahead.sealed if each.checkpoint <= checkpoint]:
            try:
                self._commit(segment)
            except Exception as error:
                self._failed = segment.checkpoint, error
                raise
            self._ahead.forget(segment.checkpoint)

    def _commit(self, segment: Segment) -> None:
        if not self._pending or self._pending[0][0] != segment.checkpoint:
            self._send(segment)
        _checkpoint, writer = self._pending[0]
        writer.commit(offsets=self._marker(self._context.subtask, segment.checkpoint))
        self._free.append(self._pending.popleft()[1])

    def _send(self, segment: Segment) -> None:
        """Write rows that are in no transaction."""
        writer = self._give_up_one()
        self._pending.appendleft((segment.checkpoint, writer))
        writer.begin()
        for batch in segment.batches():
            writer.append(self._target.topic, batch)

    def _give_up_one(self) -> Writer:
        """A writer without a transaction. When both have one the later is aborted: its rows are written ahead, too."""
        if self._free:
            return self._free.popleft()
        if self._current is not None:
            writer, self._current = self._current, None
        elif self._pending:
            writer = self._pending.pop()[1]
        else:
            raise PreconditionError(
                f"topic {self._target.topic!r}: rows cannot be committed by a sink that was not restored",
                hint="call restore() first, also when there is no checkpoint",
                topic=self._target.topic,
            )
        writer.abort()
        return writer

    def flush(self) -> None:
        """Only with checkpoints is there anything exact."""

    # -- restarts ---------------------------------------------------------------------------------------------

    def restore(self, prepared: Sequence[tuple[int, int, bytes]]) -> None:
        """Fence and abort what earlier attempts left open, and send what they could not commit.

        Each task does so for the tasks of old that are its own by number, also those that there are no more: readers of
        committed records wait for every open transaction.
        """
        width = self._context.parallelism
        former = max([self._context.former_parallelism, width, *(subtask + 1 for _n, subtask, _b in prepared)])
        held = {subtask: (number, content) for number, subtask, content in prepared}
        for subtask in range(self._context.subtask, former, width):
            writers = [self._topics.writer(transactional_id=self._id(subtask, turn)) for turn in (0, 1)]
            self._settle(subtask, writers[0], *held.get(subtask, (0, b"")), is_restored=bool(prepared))
            if subtask == self._context.subtask:
                self._free.extend(writers)
            else:
                for writer in writers:
                    writer.close()

    def _settle(self, subtask: int, writer: Writer, number: int, content: bytes, *, is_restored: bool) -> None:
        marker = self._committed(subtask)
        if not is_restored:
            if marker:  # of an earlier life of the job under this name, whose checkpoints are not gone on from
                writer.begin()
                writer.commit(offsets=self._marker(subtask, 0))
            return
        if number and marker > number:
            raise PreconditionError(
                f"topic {self._target.topic!r} has the output of checkpoint {marker}, the job goes on from {number}",
                hint="the newest checkpoint was lost: its output would come twice. Restore it, or start the job anew",
            )
        missing = [(each, stream) for each, stream in decode_segments(content) if each > marker]
        if not missing:
            return
        writer.begin()
        for _checkpoint, stream in missing:
            for batch in from_stream(stream):
                writer.append(self._target.topic, batch)
        writer.commit(offsets=self._marker(subtask, missing[-1][0]))

    def close(self) -> None:
        """Let go of the writers; transactions that are open are aborted."""
        writers = [*self._free, *(writer for _checkpoint, writer in self._pending)]
        if self._current is not None:
            writers.append(self._current)
        with contextlib.ExitStack() as each:  # all of them, although one fails
            each.callback(return_topics, self._target.broker)
            for writer in writers:
                each.callback(writer.close)

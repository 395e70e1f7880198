"""Commits of topic sinks: names, markers, and the coordinator's end.

A writer's transaction commits, with the rows, a marker: the offset of partition 0 of the topic in a group that nobody
reads with. The offset is the job's incarnation and the checkpoint's number in one. Brokers may drop it: Kafka forgets
the offsets of a group without members after seven days. So a marker that is not there says nothing, and the job's own
record counts. Used by `shoal.dataflow.connectors.topics.writers`, opened by
`shoal.dataflow.connectors.topics.endpoints`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shoal.dataflow.connectors.base import CommitContext, Recovery
from shoal.dataflow.connectors.markers import Marker
from shoal.dataflow.connectors.topics.brokers import return_topics, take_topics
from shoal.dataflow.connectors.write_ahead import decode_segments, from_stream
from shoal.topics.base import TopicPartition, Topics, Writer, ensure_topic

#: The lower bits of a marker are the checkpoint, the upper ones the incarnation.
_CHECKPOINT_BITS = 40


@dataclass(frozen=True, slots=True)
class Target:
    """The topic that is written, and how many partitions it gets if it has to be made."""

    topic: str
    broker: str
    partitions: int


@dataclass(frozen=True, slots=True)
class SinkNames:
    """The names that a sink task has outside. They never change."""

    job: str
    sink: str
    topic: str

    def transactional_id(self, subtask: int, turn: int) -> str:
        """The id of one of the two writers of a task."""
        return f"{self.job}.{self.sink}.{subtask}.{turn}"

    def group(self, subtask: int) -> str:
        """The group whose offset is the marker of a task."""
        return f"shoal.{self.job}.{self.sink}.{subtask}"

    def offsets(self, subtask: int, marker: Marker) -> dict[str, dict[TopicPartition, int]]:
        """A marker as a transaction commits it."""
        offset = (marker.incarnation << _CHECKPOINT_BITS) | marker.checkpoint
        return {self.group(subtask): {TopicPartition(self.topic, 0): offset}}

    def read_marker(self, topics: Topics, subtask: int) -> Marker | None:
        """The marker of a task; None when there is none."""
        offset = topics.committed(self.group(subtask)).get(TopicPartition(self.topic, 0))
        if offset is None:
            return None
        return Marker(offset >> _CHECKPOINT_BITS, offset & ((1 << _CHECKPOINT_BITS) - 1))


@contextlib.contextmanager
def taken(target: Target) -> Iterator[Topics]:
    """The connection, with the topic made. It is returned if that fails, or what is opened with it."""
    topics = take_topics(target.broker)
    try:
        ensure_topic(topics, target.topic, partitions=target.partitions)
        yield topics
    except BaseException:
        return_topics(target.broker)
        raise


class TopicCommitter:
    """Fences the writers of earlier attempts, and sends what they could not commit."""

    commits_in_tasks = True
    is_repeatable = False

    def __init__(self, target: Target, context: CommitContext) -> None:
        self._target = target
        self._context = context
        self._names = SinkNames(context.job, context.sink, target.topic)
        self._writers: dict[int, list[Writer]] = {}
        self._markers: dict[int, Marker | None] = {}
        with taken(target) as topics:
            self._topics = topics

    def fence(self) -> Mapping[int, Marker | None]:
        """Open a writer with every id, which fences and aborts the older ones with it.

        Also of tasks that there are no more: readers of committed records wait for every open transaction.
        """
        for subtask in range(max(self._context.parallelism, self._context.former_parallelism)):
            self._writers[subtask] = []
            for turn in (0, 1):
                transactional_id = self._names.transactional_id(subtask, turn)
                self._writers[subtask].append(self._topics.writer(transactional_id=transactional_id))
        self._markers = {subtask: self._names.read_marker(self._topics, subtask) for subtask in self._writers}
        return self._markers

    def recover(self, recovery: Recovery) -> None:
        """Send what is missing, each task's with its marker. A task has a marker from its first start on."""
        for subtask, writers in self._writers.items():
            done = recovery.committed[subtask]
            content = recovery.prepared.get(subtask, b"")
            missing = [(number, stream) for number, stream in decode_segments(content) if number > done]
            marker = Marker(recovery.incarnation, missing[-1][0] if missing else done)
            if missing or marker != self._markers[subtask]:
                self._send(writers[0], [stream for _number, stream in missing], subtask, marker)
        self._close_writers()

    def _send(self, writer: Writer, streams: list[bytes], subtask: int, marker: Marker) -> None:
        writer.begin()
        for stream in streams:
            for batch in from_stream(stream):
                writer.append(self._target.topic, batch)
        writer.commit(offsets=self._names.offsets(subtask, marker))

    def commit(self, checkpoint: int, prepared: Mapping[int, bytes]) -> None:
        """The tasks commit."""

    def close(self) -> None:
        """Let go of the connection."""
        try:
            self._close_writers()
        finally:
            return_topics(self._target.broker)

    def _close_writers(self) -> None:
        """The tasks open writers with the same ids now."""
        writers = [writer for each in self._writers.values() for writer in each]
        self._writers = {}
        with contextlib.ExitStack() as each:  # all of them, although one fails
            for writer in writers:
                each.callback(writer.close)

"""A reader of the local log. Called through `shoal.topics.base.Reader`; made by `shoal.topics.local.topics`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from shoal.core.errors import DamagedError, InvalidError, NotFoundError, PreconditionError, problem
from shoal.topics.base import DEFAULT_MAX_BYTES, DEFAULT_MAX_RECORDS, FETCHED, Fetched, Reset, TopicPartition
from shoal.topics.errors import OffsetOutOfRangeError
from shoal.topics.local.history.replay import Chunk
from shoal.topics.local.history.view import View
from shoal.topics.local.history.watch import Watch
from shoal.topics.local.leases import HostClock
from shoal.topics.local.segments import Segments

log = logging.getLogger(__name__)

JOINED_BELOW = 4096
"""Chunks that have fewer records than this on average are joined into one batch: operators like large ones better."""


class LocalReader:
    """A `shoal.topics.base.Reader`."""

    def __init__(self, view: View, segments: Segments, clock: HostClock, *, reset: Reset) -> None:
        self._view = view
        self._segments = segments
        self._clock = clock
        self._reset = reset
        self._watch = Watch(view.places.journals)
        self._positions: dict[TopicPartition, int] = {}
        self._topics: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._turn = 0
        self._reading = threading.Lock()
        self._closed = False

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read exactly these."""
        self._require_open()
        bad = {where: offset for where, offset in offsets.items() if not isinstance(offset, int) or offset < 0}
        if bad:
            raise InvalidError(
                [problem(str(where), offset, "must be an offset, from 0 on") for where, offset in bad.items()]
            )
        topics: dict[TopicPartition, int] = {}
        for where in offsets:
            self._view.partition(where)
            topics[where] = self._view.topic(where.topic).number
        self._positions = dict(offsets)
        self._topics = topics
        self._paused.clear()

    def read(
        self,
        *,
        max_records: int = DEFAULT_MAX_RECORDS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        timeout: float = 0.0,
    ) -> list[Fetched]:
        """What there is, or what comes first."""
        deadline = self._clock.since_boot() + timeout
        with self._reading:
            while True:
                self._require_open()
                self._watch.settle()
                self._view.refresh()
                fetched = self._fetch(max_records, max_bytes)
                if fetched:
                    self._watch.found()
                    return fetched
                left = deadline - self._clock.since_boot()
                if left <= 0 or self._watch.woken():
                    self._require_open()  # closing wakes, too
                    return []
                self._watch.wait(min(left, 1.0))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Give nothing of these."""
        self._paused.update(self._assigned(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Give what these have."""
        self._paused.difference_update(self._assigned(partitions))

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def positions(self) -> dict[TopicPartition, int]:
        """Where each partition goes on."""
        return dict(self._positions)

    def at_end(self) -> set[TopicPartition]:
        """The partitions that were read to their end, as of the last look into the journal."""
        with self._view.lock:
            return {where for where, position in self._positions.items() if self._is_end(where, position)}

    def confirm_end(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The same, with another look."""
        self._view.refresh()
        return self.at_end() & set(partitions)

    def _is_end(self, where: TopicPartition, position: int) -> bool:
        try:
            return position >= self._view.partition(where).following
        except NotFoundError:  # the next read says so
            return False

    def wake(self) -> None:
        """End a read that waits."""
        self._watch.wake()

    def close(self) -> None:
        """Let go. A read that waits in another thread ends with `PreconditionError`."""
        if not self._closed:
            self._closed = True
            self._watch.wake()
            with self._reading:
                self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------

    def _fetch(self, max_records: int, max_bytes: int) -> list[Fetched]:
        active = [where for where in self._positions if where not in self._paused]
        if not active:
            return []
        # Another one begins each time, so that one with much to read does not starve the rest.
        self._turn = (self._turn + 1) % len(active)
        moved: dict[TopicPartition, int] = {}
        result: list[Fetched] = []
        for where in active[self._turn :] + active[: self._turn]:
            if max_records <= 0 or max_bytes <= 0:
                break
            taken = self._fetch_from(where, max_records, max_bytes, alone=not result)
            moved[where] = taken.position
            max_records -= taken.rows
            max_bytes -= taken.length
            result.extend(Fetched(where.topic, where.partition, batch) for batch in _joined(taken.batches))
        self._positions.update(moved)
        return result

    def _fetch_from(self, where: TopicPartition, max_records: int, max_bytes: int, *, alone: bool) -> _Taken:
        while True:
            position, chunks = self._find(where, max_records, max_bytes)
            taken = _Taken(position, max_records, max_bytes, alone=alone)
            try:
                for chunk in chunks:
                    if not taken.take(chunk, self._read(where, chunk)):
                        break
            except FileNotFoundError:  # retention was quicker: the position is out of range now, or was reset
                if taken.batches:
                    return taken
                continue
            return taken

    def _read(self, where: TopicPartition, chunk: Chunk) -> Any | None:
        """The records of a chunk; None when a power cut has taken them.

        Raises `FileNotFoundError` when retention has removed them, and `DamagedError` when somebody else did.
        """
        try:
            return self._segments.read(chunk)
        except FileNotFoundError:
            with self._view.lock:
                state = self._view.refresh()
                partition = state.partition(self._topics[where], where.partition)
            if partition is None or partition.first >= chunk.end:
                raise
            if self._segments.may_have_lost(chunk):
                return None
            raise DamagedError(
                f"{where}: records {chunk.start}…{chunk.end - 1} are gone: {self._segments.path(chunk)} is missing",
                hint="somebody removed it: bring it back, or read on from a later offset",
            ) from None

    def _find(self, where: TopicPartition, max_records: int, max_bytes: int) -> tuple[int, list[Chunk]]:
        """Where to go on, and the chunks that hold it."""
        while True:
            with self._view.lock:
                topic = self._view.topic(where.topic)
                partition = self._view.partition(where)
                position = self._positions[where]
                # A topic that was deleted and made again begins again: what was read of the old one says nothing.
                same = topic.number == self._topics[where]
                if not same or not partition.first <= position <= partition.following:
                    position = self._reset_position(where, position, partition.first, partition.following)
                    self._topics[where] = topic.number
                    self._positions[where] = position
                if position == partition.following:
                    return position, []
                try:
                    return position, self._view.chunks(partition, position, max_rows=max_records, max_length=max_bytes)
                except FileNotFoundError as error:
                    before = topic.number, partition.first, self._view.journal_number
                    self._view.refresh()
                    now = self._view.topic(where.topic).number, self._view.partition(where).first
                    if (*now, self._view.journal_number) == before:  # retention would have said so
                        raise DamagedError(
                            f"{where}: where the records from {position} on lie is not known: {error}",
                            hint="somebody removed it: bring it back, or read on from a later offset",
                        ) from error

    def _reset_position(self, where: TopicPartition, position: int, first: int, following: int) -> int:
        if self._reset is Reset.FAIL:
            raise OffsetOutOfRangeError(where.topic, where.partition, offset=position, first=first, following=following)
        chosen = first if self._reset is Reset.EARLIEST else following
        log.warning("%s: offset %d is outside %d…%d; going on with %d", where, position, first, following, chosen)
        return chosen

    def _assigned(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        wanted = set(partitions)
        unknown = sorted(wanted - self._positions.keys())
        if unknown:
            raise InvalidError([problem("partition", str(each), "must be assigned") for each in unknown])
        return wanted

    def _require_open(self) -> None:
        if self._closed:
            raise PreconditionError("the reader is closed")


class _Taken:
    """What was taken from one partition."""

    def __init__(self, position: int, max_records: int, max_bytes: int, *, alone: bool) -> None:
        self.position = position
        self.rows = 0
        self.length = 0
        self.batches: list[Any] = []
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._alone = alone

    def take(self, chunk: Chunk, batch: Any | None) -> bool:
        """Take as much of a chunk as there is room for. False when there is no more room."""
        if batch is None:
            log.error(
                "records %d…%d of segment %s were lost in a power cut; they are skipped",
                chunk.start,
                chunk.end - 1,
                chunk.segment,
            )
            self.position = chunk.end
            return True
        skipped = self.position - chunk.start
        count, length = self._room(chunk, batch, skipped)
        if not count:
            return False
        part = batch if count == chunk.rows else batch.slice(skipped, count)
        offsets = pa.array(np.arange(self.position, self.position + count, dtype=np.int64))
        self.batches.append(pa.RecordBatch.from_arrays([offsets, *part.columns], schema=FETCHED))
        self.position += count
        self.rows += count
        self.length += length
        return self.position == chunk.end

    def _room(self, chunk: Chunk, batch: Any, skipped: int) -> tuple[int, int]:
        """How many records from `skipped` on fit, and their bytes; one that comes alone always fits."""
        count = min(chunk.rows - skipped, self._max_records - self.rows)
        room = self._max_bytes - self.length
        if count == chunk.rows and chunk.length <= room:
            return count, chunk.length
        sizes = _sizes(batch, skipped, count)
        count = min(count, int(np.searchsorted(sizes, room, side="right")))
        if not count and self._alone and not self.batches:
            count = 1
        return count, int(sizes[count - 1]) if count else 0


def _sizes(batch: Any, start: int, count: int) -> Any:
    """The bytes of keys and values, added up record by record."""
    total = np.zeros(count, np.int64)
    for column in (batch.column(0), batch.column(1)):
        _, offsets, _ = column.buffers()
        if offsets is not None and len(column):
            at = column.offset + start
            positions = np.frombuffer(offsets, np.int32)[at : at + count + 1].astype(np.int64)
            total += positions[1:] - positions[0]
    return total


def _joined(batches: list[Any]) -> list[Any]:
    """Few large batches instead of many small ones; large ones as they are, without copying."""
    if len(batches) < 2:
        return batches
    if sum(batch.num_rows for batch in batches) >= JOINED_BELOW * len(batches):
        return batches
    return [pa.concat_batches(batches)]

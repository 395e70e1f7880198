"""The fetch buffer of one partition: records that a Kafka reader has fetched and not returned yet, as columns.

Used by `shoal.topics.kafka.reader`. Of the client it knows only the error class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError


@dataclass(slots=True)
class FetchBuffer:
    """One assigned partition: the position of its reader, and the records that are buffered beyond it."""

    #: The offset that the next read returns first.
    position: int
    paused: bool = False
    #: The end of the partition, if the client has reported it since the last record.
    end: int | None = None
    #: Why the client fetches no more of it.
    failure: KafkaError | None = None
    #: How many records and bytes are buffered.
    records: int = 0
    size: int = 0
    #: The offset after the last buffered record.
    following: int = field(init=False)
    #: Batches that arrived.
    _pieces: list[Any] = field(init=False, default_factory=list)
    #: What comes before them: a batch, how many of its rows were returned, and the bytes up to each row.
    _batch: Any = field(init=False, default=None)
    _returned: int = field(init=False, default=0)
    _sizes: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.following = self.position

    @property
    def is_at_end(self) -> bool:
        """Whether the client has seen the end of it, and everything before was returned."""
        return self.end is not None and not self.records and self.failure is None and not self.paused

    def add(self, batch: Any) -> None:
        """Buffer records of this partition: a batch of schema `shoal.topics.base.FETCHED`."""
        offsets = batch.column(0)
        if offsets[0].as_py() < self.following:  # returned before
            batch = batch.slice(int(np.searchsorted(offsets.to_numpy(), self.following)))
            if not batch.num_rows:
                return
        self.records += batch.num_rows
        self.following = batch.column(0)[-1].as_py() + 1
        self.end = None
        self.size += _size(batch)
        self._pieces.append(batch)

    def reach_end(self, offset: int) -> None:
        """Nothing is beyond this offset now. It may lie beyond the last record: transaction markers are there."""
        self.end = max(offset, self.following)
        self._settle()

    def move(self, offset: int) -> None:
        """Continue at another offset. Nothing may be buffered."""
        self.position = self.following = offset
        self.end = self.failure = None

    def take(self, records: int, size: int, *, at_least_one: bool) -> list[Any]:
        """Return as many records as fit: as none, one or two batches."""
        taken: list[Any] = []
        while self.records and records > 0:
            if self._batch is None:
                self._batch = self._pieces[0] if len(self._pieces) == 1 else pa.concat_batches(self._pieces)
                self._sizes, self._returned, self._pieces = _cumulated_sizes(self._batch), 0, []
            last = self._fitting(records, size, at_least_one=at_least_one and not taken)
            if last == self._returned:
                break
            records -= last - self._returned
            size -= int(self._sizes[last] - self._sizes[self._returned])
            taken.append(self._return(last))
        return taken

    def _fitting(self, records: int, size: int, *, at_least_one: bool) -> int:
        """Up to which row the batch may be returned."""
        first, before = self._returned, int(self._sizes[self._returned])
        last = min(first + records, int(self._batch.num_rows))
        if int(self._sizes[last]) - before > size:
            last = int(np.searchsorted(self._sizes, before + size, side="right")) - 1
        return max(last, first + 1) if at_least_one else max(last, first)

    def _return(self, last: int) -> Any:
        batch, first = self._batch, self._returned
        self._returned = last
        if last == batch.num_rows:
            self._batch = None
        self.records -= last - first
        self.size -= int(self._sizes[last] - self._sizes[first])
        self.position = int(batch.column(0)[last - 1].as_py()) + 1
        self._settle()
        return batch if last - first == batch.num_rows else batch.slice(first, last - first)

    def _settle(self) -> None:
        if not self.records and self.end is not None:
            self.position = self.following = max(self.position, self.end)


def _size(batch: Any) -> int:
    """The bytes of keys and values."""
    total = 0
    for column in (batch.column(1), batch.column(2)):
        _, offsets, _ = column.buffers()
        if offsets is not None and column.null_count < len(column):
            bounds = np.frombuffer(offsets, np.int32)
            total += int(bounds[column.offset + len(column)] - bounds[column.offset])
    return total


def _cumulated_sizes(batch: Any) -> npt.NDArray[np.int64]:
    """The bytes of keys and values before each row, and at the end of all."""
    total = np.zeros(batch.num_rows + 1, np.int64)
    for column in (batch.column(1), batch.column(2)):
        _, offsets, _ = column.buffers()
        if offsets is not None and column.null_count < len(column):
            bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
            total += bounds - bounds[0]
    return total

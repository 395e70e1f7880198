"""Sources and sinks inside the process: batches, iterables and generators; callbacks and collected tables.

Made by `shoal.dataflow.api.streams.stream`; opened by tasks.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.dataflow.connectors.base import Fetched, SinkContext, SinkMode, Split
from shoal.dataflow.connectors.pump import Pump
from shoal.dataflow.connectors.rows import RowsReader, Sifted, fit, guessed, is_unknown, mappings
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.functions import callable_of
from shoal.dataflow.language.logical import FunctionRef, OnError

_ONLY = Split("0")
_NOTHING: frozenset[Split] = frozenset()
_ENDED = frozenset({_ONLY})

#: Bytes of an endless iterable's items that wait for their task. As many again may be with it.
_PUMPED = 1 * 1024 * 1024
#: What a row takes that is no Arrow: about as much as a small dictionary.
_ROW_BYTES = 256
#: Rows of an iterable that ends are looked at, as many as this, until the types of all columns are known.
_PEEKED_ROWS = 1000
_NO_ITEM = object()


# ---------------------------------------------------------------------------------------------------------
# Batches


@dataclass(frozen=True, slots=True)
class BatchesSource:
    """Batches that are there already."""

    batches: tuple[Batch, ...]
    schema: Schema | None = None
    columns: tuple[str, ...] | None = None
    most_splits: int = 1

    @property
    def is_bounded(self) -> bool:
        """It has an end."""
        return True

    @property
    def label(self) -> str:
        """What explain() calls it."""
        return f"{len(self.batches)} batches"

    def with_columns(self, names: tuple[str, ...]) -> BatchesSource:
        """The same with these columns only."""
        return replace(self, columns=names)

    def find_schema(self) -> Schema:
        """The columns of the first batch."""
        schema = self.schema or (self.batches[0].schema if self.batches else None)
        if schema is None:
            raise InvalidError(
                [problem("batches", None, "must not be empty without a schema")],
                hint="say the columns: from_batches([], schema=pa.schema([...]))",
            )
        return schema if self.columns is None else pa.schema([schema.field(name) for name in self.columns])

    def find_splits(self) -> Sequence[Split]:
        """One: batches are read in their order."""
        return (_ONLY,)

    def open_reader(self, splits: Sequence[Split], schema: Schema, *, clock: Clock) -> BatchesReader:
        """Begin to read."""
        return BatchesReader(self.batches if splits else (), schema)


class BatchesReader:
    """Gives slices of batches. The position is the number of rows."""

    def __init__(self, batches: Sequence[Batch], schema: Schema) -> None:
        self._batches = batches
        self._schema = schema
        self._index = 0
        self._offset = 0
        self._row = 0

    def seek(self, split: Split, position: Any) -> None:
        """Go on after so many rows."""
        self._index, self._offset, self._row = 0, 0, 0
        left = int(position)
        while left and self._index < len(self._batches):
            step = min(left, self._batches[self._index].num_rows)
            self._move(step)
            left -= step

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """The next rows."""
        while self._index < len(self._batches):
            batch = self._batches[self._index]
            rows = min(max_rows, batch.num_rows - self._offset)
            part = batch if rows == batch.num_rows else batch.slice(self._offset, rows)
            self._move(rows)
            if rows:
                return Fetched(_ONLY, self._shaped(part), self._row)
        return None

    def _move(self, rows: int) -> None:
        self._row += rows
        self._offset += rows
        if self._offset >= self._batches[self._index].num_rows:
            self._index, self._offset = self._index + 1, 0

    def _shaped(self, batch: Batch) -> Batch:
        if batch.schema.names == self._schema.names:
            return batch
        missing = [name for name in self._schema.names if name not in batch.schema.names]
        if missing:
            raise InvalidError([problem("batch", name, "is missing in one of the batches") for name in missing])
        return batch.select(self._schema.names)

    def ended(self) -> frozenset[Split]:
        """Whether all rows have been read."""
        return _ENDED if self._index >= len(self._batches) else _NOTHING

    def close(self) -> None:
        """There is nothing to close."""


# ---------------------------------------------------------------------------------------------------------
# Iterables and generators

#: Generators that were looked into for their columns: what was taken from them is still to be read.
_PEEKED: weakref.WeakKeyDictionary[Any, Iterator[Any]] = weakref.WeakKeyDictionary()
_OPENED: weakref.WeakSet[Any] = weakref.WeakSet()
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class IterableSource:
    """What a function returns: an iterable of batches, tables, dicts or lists of dicts."""

    function: FunctionRef
    batch_size: int = 10_000
    bounded: bool = True
    #: Calling the function again returns the same rows. A generator object can be read only once.
    replayable: bool = False
    schema: Schema | None = None
    on_error: OnError = OnError.FAIL
    most_splits: int = 1

    @property
    def is_bounded(self) -> bool:
        """Whether it has an end."""
        return self.bounded

    @property
    def label(self) -> str:
        """What explain() calls it."""
        return self.function.label

    def find_schema(self) -> Schema:
        """The columns of what comes first; of one that ends also of what follows, where the first row has None."""
        if self.schema is not None:
            return self.schema
        most = _PEEKED_ROWS if self.bounded else 1
        schema = _peek(self._iterate(), most)[0] if self.replayable else self._peek_once(most)
        if schema is None:
            raise InvalidError(
                [problem(self.label, None, "gave nothing, so its columns are not known")],
                hint="say the columns: schema=pa.schema([...])",
            )
        return schema

    def _peek_once(self, most: int) -> Schema | None:
        """What comes first in something that can be read only once: it is put back for the reader."""
        function = callable_of(self.function)
        with _LOCK:
            items = _PEEKED.pop(function, None)
        schema, rest = _peek(self._iterate() if items is None else items, most)
        with _LOCK:
            _PEEKED[function] = rest
        return schema

    def find_splits(self) -> Sequence[Split]:
        """One: it is read in its order."""
        return (_ONLY,)

    def open_reader(self, splits: Sequence[Split], schema: Schema, *, clock: Clock) -> IterableReader:
        """Begin to read."""
        return IterableReader(self, schema, clock, has_split=bool(splits))

    def begin(self) -> Iterator[Any]:
        """The items, from the first. Raises `PreconditionError` when they were read already and cannot be again."""
        if self.replayable:
            return self._iterate()
        function = callable_of(self.function)
        with _LOCK:
            if function in _OPENED:
                raise _read_once(self.label)
            _OPENED.add(function)
            peeked = _PEEKED.pop(function, None)
        return self._iterate() if peeked is None else peeked

    def _iterate(self) -> Iterator[Any]:
        return iter(callable_of(self.function)())


def _weigh(item: Any) -> int:
    """Bytes that an item takes, about."""
    if isinstance(item, pa.RecordBatch | pa.Table):
        return int(item.nbytes)
    return _ROW_BYTES * (len(item) if isinstance(item, list | tuple) else 1)


def _read_once(label: str) -> PreconditionError:
    return PreconditionError(
        f"{label} can be read only once, and was",
        hint="give a function that makes a new iterator each time, with replayable=True",
    )


def _peek(items: Iterator[Any], most: int) -> tuple[Schema | None, Iterator[Any]]:
    """The columns of what comes first, and all items.

    Rows are looked at until the types of all columns are known, or there are `most` of them.
    """
    taken: list[Any] = []
    rows: list[Mapping[str, Any]] = []
    for item in items:
        taken.append(item)
        if isinstance(item, pa.RecordBatch | pa.Table):
            if not rows:
                return item.schema, itertools.chain(taken, items)
            break
        rows += mappings(item) if isinstance(item, list | tuple) else [_row(item)]
        if rows and (len(rows) >= most or not _unknown(rows)):
            break
    return guessed(rows) if rows else None, itertools.chain(taken, items)


def _unknown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of the first row whose types none of the rows tells."""
    return [name for name in rows[0] if all(is_unknown(row.get(name)) for row in rows)]


def _row(item: Any) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        rule = "must be a record batch, a table, a dict or a list of dicts"
        raise InvalidError([problem("item", type(item).__name__, rule)], what="source")
    return item


class IterableReader:
    """Reads an iterable. The position is the number of rows that were returned, bad ones too."""

    def __init__(self, source: IterableSource, schema: Schema, clock: Clock, *, has_split: bool) -> None:
        self._source = source
        self._schema = schema
        self._clock = clock
        self._items: Iterator[Any] | None = None
        self._pump: Pump | None = None
        self._rows = RowsReader(schema, source.on_error)
        self._ready: deque[Sifted] = deque()
        #: How many records of the first item that is ready were returned.
        self._given = 0
        self._row = 0
        self._is_over = not has_split

    def seek(self, split: Split, position: Any) -> None:
        """Go on after so many rows: they are read again, and left out."""
        rows = int(position)
        if rows and not self._source.replayable:
            raise _read_once(self._source.label)
        self._given = rows
        self._row = rows

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """The next rows; of an endless iterable those that are there now."""
        while True:
            while self._ready:
                records = self._ready[0]
                if self._given >= records.count:
                    self._given -= records.count
                    self._ready.popleft()
                    continue
                before = self._given
                batch, poison, self._given = records.part(before, max_rows)
                self._row += self._given - before
                if self._given == records.count:
                    self._given = 0
                    self._ready.popleft()
                return Fetched(_ONLY, batch, self._row, poison=poison)
            if self._is_over or not self._gather(min(max_rows, self._source.batch_size), timeout):
                return None

    def ended(self) -> frozenset[Split]:
        """Whether everything has been returned."""
        return _ENDED if self._is_over and not self._ready else _NOTHING

    def wake(self) -> None:
        """End a wait for an endless iterable."""
        if self._pump is not None:
            self._pump.wake()

    def close(self) -> None:
        """Let go of it. A generator is closed, also when it was not read to its end."""
        if self._pump is not None:
            self._pump.close()
        elif self._items is not None and hasattr(self._items, "close"):
            self._items.close()

    def _gather(self, rows: int, timeout: float) -> bool:
        """Take items and make batches of them. False when there were none in time."""
        items = self._take(rows, timeout)
        if not items:
            return False
        self._ready.extend(self._read(items))
        return True

    def _take(self, count: int, timeout: float) -> list[Any]:
        if self._items is None:
            self._items = self._source.begin()
            if not self._source.bounded:
                self._pump = Pump(self._items, limit=_PUMPED, weigh=_weigh, name=self._source.label)
        if self._pump is not None:
            items, self._is_over = self._pump.take(count, timeout)
            return items
        first = next(self._items, _NO_ITEM)
        if first is _NO_ITEM:
            self._is_over = True
            return []
        if not isinstance(first, Mapping):
            return [first]  # a batch, a table or a list is enough at a time
        items = [first, *itertools.islice(self._items, count - 1)]
        self._is_over = len(items) < count
        return items

    def _read(self, items: Sequence[Any]) -> Iterator[Sifted]:
        """Batches as they are, with the columns of the schema; rows between them together."""
        rows: list[Mapping[str, Any]] = []
        for item in items:
            if not isinstance(item, pa.RecordBatch | pa.Table):
                rows += mappings(item) if isinstance(item, list | tuple) else [_row(item)]
                continue
            yield from self._read_rows(rows)
            rows = []
            for batch in [item] if isinstance(item, pa.RecordBatch) else item.to_batches():
                self._rows.passed(batch.num_rows)
                yield Sifted(fit(batch, self._schema))
        yield from self._read_rows(rows)

    def _read_rows(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[Sifted]:
        size = self._source.batch_size
        for start in range(0, len(rows), size):
            yield self._rows.read(rows[start : start + size])


# ---------------------------------------------------------------------------------------------------------
# Sinks


@dataclass(frozen=True, slots=True)
class CallbackSink:
    """Calls a function with each batch, in the task's thread. After a crash it may see rows again."""

    function: FunctionRef

    @property
    def modes(self) -> frozenset[SinkMode]:
        """It takes whatever comes."""
        return frozenset({SinkMode.APPEND, SinkMode.UPSERT})

    @property
    def label(self) -> str:
        """What explain() calls it."""
        return self.function.label

    def open_writer(self, schema: Schema | None, context: SinkContext) -> CallbackWriter:
        """Begin to call."""
        return CallbackWriter(callable_of(self.function))


class DirectWriter:
    """What writers have that put rows out at once: there is nothing to commit."""

    def prepare(self, checkpoint: int) -> bytes:
        """Everything is out."""
        return b""

    def commit(self, checkpoint: int) -> None:
        """Everything is out."""

    def flush(self) -> None:
        """Everything is out."""

    def close(self) -> None:
        """There is nothing to close."""


class CallbackWriter(DirectWriter):
    """Calls the function."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def write(self, batch: Batch) -> None:
        """Call it."""
        self._function(batch)


class Collected:
    """Batches that a run puts here, in the order in which each task wrote them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: dict[int, list[Batch]] = {}

    def add(self, subtask: int, batch: Batch) -> None:
        """Take a batch of one task."""
        with self._lock:
            self._batches.setdefault(subtask, []).append(batch)

    def clear(self) -> None:
        """Forget everything: a run begins."""
        with self._lock:
            self._batches.clear()

    def batches(self) -> list[Batch]:
        """What was collected, task by task."""
        with self._lock:
            return [batch for _subtask, batches in sorted(self._batches.items()) for batch in batches]

    def table(self, schema: Schema | None = None) -> Any:
        """The same as a table; without rows one needs to know the columns."""
        batches = self.batches()
        if batches:
            return pa.Table.from_batches(batches)
        return (schema or pa.schema([])).empty_table()


@dataclass(frozen=True, slots=True)
class CollectSink:
    """Keeps everything in memory, for the caller of the run."""

    into: Collected = field(default_factory=Collected)

    @property
    def modes(self) -> frozenset[SinkMode]:
        """It takes whatever comes."""
        return frozenset({SinkMode.APPEND, SinkMode.UPSERT})

    @property
    def label(self) -> str:
        """What explain() calls it."""
        return "collect"

    def open_writer(self, schema: Schema | None, context: SinkContext) -> CollectWriter:
        """Begin to collect."""
        return CollectWriter(self.into, context.subtask)


class CollectWriter(DirectWriter):
    """Collects the batches of one task."""

    def __init__(self, into: Collected, subtask: int) -> None:
        self._into = into
        self._subtask = subtask

    def write(self, batch: Batch) -> None:
        """Keep it."""
        self._into.add(self._subtask, batch)

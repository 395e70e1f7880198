"""Rows in a state backend, for more of them than memory holds: in chunks, read where they are needed.

A `StoredRows` looks like a batch to joins: rows are taken by their places. Taking some of them for good (`select`)
moves nothing; when less than half of the chunks' rows are left they are written anew. Chunks go when no `StoredRows`
refers to them. Used by `shoal.dataflow.operators.joins.buffer` with the backends of `shoal.dataflow.state.base`.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from shoal.dataflow.state.base import StateBackend
from shoal.dataflow.state.tables import Integers

Batch: TypeAlias = Any

_NAMESPACE = "rows"
_KEY = struct.Struct(">qq")
#: Rows of a chunk: what is read for one row of it.
CHUNK = 1024
#: So many chunks are in memory at once.
_AT_ONCE = 64


class _Chunks:
    """Chunks that belong together. They go with this object."""

    __slots__ = ("__weakref__", "count", "number", "rows")

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = 0
        self.rows = 0

    def key(self, chunk: int) -> tuple[int, bytes]:
        """Where a chunk lies."""
        return 0, _KEY.pack(self.number, chunk)


class RowStore:
    """Keeps rows in a backend, which is its own. One thread."""

    def __init__(self, backend: StateBackend) -> None:
        self._backend = backend
        self._made = 0
        self._is_closed = False

    def keep(self, batches: Iterable[Batch]) -> StoredRows:
        """Take rows of one schema in. There is at least one batch."""
        chunks = _Chunks(self._made)
        self._made += 1
        schema: Any = None
        for chunk in _rechunked(batches):
            schema = chunk.schema
            self._backend.put_many(_NAMESPACE, [(chunks.key(chunks.count), _to_bytes(chunk))])
            chunks.count += 1
            chunks.rows += chunk.num_rows
        weakref.finalize(chunks, self._forget, chunks.number, chunks.count)
        return StoredRows(self, chunks, schema, np.arange(chunks.rows, dtype=np.int64))

    def read(self, chunks: _Chunks, numbers: Integers) -> list[Batch]:
        """Some chunks."""
        found = self._backend.get_many(_NAMESPACE, [chunks.key(int(each)) for each in numbers])
        return [_from_bytes(each) for each in found if each is not None]

    def _forget(self, number: int, count: int) -> None:
        if not self._is_closed:
            self._backend.delete_many(_NAMESPACE, [(0, _KEY.pack(number, chunk)) for chunk in range(count)])

    def close(self) -> None:
        """Let go of everything."""
        self._is_closed = True
        self._backend.close()


class StoredRows:
    """Rows of a store, in an order."""

    __slots__ = ("_chunks", "_places", "_store", "schema")

    def __init__(self, store: RowStore, chunks: _Chunks, schema: Any, places: Integers) -> None:
        self._store = store
        self._chunks = chunks
        self._places = places
        self.schema = schema

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return len(self._places)

    def take(self, rows: Any) -> Batch:
        """Some of them, in memory."""
        wanted = self._places[np.asarray(rows)]
        order = np.argsort(wanted, kind="stable")
        if not len(wanted):
            return pa.RecordBatch.from_pylist([], self.schema)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_batches(list(self._parts(wanted[order]))).take(pa.array(back))

    def _parts(self, wanted: Integers) -> Iterator[Batch]:
        """The rows of places that are in order."""
        numbers, first = np.unique(wanted // CHUNK, return_index=True)
        ends = np.append(first, len(wanted))
        for start in range(0, len(numbers), _AT_ONCE):
            some = numbers[start : start + _AT_ONCE]
            for at, (number, batch) in enumerate(zip(some, self._store.read(self._chunks, some), strict=True)):
                mine = wanted[ends[start + at] : ends[start + at + 1]]
                yield batch.take(pa.array(mine - number * CHUNK))

    def select(self, rows: Integers) -> StoredRows:
        """Have some of them and no others."""
        chosen = StoredRows(self._store, self._chunks, self.schema, self._places[rows])
        if 2 * len(rows) >= self._chunks.rows or not len(rows):
            return chosen
        return self._store.keep(chosen.batches(CHUNK * _AT_ONCE))

    def batches(self, size: int) -> Iterator[Batch]:
        """All of them, so many at a time."""
        for start in range(0, len(self._places), size):
            yield self.take(np.arange(start, min(start + size, len(self._places))))


def _rechunked(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same rows in batches of `CHUNK`, but for the last one."""
    left: list[Batch] = []
    waiting = 0
    for batch in batches:
        left.append(batch)
        waiting += batch.num_rows
        if waiting >= CHUNK:
            whole = pa.concat_batches(left)
            full = waiting - waiting % CHUNK
            for start in range(0, full, CHUNK):
                yield whole.slice(start, CHUNK)
            left, waiting = ([whole.slice(full)], waiting - full) if waiting > full else ([], 0)
    if left:
        yield pa.concat_batches(left)


def _to_bytes(batch: Batch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _from_bytes(content: bytes) -> Batch:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_next_batch()


#: Makes a store, when the first rows go there.
MakeRowStore: TypeAlias = Callable[[], RowStore]

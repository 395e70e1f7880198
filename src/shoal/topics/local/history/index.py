"""Index files: where the records of ended journals lie. One Arrow file per journal, never changed.

A row is a chunk. The rows of a partition lie together, in the order of their offsets; a snapshot says from which row to
which (`shoal.topics.local.history.replay.IndexPart`). Called by `view` (to write and to look up) and `upkeep`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.topics.local.history.replay import Chunk, IndexPart
from shoal.topics.local.places import Places, typed

SCHEMA = pa.schema(
    [
        pa.field("start", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("segment", pa.dictionary(pa.int32(), pa.utf8()), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("checksum", pa.int64(), nullable=False),
        pa.field("at_us", pa.int64(), nullable=False),
    ]
)

MAX_OPEN = 8
"""Index files that a process keeps mapped."""


def write(path: Path, chunks: Sequence[Chunk]) -> None:
    """Write an index file."""
    arrays = []
    for at, field in enumerate(SCHEMA):
        column = map(itemgetter(at), chunks)
        if field.name == "segment":
            arrays.append(pa.array(list(column), pa.utf8()).dictionary_encode())
        else:
            arrays.append(pa.array(np.fromiter(column, np.int64, len(chunks))))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))


class Index:
    """The index files of a log, some of them mapped. Threads may share it."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._open: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, part: IndexPart, offset: int, *, max_rows: int, max_length: int) -> list[Chunk]:
        """The chunks from the one that holds `offset` on, until they have so many records or bytes; at least one.

        Raises `FileNotFoundError` when retention has removed the file.
        """
        batch = self._batch(part.number).slice(part.row, part.rows)
        starts = batch.column(0).to_numpy()
        begin = max(0, int(np.searchsorted(starts, offset, side="right")) - 1)
        rows = np.cumsum(batch.column(1).to_numpy()[begin:])
        lengths = np.cumsum(batch.column(4).to_numpy()[begin:])
        # The first chunk is begun somewhere inside, so as many records of it as there are before `offset` come on top.
        skipped = offset - int(starts[begin])
        count = 1 + min(
            int(np.searchsorted(rows, max_rows + skipped)),
            int(np.searchsorted(lengths, max_length)),
        )
        wanted = batch.slice(begin, count)
        return [Chunk(*row) for row in zip(*(column.to_pylist() for column in wanted.columns), strict=True)]

    def expired(self, part: IndexPart, first: int, *, before_us: int, surplus: int) -> tuple[int, int]:
        """How far retention may trim what lies from `first` on: the offset to begin with, and the bytes before it.

        Chunks go while they are from before `before_us`, or while no more than `surplus` bytes are gone.
        """
        batch = self._batch(part.number).slice(part.row, part.rows)
        batch = batch.slice(int(np.searchsorted(batch.column(0).to_numpy(), first)))
        if not batch.num_rows:
            return part.end, 0
        lengths = np.cumsum(batch.column(4).to_numpy())
        old = batch.column(6).to_numpy() < before_us
        by_age = int(np.argmin(old)) if not old.all() else len(old)
        by_size = int(np.searchsorted(lengths, surplus, side="right")) if surplus > 0 else 0
        gone = max(by_age, by_size)
        if gone == 0:
            return first, 0
        cut = part.end if gone == len(old) else int(batch.column(0)[gone].as_py())
        return cut, int(lengths[gone - 1])

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            self._open.clear()

    def _batch(self, number: int) -> Any:
        with self._lock:
            found = self._open.get(number)
            if found is None:
                found = self._open[number] = _mapped(self._places.index(number))
                if len(self._open) > MAX_OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(number)
            return found


def _mapped(path: Path) -> Any:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise typed(error, path) from error

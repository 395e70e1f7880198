"""Sources whose rows are made in memory by task hosts: so a module of their own, which travels in the bundle.

`MarkedSource` notes when it begins and ends to be read, by the clock that all processes of a machine share, and what
its process has used until then, in files of a folder. `StateSource` gives each key once and then a row now and then.
Used by `bench.jobs.flows`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.dataflow.made_rows import RowsReader, RowsSource
from bench.dataflow.rows import BATCH_ROWS, FIRST
from shoal.core.clock import Clock
from shoal.dataflow.connectors.base import Fetched, Split

STATE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("v", pa.float64()),
        pa.field("time", pa.timestamp("us")),
        pa.field("due", pa.int64()),
    ]
)
#: Parts of the state's source, however many tasks there are.
STATE_SPLITS = 4
_STATE_BATCH = 20_000
_KEY_BYTES = 200
#: Seconds from one row of a part to its next, when all keys were given.
_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class MarkedSource:
    """The rows of `RowsSource`, in so many parts."""

    rows: int
    splits: int
    folder: str
    is_bounded: bool = True
    label: str = "rows in memory"

    def find_schema(self) -> Any:
        """Those of the batches."""
        return RowsSource(self.rows).find_schema()

    def find_splits(self) -> Sequence[Split]:
        """Each has an equal share of the rows."""
        return tuple(Split(str(number)) for number in range(self.splits))

    def open_reader(self, splits: Sequence[Split], schema: Any, *, clock: Clock) -> _MarkedReader:
        """Begin to read."""
        del clock
        return _MarkedReader(splits, schema, -(-self.rows // self.splits // BATCH_ROWS), Path(self.folder))

    @property
    def given(self) -> int:
        """The rows that it really gives: whole batches."""
        return -(-self.rows // self.splits // BATCH_ROWS) * BATCH_ROWS * self.splits


class _MarkedReader(RowsReader):
    """Notes its first and its last fetch."""

    def __init__(self, splits: Sequence[Split], schema: Any, count: int, folder: Path) -> None:
        super().__init__(splits, schema, count)
        self._splits = len(splits)
        self._folder = folder
        self._marks: set[str] = set()

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """As without marks."""
        self._mark("begin")
        return super().fetch(max_rows=max_rows, timeout=timeout)

    def ended(self) -> frozenset[Split]:
        """The splits that were read to their end."""
        over = super().ended()
        if len(over) == self._splits:
            self._mark("end")
        return over

    def _mark(self, what: str) -> None:
        if what not in self._marks:
            self._marks.add(what)
            noted = f"{time.monotonic()} {time.process_time()}"
            (self._folder / f"{what}-{os.getpid()}-{id(self)}").write_text(noted)


def read_marks(folder: Path) -> tuple[float, float]:
    """When the first task began to read, and when the last was through."""
    begins = [float(each.read_text().split()[0]) for each in folder.glob("begin-*")]
    ends = [float(each.read_text().split()[0]) for each in folder.glob("end-*")]
    return min(begins), max(ends)


def read_start_costs(folder: Path) -> dict[int, float]:
    """The CPU seconds that each process had used when it began to read."""
    return {int(each.name.split("-")[1]): float(each.read_text().split()[1]) for each in folder.glob("begin-*")}


@dataclass(frozen=True, slots=True)
class StateSource:
    """Each of so many keys once, as fast as they are taken; then a row each part and moment, with when it was made."""

    keys: int
    is_bounded: bool = False
    label: str = "keys in memory"

    def find_schema(self) -> Any:
        """An id, a long key, a value, a time of one day, and when it was due; 0 for a key."""
        return STATE_SCHEMA

    def find_splits(self) -> Sequence[Split]:
        """Each has an equal share of the keys."""
        return tuple(Split(str(number)) for number in range(STATE_SPLITS))

    def open_reader(self, splits: Sequence[Split], schema: Any, *, clock: Clock) -> _StateReader:
        """Begin to read."""
        del clock
        return _StateReader(splits, schema, self.keys // STATE_SPLITS)


class _StateReader:
    """The position of a part is how many rows it has given."""

    def __init__(self, splits: Sequence[Split], schema: Any, keys: int) -> None:
        self._names = schema.names
        self._keys = keys
        self._next = dict.fromkeys(splits, 0)
        self._due = time.monotonic()

    def seek(self, split: Split, position: Any) -> None:
        """Go on after so many rows."""
        self._next[split] = int(position)

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """The next keys; when there are none, a row when it is due."""
        del max_rows
        split = min(self._next, key=lambda each: self._next[each])
        first = self._next[split]
        count = min(_STATE_BATCH, self._keys - first)
        due = 0
        if count <= 0:
            waits = self._due - time.monotonic()
            if waits > 0:
                time.sleep(min(waits, timeout))
                return None
            self._due += _PAUSE / len(self._next)
            count, due = 1, int(time.monotonic() * 1e6)
        self._next[split] = first + count
        return Fetched(split, self._rows(int(split.name) << 40 | first, count, due), first + count)

    def _rows(self, first: int, count: int, due: int) -> Any:
        ids = pa.array(range(first, first + count), pa.int64())
        columns = {
            "id": ids,
            "key": pc.utf8_lpad(ids.cast(pa.string()), _KEY_BYTES, "k"),
            "v": ids.cast(pa.float64(), safe=False),
            "time": pa.array([FIRST] * count, pa.timestamp("us")),
            "due": pa.array([due] * count, pa.int64()),
        }
        return pa.RecordBatch.from_pydict({name: columns[name] for name in self._names})

    def ended(self) -> frozenset[Split]:
        """It has no end."""
        return frozenset()

    def close(self) -> None:
        """There is nothing to let go of."""

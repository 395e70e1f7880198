"""A source of rows in memory for jobs over processes: each task makes its share of a few batches, again and again.

Task hosts import it, so it is a module of its own. Used by `bench.dataflow.parallel`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.dataflow.rows import BATCH_ROWS, make_batches
from shoal.core.clock import Clock
from shoal.dataflow.connectors.base import Fetched, Split

#: Parts that rows come in, however many tasks there are.
SPLITS = 2
_KEYS = 1000
_DENSITY = 1000
#: Batches that a split repeats, with other ids and times.
_REPEATED = 8


@functools.cache
def _batches() -> list[Any]:
    return make_batches(_REPEATED * BATCH_ROWS, keys=_KEYS, rows_per_second=_DENSITY)


@dataclass(frozen=True, slots=True)
class RowsSource:
    """A connector that makes its rows of a few batches in memory, in two splits with the same times."""

    rows: int
    is_bounded: bool = True
    label: str = "rows in memory"

    def find_schema(self) -> Any:
        """Those of the batches."""
        return _batches()[0].schema

    def find_splits(self) -> Sequence[Split]:
        """Each has an equal share of the rows."""
        return tuple(Split(str(number)) for number in range(SPLITS))

    def open_reader(self, splits: Sequence[Split], schema: Any, *, clock: Clock) -> RowsReader:
        """Begin to read."""
        del clock
        return RowsReader(splits, schema, -(-self.rows // SPLITS // BATCH_ROWS))


class RowsReader:
    """Returns the batches over and over, splits in turn. The position is the number of batches."""

    def __init__(self, splits: Sequence[Split], schema: Any, count: int) -> None:
        self._schema = schema
        self._count = count
        self._next = dict.fromkeys(splits, 0)
        self._batches = [batch.select(schema.names) for batch in _batches()]

    def seek(self, split: Split, position: Any) -> None:
        """Go on after so many batches."""
        self._next[split] = int(position)

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        """The next batch of the split that is behind the others."""
        del max_rows, timeout
        left = [split for split, number in self._next.items() if number < self._count]
        if not left:
            return None
        split = min(left, key=lambda each: self._next[each])
        number = self._next[split]
        self._next[split] = number + 1
        return Fetched(split, self._shifted(number), number + 1)

    def _shifted(self, number: int) -> Any:
        batch = self._batches[number % _REPEATED]
        rows = number // _REPEATED * _REPEATED * BATCH_ROWS
        if not rows or "ts" not in self._schema.names:
            return batch
        index = self._schema.get_field_index("ts")
        later = pc.add(batch.column(index).cast(pa.int64()), rows * 1_000_000 // _DENSITY)
        return batch.set_column(index, self._schema.field(index), later.cast(self._schema.field(index).type))

    def ended(self) -> frozenset[Split]:
        """The splits that were read to their end."""
        return frozenset(split for split, number in self._next.items() if number >= self._count)

    def close(self) -> None:
        """There is nothing to let go of."""

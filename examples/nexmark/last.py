"""An operator of one's own: the last rows of each key, by an order that has nothing to do with their arrival.

It works on whole batches. Never more than twice the rows that may be in the result are kept. Its input ends, and a
query begins anew when it is run again, so it has no `snapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

#: Fewer rows than this are not worth sorting.
_LEAST_ROWS = 65_536


@dataclass
class LastOf:
    """Keeps the last `count` rows of each key."""

    count: int
    key: str
    by: tuple[str, ...]
    _waiting: list[Any] = field(default_factory=list)
    _rows: int = 0
    _limit: int = _LEAST_ROWS

    @classmethod
    def each(cls, count: int, key: str, *, by: tuple[str, ...]) -> Any:
        """What makes one for each task."""
        return partial(cls, count, key, by)

    def process_batch(self, batch: Any) -> None:
        """Keep rows; give nothing yet."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows > self._limit:
            kept = self._last()
            self._waiting, self._rows = [kept], kept.num_rows
            self._limit = max(_LEAST_ROWS, 2 * kept.num_rows)

    def finish(self) -> Any:
        """The input has ended."""
        return self._last() if self._waiting else None

    def _last(self) -> Any:
        rows = pa.concat_batches(self._waiting)
        keys = _numbers(rows, self.key)
        order = np.lexsort([*(_numbers(rows, name) for name in reversed(self.by)), keys])
        ordered = keys[order]
        ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
        places = np.arange(len(order))
        behind = ends[np.searchsorted(ends, places)] - places
        return rows.take(pa.array(order[behind < self.count]))


def _numbers(rows: Any, name: str) -> Any:
    return rows.column(name).cast(pa.int64()).to_numpy()

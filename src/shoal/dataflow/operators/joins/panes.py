"""Rows that wait for the end of their windows: by pane, in the order of their arrival, neither sorted nor hashed.

What a row costs before its window ends is next to nothing. Only when it ends are the rows of both sides looked at, and
those of the larger side that can have no partner are left out before keys are compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.elements import Batch
from shoal.dataflow.language.keys import Integers

#: Neighbours with fewer rows are put together: else a stream of single rows would be a list of single rows.
_SMALL = 4_096


class PaneRows:
    """The rows of one side."""

    def __init__(self) -> None:
        self._panes: dict[int, list[Batch]] = {}
        self.rows = 0

    def __len__(self) -> int:
        return self.rows

    @property
    def panes(self) -> Iterator[int]:
        """The panes with rows, in no order."""
        return iter(self._panes)

    def add(self, rows: Batch, panes: Integers) -> None:
        """Take rows in, each into its pane."""
        if not len(panes):
            return
        self.rows += len(panes)
        first = int(panes[0])
        if (panes == first).all():
            self._append(first, rows)
            return
        order = np.argsort(panes, kind="stable")
        ordered, moved = panes[order], rows.take(pa.array(order))
        starts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
        for start, end in itertools.pairwise(starts):
            self._append(int(ordered[start]), moved.slice(start, end - start))

    def counts(self, panes: Sequence[int]) -> Integers:
        """How many rows each of these panes has."""
        found = (sum(part.num_rows for part in self._panes.get(pane, ())) for pane in panes)
        return np.fromiter(found, np.int64, len(panes))

    def of(self, panes: Sequence[int]) -> Batch | None:
        """The rows of these panes, one pane after the other; None when there are none."""
        parts = [part for pane in panes for part in self._panes.get(pane, ())]
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def whole(self) -> Batch | None:
        """All rows."""
        parts = [part for pane in sorted(self._panes) for part in self._panes[pane]]
        return pa.concat_batches(parts) if parts else None

    def free_before(self, pane: int) -> None:
        """Forget the panes before one."""
        for each in [each for each in self._panes if each < pane]:
            self.rows -= sum(part.num_rows for part in self._panes.pop(each))

    def _append(self, pane: int, rows: Batch) -> None:
        parts = self._panes.setdefault(pane, [])
        parts.append(rows)
        while len(parts) > 1 and parts[-2].num_rows < min(2 * parts[-1].num_rows, _SMALL):
            newer = parts.pop()
            parts.append(pa.concat_batches([parts.pop(), newer]))

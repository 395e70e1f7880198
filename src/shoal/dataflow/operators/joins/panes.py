"""Rows that wait for the end of their windows: by pane, in the order of their arrival, neither sorted nor hashed.

What a row costs before its window ends is next to nothing. Only when it ends are the rows of both sides looked at, and
those of the larger side that can have no partner are left out before keys are compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.elements import START_OF_TIME, Batch
from shoal.dataflow.language.keys import Integers, key_groups
from shoal.dataflow.state.tables import Table, TableState, stack

#: Neighbours with fewer rows are put together: else a stream of single rows would be a list of single rows.
_SMALL = 4_096
_PANE = "__join_pane"


class PaneRows:
    """The rows of one side."""

    def __init__(self) -> None:
        self._panes: dict[int, list[Batch]] = {}
        self.rows = 0
        #: Rows that came since the last snapshot, with the pane of each; None before the first one.
        self._fresh: list[tuple[Batch, Integers]] | None = None
        self._schema: Any = None
        self._floor = START_OF_TIME

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
        self._schema = rows.schema
        if self._fresh is not None:
            self._fresh.append((rows, panes))
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

    def changes(self, keys: Sequence[str], total: int) -> tuple[TableState | None, bool]:
        """The rows that came since the last time, and whether these are all that there are, as at first.

        None when there never was a row.
        """
        fresh, self._fresh = self._fresh, []
        if self._schema is None:
            return None, fresh is None
        parts = fresh
        if parts is None:
            parts = [(part, np.full(part.num_rows, pane)) for pane in self._panes for part in self._panes[pane]]
        rows = stack([self._schema.empty_table(), *(pa.Table.from_batches([batch]) for batch, _panes in parts)])
        panes = np.concatenate([np.zeros(0, np.int64), *(panes for _batch, panes in parts)])
        table = rows.append_column(_PANE, pa.array(panes))
        return TableState(table, key_groups(rows, keys, total), floor=(_PANE, self._floor)), fresh is None

    def restore(self, rows: Table, first: int) -> None:
        """Restore what `changes` returned, merged, without panes before the first that is needed. That is no change."""
        self._fresh = None
        if len(rows):
            rows = rows.combine_chunks()
            panes = rows.column(_PANE).combine_chunks().to_numpy()
            needed = np.flatnonzero(panes >= first)
            if len(needed):
                batch = rows.drop_columns([_PANE]).take(pa.array(needed)).combine_chunks().to_batches()[0]
                self.add(batch, panes[needed])

    def begin_tracking(self) -> None:
        """All that there is now is known."""
        self._fresh = []

    def free_before(self, pane: int) -> None:
        """Forget the panes before one."""
        self._floor = max(self._floor, pane)
        for each in [each for each in self._panes if each < pane]:
            self.rows -= sum(part.num_rows for part in self._panes.pop(each))

    def _append(self, pane: int, rows: Batch) -> None:
        parts = self._panes.setdefault(pane, [])
        parts.append(rows)
        while len(parts) > 1 and parts[-2].num_rows < min(2 * parts[-1].num_rows, _SMALL):
            newer = parts.pop()
            parts.append(pa.concat_batches([parts.pop(), newer]))

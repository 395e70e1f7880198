"""Rows that wait for the end of their windows: by pane, in the order of their arrival, neither sorted nor hashed.

What a row costs before its window ends is next to nothing. Only when it ends are the rows of both sides looked at, and
those of the larger side that can have no partner are left out before keys are compared.

With a row store, the largest panes go there when all of them are too large for memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.elements import START_OF_TIME, Batch
from shoal.dataflow.language.keys import Integers, key_groups
from shoal.dataflow.state.row_store import MakeRowStore, StoredRows
from shoal.dataflow.state.tables import Table, TableState, stack

#: Neighbours with fewer rows are put together: else a stream of single rows would be a list of single rows.
_SMALL = 4_096
_PANE = "__join_pane"
#: Rows that are read from a store at once.
_AT_ONCE = 65_536


class PaneRows:
    """The rows of one side."""

    def __init__(self, make_store: MakeRowStore | None = None, most_bytes: int = 0) -> None:
        #: Batches, and rows in a store.
        self._panes: dict[int, list[Any]] = {}
        self.rows = 0
        #: Where panes go when more than so many bytes of rows are in memory; without it all stay there.
        self._make_store = make_store
        self._most_bytes = most_bytes
        self._bytes = 0
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
            self._store_some()
            return
        order = np.argsort(panes, kind="stable")
        ordered, moved = panes[order], rows.take(pa.array(order))
        starts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
        for start, end in itertools.pairwise(starts):
            self._append(int(ordered[start]), moved.slice(start, end - start))
        self._store_some()

    def counts(self, panes: Sequence[int]) -> Integers:
        """How many rows each of these panes has."""
        found = (sum(part.num_rows for part in self._panes.get(pane, ())) for pane in panes)
        return np.fromiter(found, np.int64, len(panes))

    def of(self, panes: Sequence[int]) -> Batch | None:
        """The rows of these panes, one pane after the other; None when there are none."""
        parts = [batch for pane in panes for part in self._panes.get(pane, ()) for batch in _batches(part)]
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
            every = ((batch, pane) for pane in self._panes for part in self._panes[pane] for batch in _batches(part))
            parts = [(batch, np.full(batch.num_rows, pane)) for batch, pane in every]
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
            parts = self._panes.pop(each)
            self.rows -= sum(part.num_rows for part in parts)
            self._bytes -= _size(parts)

    def _append(self, pane: int, rows: Batch) -> None:
        parts = self._panes.setdefault(pane, [])
        parts.append(rows)
        self._bytes += rows.nbytes
        while len(parts) > 1 and self._are_to_merge(parts[-2], parts[-1]):
            before = _size(parts[-2:])
            newer = parts.pop()
            parts.append(pa.concat_batches([parts.pop(), newer]))
            self._bytes += _size(parts[-1:]) - before

    @staticmethod
    def _are_to_merge(older: Any, newer: Batch) -> bool:
        return not isinstance(older, StoredRows) and older.num_rows < min(2 * newer.num_rows, _SMALL)

    def _store_some(self) -> None:
        """Put the largest panes to the store until half of what may be in memory is left."""
        if self._make_store is None or self._bytes <= self._most_bytes:
            return
        for pane in sorted(self._panes, key=lambda pane: _size(self._panes[pane]), reverse=True):
            parts = self._panes[pane]
            loose = [part for part in parts if not isinstance(part, StoredRows)]
            if 2 * self._bytes <= self._most_bytes or not loose:
                return
            self._bytes -= _size(loose)
            kept = self._make_store().keep(loose)
            self._panes[pane] = [*(part for part in parts if isinstance(part, StoredRows)), kept]


def _batches(part: Any) -> Iterator[Batch]:
    return part.batches(_AT_ONCE) if isinstance(part, StoredRows) else iter([part])


def _size(parts: Sequence[Any]) -> int:
    """Bytes of those that are in memory."""
    return sum(part.nbytes for part in parts if not isinstance(part, StoredRows))

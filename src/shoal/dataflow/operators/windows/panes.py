"""A pane: what is kept for the rows of one stretch of time, by key slot.

It takes the form that fits its fill: pieces as they came while they are few, arrays over all slots while many rows
come, and a compressed form, with the slots that are there only, once it waits for its windows to end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.dataflow.operators.aggregates.columns import Cells
from shoal.dataflow.operators.aggregates.plan import AccumulatorSpec
from shoal.dataflow.operators.aggregates.sparse import Sparse, in_order
from shoal.dataflow.operators.aggregates.store import Rows, Store, combine
from shoal.dataflow.state.dirty import DirtyCells

#: Pieces wait as they are while they have less than one row for so many slots: arrays over all would be mostly empty.
_THIN = 8
#: And never more of them than this.
_MAX_PIECES = 64
#: When one slot of so many has rows, all are kept.
_FULL = 4


class Pane:
    """The rows of one stretch of time."""

    __slots__ = ("_base", "_can_be_padded", "_pieces", "_specs", "_store", "_waiting", "dirty")

    def __init__(
        self, specs: Sequence[AccumulatorSpec], *, can_be_padded: bool = False, is_tracking: bool = False
    ) -> None:
        #: The slots that changed since the last snapshot.
        self.dirty = DirtyCells(is_tracking=is_tracking)
        self._specs = specs
        self._can_be_padded = can_be_padded
        self._base: Sparse | None = None
        self._pieces: list[Sparse | Rows] = []
        self._waiting = 0
        self._store: Store | None = None

    def add(self, piece: Sparse | Rows, capacity: int) -> None:
        """Take rows in, or what was aggregated elsewhere. `capacity` is above every slot."""
        if self.dirty.is_tracking:
            self.dirty.mark_rows(piece.cells, capacity)
        if self._can_be_padded and isinstance(piece, Sparse) and self._is_empty():
            self._base = in_order(piece)
            return
        if self._store is None:
            self._waiting += len(piece.cells)
            if self._waiting * _THIN < capacity and len(self._pieces) < _MAX_PIECES:
                self._pieces.append(piece.copy())  # else one row would keep its whole batch alive
                return
            self._store = Store(self._specs, capacity)
            for waiting in self._pieces:
                self._store.add(waiting)
            self._pieces = []
        self._store.ensure(capacity)
        self._store.add(piece)

    def begin(self, base: Sparse, capacity: int) -> None:
        """Begin with what was kept elsewhere, in the order of slots."""
        self._base = base
        self.dirty.mark(base.cells, capacity)

    def _is_empty(self) -> bool:
        return self._base is None and self._store is None and not self._pieces

    def peek(self, capacity: int) -> Sparse:
        """All of it, in the compressed form."""
        pieces = [] if self._base is None else [present_only(self._base)]
        if self._store is not None:
            pieces.append(self._store.take(self._store.present()))
        return combine(self._specs, [*pieces, *self._pieces], capacity)

    def count(self) -> int:
        """How many slots it has, about."""
        kept = 0 if self._base is None else len(self._base)
        return kept + self._waiting if self._store is None else kept + int(np.count_nonzero(self._store.rows))

    def changes(self, capacity: int) -> Sparse:
        """What changed since the last time; all of it at first."""
        if not self.dirty.is_tracking:
            self.dirty.begin()
            return self.peek(capacity)
        changed = self.dirty.take()
        if self._store is not None and self._base is None and not self._pieces:
            changed = changed[changed < self._store.capacity]
            return self._store.take(changed[self._store.rows[changed] != 0])
        if not len(changed):
            return combine(self._specs, [], capacity)
        whole = self.peek(capacity)
        flags = np.zeros(capacity, np.bool_)
        flags[changed] = True
        return whole.at(np.flatnonzero(flags[whole.cells]))

    def freeze(self, capacity: int) -> Sparse:
        """Keep the compressed form only, and return it. Some of its slots may have no rows."""
        if self._base is None or self._pieces or self._store is not None:
            self._base = self._compressed(capacity)
            self._pieces, self._waiting, self._store = [], 0, None
        return self._base

    def renumber(self, moved: Cells, capacity: int) -> None:
        """Slots have new numbers, in the same order."""
        sparse = present_only(self.freeze(capacity))
        self._base = sparse.with_cells(moved[sparse.cells])
        self.dirty.renumber(moved)

    def _compressed(self, capacity: int) -> Sparse:
        store = self._store
        if store is None or self._base is not None or self._pieces or not self._can_be_padded or not capacity:
            return self.peek(capacity)
        slots = min(store.capacity, capacity)
        # Nearly full, it is quicker to add and no larger with every slot in it.
        if np.count_nonzero(store.rows) * _FULL >= slots:
            return store.head(slots)
        return store.take(store.present())


def present_only(sparse: Sparse) -> Sparse:
    """Without cells that have no rows."""
    return sparse if sparse.rows.all() else sparse.at(np.flatnonzero(sparse.rows))

"""A store: all accumulators of an aggregation over its cells.

Used by windows, sessions, count windows and running aggregates. Numbers of cells are the caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.dataflow.operators.aggregates.accumulators import count_into, grown
from shoal.dataflow.operators.aggregates.columns import Cells, Inputs
from shoal.dataflow.operators.aggregates.plan import AccumulatorSpec
from shoal.dataflow.operators.aggregates.sparse import Sparse, in_order


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that were not put together yet: the cell of each, and what the accumulators need of it."""

    cells: Cells
    inputs: Inputs

    def copy(self) -> Rows:
        """The same rows without the batch that they were cut from."""
        return Rows(self.cells.copy(), self.inputs.at(np.arange(len(self.cells))))


class Store:
    """The accumulators of `capacity` cells."""

    def __init__(self, specs: Sequence[AccumulatorSpec], capacity: int = 0) -> None:
        self.specs = tuple(specs)
        self.rows = np.zeros(0, np.int64)
        self._accumulators = [spec.make_accumulator() for spec in self.specs]
        self.ensure(capacity)

    @property
    def capacity(self) -> int:
        """How many cells there is room for."""
        return len(self.rows)

    def ensure(self, capacity: int) -> None:
        """Have room for so many cells; twice as much as before at least, so that growing stays rare."""
        if capacity > self.capacity:
            capacity = max(capacity, 2 * self.capacity)
            self.rows = grown(self.rows, capacity, 0)
            for accumulator in self._accumulators:
                accumulator.grow(capacity)

    def update(self, cells: Cells, inputs: Inputs) -> None:
        """Take rows in."""
        if inputs.signs is None:
            count_into(self.rows, cells)
        else:
            np.add.at(self.rows, cells, inputs.signs)
        for accumulator, column in zip(self._accumulators, inputs.columns, strict=True):
            accumulator.update(cells, column, inputs.times, inputs.signs)

    def add(self, piece: Sparse | Rows) -> None:
        """Take a piece in."""
        if isinstance(piece, Sparse):
            self.merge(piece)
        else:
            self.update(piece.cells, piece.inputs)

    def present(self) -> Cells:
        """The cells that rows went into."""
        return np.flatnonzero(self.rows)

    def take(self, cells: Cells) -> Sparse:
        """What is kept for these cells."""
        return Sparse(cells, self.rows[cells], tuple(accumulator.take(cells) for accumulator in self._accumulators))

    def head(self, count: int) -> Sparse:
        """The first so many cells, whether rows went into them or not; the store is no longer used."""
        return Sparse(
            np.arange(count), self.rows[:count], tuple(accumulator.head(count) for accumulator in self._accumulators)
        )

    def merge(self, sparse: Sparse) -> None:
        """Add what was kept elsewhere, of later rows; no cell is in it twice."""
        self.rows[sparse.cells] += sparse.rows
        for accumulator, part in zip(self._accumulators, sparse.parts, strict=True):
            accumulator.merge(sparse.cells, part)

    def remove(self, sparse: Sparse) -> None:
        """Take back what was merged. All accumulators are invertible."""
        self.rows[sparse.cells] -= sparse.rows
        for accumulator, part in zip(self._accumulators, sparse.parts, strict=True):
            accumulator.remove(sparse.cells, part)

    def clear(self, cells: Cells) -> None:
        """Begin anew with these cells."""
        self.rows[cells] = 0
        for accumulator in self._accumulators:
            accumulator.clear(cells)


def combine(specs: Sequence[AccumulatorSpec], pieces: Sequence[Sparse | Rows], capacity: int) -> Sparse:
    """Several pieces in the order of their rows, as one entry for each cell, in the order of cells.

    `capacity` is above every cell.
    """
    filled = [piece for piece in pieces if len(piece.cells)]
    if not filled:
        return Store(specs).take(np.zeros(0, np.int64))
    if len(filled) == 1 and isinstance(filled[0], Sparse):
        return in_order(filled[0])
    if sum(len(piece.cells) for piece in filled) >= capacity:  # cells that are mostly there need no other numbers
        store = Store(specs, capacity)
        for piece in filled:
            store.add(piece)
        return store.take(store.present())
    found, places = _union([piece.cells for piece in filled], capacity)
    store = Store(specs, len(found))
    for piece, at in zip(filled, places, strict=True):
        store.add(piece.with_cells(at) if isinstance(piece, Sparse) else Rows(at, piece.inputs))
    return store.take(np.arange(len(found))).with_cells(found)


def _union(cells: list[Cells], capacity: int) -> tuple[Cells, list[Cells]]:
    """All cells in order, and the place of each among them."""
    if sum(map(len, cells)) * 8 >= capacity:
        places = np.zeros(capacity, np.int64)
        for each in cells:
            places[each] = 1
        found = np.flatnonzero(places)
        places[found] = np.arange(len(found))
        return found, [places[each] for each in cells]
    found = np.unique(np.concatenate(cells))
    return found, [np.searchsorted(found, each) for each in cells]

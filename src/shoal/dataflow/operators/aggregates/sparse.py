"""Some cells taken out of a store: what is merged, put out and written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.dataflow.operators.aggregates.columns import Cells, Selection, join, pick

#: Flags over all cells are worth it while there are not more of them than so many for each cell.
_FLAGS = 32


@dataclass(frozen=True, slots=True)
class Sparse:
    """Cells, how many rows went into each, and what the accumulators keep for them."""

    cells: Cells
    rows: Cells
    parts: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.cells)

    def at(self, rows: Selection) -> Sparse:
        """Some of it."""
        parts = tuple(tuple(pick(array, rows) for array in part) for part in self.parts)
        return Sparse(self.cells[rows], self.rows[rows], parts)

    def copy(self) -> Sparse:
        """The same without the batch that it was cut from."""
        return self.at(np.arange(len(self.cells)))

    def with_cells(self, cells: Cells) -> Sparse:
        """The same under other numbers."""
        return replace(self, cells=cells)


def concat(sparses: Sequence[Sparse]) -> Sparse:
    """One after the other; cells may repeat."""
    if len(sparses) == 1:
        return sparses[0]
    parts = tuple(
        tuple(join([sparse.parts[accumulator][place] for sparse in sparses]) for place in range(len(part)))
        for accumulator, part in enumerate(sparses[0].parts)
    )
    return Sparse(join([each.cells for each in sparses]), join([each.rows for each in sparses]), parts)


def in_order(sparse: Sparse) -> Sparse:
    """The same in the order of cells. What comes from elsewhere, or from a checkpoint, is in any order."""
    if (sparse.cells[1:] > sparse.cells[:-1]).all():
        return sparse
    return sparse.at(np.argsort(sparse.cells, kind="stable"))


def distinct_rounds(sparse: Sparse) -> list[Sparse]:
    """The same in as many parts as it takes for no cell to be in one of them twice; their order stays."""
    if _are_distinct(sparse.cells):
        return [sparse]
    turns = occurrence(sparse.cells)
    return [sparse.at(np.flatnonzero(turns == turn)) for turn in range(int(turns.max()) + 1)]


def _are_distinct(cells: Cells) -> bool:
    """Whether no cell is there twice. Low numbers are looked up in flags, which costs a tenth of sorting them."""
    if not len(cells):
        return True
    flags = int(cells.max()) + 1
    if flags > _FLAGS * len(cells):
        return len(np.unique(cells)) == len(cells)
    is_there = np.zeros(flags, np.bool_)
    is_there[cells] = True
    return int(np.count_nonzero(is_there)) == len(cells)


def occurrence(cells: Cells) -> Cells:
    """How many rows before each one have the same cell."""
    order = np.argsort(cells, kind="stable")
    ordered = cells[order]
    places = np.arange(len(cells))
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(cells)]
    result = np.empty(len(cells), np.int64)
    result[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    return result

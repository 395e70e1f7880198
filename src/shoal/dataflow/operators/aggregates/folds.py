"""The accumulator of a user's `reduce`: one Python object for each cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from shoal.dataflow.language.expressions.values import make_column
from shoal.dataflow.operators.aggregates.accumulators import Accumulator, grown
from shoal.dataflow.operators.aggregates.columns import Cells, Column, Objects, Vector
from shoal.dataflow.operators.record import Record

#: A user's function over two records.
Fold = Callable[[Any, Any], Any]


class FoldAccumulator(Accumulator):
    """What a function made of the records of each cell, in the order of their arrival."""

    def __init__(self, function: Fold, kind: Any) -> None:
        self._function = function
        self._kind = kind
        self._items = np.full(0, None, object)

    def grow(self, capacity: int) -> None:
        """Have room."""
        self._items = grown(self._items, capacity, None)

    def update(self, cells: Cells, column: Column, times: Cells, signs: Cells | None) -> None:
        """Apply the function row by row."""
        items, function = self._items, self._function
        for cell, record in zip(cells.tolist(), cast("Objects", column).items, strict=True):
            before = items[cell]
            items[cell] = record if before is None else function(before, record)

    def take(self, cells: Cells) -> tuple[Any, ...]:
        """The records as they are."""
        return (self._items[cells],)

    def merge(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Apply the function to what is here and what came later elsewhere."""
        later = part[0] if isinstance(part[0], np.ndarray) else records_of(part[0])
        items, function = self._items, self._function
        for cell, record in zip(cells.tolist(), later, strict=True):
            before = items[cell]
            items[cell] = record if before is None else function(before, record)

    def clear(self, cells: Cells) -> None:
        """Begin anew."""
        self._items[cells] = None


def records_of(structs: Any) -> Vector:
    """Records from a column of structs."""
    # Assigned as a list, every record would be asked whether it is an array.
    return np.fromiter(map(Record, structs.to_pylist()), object, len(structs))


def structs_of(items: Vector, kind: Any) -> Any:
    """A column of structs from records. Raises `MisfitError` for what a function returned that does not fit."""
    return make_column("reduce", [dict(each) if isinstance(each, Mapping) else each for each in items], kind)

"""Exact sums of floats, from which rows can be taken back: what aggregates over changes keep.

A float is a whole number times a power of two, so a sum of floats is one large whole number over a fixed power of two.
It loses nothing, and a row that is taken back leaves no trace. Infinities and not-a-number are counted apart. This is
slower than adding floats: `shoal.dataflow.operators.aggregates.plan` uses it only over rows that can be taken back.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from shoal.dataflow.operators.aggregates.accumulators import Accumulator, grown
from shoal.dataflow.operators.aggregates.columns import Cells, Column, Numbers, Vector

#: Bits of a float's whole number.
_DIGITS = 53
#: Totals count units of two to the power of minus this. The least float above zero is 2**52 of them.
_POINT = 1126
_UNIT = 1 << _POINT

#: For each cell: the total of the finite values, how often infinity came, minus infinity, and not-a-number.
Part: TypeAlias = tuple[Any, ...]


class ExactSumAccumulator(Accumulator):
    """Sums of floats, without any rounding until they are read."""

    def __init__(self) -> None:
        self._totals = np.zeros(0, object)
        self._odd = tuple(np.zeros(0, np.int64) for _ in range(3))

    def grow(self, capacity: int) -> None:
        """Have room."""
        self._totals = grown(self._totals, capacity, 0)
        self._odd = tuple(grown(counts, capacity, 0) for counts in self._odd)

    def update(self, cells: Cells, column: Column, times: Cells, signs: Cells | None) -> None:
        """Add the values, or take them back."""
        given = cast("Numbers", column)
        values, signs = given.values, np.ones(len(cells), np.int64) if signs is None else signs
        if given.valid is not None:
            cells, values, signs = cells[given.valid], values[given.valid], signs[given.valid]
        finite = np.isfinite(values)
        if not finite.all():
            for counts, chosen in zip(self._odd, (values == np.inf, values == -np.inf, np.isnan(values)), strict=True):
                np.add.at(counts, cells[chosen], signs[chosen])
            cells, values, signs = cells[finite], values[finite], signs[finite]
        wholes, shifts = _split(values)
        totals = self._totals
        for cell, whole, shift in zip(cells.tolist(), (wholes * signs).tolist(), shifts.tolist(), strict=True):
            totals[cell] += whole << shift

    def take(self, cells: Cells) -> Part:
        """The totals, and the counts of what is not finite."""
        return self._totals[cells], *(counts[cells] for counts in self._odd)

    def merge(self, cells: Cells, part: Part) -> None:
        """Add."""
        self._totals[cells] += part[0]
        for counts, more in zip(self._odd, part[1:], strict=True):
            counts[cells] += more

    def clear(self, cells: Cells) -> None:
        """Zero."""
        for array in (self._totals, *self._odd):
            array[cells] = 0


def _split(values: Vector) -> tuple[Vector, Vector]:
    """Finite floats as whole numbers, and by how many bits each has to be shifted to count units."""
    fractions, exponents = np.frexp(values)
    return (fractions * float(1 << _DIGITS)).astype(np.int64), exponents.astype(np.int64) + (_POINT - _DIGITS)


def rounded(part: Part) -> Vector:
    """The sums as floats, each rounded once; infinite or not-a-number as adding the values would make them."""
    totals, above, below, none = part
    sums = np.fromiter(map(_nearest, totals), np.float64, len(totals))
    sums[above > 0] = np.inf
    sums[below > 0] = -np.inf
    sums[(none > 0) | ((above > 0) & (below > 0))] = np.nan
    return sums


def _nearest(total: int) -> float:
    try:
        return total / _UNIT
    except OverflowError:
        return np.inf if total > 0 else -np.inf


# ---------------------------------------------------------------------------------------------------------
# On disk

STATE_TYPES = (pa.binary(), pa.int64(), pa.int64(), pa.int64())


def to_arrow(part: Part) -> list[Any]:
    """What is kept, as Arrow arrays of `STATE_TYPES`."""
    totals = [total.to_bytes(total.bit_length() // 8 + 1, "little", signed=True) for total in part[0]]
    return [pa.array(totals, pa.binary()), *(pa.array(np.ascontiguousarray(counts)) for counts in part[1:])]


def from_arrow(arrays: list[Any]) -> Part:
    """The inverse."""
    totals = np.fromiter(
        (int.from_bytes(each, "little", signed=True) for each in arrays[0].to_pylist()), object, len(arrays[0])
    )
    return totals, *(array.to_numpy(zero_copy_only=False) for array in arrays[1:])

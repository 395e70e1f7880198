"""Accumulators of numbers: what is kept for every cell, as numpy arrays that are updated a batch at a time.

Sums of whole numbers are exact: one that does not fit into 64 bits is an error and never a wrong number. Sums of floats
are never subtracted from, because what was lost by adding does not come back; where rows can be taken back,
`shoal.dataflow.operators.aggregates.exact` keeps them.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from shoal.core.errors import ExhaustedError
from shoal.dataflow.operators.aggregates.columns import Cells, Column, Numbers, Vector, is_any, no_counts, peak_of

#: Sums within it cannot have wrapped around.
_SAFE = 1 << 62


class Accumulator:
    """One thing that is kept for every cell. `part`s are what `take` returned: arrays with an entry for each cell."""

    def grow(self, capacity: int) -> None:
        """Have room for so many cells."""
        raise NotImplementedError

    def update(self, cells: Cells, column: Column, times: Cells, signs: Cells | None) -> None:
        """Take rows in: the cell of each, its value and its time."""
        raise NotImplementedError

    def take(self, cells: Cells) -> tuple[Any, ...]:
        """What is kept for these cells, which are in order."""
        raise NotImplementedError

    def head(self, count: int) -> tuple[Any, ...]:
        """What is kept for the first so many cells; the accumulator is no longer used."""
        return self.take(np.arange(count))

    def merge(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Add what was kept elsewhere, of later rows. No cell is in it twice."""
        raise NotImplementedError

    def remove(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Take back what was merged. Only of accumulators whose spec is invertible."""
        raise NotImplementedError

    def clear(self, cells: Cells) -> None:
        """Begin anew with these cells."""
        raise NotImplementedError


def grown(array: Vector, capacity: int, fill: Any) -> Vector:
    """A longer copy."""
    longer = np.zeros(capacity, array.dtype) if fill == 0 else np.full(capacity, fill, array.dtype)
    if len(array):
        longer[: len(array)] = array
    return longer


def count_into(counts: Vector, cells: Cells) -> None:
    """Count the rows of each cell."""
    if len(cells) * 2 >= len(counts):
        counts += np.bincount(cells, minlength=len(counts))
    else:
        np.add.at(counts, cells, 1)


class NullAccumulator(Accumulator):
    """How many rows had no value. Kept only once there was one: mostly there is none."""

    def __init__(self) -> None:
        self._capacity = 0
        self._counts: Vector | None = None

    def grow(self, capacity: int) -> None:
        """Have room."""
        self._capacity = capacity
        if self._counts is not None:
            self._counts = grown(self._counts, capacity, 0)

    def update(self, cells: Cells, column: Column, times: Cells, signs: Cells | None) -> None:
        """Count the rows without a value."""
        valid = cast("Numbers", column).valid
        if valid is not None:
            missing = ~valid
            np.add.at(self._there(), cells[missing], 1 if signs is None else signs[missing])

    def take(self, cells: Cells) -> tuple[Any, ...]:
        """The counts."""
        return (no_counts(len(cells)) if self._counts is None else self._counts[cells],)

    def merge(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Add."""
        if is_any(part[0]):
            self._there()[cells] += part[0]

    def remove(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Subtract."""
        if is_any(part[0]):
            self._there()[cells] -= part[0]

    def clear(self, cells: Cells) -> None:
        """Zero."""
        if self._counts is not None:
            self._counts[cells] = 0

    def _there(self) -> Vector:
        if self._counts is None:
            self._counts = np.zeros(self._capacity, np.int64)
        return self._counts


class SumAccumulator(Accumulator):
    """Sums of whole numbers, or of floats."""

    def __init__(self, kind: np.dtype[Any], name: str) -> None:
        self._sums = np.zeros(0, kind)
        self._whole = kind.kind in "iu"
        self._name = name
        self._bound = 0

    def grow(self, capacity: int) -> None:
        """Have room."""
        self._sums = grown(self._sums, capacity, 0)

    def update(self, cells: Cells, column: Column, times: Cells, signs: Cells | None) -> None:
        """Add the values."""
        given = cast("Numbers", column)
        values = given.values
        if given.valid is not None:
            cells, values = cells[given.valid], values[given.valid]
            signs = None if signs is None else signs[given.valid]
        self._add(cells, values, given.peak, signs)

    def take(self, cells: Cells) -> tuple[Any, ...]:
        """The sums."""
        return (self._sums[cells],)

    def head(self, count: int) -> tuple[Any, ...]:
        """The first sums."""
        return (self._sums[:count],)

    def merge(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Add."""
        self._add(cells, part[0], peak_of(part[0]))

    def remove(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Subtract."""
        self._sums[cells] -= part[0]

    def clear(self, cells: Cells) -> None:
        """Zero."""
        self._sums[cells] = 0

    def _add(self, cells: Cells, values: Vector, peak: int, signs: Cells | None = None) -> None:
        if not self._whole or not len(values) or self._is_safe(peak * len(values)):
            _sum_into(self._sums, cells, values, signs)
            return
        # Floats lose digits and do not wrap: a whole number that wrapped is far from its float.
        estimate = self._sums.astype(np.float64)
        _sum_into(estimate, cells, values.astype(np.float64), signs)
        _sum_into(self._sums, cells, values, signs)
        if (np.abs(estimate - self._sums.astype(np.float64)) > float(_SAFE)).any():
            raise ExhaustedError(
                f"the sum of {self._name!r} does not fit into 64 bits",
                hint="cast the column before it is summed up: to float64, which rounds, or to a decimal, of which a "
                "sum has 38 digits at most",
                column=self._name,
            )

    def _is_safe(self, more: int) -> bool:
        if self._bound + more >= _SAFE:
            self._bound = peak_of(self._sums)
        self._bound += more
        return self._bound < _SAFE


def _sum_into(sums: Vector, cells: Cells, values: Vector, signs: Cells | None) -> None:
    """Add the values of cells; subtract those whose sign says so. Only the outcome has to fit, not what is between."""
    if signs is None:
        np.add.at(sums, cells, values)
        return
    added, taken = signs > 0, signs < 0
    np.add.at(sums, cells[added], values[added])
    np.subtract.at(sums, cells[taken], values[taken])


def extreme_start(kind: np.dtype[Any], *, greatest: bool) -> Any:
    """What any value is better than."""
    if kind.kind == "f":
        return np.nan
    limits = np.iinfo(kind)
    return limits.min if greatest else limits.max


class ExtremeAccumulator(Accumulator):
    """The least or the greatest value. Not-a-number counts only where there is nothing else."""

    def __init__(self, kind: np.dtype[Any], *, greatest: bool) -> None:
        self._fill = extreme_start(kind, greatest=greatest)
        if kind.kind == "f":
            self._function: np.ufunc = np.fmax if greatest else np.fmin
        else:
            self._function = np.maximum if greatest else np.minimum
        self._values = np.zeros(0, kind)

    def grow(self, capacity: int) -> None:
        """Have room."""
        self._values = grown(self._values, capacity, self._fill)

    def update(self, cells: Cells, column: Column, times: Cells, signs: Cells | None) -> None:
        """Keep the better one."""
        given = cast("Numbers", column)
        values = given.values
        if given.valid is not None:
            cells, values = cells[given.valid], values[given.valid]
        self._function.at(self._values, cells, values)

    def take(self, cells: Cells) -> tuple[Any, ...]:
        """The values; what they begin with where there was none."""
        return (self._values[cells],)

    def head(self, count: int) -> tuple[Any, ...]:
        """The first values."""
        return (self._values[:count],)

    def merge(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Keep the better one."""
        self._values[cells] = self._function(self._values[cells], part[0])

    def clear(self, cells: Cells) -> None:
        """Begin anew."""
        self._values[cells] = self._fill


class MomentAccumulator(Accumulator):
    """Count, mean and the sum of squared distances from it. Sums of squares would cancel; these do not."""

    def __init__(self) -> None:
        self._counts, self._means, self._squares = (np.zeros(0, np.float64) for _ in range(3))

    def grow(self, capacity: int) -> None:
        """Have room."""
        self._counts = grown(self._counts, capacity, 0)
        self._means = grown(self._means, capacity, 0)
        self._squares = grown(self._squares, capacity, 0)

    def update(self, cells: Cells, column: Column, times: Cells, signs: Cells | None) -> None:
        """Take values in: first among themselves, then with what was there."""
        given = cast("Numbers", column)
        values = given.values
        if given.valid is not None:
            cells, values = cells[given.valid], values[given.valid]
        if not len(cells):
            return
        touched, places = np.unique(cells, return_inverse=True)
        counts = np.bincount(places).astype(np.float64)
        means = np.bincount(places, weights=values) / counts
        distances = values - means[places]
        self.merge(touched, (counts, means, np.bincount(places, weights=distances * distances)))

    def take(self, cells: Cells) -> tuple[Any, ...]:
        """Counts, means, squared distances."""
        return self._counts[cells], self._means[cells], self._squares[cells]

    def merge(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Combine two sets of values by what is known of each."""
        counts, means, squares = part
        before = self._counts[cells]
        together = before + counts
        divisor = np.where(together > 0, together, 1.0)
        apart = means - self._means[cells]
        self._means[cells] += apart * counts / divisor
        self._squares[cells] += squares + apart * apart * before * counts / divisor
        self._counts[cells] = together

    def clear(self, cells: Cells) -> None:
        """Begin anew."""
        for array in (self._counts, self._means, self._squares):
            array[cells] = 0


class EdgeAccumulator(Accumulator):
    """The value of the first or the last row that has one, by time; of equal times by arrival."""

    def __init__(self, kind: np.dtype[Any], *, last: bool) -> None:
        self._last = last
        self._seen = np.zeros(0, np.bool_)
        self._times = np.zeros(0, np.int64)
        self._values = np.zeros(0, kind)
        self._rows = np.zeros(0, np.int64)

    def grow(self, capacity: int) -> None:
        """Have room."""
        self._seen = grown(self._seen, capacity, False)
        self._times = grown(self._times, capacity, 0)
        self._values = grown(self._values, capacity, 0)
        self._rows = grown(self._rows, capacity, 0)

    def update(self, cells: Cells, column: Column, times: Cells, signs: Cells | None) -> None:
        """Find the row of each cell in this batch, then compare with the one before."""
        given = cast("Numbers", column)
        values = given.values
        if given.valid is not None:
            cells, values, times = cells[given.valid], values[given.valid], times[given.valid]
        if not len(cells):
            return
        chosen = edge_rows(cells, times, self._rows, last=self._last)
        self.merge(cells[chosen], (np.ones(len(chosen), np.bool_), times[chosen], values[chosen]))

    def take(self, cells: Cells) -> tuple[Any, ...]:
        """Whether there is one, its time, its value."""
        return self._seen[cells], self._times[cells], self._values[cells]

    def merge(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Keep the earlier, or the later."""
        seen, times, values = part
        known = self._times[cells]
        better = seen & (~self._seen[cells] | ((times >= known) if self._last else (times < known)))
        chosen = cells[better]
        self._seen[chosen] = True
        self._times[chosen] = times[better]
        self._values[chosen] = values[better]

    def clear(self, cells: Cells) -> None:
        """Begin anew."""
        self._seen[cells] = False


def edge_rows(cells: Cells, times: Cells, scratch: Cells, *, last: bool) -> Cells:
    """The row of each cell that is first, or last, by time and then by arrival. `scratch` has room for every cell."""
    order = np.arange(len(cells)) if (times[1:] >= times[:-1]).all() else np.argsort(times, kind="stable")
    if not last:
        order = order[::-1]
    sorted_cells = cells[order]
    places = np.arange(len(cells))
    scratch[sorted_cells] = places  # of several rows of one cell the last one stays
    return np.asarray(order[scratch[sorted_cells] == places])

"""The columns of a batch made ready for accumulators: numpy views of numbers, Arrow arrays of the rest.

Called by `plan.AggregatePlan.inputs` once for each batch; accumulators then take parts of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.keys import Array, as_int64, combined

Cells: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Vector: TypeAlias = np.ndarray[Any, Any]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Selection: TypeAlias = slice | Cells


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers, and where there is one. `valid` is None when there is one everywhere."""

    values: Vector
    valid: Mask | None
    #: No whole number of the batch is farther from zero.
    peak: int = 0

    def at(self, rows: Selection) -> Numbers:
        """Some of its rows."""
        return Numbers(self.values[rows], None if self.valid is None else self.valid[rows], self.peak)


@dataclass(frozen=True, slots=True)
class Values:
    """Values of any type."""

    array: Array

    def at(self, rows: Selection) -> Values:
        """Some of its rows."""
        if isinstance(rows, slice):
            return Values(self.array[rows])
        return Values(self.array.take(pa.array(rows)))


@dataclass(frozen=True, slots=True)
class Objects:
    """Python objects, one for each row."""

    items: Vector

    def at(self, rows: Selection) -> Objects:
        """Some of its rows."""
        return Objects(self.items[rows])


Column: TypeAlias = Numbers | Values | Objects | None


@dataclass(frozen=True, slots=True)
class Inputs:
    """A batch as the accumulators of a plan see it: one column for each accumulator."""

    columns: tuple[Column, ...]
    #: What decides which row is the first: event time, or the order of arrival where there is none.
    times: Cells
    #: -1 for rows that take back an earlier one; None when there are none.
    signs: Cells | None = None

    def at(self, rows: Selection) -> Inputs:
        """Some of its rows."""
        columns = tuple(None if column is None else column.at(rows) for column in self.columns)
        return Inputs(columns, self.times[rows], None if self.signs is None else self.signs[rows])


def is_dense_number(kind: Any) -> bool:
    """Types whose values fit into a numpy array of 64-bit numbers."""
    check = pa.types
    if check.is_temporal(kind):
        return bool(kind.bit_width in {32, 64})
    return bool(check.is_integer(kind) or check.is_floating(kind) or check.is_boolean(kind))


def number_type(kind: Any) -> np.dtype[Any]:
    """The numpy type in which numbers of this Arrow type are kept."""
    if pa.types.is_floating(kind):
        return np.dtype(np.float64)
    return np.dtype(np.uint64 if pa.types.is_unsigned_integer(kind) else np.int64)


def numbers(array: Array, *, as_float: bool = False) -> Numbers:
    """A column as 64-bit numbers."""
    array = combined(array)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    if as_float or pa.types.is_floating(array.type):
        array = array.cast(pa.float64())
        unsigned = False
    else:
        unsigned = pa.types.is_unsigned_integer(array.type)
        array = as_int64(array)
    if valid is not None:
        array = array.fill_null(pa.scalar(0, array.type))
    values = array.to_numpy(zero_copy_only=False)
    values = values.view(np.uint64) if unsigned else values
    return Numbers(values, valid, peak_of(values))


def peak_of(values: Vector) -> int:
    """The greatest distance from zero, of whole numbers."""
    if values.dtype.kind == "f" or not len(values):
        return 0
    return max(int(values.max()), -int(values.min()))


def presence(array: Array) -> Numbers:
    """Where a column of any type has a value."""
    array = combined(array)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    return Numbers(np.broadcast_to(np.int8(0), len(array)), valid)


def back_to(values: Vector, kind: Any) -> Array:
    """Numbers as `number_type` keeps them back to their own Arrow type."""
    array = pa.array(values)
    if pa.types.is_temporal(kind) and kind.bit_width == 32:
        return array.cast(pa.int32()).view(kind)
    if pa.types.is_temporal(kind):
        return array.view(kind)
    return array if array.type == kind else array.cast(kind)


def nullable(array: Array, valid: Mask) -> Array:
    """The array with nulls where it is not valid."""
    return array if valid.all() else array.take(pa.array(np.arange(len(valid)), mask=~valid))


def no_counts(rows: int) -> Cells:
    """So many zeros, in the room of one."""
    return np.ndarray((rows,), np.int64, buffer=_ZERO, strides=(0,))


def is_any(counts: Cells) -> bool:
    """Whether one of them is not zero."""
    return counts.strides != (0,) and bool(counts.any())


_ZERO = bytes(8)


def pick(array: Any, rows: Selection) -> Any:
    """Some rows of a numpy or an Arrow array."""
    if isinstance(array, np.ndarray):
        return array[rows]
    return array[rows] if isinstance(rows, slice) else array.take(pa.array(rows))


def join(arrays: list[Any]) -> Any:
    """Numpy or Arrow arrays one after the other."""
    if len(arrays) == 1:
        return arrays[0]
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    return pa.concat_arrays([combined(array) for array in arrays])

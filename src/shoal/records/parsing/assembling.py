"""Makes Arrow columns of flat values and where each row's begin. Used by the compiled and the plain parser alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shoal.records.parsing.schema import Column, ColumnKind


@dataclass(frozen=True, slots=True)
class Ragged:
    """The values of a column, row after row."""

    #: Where the values of each row begin, and where the last one's end.
    splits: NDArray[np.int64]
    #: Numbers; for bytes an Arrow array.
    values: Any


def ragged_array(column: Ragged, kind: Any) -> Any:
    """A list column, of values of this type. The values are not copied."""
    values = column.values if isinstance(column.values, pa.Array) else pa.array(column.values, kind)
    return pa.ListArray.from_arrays(pa.array(column.splits.astype(np.int32)), values)


def feature_array(column: Column, ragged: Ragged) -> Any:
    """The column of a feature."""
    if column.size is None:
        return ragged_array(ragged, column.kind.arrow)
    dense = _dense_bytes(ragged, column.size) if column.kind is ColumnKind.BYTES else _dense(ragged, column.size)
    return dense if column.size == 1 else pa.FixedSizeListArray.from_arrays(dense, column.size)


def dense_array(column: Column, values: NDArray[Any]) -> Any:
    """The column of a feature with a size, of numbers that are already that many in each row."""
    made = pa.array(values)
    return made if column.size == 1 else pa.FixedSizeListArray.from_arrays(made, column.size)


def _dense(ragged: Ragged, size: int) -> Any:
    """Exactly `size` numbers in each row: the first of them, or zeros."""
    values: NDArray[Any] = np.asarray(ragged.values)
    counts = np.diff(ragged.splits)
    if (counts == size).all():
        return pa.array(values)
    made = np.zeros((len(counts), size), values.dtype)
    places = np.arange(size)
    filled = places < counts[:, None]
    made[filled] = values[(ragged.splits[:-1, None] + places)[filled]]
    return pa.array(made.ravel())


def _dense_bytes(ragged: Ragged, size: int) -> Any:
    counts = np.diff(ragged.splits)
    places = np.arange(size)
    filled = (places < counts[:, None]).ravel()
    chosen = np.where(filled, (ragged.splits[:-1, None] + places).ravel(), 0)
    taken = ragged.values.take(pa.array(chosen, mask=~filled))
    return taken.fill_null(b"")

"""What operators have in common: how they look at ragged columns, and how they are composed.

`Ragged columns` are Arrow lists. Conditions are made of whole columns: a boolean for each value, folded to one for each
row. Chance comes from a generator that the caller seeds, so that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shoal.core.errors import InvalidError, problem

#: A label that nobody learns from: the lowest 32-bit float.
INVALID_LABEL = float(np.finfo(np.float32).min)
POSITIVE_LABEL = 1.0
LABEL = "label"


class RowOperator(Protocol):
    """Changes or leaves out rows."""

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows that follow from these."""
        ...


@dataclass(frozen=True, slots=True)
class Compose:
    """Several operators, one after the other."""

    operators: tuple[RowOperator, ...]

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows that the last one leaves."""
        for each in self.operators:
            batch = each.apply(batch, rng)
        return batch


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Keeps a row that at least one of several filters keeps. Filters only: operators that leave rows as they are."""

    filters: tuple[RowFilter, ...]

    def keeps(self, batch: Any, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Whether each row stays."""
        kept = np.zeros(batch.num_rows, np.bool_)
        for each in self.filters:
            kept |= each.keeps(batch, rng)
        return kept

    def apply(self, batch: Any, rng: np.random.Generator) -> Any:
        """The rows that stay."""
        return filtered(batch, self.keeps(batch, rng))


class RowFilter(Protocol):
    """Leaves out rows, and changes none."""

    def keeps(self, batch: Any, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Whether each row stays."""
        ...


def filtered(batch: Any, kept: NDArray[np.bool_]) -> Any:
    """Some rows of a batch."""
    return batch if kept.all() else batch.filter(pa.array(kept))


def column_of(batch: Any, name: str) -> Any:
    """A column by its name. Raises `InvalidError` when the batch has none."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        rule = f"must be a column; there are {', '.join(batch.schema.names)}"
        raise InvalidError([problem("column", name, rule)])
    return batch.column(index)


def is_list(kind: Any) -> bool:
    """Whether a column has lists, of any length or of one."""
    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind))


def splits_of(column: Any) -> NDArray[np.int64]:
    """Where the values of each row begin and end in those of a list column."""
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(np.arange(len(column) + 1) * column.type.list_size, np.int64)
    # The offsets of a slice do not begin at zero.
    offsets = column.offsets.to_numpy()
    return np.asarray(offsets - offsets[0], np.int64)


def ragged(batch: Any, name: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The splits and the values of a list column; each value of another column is a list of one."""
    column = column_of(batch, name)
    if is_list(column.type):
        return splits_of(column), column.flatten().to_numpy(zero_copy_only=False)
    return np.arange(len(column) + 1), column.to_numpy(zero_copy_only=False)


def scalar_of(value: Any, kind: Any) -> Any:
    """A value as one of a column. Raises `ValueError` for a number with a fraction where the column has whole ones.

    Arrow would cut it off.
    """
    if pa.types.is_integer(kind) and isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is no whole number")
    return pa.scalar(value, kind)


def any_in_row(splits: NDArray[np.int64], flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether any value of each row has the flag."""
    seen = np.concatenate((np.zeros(1, np.int64), np.cumsum(flags)))
    return np.asarray(np.greater(seen[splits[1:]], seen[splits[:-1]]), np.bool_)


def has_any(batch: Any, name: str, wanted: Iterable[int]) -> NDArray[np.bool_]:
    """Whether each row has one of some whole numbers in a column."""
    splits, values = ragged(batch, name)
    return any_in_row(splits, np.isin(values, np.array(list(wanted), values.dtype if values.size else np.int64)))


def with_column(batch: Any, name: str, column: Any) -> Any:
    """The batch with a column in the place of the one of that name, or at the end."""
    index = batch.schema.get_field_index(name)
    return batch.append_column(name, column) if index < 0 else batch.set_column(index, name, column)


def list_column(splits: NDArray[np.int64], values: NDArray[Any]) -> Any:
    """A list column."""
    return pa.ListArray.from_arrays(pa.array(splits.astype(np.int32)), pa.array(values))


def dense_column(rows: NDArray[Any]) -> Any:
    """A list column of rows of one length."""
    return list_column(np.arange(len(rows) + 1) * rows.shape[1], rows.ravel())

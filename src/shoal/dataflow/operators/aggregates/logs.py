"""Accumulators for all but 64-bit numbers: values are kept as rows of Arrow tables, and put together lazily.

A batch only appends its rows. They are reduced to what has to be kept (the least value of each cell, its distinct
values) when they have doubled since the last time, or when they are read: so the work for each row stays constant.
A sum of decimals that has more than 38 digits is an error and never a wrong number.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.errors import ExhaustedError
from shoal.dataflow.language.keys import Array, canonical, combined
from shoal.dataflow.operators.aggregates.accumulators import Accumulator
from shoal.dataflow.operators.aggregates.columns import Cells, Column, Values

#: Fewer rows than this are not worth putting together.
_MIN_REDUCE = 16_384
_MAX_CHUNKS = 256

#: Digits of a sum of decimals, and the first whole number that has more.
_DIGITS = 38
_LIMIT: int = 10**_DIGITS

CELL, TIME, VALUE = "cell", "time", "value"

#: The functions that Arrow's own grouping calculates.
_GROUPED = ("min", "max", "sum")


class LogAccumulator(Accumulator):
    """Rows of cells. `function` says what they are reduced to: min, max, sum, first, last, distinct or list."""

    def __init__(self, function: str, kind: Any, name: str) -> None:
        self._function = function
        self._name = name
        self._schema = pa.schema({CELL: pa.int64(), TIME: pa.int64(), VALUE: kind})
        self._kind = kind
        self._tables: list[Any] = []
        self._rows = 0
        #: No sum of decimals of this accumulator is farther from zero, in units of their last place.
        self._bound = 0
        self._reduced = 0
        self._is_sorted = True

    def grow(self, capacity: int) -> None:
        """Rows need no room ahead."""

    def update(self, cells: Cells, column: Column, times: Cells, signs: Cells | None) -> None:
        """Append the rows that have a value; a list has its nulls too."""
        values = cast("Values", column).array
        if self._function == "distinct":
            values = canonical(values)
        if values.null_count and self._function != "list":
            rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            cells, times, values = cells[rows], times[rows], values.take(pa.array(rows))
            signs = None if signs is None else signs[rows]
        if signs is not None:  # only of sums: what is taken back counts with the other sign
            values = pc.if_else(pa.array(signs > 0), values, pc.negate(values))
        self._append(cells, times, values)

    def take(self, cells: Cells) -> tuple[Any, ...]:
        """Lists of times and of values, one for each cell."""
        table = self._whole()
        known = table.column(CELL).to_numpy()
        starts = np.searchsorted(known, cells, "left")
        lengths = np.searchsorted(known, cells, "right") - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        times, values = table.column(TIME), table.column(VALUE)
        if offsets[-1] != len(table) or not (cells[1:] > cells[:-1]).all():
            index = pa.array(spread(starts, lengths))
            times, values = times.take(index), values.take(index)
        return tuple(
            pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), combined(array)) for array in (times, values)
        )

    def merge(self, cells: Cells, part: tuple[Any, ...]) -> None:
        """Append."""
        times, values = (combined(array) for array in part)
        lengths = times.value_lengths().to_numpy(zero_copy_only=False)
        self._append(np.repeat(cells, lengths), times.flatten().to_numpy(), values.flatten())

    def clear(self, cells: Cells) -> None:
        """Drop the rows of these cells."""
        if self._rows:
            table = self._whole()
            gone = np.isin(table.column(CELL).to_numpy(), cells)
            self._replace([table.filter(pa.array(~gone))])

    def _append(self, cells: Cells, times: Cells, values: Array) -> None:
        if not len(cells):
            return
        if self._function == "sum":
            self._bound += len(values) * _greatest(values)
        values = self._fitting(values)
        self._tables.append(pa.Table.from_arrays([pa.array(cells), pa.array(times), values], schema=self._schema))
        self._rows += len(cells)
        self._is_sorted = False
        if self._rows > max(2 * self._reduced, _MIN_REDUCE) or len(self._tables) > _MAX_CHUNKS:
            self._whole()

    def _whole(self) -> Any:
        """One table, reduced and in the order of cells."""
        if not self._is_sorted or len(self._tables) != 1:
            table = pa.concat_tables(self._tables) if self._tables else self._schema.empty_table()
            self._replace([self._reduced_rows(table)])
            self._reduced = self._rows
            self._is_sorted = True
        return self._tables[0]

    def _fitting(self, values: Array) -> Array:
        """The values in the type that is kept."""
        try:
            return values if values.type == self._kind else values.cast(self._kind)
        except pa.ArrowInvalid as error:
            if self._function == "sum":
                raise self._too_large() from error
            raise

    def _reduced_rows(self, table: Any) -> Any:
        if self._function != "sum" or self._is_safe(table.column(VALUE)):
            return _reduce(table, self._function, self._schema)
        # The sum of Arrow wraps around. With 76 digits it has room for more rows than there can be.
        wide = pa.decimal256(76, self._kind.scale)
        place = table.schema.get_field_index(VALUE)
        table = table.set_column(place, VALUE, table.column(VALUE).cast(wide))
        try:
            return _reduce(table, self._function, self._schema)
        except pa.ArrowInvalid as error:
            raise self._too_large() from error

    def _is_safe(self, values: Array) -> bool:
        """Whether no sum of these can have more digits than there are."""
        if self._bound >= _LIMIT:
            self._bound = len(values) * _greatest(values)
        return self._bound < _LIMIT

    def _too_large(self) -> ExhaustedError:
        return ExhaustedError(
            f"the sum of {self._name!r} does not fit into {_DIGITS} digits",
            hint="cast the column to float64, which rounds, before it is summed up; or sum over shorter windows",
            column=self._name,
        )

    def _replace(self, tables: list[Any]) -> None:
        self._tables = tables
        self._rows = sum(len(table) for table in tables)


def _reduce(table: Any, function: str, schema: Any) -> Any:
    if not len(table):
        return table
    if function in _GROUPED:
        table = table.group_by(CELL, use_threads=False).aggregate([(VALUE, function)])
        table = _with_times(table.column(CELL), table.column(f"{VALUE}_{function}"), schema)
    elif function == "distinct":
        table = table.group_by([CELL, VALUE], use_threads=False).aggregate([])
        table = _with_times(table.column(CELL), table.column(VALUE), schema)
    cells, times = (table.column(name).to_numpy() for name in (CELL, TIME))
    order = np.lexsort((times, cells))  # stable: rows of one time stay in the order of their arrival
    cells = cells[order]
    if function == "first":
        order = order[np.concatenate([[True], cells[1:] != cells[:-1]])]
    elif function == "last":
        order = order[np.concatenate([cells[1:] != cells[:-1], [True]])]
    return table.take(pa.array(order)).combine_chunks()


def _greatest(values: Array) -> int:
    """No decimal among these is farther from zero, in units of the last place. A narrow type tells that by itself."""
    kind = values.type
    if kind.precision < _DIGITS:
        return int(10**kind.precision)
    found = pc.min_max(values)
    edges = [each.as_py() for each in (found["min"], found["max"]) if each.is_valid]
    return int(10 ** max((each.adjusted() + 1 + kind.scale for each in edges if each), default=0))


def _with_times(cells: Array, values: Array, schema: Any) -> Any:
    values = values if values.type == schema.field(VALUE).type else values.cast(schema.field(VALUE).type)
    return pa.Table.from_arrays([cells, pa.array(np.zeros(len(cells), np.int64)), values], schema=schema)


def spread(starts: Cells, lengths: Cells) -> Cells:
    """The numbers of several ranges, one after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    numbers: Cells = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return numbers


def single_values(part: tuple[Any, ...], kind: Any) -> Array:
    """The one value of each cell, null where there is none."""
    lists = combined(part[1])
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    places = np.cumsum(lengths) - 1
    values = lists.flatten().take(pa.array(places, mask=lengths == 0))
    return values if values.type == kind else values.cast(kind)


def value_lists(part: tuple[Any, ...], kind: Any) -> Array:
    """All values of each cell, as a list."""
    lists = combined(part[1])
    return lists.cast(kind)


def value_counts(part: tuple[Any, ...]) -> Array:
    """How many values each cell has."""
    return pc.cast(combined(part[1]).value_lengths(), pa.int64())

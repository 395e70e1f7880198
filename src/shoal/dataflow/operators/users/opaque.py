"""Users' functions over whole batches: `map`, `flat_map` and `filter`. They never see hidden columns.

A `map` returns as many rows as it got, and has the hidden columns put back: row i is taken for what became of row i.
Event time follows its column: where a function returns that column changed, as one that sorts does, the times are read
from it again. A `flat_map` returns any number of rows. They get the hidden columns back when their number is the same,
else the greatest event time of the batch: so they are not late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import HIDDEN_PREFIX, TIME, Batch, Schema
from shoal.dataflow.language.keys import Array, combined
from shoal.dataflow.operators.base import Context, Output, StepOperator
from shoal.dataflow.operators.batches import emit_chunks, event_times
from shoal.dataflow.operators.policies import ErrorPolicy
from shoal.dataflow.operators.rows import VALUE, visible_names
from shoal.dataflow.operators.stateless import emit_filtered

BatchFunction = Callable[[Batch], Any]

#: What is one batch, or can be made one.
SINGLE = pa.RecordBatch | pa.Table | pa.Array | pa.ChunkedArray | Mapping | np.ndarray


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """The column that rows have their event time in."""

    name: str
    #: Its values as microseconds since 1970; null where one is no time.
    micros: Callable[[Array], Array]

    def times(self, result: Batch, source: Batch) -> Array | None:
        """The event times of a result, where its column is no longer the source's; None where it is, or is gone."""
        place, before = result.schema.get_field_index(self.name), source.schema.get_field_index(self.name)
        if place < 0 or before < 0:
            return None
        new, old = result.column(place), source.column(before)
        if new.type != old.type or _is_same_memory(new, old) or new.equals(old):
            return None
        times = self.micros(new)
        if times.null_count:
            first = new.filter(times.is_null())[0]
            bad = first.as_py() if pa.types.is_integer(new.type) else None  # Python has no words for a time so far off
            rule = f"must be a time of the years 1 to 9999, and is none in {times.null_count} of the rows returned"
            hint = "leave such rows out before, or give the new values a column of their own"
            raise InvalidError([problem(f"event time column {self.name!r}", bad, rule)], hint=hint)
        return times


def _is_same_memory(one: Array, other: Array) -> bool:
    """Whether two columns are the same buffers: most functions hand on what they do not change."""
    if len(one) != len(other) or one.offset != other.offset:
        return False
    addresses = [[each and each.address for each in array.buffers()] for array in (one, other)]
    return bool(addresses[0] == addresses[1])


class MapBatches(StepOperator):
    """A function over batches. With `is_flat` it returns any number of rows, in one piece or several."""

    def __init__(
        self,
        *,
        function: BatchFunction,
        schema: Schema | None = None,
        is_flat: bool = False,
        column: str = "",
        policy: ErrorPolicy | None = None,
        time: TimeColumn | None = None,
    ) -> None:
        self._function = function
        self._schema = schema
        self._is_flat = is_flat
        # What was declared is the name of an array that comes back, whatever column it was made of.
        self._column = schema.names[0] if schema is not None and len(schema.names) == 1 else column or VALUE
        self._policy = policy or ErrorPolicy()
        self._time = time

    def open(self, context: Context) -> None:
        """Remember the sizes."""
        self._context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Call the function."""
        if not batch.num_rows:
            return
        visible = visible_names(batch.schema)

        def made(rows: Batch) -> list[Batch]:
            results = self._call(rows.select(visible))
            return [with_hidden(result, rows, self._time) for result in results if result.num_rows]

        for _part, results in self._policy.apply(made, batch, out):
            for result in results:
                emit_chunks(out, result, self._context.max_rows)

    def statistics(self) -> Mapping[str, int]:
        """Rows that were left out."""
        return self._policy.statistics()

    def _call(self, batch: Batch) -> list[Batch]:
        returned = self._function(batch)
        results = [self._typed(each) for each in self._pieces(returned)]
        if not self._is_flat and (len(results) != 1 or results[0].num_rows != batch.num_rows):
            rows = sum(each.num_rows for each in results)
            raise InvalidError(
                [problem("map", rows, f"must return as many rows as it got, {batch.num_rows}")],
                hint="use flat_map for functions that return more or fewer",
            )
        return results

    def _pieces(self, returned: Any) -> list[Batch]:
        if returned is None and self._is_flat:
            return []
        if isinstance(returned, SINGLE) or not can_be_rows(returned, is_flat=self._is_flat):
            return [as_batch(returned, self._column)]
        items = list(returned)
        if self._is_flat and all(isinstance(each, SINGLE) for each in items) and not _is_rows(items):
            return [as_batch(each, self._column) for each in items]
        return [as_batch(items, self._column)]

    def _typed(self, batch: Batch) -> Batch:
        if self._schema is None:
            self._schema = batch.schema
        return fit(batch, self._schema)


class FilterBatches(StepOperator):
    """A function over batches that returns a truth for each row, or one for all."""

    def __init__(self, *, function: BatchFunction, policy: ErrorPolicy | None = None) -> None:
        self._function = function
        self._policy = policy or ErrorPolicy()

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Let rows through."""
        if not batch.num_rows:
            return
        visible = visible_names(batch.schema)
        for part, mask in self._policy.apply(lambda rows: self._call(rows.select(visible)), batch, out):
            emit_filtered(part, mask, out)

    def statistics(self) -> Mapping[str, int]:
        """Rows that were left out."""
        return self._policy.statistics()

    def _call(self, batch: Batch) -> Any:
        mask = self._function(batch)
        if isinstance(mask, bool | np.bool_ | pa.BooleanScalar):
            return mask
        mask = combined(mask if isinstance(mask, pa.Array | pa.ChunkedArray) else pa.array(mask))
        if not pa.types.is_boolean(mask.type) or len(mask) != batch.num_rows:
            shown = f"{len(mask)} of {mask.type}"
            raise InvalidError([problem("filter", shown, f"must return {batch.num_rows} truth values, or one")])
        return mask


def can_be_rows(value: Any, *, is_flat: bool) -> bool:
    """Whether what a function returned can be rows at all. A text is none, though it is made of letters."""
    if value is None:
        return is_flat
    return isinstance(value, SINGLE) or (isinstance(value, Iterable) and not isinstance(value, str | bytes))


def as_batch(value: Any, column: str) -> Batch:
    """What a function returned, as a batch. An array becomes one column of that name."""
    match value:
        case pa.RecordBatch():
            return value
        case pa.Table():
            whole = value.combine_chunks()
            batches = whole.to_batches()
            return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=whole.schema)
        case Mapping():
            return pa.RecordBatch.from_pydict({name: _array(each) for name, each in value.items()})
        case list() if _is_rows(value):
            return pa.RecordBatch.from_pylist([dict(row) for row in value])
        case _ if isinstance(value, pa.Array | pa.ChunkedArray | np.ndarray | list):
            return pa.RecordBatch.from_arrays([_array(value)], names=[column])
    shown = "nothing" if value is None else type(value).__name__
    rule = f"must return a batch, a table, an array or a dictionary of columns, and returned {shown}"
    raise InvalidError([problem("function", None, rule)])


def _is_rows(items: list[Any]) -> bool:
    """Whether these are rows: mappings whose values are not columns."""
    columns = pa.Array | pa.ChunkedArray | np.ndarray | list
    return bool(items) and all(
        isinstance(item, Mapping) and not any(isinstance(each, columns) for each in item.values()) for item in items
    )


def _array(value: Any) -> Any:
    return combined(value) if isinstance(value, pa.Array | pa.ChunkedArray) else pa.array(value)


def fit(batch: Batch, schema: Schema) -> Batch:
    """A batch with the columns of a schema, in its order and types. Raises when one is missing or cannot be cast."""
    if batch.schema.equals(schema):
        return batch
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        raise InvalidError(
            [problem(name, None, "must be among the columns that the function returns") for name in missing]
        )
    arrays = [batch.column(field.name) for field in schema]
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(arrays, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def with_hidden(result: Batch, source: Batch, time: TimeColumn | None = None) -> Batch:
    """A result with the hidden columns of the rows that it was made of; its times are those of their column."""
    hidden = [name for name in source.schema.names if name.startswith(HIDDEN_PREFIX)]
    if not hidden:
        return result
    result = result.select(visible_names(result.schema))
    for name in hidden:
        column = source.column(name)
        if result.num_rows != source.num_rows:
            if name == TIME:
                column = pa.array(np.full(result.num_rows, event_times(source).max()))
            else:
                column = pa.nulls(result.num_rows, column.type)
        elif name == TIME and time is not None:
            found = time.times(result, source)
            column = column if found is None else found
        result = result.append_column(name, column)
    return result

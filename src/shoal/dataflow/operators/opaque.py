"""Users' functions over whole batches: `map`, `flat_map` and `filter`. They never see hidden columns.

A `map` gives as many rows as it got, and has the hidden columns put back. A `flat_map` gives any number; its rows get
the hidden columns back when their number is the same, else the greatest event time of the batch: so they are not late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import HIDDEN_PREFIX, TIME, Batch, Schema
from shoal.dataflow.language.keys import combined
from shoal.dataflow.operators.base import Context, Operator, Output
from shoal.dataflow.operators.batches import emit_chunks, event_times
from shoal.dataflow.operators.policies import ErrorPolicy
from shoal.dataflow.operators.rows import VALUE, visible_names
from shoal.dataflow.operators.stateless import emit_filtered

BatchFunction = Callable[[Batch], Any]

#: What is one batch, or can be made one.
SINGLE = pa.RecordBatch | pa.Table | pa.Array | pa.ChunkedArray | Mapping | np.ndarray


class MapBatches(Operator):
    """A function over batches. With `is_flat` it returns any number of rows, in one piece or several."""

    def __init__(
        self,
        *,
        function: BatchFunction,
        schema: Schema | None = None,
        is_flat: bool = False,
        column: str = "",
        policy: ErrorPolicy | None = None,
    ) -> None:
        self._function = function
        self._schema = schema
        self._is_flat = is_flat
        # What was declared is the name of an array that comes back, whatever column it was made of.
        self._column = schema.names[0] if schema is not None and len(schema.names) == 1 else column or VALUE
        self._policy = policy or ErrorPolicy()

    def open(self, context: Context) -> None:
        """Remember the sizes."""
        self._context = context

    def process(self, batch: Batch, out: Output, *, port: int = 0) -> None:
        """Call the function."""
        if not batch.num_rows:
            return
        visible = visible_names(batch.schema)
        for part, results in self._policy.apply(lambda rows: self._call(rows.select(visible)), batch, out):
            for result in results:
                if result.num_rows:
                    emit_chunks(out, with_hidden(result, part), self._context.max_rows)

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


class FilterBatches(Operator):
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
    """What a function returned, as a batch. An array gives one column of that name."""
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
    said = "nothing" if value is None else type(value).__name__
    rule = f"must return a batch, a table, an array or a dictionary of columns, and returned {said}"
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


def with_hidden(result: Batch, source: Batch) -> Batch:
    """A result with the hidden columns of the rows that it was made of."""
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
        result = result.append_column(name, column)
    return result

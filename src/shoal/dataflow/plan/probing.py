"""What an opaque function gives: tried at start on a row of plain values. And how any result becomes a batch.

`shoal.dataflow.plan.prepare` tries functions whose output nobody declared; operators use `as_batch` for what functions
return. A function that raises on plain values is no error: then its first real batch decides. A function over records
that gives whole numbers is tried on a few rows more, because it may give fractions for others.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from shoal.dataflow.language.datatypes import plain, types
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.functions import callable_of
from shoal.dataflow.language.logical import FunctionRef, MapBatches, MapRecords, Node
from shoal.dataflow.language.record import Record
from shoal.dataflow.operators.records import try_record
from shoal.dataflow.operators.rows import VALUE, make_batch


def plain_batch(schema: Schema) -> Batch:
    """One row of a schema with values that most functions can take."""
    arrays = [pa.array([_plain_value(each.type)], each.type) for each in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain_value(kind: Any) -> Any:
    kind = plain(kind)
    for matches, value in _PLAIN_VALUES:
        if matches(kind):
            return value
    if types.is_list(kind) or types.is_large_list(kind):
        return [_plain_value(kind.value_type)]
    if types.is_struct(kind):
        return {each.name: _plain_value(each.type) for each in kind}
    return None


_PLAIN_VALUES: tuple[tuple[Any, Any], ...] = (
    (types.is_integer, 1),
    (types.is_floating, 1.0),
    (types.is_decimal, Decimal(1)),
    (types.is_boolean, False),
    (types.is_string, "a"),
    (types.is_large_string, "a"),
    (types.is_binary, b"a"),
    (types.is_large_binary, b"a"),
    (types.is_timestamp, dt.datetime(2000, 1, 1)),  # noqa: DTZ001  a value for a column, whatever its zone
    (types.is_date, dt.date(2000, 1, 1)),
    (types.is_time, dt.time(0, 0)),
    (types.is_duration, dt.timedelta(seconds=1)),
)


def as_batch(result: Any, ref: FunctionRef) -> Batch:
    """What a batch function returned, as a batch: it may be a batch, a table, a column, or columns by name.

    A column alone is called after the one column that the function read, else `value`. Raises TypeError.
    """
    if isinstance(result, pa.RecordBatch):
        return result
    if isinstance(result, pa.Table):
        return _one_batch(result)
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if isinstance(result, pa.Array):
        return pa.RecordBatch.from_arrays([result], names=[ref.reads or VALUE])
    if isinstance(result, Mapping):
        return pa.RecordBatch.from_pydict({str(name): value for name, value in result.items()})
    rule = "must return a RecordBatch, a Table, an Array, or a dict of columns"
    raise TypeError(f"{ref.label} {rule}, and returned {type(result).__name__}")


def _one_batch(table: Any) -> Batch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def try_function(node: Node, schema: Schema) -> Schema | None:
    """The columns that a node's function gives for one row of plain values; None when it does not like them."""
    try:
        match node:
            case MapBatches(flat=False):
                return as_batch(callable_of(node.function)(plain_batch(schema)), node.function).schema
            case MapBatches():
                results = list(callable_of(node.function)(plain_batch(schema)))
                return as_batch(results[0], node.function).schema if results else None
            case MapRecords():
                return _try_records(node, schema)
            case _:
                return None
    except Exception:  # noqa: BLE001  it is the user's code, and its first real batch may go well
        return None


def _try_records(node: MapRecords, schema: Schema) -> Schema | None:
    row = plain_batch(schema).to_pylist()[0]
    found = _made_of(node, row)
    # A column that is null here may be anything in a real row.
    if found is None or any(types.is_null(each.type) for each in found):
        return None
    whole = {each.name for each in found if types.is_integer(each.type)}
    if not whole:
        return found
    # What is a whole number for one row may have a fraction for another: `0 if r.price < 2 else 0.5`.
    widened = {name for other in _other_rows(row) for name in whole & _with_fractions(node, other)}
    return pa.schema([each.with_type(pa.float64()) if each.name in widened else each for each in found])


def _made_of(node: MapRecords, row: Mapping[str, Any]) -> Schema | None:
    made = try_record(callable_of(node.function), node.kind, Record(row))
    return make_batch(made, None).schema if made else None


def _with_fractions(node: MapRecords, row: Mapping[str, Any]) -> set[str]:
    """The columns that have a fraction in what a function makes of a row."""
    try:
        found = _made_of(node, row)
    except Exception:  # noqa: BLE001  it is the user's code, and liked another row
        return set()
    return {each.name for each in found or () if types.is_floating(each.type)}


def _other_rows(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The same row with other values, small and large."""
    for others in _OTHER_VALUES:
        yield {name: others.get(type(value), value) for name, value in row.items()}


_OTHER_VALUES: tuple[dict[type, Any], ...] = (
    {int: 0, float: 0.5, bool: True, str: ""},
    {int: 2, float: 2.5, bool: True, str: "b"},
    {int: 100, float: 100.25, str: "abc"},
    {int: -7, float: -7.5, str: "7"},
    {int: 1_000_000, float: 1_000_000.5},
)

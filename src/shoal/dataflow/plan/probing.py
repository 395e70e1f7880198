"""What an opaque function returns: it is tried at start on a row of plain values. And how any result becomes a batch.

`shoal.dataflow.plan.prepare` tries functions whose output nobody declared; `shoal.dataflow.operators.users.opaque`
takes what they return for real batches. Each is called once at most: what it does to the world it does for an invented
row, too. A function that raises on plain values is no error: then its first real batch decides. So it does where a
function over records gives whole numbers, and its code says that it may give fractions for others. One that returns
what can be no rows is refused.
"""

from __future__ import annotations

import datetime as dt
import dis
import functools
import inspect
from collections.abc import Iterator, Mapping
from decimal import Decimal
from types import CodeType
from typing import Any

import pyarrow as pa

from shoal.dataflow.errors import PlanError, refuse
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.expressions.datatypes import plain, types
from shoal.dataflow.language.functions import callable_of
from shoal.dataflow.language.logical import FunctionRef, MapBatches, MapRecords, Node
from shoal.dataflow.operators.record import Record
from shoal.dataflow.operators.rows import VALUE, make_batch
from shoal.dataflow.operators.users.opaque import SINGLE, can_be_rows
from shoal.dataflow.operators.users.records import try_record

_MAX_SHOWN = 100


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
    """The columns that a node's function returns for one row of plain values; None when it does not like them.

    None also for one that is to see real records only. Raises `PlanError` when a function over batches returns what can
    be no rows, whatever its input is.
    """
    try:
        match node:
            case MapBatches():
                return _try_batch(node, schema)
            case MapRecords(probe=True):
                return _try_records(node, schema)
            case _:
                return None
    except _NoRowsError as error:
        raise _refused(node, error.returned) from None
    except Exception:  # noqa: BLE001  it is the user's code, and its first real batch may go well
        return None


class _NoRowsError(Exception):
    """A function returned what can be no rows."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned


def _try_batch(node: MapBatches, schema: Schema) -> Schema | None:
    returned = callable_of(node.function)(plain_batch(schema))
    if not can_be_rows(returned, is_flat=node.flat):
        raise _NoRowsError(returned)
    results = [returned] if not node.flat or isinstance(returned, SINGLE) else list(returned)
    return as_batch(results[0], node.function).schema if results else None


def _refused(node: Any, returned: Any) -> PlanError:
    shown = "nothing" if returned is None else f"{type(returned).__name__} {returned!r}"[:_MAX_SHOWN]
    rule = f"must return a RecordBatch, a Table, an Array or a dict of columns, and returned {shown}"
    hint = "it gets whole batches: return batch, or such as pc.multiply(batch['amount'], 2)"
    name = "flat_map" if node.flat else "map"
    if returned is None:
        hint = f"does it lack a return? {hint}"
    return refuse(f"{name} {node.function.label}", None, rule, at=node.at, hint=hint)


def _try_records(node: MapRecords, schema: Schema) -> Schema | None:
    function = callable_of(node.function)
    made = try_record(function, node.kind, Record(plain_batch(schema).to_pylist()[0]))
    found = make_batch(made, None).schema if made else None
    # A column that is null here may be anything in a real row.
    if found is None or any(types.is_null(each.type) for each in found):
        return None
    # What is a whole number for one row may have a fraction for another: `0 if r.price < 2 else 0.5`.
    if any(types.is_integer(each.type) for each in found) and _has_fractions(function):
        return None
    return found


def _has_fractions(function: Any) -> bool:
    """Whether a function's own code has a fraction in it, or divides. Nothing is called."""
    while isinstance(function, functools.partial):
        function = function.func
    target = inspect.unwrap(function if inspect.isroutine(function) else type(function).__call__)
    code = getattr(target, "__code__", None)
    return isinstance(code, CodeType) and any(_is_fraction(each) for each in _codes(code))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions inside of it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _is_fraction(code: CodeType) -> bool:
    values = [value for each in code.co_consts for value in (each if isinstance(each, tuple) else (each,))]
    divides = (each.opname == "BINARY_OP" and each.argrepr in ("/", "/=") for each in dis.get_instructions(code))
    return any(isinstance(value, float) for value in values) or any(divides)

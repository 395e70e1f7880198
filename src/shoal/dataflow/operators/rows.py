"""Rows between Arrow and Python: records for functions that take one row, and columns from what they return.

Columns are converted one by one: building a dictionary for each row out of Arrow's own scalars costs ten times as much.
Called by the operators that call users' functions row by row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.dataflow.language.elements import HIDDEN_PREFIX, Batch, Schema
from shoal.dataflow.language.expressions.values import make_rows, refuse_others
from shoal.dataflow.language.keys import Array, combined
from shoal.dataflow.operators.record import Record

#: Records are made for so many rows at a time. More would be alive at once, and the garbage collector walks over them.
CHUNK = 1_024

#: The column of a function that returns something else than a mapping.
VALUE = "value"

#: What making a batch raises for rows that do not fit their columns.
MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError)


def column_values(array: Array) -> list[Any]:
    """A column as Python values."""
    array = combined(array)
    kind = array.type
    if not array.null_count:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            values: list[Any] = array.to_numpy().tolist()
            return values
        if pa.types.is_timestamp(kind) and kind.tz is None and kind.unit != "ns":
            times: list[Any] = array.to_numpy().astype("datetime64[us]").tolist()
            return times
    listed: list[Any] = array.to_pylist()
    return listed


def visible_names(schema: Schema) -> list[str]:
    """The columns that users know of."""
    return [name for name in schema.names if not name.startswith(HIDDEN_PREFIX)]


def make_records(batch: Batch, names: Sequence[str]) -> list[Record]:
    """All rows of a batch as records."""
    columns = [column_values(batch.column(name)) for name in names]
    if not columns:
        return [Record() for _ in range(batch.num_rows)]
    return [Record(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def as_mapping(row: Any) -> Mapping[str, Any]:
    """What a function returned for a row, by column."""
    if isinstance(row, Mapping):
        return row
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return {VALUE: row}


def make_batch(rows: Sequence[Any], schema: Schema | None) -> Batch:
    """Rows that functions returned as a batch. Without a schema the columns are those of the rows.

    Raises `MisfitError`, a ValueError, when a value does not fit its column exactly or a row has other columns.
    """
    return make_rows(_mappings(rows), schema)


def _mappings(rows: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    return rows if all(type(row) in (dict, Record) for row in rows) else [as_mapping(row) for row in rows]


def learn_batch(rows: Sequence[Any], known: Schema | None) -> Batch:
    """The same with a schema that was only seen so far: a column that has been null until now may get a type."""
    if known is None or not any(_is_open(field.type) for field in known):
        return make_batch(rows, known)
    mappings = _mappings(rows)
    refuse_others(mappings, known.names)
    seen = make_batch([{name: row.get(name) for name in known.names} for row in mappings], None)
    fields = [
        pa.field(field.name, seen.schema.field(field.name).type) if _is_open(field.type) else field for field in known
    ]
    return make_batch(rows, pa.schema(fields))


def find_misfits(rows: Sequence[Any], schema: Schema | None) -> Iterator[tuple[int, Exception]]:
    """The places of rows that do not fit, each taken alone, and why not."""
    for place, row in enumerate(rows):
        try:
            make_batch([row], schema)
        except MISFITS as error:
            yield place, error


def _is_open(kind: Any) -> bool:
    """Whether a type is not known in all its parts."""
    if pa.types.is_null(kind):
        return True
    return any(_is_open(kind.field(place).type) for place in range(kind.num_fields))


def object_array(items: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Objects in a numpy array, one for each, whatever they are."""
    array = np.empty(len(items), object)
    array[:] = items
    return array

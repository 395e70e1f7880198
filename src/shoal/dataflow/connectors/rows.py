"""Rows as people write them, to batches; and the rows among them that do not fit, found without giving up the others.

Called by the sources that read dicts, CSV and JSON lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.logical import OnError
from shoal.dataflow.language.values import make_rows

#: What is known of rows that could not be read.
POISON = pa.schema([pa.field("value", pa.utf8()), pa.field("error", pa.utf8())])

_MAX_SHOWN = 1000

T = TypeVar("T")


def as_batches(items: Iterable[Any], schema: Schema | None, batch_size: int) -> Iterator[Batch]:
    """Batches from batches, tables, dicts and lists of dicts, with the columns of the schema."""
    for item in items:
        if isinstance(item, pa.RecordBatch):
            yield shaped(item, schema)
        elif isinstance(item, pa.Table):
            for batch in item.to_batches(max_chunksize=batch_size):
                yield shaped(batch, schema)
        elif isinstance(item, Mapping):
            yield make_rows([item], schema)
        elif isinstance(item, list | tuple):
            for start in range(0, len(item), batch_size):
                yield make_rows(_mappings(item[start : start + batch_size]), schema)
        else:
            rule = "must be a record batch, a table, a dict or a list of dicts"
            raise InvalidError([problem("item", type(item).__name__, rule)], what="source")


def _mappings(rows: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    wrong = next((each for each in rows if not isinstance(each, Mapping)), None)
    if wrong is not None:
        raise InvalidError([problem("row", type(wrong).__name__, "must be a dict, in a list of dicts")], what="source")
    return rows


def shaped(batch: Batch, schema: Schema | None) -> Batch:
    """A batch with the columns of a schema, in its order and of its types."""
    if schema is None or batch.schema.equals(schema):
        return batch
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        raise InvalidError([problem("batch", name, "is a column that the source was said to have") for name in missing])
    return batch.select(schema.names).cast(schema)


def empty_batch(schema: Schema) -> Batch:
    """A batch of these columns without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema)


def rows_to_batch(rows: Sequence[Mapping[str, Any]], schema: Schema, *, policy: OnError) -> tuple[Batch, Batch | None]:
    """A batch of rows; and those that do not fit the schema, with the reason."""

    def convert(part: Sequence[Mapping[str, Any]]) -> Batch:
        return make_rows(part, schema)

    if policy is OnError.FAIL:
        return convert(rows), None
    return sift(rows, convert, schema)


def sift(rows: Sequence[T], convert: Callable[[Sequence[T]], Batch], schema: Schema) -> tuple[Batch, Batch | None]:
    """Convert rows, and where that fails halve them until the bad ones stand alone."""
    good: list[Batch] = []
    bad: list[tuple[T, str]] = []
    waiting: list[Sequence[T]] = [rows] if rows else []
    while waiting:
        part = waiting.pop()
        try:
            good.append(convert(part))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            if len(part) == 1:
                bad.append((part[0], str(error)))
            else:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
    table = pa.Table.from_batches(good, schema=schema).combine_chunks()
    batches = table.to_batches()
    batch = batches[0] if batches else empty_batch(schema)
    return batch, poison_batch(bad) if bad else None


def poison_batch(bad: Sequence[tuple[Any, str]]) -> Batch:
    """Rows that could not be read, and why."""
    return pa.RecordBatch.from_pydict(
        {"value": [_shown(row) for row, _error in bad], "error": [error[:_MAX_SHOWN] for _row, error in bad]},
        schema=POISON,
    )


def _shown(row: Any) -> str:
    text = row.decode(errors="replace") if isinstance(row, bytes) else str(row)
    return text[:_MAX_SHOWN]

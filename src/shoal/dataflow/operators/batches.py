"""Small things that many operators do with batches: event times out of them, and results into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import TIME, Batch, Schema
from shoal.dataflow.language.keys import Array, Integers, combined
from shoal.dataflow.operators.base import Output

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def event_times(batch: Batch) -> Integers:
    """The event time of each row."""
    column = combined(batch.column(TIME))
    if column.null_count:
        raise InvalidError(
            [problem("event time", None, f"{column.null_count} rows have none")],
            hint="filter them out before the event time is named, or fill them",
        )
    times: Integers = column.to_numpy(zero_copy_only=False)
    return times


def processing_time(clock: Clock) -> int:
    """Now, in microseconds since 1970."""
    return (clock.wall() - _EPOCH) // _MICROSECOND


def has_time(schema: Schema) -> bool:
    """Whether rows carry their event time."""
    return bool(schema.get_field_index(TIME) >= 0)


def emit_chunks(out: Output, batch: Batch, max_rows: int) -> None:
    """Put a batch out in pieces of at most so many rows."""
    rows = batch.num_rows
    if 0 < rows <= max_rows:
        out.emit(batch)
        return
    for start in range(0, rows, max_rows):
        out.emit(batch.slice(start, max_rows))


def filled(value: int, rows: int, kind: Any) -> Array:
    """A column of one whole number or time."""
    return pa.array(np.full(rows, value, np.int64)).view(kind)


def same_type(array: Array, kind: Any) -> Array:
    """The array as this type."""
    return array if array.type == kind else array.cast(kind)


def stacked(batches: Sequence[Batch]) -> Batch:
    """Batches as one. A hidden column that some of them lack is left out.

    Behind a union some rows may have one, such as event time, that others have not. Then nobody behind it needs it.
    """
    names = batches[0].schema.names
    if any(each.schema.names != names for each in batches):
        shared = [name for name in names if all(name in each.schema.names for each in batches)]
        batches = [each.select(shared) for each in batches]
    return pa.concat_batches(batches)

"""Headers of records as columns: to look one up in a whole batch, and to make them. Pure.

Every record may carry a trace id and the time of its event (`shoal.topics.base`); engines bring them through their
operators as columns. Called by the engines and by `shoal.topics.codecs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.topics.base import EVENT_TIME_HEADER, HEADERS, TRACE_HEADER

_DIGITS = "-?[0-9]{1,18}"
_NUMBER = re.compile(_DIGITS)


def header(headers: Any, name: str) -> Any:
    """The value of one header for each record, as binary; null where it is missing. Of several the first counts."""
    count = len(headers)
    if not count or headers.null_count == count:
        return pa.nulls(count, pa.binary())
    bounds = np.asarray(headers.offsets, dtype=np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    keys = headers.keys.slice(first, last - first)
    found = np.flatnonzero(
        pc.fill_null(pc.equal(keys, pa.scalar(name, pa.utf8())), False).to_numpy(zero_copy_only=False)
    )
    if not len(found):
        return pa.nulls(count, pa.binary())
    # For each record the first hit at or after its begin; it is its own if it lies before its end.
    at = np.searchsorted(found, bounds[:-1] - first)
    hits = np.where(at < len(found), found[np.minimum(at, len(found) - 1)], last)
    own = (hits < bounds[1:] - first) & ~headers.is_null().to_numpy(zero_copy_only=False)
    indices = pa.array(np.where(own, hits, 0), mask=~own)
    return headers.items.slice(first, last - first).take(indices)


def event_times(batch: Any) -> Any:
    """When each record's event happened, in microseconds: as its header says, else its timestamp."""
    stamps = batch.column(batch.schema.get_field_index("timestamp"))
    given = header(batch.column(batch.schema.get_field_index("headers")), EVENT_TIME_HEADER)
    if given.null_count == len(given):
        return stamps
    # Any program may have written the header: text that is no number is ignored.
    text = pa.array(
        [_number(value) for value in given.to_pylist()] if not _all_digits(given) else given.cast(pa.utf8()),
        type=pa.utf8(),
    )
    return pc.coalesce(text.cast(pa.int64()), stamps)


def trace_ids(batch: Any) -> Any:
    """The trace of each record, as binary; null where there is none."""
    return header(batch.column(batch.schema.get_field_index("headers")), TRACE_HEADER)


def make_headers(columns: Mapping[str, Any], count: int) -> Any:
    """Headers from columns of text, bytes or whole numbers; a null leaves the header of that record out."""
    names = [name for name, column in columns.items() if column.null_count < len(column)]
    if not names or not count:
        return pa.nulls(count, HEADERS)
    values = [_as_binary(columns[name]) for name in names]
    # Record by record: its headers one after the other. That is the transpose of the columns, without the nulls.
    present = np.stack([column.is_valid().to_numpy(zero_copy_only=False) for column in values], axis=1)
    flat = np.flatnonzero(present.ravel())
    rows, which = flat // len(names), flat % len(names)
    items = pa.concat_arrays(values).take(pa.array(which * count + rows))
    keys = pa.array(names, pa.utf8()).take(pa.array(which))
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items).cast(HEADERS)


def _as_binary(column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_integer(column.type):
        column = column.cast(pa.utf8())
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _all_digits(values: Any) -> bool:
    try:
        text = values.cast(pa.utf8())
    except pa.ArrowInvalid:
        return False
    return bool(pc.all(pc.match_substring_regex(text, f"^{_DIGITS}$")).as_py())


def _number(value: bytes | None) -> str | None:
    text = (value or b"").decode("ascii", "replace")
    return text if _NUMBER.fullmatch(text) else None

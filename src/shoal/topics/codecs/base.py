"""The protocol of codecs, and what all of them share. Called by the codecs and by connectors of topics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.topics.base import FETCHED

POISON = pa.schema([*(field.with_nullable(True) for field in FETCHED), pa.field("reason", pa.utf8(), nullable=False)])
"""Records that could not be decoded, whole, with the reason of each."""

MAX_REASON = 300
"""Letters of a reason."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a batch of records came to."""

    rows: Any
    """A RecordBatch of the schema that was asked for."""

    records: Any
    """For each row the index of its record in the batch, as int64 Array. It never decreases."""

    poison: Any
    """A RecordBatch of schema `POISON`; usually empty."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows as the values of records."""

    values: Any
    """A binary Array."""

    rows: Any
    """For each value the index of its first row, as int64 Array: there are the record's key, time and headers."""


class Codec(Protocol):
    """Turns records into rows and back. It has no state: threads may share it."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    def decode(self, batch: Any, schema: Any) -> Decoded:
        """The rows of records: a RecordBatch of schema `shoal.topics.base.FETCHED` or `RECORDS`."""
        ...

    def encode(self, rows: Any) -> Encoded:
        """Values from rows. Raises `InvalidError` for columns that it cannot hold."""
        ...


def poison(batch: Any, reasons: dict[int, str]) -> Any:
    """The records that could not be read, with why."""
    at = sorted(reasons)
    chosen = batch.take(pa.array(at, pa.int64())) if at else batch.slice(0, 0)
    columns = {field.name: column for field, column in zip(chosen.schema, chosen.columns, strict=True)}
    offsets = columns.get("offset", pa.nulls(len(at), pa.int64()))
    arrays = [offsets, *(columns[name] for name in POISON.names[1:-1])]
    return pa.RecordBatch.from_arrays([*arrays, pa.array([reasons[each] for each in at], pa.utf8())], schema=POISON)


def numbers(count: int) -> Any:
    """The whole numbers below `count`: each row is its own record."""
    return pa.array(np.arange(count, dtype=np.int64))


def without(count: int, bad: Iterable[int]) -> Any:
    """The whole numbers below `count`, without those of poison."""
    numbers = np.arange(count, dtype=np.int64)
    return pa.array(np.delete(numbers, list(bad)) if bad else numbers)


def reason_of(error: Exception) -> str:
    """Why a record could not be read, for people."""
    text = str(error).replace("C Data interface error: ", "").strip() or type(error).__name__
    return text[:MAX_REASON]


def unfit(schema: Any, rule: str) -> InvalidError:
    """The error for columns that a codec cannot hold."""
    return InvalidError([problem("schema", ", ".join(f"{each.name} {each.type}" for each in schema), rule)])


def require(holds: bool, schema: Any, rule: str) -> None:
    """Raise `InvalidError` unless it holds."""
    if not holds:
        raise unfit(schema, rule)


def one_batch(tables: list[Any], schema: Any) -> Any:
    """All rows of some tables as one batch; without copying where there is only one."""
    batches = [batch for table in tables for batch in table.to_batches() if batch.num_rows]
    if not batches:
        return pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

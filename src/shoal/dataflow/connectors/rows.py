"""Rows as people write them, to batches; and the rows among them that do not fit, found without giving up the others.

Called by the sources that read dicts, CSV and JSON lines.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.expressions.values import MisfitError, make_rows
from shoal.dataflow.language.logical import OnError

#: What is known of rows that could not be read.
POISON = pa.schema([("offset", pa.int64()), ("value", pa.utf8()), ("error", pa.utf8())])

#: What is raised where rows do not fit their columns.
MISFITS = (pa.ArrowException, ValueError, TypeError, OverflowError)

_MAX_SHOWN = 1000
_DECLARE = "say the types: schema="

T = TypeVar("T")


# ---------------------------------------------------------------------------------------------------------
# Rows, and the bad ones among them


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that cannot be read: its number among those around it, its place, what it is, and why.

    The place is the number of the row, or of the line in a file, from 1.
    """

    index: int
    place: int
    value: Any
    error: str


@dataclass(frozen=True, slots=True)
class Sifted:
    """Records that were read: the good ones as a batch, and the bad ones among them in their order."""

    rows: Batch
    bad: Sequence[Bad] = ()

    @property
    def count(self) -> int:
        """How many records there were."""
        return int(self.rows.num_rows) + len(self.bad)

    def part(self, start: int, most: int) -> tuple[Batch, Batch | None, int]:
        """At most so many rows from a record on, the bad records up to there, and the number of the next record."""
        if not self.bad:
            end = min(start + most, self.rows.num_rows)
            return self._slice(start, end), None, end
        passed = bisect_left(self.bad, start, key=lambda each: each.index)
        end = min(start - passed + most, self.rows.num_rows)
        # A bad record has as many rows before it as its number says, less the bad ones before it.
        told = sum(each.index - number <= end for number, each in enumerate(self.bad))
        poison = poison_batch(self.bad[passed:told]) if told > passed else None
        return self._slice(start - passed, end), poison, end + told

    def rows_before(self, record: int) -> int:
        """How many good records are before one."""
        return record - bisect_left(self.bad, record, key=lambda each: each.index)

    def record_of(self, row: int) -> int:
        """The number of the record that a row was read from."""
        return row + sum(each.index - number <= row for number, each in enumerate(self.bad))

    def _slice(self, start: int, end: int) -> Batch:
        return self.rows if end - start == self.rows.num_rows else self.rows.slice(start, end - start)


def mappings(rows: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    """Rows that are all dicts. Raises `InvalidError` for others."""
    wrong = next((each for each in rows if not isinstance(each, Mapping)), None)
    if wrong is not None:
        raise InvalidError([problem("row", type(wrong).__name__, "must be a dict, in a list of dicts")], what="source")
    return rows


class RowsReader:
    """Makes batches of dicts that come one after the other, and remembers what they have to agree in."""

    def __init__(self, schema: Schema, policy: OnError) -> None:
        self._schema = schema
        self._policy = policy
        self._times = [each.name for each in schema if pa.types.is_timestamp(each.type)]
        self._zones: dict[str, dt.datetime] = {}
        self._count = 0

    def passed(self, rows: int) -> None:
        """So many rows came another way."""
        self._count += rows

    def read(self, rows: Sequence[Mapping[str, Any]]) -> Sifted:
        """The rows that fit the schema, and those that do not.

        Raises `MisfitError` with the number of the row where a bad one fails the run.
        """
        first = self._count + 1
        self._count += len(rows)
        if self._policy is not OnError.FAIL:
            batch, bad = sift(rows, self._convert, self._schema)
            return Sifted(batch, [Bad(at, first + at, rows[at], f"row {first + at}: {error}") for at, error in bad])
        try:
            return Sifted(self._convert(rows))
        except MisfitError as error:
            at, why = first_bad(rows, self._convert) or (0, None)
            if not isinstance(why, MisfitError):
                raise
            raise MisfitError(why.problems, what=f"row {first + at}", hint=why.hint or _DECLARE) from error

    def _convert(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        batch = make_rows(rows, self._schema)
        for name in self._times:
            self._refuse_mixed_zones(name, rows)
        return batch

    def _refuse_mixed_zones(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Within a batch times agree. One of each batch tells whether they do over all batches."""
        time = next((each[name] for each in rows if isinstance(each.get(name), dt.datetime)), None)
        if time is None:
            return
        known = self._zones.setdefault(name, time)
        if (known.tzinfo is None) != (time.tzinfo is None):
            bare, zoned = (known, time) if known.tzinfo is None else (time, known)
            rule = f"has no zone, and {zoned.isoformat()} in the same column has one"
            hint = "give all times of a column a zone, or none: value.replace(tzinfo=datetime.UTC)"
            raise InvalidError([problem(name, bare.isoformat(), rule)], hint=hint)


# ---------------------------------------------------------------------------------------------------------
# Columns


def guessed(rows: Sequence[Mapping[str, Any]]) -> Schema:
    """The columns of the first of some rows. What is unknown in it (None, an empty list) is as in the first that knows.

    Numbers get the width that later ones may need: 64 bits, also where the first was one of NumPy with fewer.
    """
    sample = dict(rows[0])
    for name, value in sample.items():
        if is_unknown(value):
            sample[name] = next((row[name] for row in rows if not is_unknown(row.get(name))), value)
    schema = make_rows([sample], None).schema
    return pa.schema([each.with_type(_wide(each.type)) for each in schema])


def is_unknown(value: Any) -> bool:
    """Whether a value does not tell its type."""
    return value is None or (isinstance(value, list | tuple) and all(map(is_unknown, value)))


def _wide(kind: Any) -> Any:
    if pa.types.is_integer(kind):
        return kind if pa.types.is_uint64(kind) else pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_wide(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_wide(kind.value_type)))
    return kind


def fit(batch: Batch, schema: Schema, *, what: str = "") -> Batch:
    """A batch with the columns of a schema, in its order and of its types. What would be cut is refused, by column."""
    if batch.schema.equals(schema):
        return batch
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        rule = "is a column of the declared schema"
        raise InvalidError([problem("batch", name, rule) for name in missing], what=what)
    arrays = [_fit_column(batch.column(each.name), each, what) for each in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fit_column(array: Any, field: Any, what: str) -> Any:
    before, kind = array.type, field.type
    if before.equals(kind):
        return array
    rule = f"cannot be a column of {kind}"
    if pa.types.is_timestamp(before):
        if pa.types.is_timestamp(kind) and (before.tz is None) != (kind.tz is None):
            has, needs = ("no zone", "needs one") if before.tz is None else ("a zone", "has none")
            raise _unfit(field.name, before, f"{rule}: it has {has}, and the column {needs}", what)
        if pa.types.is_time(kind):
            raise _unfit(field.name, before, f"{rule}: the days would be cut off", what)
    try:
        made = array.cast(kind)
    except pa.ArrowException as error:
        raise _unfit(field.name, before, f"{rule}: {error}", what) from error
    if pa.types.is_timestamp(before) and pa.types.is_date(kind) and not made.cast(before).equals(array):
        raise _unfit(field.name, before, f"{rule}: the times of day would be cut off", what)
    return made


def _unfit(name: str, kind: Any, rule: str, what: str) -> InvalidError:
    hint = "say a type that holds all values: schema="
    return InvalidError([problem(f"column {name!r}", str(kind), rule)], what=what, hint=hint)


def empty_batch(schema: Schema) -> Batch:
    """A batch of these columns without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)


def sift(
    rows: Sequence[T], convert: Callable[[Sequence[T]], Batch], schema: Schema
) -> tuple[Batch, list[tuple[int, str]]]:
    """Convert rows, and where that fails halve them until the bad ones stand alone: their numbers, and why."""
    good: list[Batch] = []
    bad: list[tuple[int, str]] = []
    waiting: list[tuple[int, int]] = [(0, len(rows))] if rows else []
    while waiting:
        start, end = waiting.pop()
        try:
            good.append(convert(rows[start:end]))
        except MISFITS as error:
            if end - start == 1:
                bad.append((start, str(error)))
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
    table = pa.Table.from_batches(good, schema=schema).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else empty_batch(schema), bad


def first_bad(rows: Sequence[T], convert: Callable[[Sequence[T]], Batch]) -> tuple[int, Exception] | None:
    """The number of the first row that cannot be converted, and why; None when each can be alone."""
    waiting: list[tuple[int, int]] = [(0, len(rows))] if rows else []
    while waiting:
        start, end = waiting.pop()
        try:
            convert(rows[start:end])
        except MISFITS as error:
            if end - start == 1:
                return start, error
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]
    return None


def first_odd(rows: Sequence[T], convert: Callable[[Sequence[T]], object]) -> int:
    """The number of the first row that does not go together with those before it, where all cannot be converted."""
    good, bad = 0, len(rows)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            convert(rows[:middle])
        except (*MISFITS, InvalidError):
            bad = middle
        else:
            good = middle
    return bad - 1


def poison_batch(bad: Sequence[Bad]) -> Batch:
    """Records that could not be read, why, and where they are."""
    return pa.RecordBatch.from_pydict(
        {
            "offset": [each.place for each in bad],
            "value": [_shown(each.value) for each in bad],
            "error": [each.error[:_MAX_SHOWN] for each in bad],
        },
        schema=POISON,
    )


def _shown(row: Any) -> str:
    text = row.decode(errors="replace") if isinstance(row, bytes) else str(row)
    return text[:_MAX_SHOWN]

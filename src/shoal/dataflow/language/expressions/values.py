"""Python values as Arrow columns, exactly: what would be cut to fit its column is refused, by column and value.

Arrow itself makes 2 out of 2.9 in a column of whole numbers, and midnight out of noon in one of dates. Called by
code that makes columns from values of users and their functions: sources, functions, `topic.send`.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import Batch, Schema
from shoal.dataflow.language.expressions.datatypes import types

#: Microseconds in a unit of time. A finer one cuts nothing of Python's times.
_MICROS = {"s": 1_000_000, "ms": 1_000}
_MIDNIGHT = dt.time(0, 0)
_DECLARE = "say the type: schema="
_WHOLE = "is no whole number, and the column is {}: round it, or say double for it in schema="


class MisfitError(InvalidError, ValueError):
    """A value does not fit its column, or a row has a column that nobody expects. It is the row that is bad."""


#: A value that does not fit: where it is, what it is, and why not.
_Fault = tuple[str, Any, str]


def make_column(name: str, values: Sequence[Any], kind: Any | None = None) -> Any:
    """Values as a column of a type, or of the type that they have.

    Raises `MisfitError` where a value does not fit exactly, and `InvalidError` for times with a zone among times
    without one: neither is wrong alone.
    """
    try:
        array = pa.array(values, kind)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        rule = f"cannot be a column{'' if kind is None else f' of {kind}'}: {error}"
        raise MisfitError([problem(name, _example(values), rule)]) from error
    fault = None if _is_within(array.type, values) else _first_fault(name, values, array.type)
    if fault is not None:
        raise MisfitError([problem(*fault)], hint=_DECLARE)
    if _has_times(array.type):
        _refuse_mixed_zones(name, values, array.type)
    return array


def make_rows(rows: Sequence[Mapping[str, Any]], schema: Schema | None) -> Batch:
    """Rows as a batch; without a schema of all the columns that they have. A column that a row lacks is null.

    Raises as `make_column`, and `MisfitError` for a row with a column beside those of the schema.
    """
    names = schema.names if schema is not None else all_names(rows)
    if max(map(len, rows), default=0) > len(names):
        refuse_others(rows, names)
    arrays = []
    for place, name in enumerate(names):
        try:
            values = [row[name] for row in rows]
        except KeyError:
            refuse_others(rows, names)
            values = [row.get(name) for row in rows]
        arrays.append(make_column(name, values, None if schema is None else schema.field(place).type))
    if schema is None:
        return pa.RecordBatch.from_arrays(arrays, names=names)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def refuse_others(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> None:
    """A column that nobody expects would be lost without a word."""
    known = frozenset(names)
    for row in rows:
        others = [str(name) for name in row if name not in known]
        if others:
            rule = f"has the columns {', '.join(others)} beside {', '.join(names)}"
            raise MisfitError([problem("row", dict(row), rule)], hint="name all columns in schema=")


def all_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The columns that rows have, in the order in which they come up."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return list(names)


# ---------------------------------------------------------------------------------------------------------
# What fits


def _is_within(kind: Any, values: Sequence[Any]) -> bool:
    """Whether nothing can have been cut, as far as Arrow's own look at the values tells. It is quick."""
    if not kind.num_fields and not _can_cut(kind):
        return True
    if types.is_date(kind) or types.is_timestamp(kind):
        found = set(map(type, values)) - {type(None)}
        if found == {dt.date}:
            return True
        if found == {dt.datetime} and types.is_timestamp(kind):
            micros = _MICROS.get(kind.unit, 1)
            return micros == 1 or not any(value.microsecond % micros for value in values if value is not None)
    try:
        return _takes(kind, pa.infer_type(values))
    except (pa.ArrowException, TypeError, OverflowError):
        return False


def _can_cut(kind: Any) -> bool:
    if types.is_dictionary(kind):
        return _can_cut(kind.value_type)
    return bool(types.is_integer(kind) or types.is_temporal(kind))


def _takes(kind: Any, seen: Any) -> bool:
    """Whether a type takes all values of a type that Arrow found; False where each has to be looked at."""
    if types.is_null(seen):
        return True
    if types.is_dictionary(kind):
        return _takes(kind.value_type, seen)
    if types.is_integer(kind):
        return bool(types.is_integer(seen))
    if types.is_temporal(kind):
        # Of dates and times together Arrow says that they are dates.
        is_fine = not types.is_date(kind) and kind.unit not in _MICROS and not types.is_floating(seen)
        return bool(types.is_integer(seen)) or is_fine
    if types.is_struct(kind):
        return bool(types.is_struct(seen)) and all(
            kind.get_field_index(each.name) >= 0 and _takes(kind.field(each.name).type, each.type) for each in seen
        )
    if types.is_list(kind) or types.is_large_list(kind):
        return bool(types.is_list(seen)) and _takes(kind.value_type, seen.value_type)
    return not kind.num_fields


def _has_times(kind: Any) -> bool:
    return bool(types.is_temporal(kind)) or any(_has_times(kind.field(at).type) for at in range(kind.num_fields))


def _first_fault(name: str, values: Iterable[Any], kind: Any) -> _Fault | None:
    for value in values:
        fault = _fault(name, value, kind)
        if fault is not None:
            return fault
    return None


def _fault(where: str, value: Any, kind: Any) -> _Fault | None:
    """The first part of a value that its type would cut."""
    if value is None:
        return None
    if types.is_dictionary(kind):
        return _fault(where, value, kind.value_type)
    if types.is_integer(kind):
        return None if _is_whole(value) else (where, value, _WHOLE.format(kind))
    if types.is_temporal(kind):
        return None if _is_exact_time(value, kind) else (where, value, f"would be cut to fit {kind}")
    if types.is_struct(kind):
        return _fault_in_struct(where, value, kind) if isinstance(value, Mapping) else None
    if types.is_map(kind):
        return _first_fault(where, dict(value).values(), kind.item_type)
    if kind.num_fields == 1 and isinstance(value, list | tuple | np.ndarray):
        return _first_fault(where, value, kind.value_type)
    return None


def _fault_in_struct(where: str, value: Mapping[str, Any], kind: Any) -> _Fault | None:
    for name, part in value.items():
        if kind.get_field_index(name) < 0:
            return f"{where}.{name}", part, f"is not in {kind}"
        fault = _fault(f"{where}.{name}", part, kind.field(name).type)
        if fault is not None:
            return fault
    return None


def _is_whole(value: Any) -> bool:
    """Whether a value is no number with a fraction. Whether it is a number at all, Arrow finds itself."""
    if isinstance(value, float | np.floating | Decimal):
        return math.isfinite(value) and value == int(value)
    return True


def _is_exact_time(value: Any, kind: Any) -> bool:
    if not isinstance(value, dt.date | dt.time | dt.timedelta):
        return _is_whole(value)  # a number counts units
    if types.is_date(kind):
        return not isinstance(value, dt.datetime) or value.time() == _MIDNIGHT
    micros = _MICROS.get(kind.unit, 1)
    if micros == 1:
        return True
    if isinstance(value, dt.timedelta):
        return value.microseconds % micros == 0
    return not isinstance(value, dt.datetime | dt.time) or value.microsecond % micros == 0


# ---------------------------------------------------------------------------------------------------------
# Zones


def _refuse_mixed_zones(name: str, values: Sequence[Any], kind: Any) -> None:
    if not kind.num_fields and len({value.tzinfo is None for value in values if isinstance(value, dt.datetime)}) < 2:
        return
    seen: dict[bool, dt.datetime] = {}
    for value in _times(values):
        seen.setdefault(value.tzinfo is None, value)
        if len(seen) > 1:
            rule = f"has no zone, and {seen[False].isoformat()} in the same column has one"
            raise InvalidError(
                [problem(name, seen[True].isoformat(), rule)],
                hint="give all times of a column a zone, or none: value.replace(tzinfo=datetime.UTC)",
            )


def _times(values: Iterable[Any]) -> Iterable[dt.datetime]:
    for value in values:
        if isinstance(value, dt.datetime):
            yield value
        elif isinstance(value, Mapping):
            yield from _times(value.values())
        elif isinstance(value, list | tuple):
            yield from _times(value)


def _example(values: Sequence[Any]) -> Any:
    """A value to show: the first of the kind that comes up last, which is the odd one as a rule."""
    firsts: dict[type, Any] = {}
    for value in values:
        if value is not None:
            firsts.setdefault(type(value), value)
    return next(reversed(firsts.values()), None)

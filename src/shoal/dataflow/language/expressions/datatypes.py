"""Arrow types as expressions see them: their names, their families, and which one two of them have in common.

Called by `shoal.dataflow.language.binding`, `kernels`, `aggregates` and `resolve`. The rules of promotion:

- Arithmetic on whole numbers is done in int64 (uint64 where both sides are unsigned and one of them is uint64), and
  fails on overflow: a wrong number is worse than none.
- Whole numbers with floats give float64; float32 stays float32 among its own and with literals.
- Decimals with whole numbers and decimals stay decimals, with floats become float64.
- A literal takes the type of the other side where it can: it never widens a column.
- A timestamp without a zone is UTC. Of two units the finer one wins.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa

#: Of the bounds of windows in results.
WINDOW_TYPE = pa.timestamp("us")

types = pa.types

_ALIASES = {"str": "string", "int": "int64", "text": "string", "datetime": "timestamp[us]"}
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+), ?(-?\d+)\)")
_LIST = re.compile(r"list<(?:\w+: ?)?(.+)>")
#: Lists in lists deeper than this are no column's; the libraries below go down them by recursion.
_DEEPEST = 32
_UNITS = ("s", "ms", "us", "ns")
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def parse_type(name: str) -> Any:
    """The Arrow type of that name, as `str(type)` writes it. Raises ValueError."""
    return _parse_type(name, 0)


def _parse_type(name: str, depth: int) -> Any:
    text = _ALIASES.get(name.strip(), name.strip())
    if match := _ZONED.fullmatch(text):
        return pa.timestamp(match[1], tz=match[2])
    if match := _DECIMAL.fullmatch(text):
        try:
            return pa.decimal128(int(match[1]), int(match[2]))
        except OverflowError as error:
            raise ValueError(f"no decimal has {text[:40]}") from error
    if match := _LIST.fullmatch(text):
        if depth == _DEEPEST:
            raise ValueError(f"lists are nested deeper than {_DEEPEST}")
        return pa.list_(_parse_type(match[1], depth + 1))
    return pa.type_for_alias(text)


def literal_type(value: Any) -> Any:
    """What a Python value is when nothing else decides. Raises TypeError for what no column can hold."""
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return _int_type(value)
        case Decimal():
            return _decimal_type(value)
        case dt.datetime():
            return pa.timestamp("us", tz="UTC" if value.tzinfo else None)
        case float() | str() | bytes() | dt.date() | dt.time() | dt.timedelta():
            return _PLAIN[next(kind for kind in _PLAIN if isinstance(value, kind))]
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be a constant in an expression")


_PLAIN: dict[type, Any] = {
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
}


def _int_type(value: int) -> Any:
    if -(2**63) <= value < 2**63:
        return pa.int64()
    return pa.uint64() if 0 <= value < 2**64 else pa.decimal128(38, 0)


def _decimal_type(value: Decimal) -> Any:
    _sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise TypeError(f"{value} cannot be a constant in an expression")
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1)
    return pa.decimal128(precision, scale)


def is_number(kind: Any) -> bool:
    """Whole numbers, floats and decimals."""
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def is_text(kind: Any) -> bool:
    """Strings of any layout."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: Any) -> bool:
    """Bytes of any layout."""
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def is_time_or_date(kind: Any) -> bool:
    """Points in time."""
    return bool(types.is_timestamp(kind) or types.is_date(kind))


def plain(kind: Any) -> Any:
    """The type that kernels know: dictionaries and views are only other layouts of one."""
    if types.is_dictionary(kind):
        return plain(kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    return pa.binary() if types.is_binary_view(kind) else kind


def finer_unit(one: str, other: str) -> str:
    """The unit that loses nothing of either."""
    return max(one, other, key=_UNITS.index)


def common_type(one: Any, other: Any) -> Any | None:
    """A type that holds the values of both, or None."""
    one, other = plain(one), plain(other)
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if is_number(one) and is_number(other):
        return common_number(one, other)
    if is_text(one) and is_text(other):
        return pa.large_string()
    if is_bytes(one) and is_bytes(other):
        return pa.large_binary()
    return _common_temporal(one, other)


def common_number(one: Any, other: Any) -> Any:
    """The number type in which values of two can be compared and calculated with."""
    if types.is_decimal(one) or types.is_decimal(other):
        return _common_decimal(one, other)
    if types.is_integer(one) and types.is_integer(other):
        unsigned = types.is_unsigned_integer(one) and types.is_unsigned_integer(other)
        return pa.uint64() if unsigned and pa.uint64() in (one, other) else pa.int64()
    narrow = (pa.float16(), pa.float32())
    return pa.float32() if one in narrow and other in narrow else pa.float64()


def _common_decimal(one: Any, other: Any) -> Any:
    if types.is_floating(one) or types.is_floating(other):
        return pa.float64()
    (p1, s1), (p2, s2) = (decimal_size(each) for each in (one, other))
    scale = max(s1, s2)
    whole = max(p1 - s1, p2 - s2)
    return pa.decimal128(min(whole + scale, 38), scale)


def decimal_size(kind: Any) -> tuple[int, int]:
    """Precision and scale of a decimal, or of the decimal that holds every whole number of a type."""
    if types.is_decimal(kind):
        return kind.precision, kind.scale
    return {8: 3, 16: 5, 32: 10, 64: 20}[kind.bit_width], 0


def _common_temporal(one: Any, other: Any) -> Any | None:
    if types.is_timestamp(one) and types.is_timestamp(other):
        # Both count from the same instant; with one zone missing it is UTC, and a zone only says how to print it.
        return pa.timestamp(finer_unit(one.unit, other.unit), tz=one.tz or other.tz)
    if types.is_timestamp(one) and types.is_date(other):
        return one
    if types.is_date(one) and types.is_timestamp(other):
        return other
    if types.is_date(one) and types.is_date(other):
        return pa.date64()
    if types.is_duration(one) and types.is_duration(other):
        return pa.duration(finer_unit(one.unit, other.unit))
    if types.is_time(one) and types.is_time(other):
        return pa.time64("ns") if "ns" in (one.unit, other.unit) else pa.time64("us")
    return None


def typed_scalar(value: Any, kind: Any) -> Any:
    """A constant as this type. Raises ValueError or TypeError when the value is not one of it.

    Times are counted by hand: the library cuts what a coarse unit cannot hold, and reads a zone it is not asked about.
    """
    if value is None:
        return pa.scalar(None, kind)
    if types.is_timestamp(kind):
        return pa.scalar(_whole(_micros(value), kind.unit, value), pa.int64()).cast(kind)
    if types.is_duration(kind) and isinstance(value, dt.timedelta):
        return pa.scalar(_whole(value // dt.timedelta(microseconds=1), kind.unit, value), pa.int64()).cast(kind)
    if types.is_date(kind) and isinstance(value, str):
        return pa.scalar(dt.date.fromisoformat(value), kind)
    if isinstance(value, bool) != types.is_boolean(kind):
        raise TypeError(f"{value!r} is not {kind}")
    if types.is_decimal(kind) and isinstance(value, int):
        value = Decimal(value)
    if types.is_integer(kind) and isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ValueError(f"{value!r} is not {kind}") from error


def unit_for(value: dt.timedelta | dt.datetime | dt.date | str, unit: str) -> str:
    """The unit, or microseconds when it cannot hold the value."""
    micros = value // dt.timedelta(microseconds=1) if isinstance(value, dt.timedelta) else _micros(value)
    return unit if unit in ("us", "ns") or micros * _PER_SECOND[unit] % 1_000_000 == 0 else "us"


def _micros(value: Any) -> int:
    """Microseconds since 1970 of a datetime, a date, or a text in ISO form; UTC where it has no zone."""
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    if not isinstance(value, dt.date):
        raise TypeError(f"{value!r} is not a time")
    if not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    if value.tzinfo is None:
        value = value.replace(tzinfo=dt.UTC)
    since: dt.timedelta = value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return since // dt.timedelta(microseconds=1)


def _whole(micros: int, unit: str, value: object) -> int:
    count, rest = divmod(micros * _PER_SECOND[unit], 1_000_000)
    if rest:
        raise ValueError(f"{value!r} is finer than {unit}")
    return count

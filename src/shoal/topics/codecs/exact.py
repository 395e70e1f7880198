"""Records of JSON that a schema has no room for. The reader would truncate them silently.

It cuts fractions off whole numbers, what is finer than the unit off times, the time of day off dates, the zone off
times of columns that have none, and digits off decimals. A quick look at the bytes of all says whether there may be
such a thing, a closer one in which records; only these are read with care. Called by `shoal.topics.codecs.objects`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.topics.codecs.base import MAX_REASON
from shoal.topics.codecs.fractions import (
    Bytes,
    has_escapes,
    may_have_fine_times,
    may_have_fractions,
    may_have_times_of_day,
    may_have_zones,
)

_PLACES = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_FRACTION = re.compile(r":[0-9]{2}\.([0-9]+)")
_ZONE = re.compile(r"[0-9][Tt ][0-9][0-9:.]*[^0-9:.]")
_TIME_OF_DAY = re.compile(r"[0-9][Tt ]([0-9:.]+)")
_ANY = r"(?s:.)"
#: The rest of a name from a letter that is written out: whose name it is cannot be seen.
_WRITTEN_OUT = rf'\\{_ANY}(?:[^"\\]|\\{_ANY})*'


def inexact(values: Any, text: Bytes, schema: Any) -> dict[int, str]:
    """Which records hold what the schema has no room for, with why.

    Args:
        values: the records.
        text: all of them, one after another.
        schema: what they are read as.
    """
    rules = _rules(schema)
    patterns = [rule.pattern for rule in rules if rule.may_apply(text)]
    if not patterns:
        return {}
    found = pc.match_substring_regex(values, "|".join(patterns)).fill_null(False).to_numpy(zero_copy_only=False)
    kind = pa.struct(list(schema))
    reasons = {at: _reason(values[at].as_py(), kind) for at in np.flatnonzero(found).tolist()}
    return {at: reason for at, reason in reasons.items() if reason}


# ---------------------------------------------------------------------------------------------------------
# Where to look


@dataclass(frozen=True, slots=True)
class _Rule:
    """How records are found that may break one rule."""

    #: False only if none does.
    may_apply: Callable[[Bytes], bool]
    #: What stands in a record that may.
    pattern: str


@functools.lru_cache(maxsize=64)
def _rules(schema: Any) -> tuple[_Rule, ...]:
    """The rules for a schema: none for one in which everything has room."""
    rules: list[_Rule] = []
    for shape in dict.fromkeys(shape for each in schema for shape in _shapes(each.type)):
        flat = [_written(each.name) for each in schema if not each.type.num_fields and shape in _shapes(each.type)]
        deep = [_written(each.name) for each in schema if each.type.num_fields and shape in _shapes(each.type)]
        if flat:
            quick = functools.partial(shape.may_apply, names=tuple(each.encode() for each in flat))
            rules.append(_Rule(quick, rf"{_named(flat)}{shape.after_name}"))
        if deep:
            # Before a number within there need not be a name; times are known by how they look.
            quick = functools.partial(_always if shape is _NUMBER else shape.may_apply, names=())
            rules.append(_Rule(quick, rf"{_named(deep)}[\[{{]{_ANY}*{shape.inside}"))
    return tuple(rules)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A way of writing what may have to be cut."""

    may_apply: Callable[..., bool]
    #: What follows a name and its colon.
    after_name: str
    #: What stands somewhere within a list or an object.
    inside: str


def _always(_text: Bytes, names: object = None) -> bool:
    return True


def _has_fractions(text: Bytes, names: tuple[bytes, ...]) -> bool:
    return may_have_fractions(text, names)


def _has_fine_times(text: Bytes, names: object, *, places: int) -> bool:
    return may_have_fine_times(text, places) or has_escapes(text)


def _has_times_of_day(text: Bytes, names: object) -> bool:
    return may_have_times_of_day(text) or has_escapes(text)


def _has_zones(text: Bytes, names: object) -> bool:
    return may_have_zones(text) or has_escapes(text)


_NUMBER = _Shape(_has_fractions, r"-?(?:[0-9]*\.|[0-9]+[eE])", r"(?:[0-9][.eE]|-\.)")
_DAY_TEXT = r"[0-9][Tt ][0-9:.]*[1-9]"
_DAY = _Shape(_has_times_of_day, rf'"[^"]*(?:{_DAY_TEXT}|\\u)', rf"(?:{_DAY_TEXT}|\\u)")

_ZONE_TEXT = r'(?:[0-9][Tt ][0-9][0-9:.]*[^0-9:."]|\\u)'
_ZONED = _Shape(_has_zones, rf'"[^"]*{_ZONE_TEXT}', _ZONE_TEXT)


@functools.cache
def _time(places: int) -> _Shape:
    text = rf"(?::[0-9]{{2}}:[0-9]{{2}}\.[0-9]{{{places}}}[0-9]*[1-9]|\\u)"
    return _Shape(functools.partial(_has_fine_times, places=places), rf'"[^"]*{text}', text)


@functools.cache
def _decimal(scale: int) -> _Shape:
    text = rf"(?:[0-9]*\.[0-9]{{{max(scale, 0)}}}[0-9]*[1-9]|[0-9.]+[eE]|\\u)"
    return _Shape(_always, rf'"?[-+]?{text}', text)


def _shapes(kind: Any) -> tuple[_Shape, ...]:
    """How what a type has no room for is written."""
    if kind.num_fields:
        return tuple(shape for at in range(kind.num_fields) for shape in _shapes(kind.field(at).type))
    if pa.types.is_decimal(kind):
        return (_decimal(kind.scale),)
    if pa.types.is_date(kind):
        return (_NUMBER, _DAY)
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return (_NUMBER, _time(_PLACES[kind.unit]), _ZONED)
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return (_NUMBER, _time(_PLACES[kind.unit]))
    return (_NUMBER,) if pa.types.is_integer(kind) or pa.types.is_duration(kind) else ()


def _named(names: Iterable[str]) -> str:
    return rf'(?:"(?:{"|".join(map(re.escape, names))})|{_WRITTEN_OUT})"\s*:\s*'


def _written(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]


# ---------------------------------------------------------------------------------------------------------
# A close look


def _reason(value: bytes, kind: Any) -> str:
    """Why a record has no room in a type; empty if it has.

    The reader is lenient, and cuts in records that are no JSON, too: those are refused.
    """
    try:
        content = json.loads(value.decode(errors="replace"), parse_float=_number, parse_int=float, strict=False)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return f"not one JSON object: {error}"
    return _cut_in(content, kind, "")[:MAX_REASON]


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # no such exponent
        return Decimal("NaN")


def _cut_in(value: Any, kind: Any, where: str) -> str:
    """What would have to be cut in a value to make it one of this type, and where."""
    if not kind.num_fields:
        reason = _cut(value, kind)
        return f"whilst decoding field '{where}': {reason}" if reason else ""
    parts: list[tuple[Any, Any, str]] = []
    if pa.types.is_map(kind) and isinstance(value, dict):
        parts = [(each, kind.item_type, where) for each in value.values()]
    elif pa.types.is_struct(kind) and isinstance(value, dict):
        parts = [(value.get(each.name), each.type, f"{where}.{each.name}".lstrip(".")) for each in kind]
    elif kind.num_fields == 1 and isinstance(value, list):
        parts = [(each, kind.value_type, where) for each in value]
    return next((reason for part in parts if (reason := _cut_in(*part))), "")


def _cut(value: Any, kind: Any) -> str:
    if pa.types.is_decimal(kind):
        return _cut_from_decimal(value, kind)
    if isinstance(value, Decimal):
        return _cut_from_number(value, kind) if _shapes(kind) else ""
    if not isinstance(value, str):
        return ""
    if pa.types.is_date(kind):
        found = _TIME_OF_DAY.search(value)
        return f"{value!r} has a time of day, for which {kind} has no room" if found and found[1].strip("0:.") else ""
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        found = _FRACTION.search(value)
        if found and found[1][_PLACES[kind.unit] :].strip("0"):
            return f"{value!r} is finer than {kind} has room for"
    if pa.types.is_timestamp(kind) and kind.tz is None and _ZONE.search(value):
        return f"{value!r} has a zone, and a column of {kind} has none"
    return ""


def _cut_from_number(value: Decimal, kind: Any) -> str:
    if value.is_nan():
        return f"a number with such an exponent has no room in {kind}"
    if value != value.to_integral_value():
        return f"{value} is no whole number, as {kind} needs"
    # What is not written as a whole number is read as a float, whose next one may be some whole numbers away.
    return "" if value == Decimal(float(value)) else f"{value} is too large to be written with a point or an exponent"


def _cut_from_decimal(value: Any, kind: Any) -> str:
    number = _number(value) if isinstance(value, str) else value
    if not isinstance(number, Decimal):
        return ""  # a whole number, or what the reader refuses
    _sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        return f"{value} is no number for {kind}"
    zeros = next((at for at, digit in enumerate(reversed(digits)) if digit), len(digits))
    is_cut = zeros < len(digits) and -(exponent + zeros) > kind.scale
    return f"{value} has more digits behind the point than {kind} has room for" if is_cut else ""

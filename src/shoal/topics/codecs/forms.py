"""What JSON has no form of its own for: durations, dictionaries, zones of old times, and values that it cannot hold.

The writer of JSON writes durations in ISO 8601, which its reader does not accept; it has no reader for
dictionaries, takes decimals of a negative scale for others, and writes a complaint in place of a time that is out of
its range. So rows are made fit before they are written (`writable`), and are read in types that the reader knows
(`readable`, `with_texts`) and then given their own (`restored`). Called by `shoal.topics.codecs.objects`, and by the
connectors of files of JSON lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.errors import InvalidError, Problem, problem

_IN_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
#: RFC 3339 has years of four digits: from the first second of the year 0 to the last of 9999.
_FIRST, _LAST = -62_167_219_200, 253_402_300_799
#: In 1972 the last zone gave up a distance to UTC that is no whole number of minutes, for which there is no form.
_WHOLE_MINUTES = 63_072_000
_LARGEST = 2**63 - 1
_WIDEST_128 = 38
_PARTS = {"weeks": 7 * _DAY, "days": _DAY, "hours": 3600, "minutes": 60, "seconds": 1}
_DURATION = (
    r"^(?P<sign>[-+]?)P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:[.,](?P<fraction>\d+))?S)?)?$"
)
#: What matches above, and has no part.
_EMPTY = r"^[-+]?P$|T$"


class NoDurationError(ValueError):
    """A text is no duration, or has no room in its column."""


# ---------------------------------------------------------------------------------------------------------
# Writing


def writable(rows: Any) -> tuple[Any, bool]:
    """Rows as the writer of JSON can take them, and whether it has to write nulls.

    Raises `InvalidError` for values and types that JSON has no form for.
    """
    if not any(_needs_care(each.type) for each in rows.schema):
        return rows, False
    problems: list[Problem] = []
    has_nulls = False
    for at, field in enumerate(rows.schema):
        if not _needs_care(field.type):
            continue
        column = rows.column(at)
        needs_utc = False
        for leaf in _leaves(column):
            problems += _unwritable(field.name, leaf)
            needs_utc = needs_utc or _has_no_local_form(leaf)
        has_nulls = has_nulls or _has_null_items(column)
        if needs_utc:
            plain = _changed(field.type, _without_dictionary)
            rows = rows.set_column(at, field.name, column.cast(plain).cast(_changed(plain, _in_utc)))
    if problems:
        raise InvalidError(problems, hint="make it text, or whole numbers: .with_columns(…), or use the codec arrow")
    return rows, has_nulls


@functools.lru_cache(maxsize=256)
def _needs_care(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return True
    if kind.num_fields:
        return any(_needs_care(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return _needs_care(kind.value_type)
    return bool(
        pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_interval(kind)
    )


def _leaves(array: Any) -> Iterator[Any]:
    """The arrays of single values in an array, without what is hidden behind nulls."""
    kind = array.type
    if not _needs_care(kind):
        return
    if pa.types.is_dictionary(kind):
        yield array.dictionary_decode()
    elif pa.types.is_struct(kind):
        for each in array.flatten():
            yield from _leaves(each)
    elif kind.num_fields:
        yield from _leaves(_inside(array))
    else:
        yield array


def _inside(array: Any) -> Any:
    """What lists or maps hold; of maps the entries."""
    kind = array.type
    if pa.types.is_map(kind):
        array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    return array.flatten()


def _unwritable(name: str, array: Any) -> list[Problem]:
    kind = array.type
    field = f"column {name!r} ({kind})"
    if pa.types.is_interval(kind):
        return [problem(field, None, "must be of types that JSON can hold")]
    low, high = _bounds(kind)
    if low is None:
        return []
    if pa.types.is_duration(kind):
        rule = "is a duration that is too long to be written as JSON"
    else:
        rule = "must be in the years 0 to 9999 to be written as JSON"
    least, greatest = _extremes(array)
    if least is None:
        return []
    return [problem(field, each, rule) for each in dict.fromkeys((least, greatest)) if not low <= each <= high]


def _extremes(array: Any) -> tuple[Any, Any]:
    """The least and the greatest of an array, as the numbers that they are held as; None without values."""
    found = pc.min_max(array.view(pa.int32() if array.type == pa.date32() else pa.int64()))
    return found["min"].as_py(), found["max"].as_py()


def _bounds(kind: Any) -> tuple[Any, Any]:
    """The least and the greatest count of a type that has a form; None where all have."""
    if kind == pa.date32():
        return _FIRST // _DAY, _LAST // _DAY
    if kind == pa.date64():
        return _FIRST * 1000, _LAST * 1000
    if pa.types.is_timestamp(kind) and kind.unit != "ns":  # those of nanoseconds are never that far
        scale = _IN_A_SECOND[kind.unit]
        return _FIRST * scale, _LAST * scale + scale - 1
    if pa.types.is_duration(kind) and kind.unit in ("s", "ms"):
        most = _LARGEST // (1000 if kind.unit == "s" else 1)
        return -most, most
    return None, None


def _has_no_local_form(array: Any) -> bool:
    """Whether times of a zone have to be written in UTC: there their distance has seconds, or it is another year."""
    kind = array.type
    if not pa.types.is_timestamp(kind) or kind.tz in (None, "UTC", "Z"):
        return False
    least, greatest = _extremes(array)
    scale = _IN_A_SECOND[kind.unit]
    return least is not None and (least < _WHOLE_MINUTES * scale or greatest > (_LAST - _DAY) * scale)


def _in_utc(kind: Any) -> Any:
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind


def _without_dictionary(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _has_null_items(array: Any) -> bool:
    """Whether a map has a null: the writer leaves out nulls, and their keys with them."""
    kind = array.type
    if not _needs_care(kind) or not kind.num_fields:
        return False
    if pa.types.is_struct(kind):
        return any(_has_null_items(each) for each in array.flatten())
    inner = _inside(array)
    if pa.types.is_map(kind):
        _keys, items = inner.flatten()
        return bool(items.null_count) or _has_null_items(items)
    return _has_null_items(inner)


# ---------------------------------------------------------------------------------------------------------
# Reading


def readable(schema: Any) -> Any:
    """A schema with types that the reader takes for what they are; mostly the same."""
    made = _made_readable(schema)
    return schema if made is None else made


@functools.lru_cache(maxsize=64)
def _made_readable(schema: Any) -> Any:
    made = pa.schema([each.with_type(_changed(each.type, _readable)) for each in schema])
    return None if made.equals(schema) else made


@functools.lru_cache(maxsize=64)
def with_texts(schema: Any) -> Any:
    """A schema with text in place of durations; None where it has none."""
    made = pa.schema([each.with_type(_changed(each.type, _text)) for each in schema])
    return None if made.equals(schema) else made


def may_have_durations(content: bytes) -> bool:
    """Whether durations may be written as text. False is sure, but for letters that are written out."""
    return b'"P' in content or b'"-P' in content or b'"+P' in content or b"\\u" in content


def restored(table: Any, schema: Any) -> Any:
    """What was read, with the types that were asked for. Raises `NoDurationError` for a text that is none."""
    if table.schema.equals(schema):
        return table
    for at, (field, wanted) in enumerate(zip(table.schema, schema, strict=True)):
        if not field.type.equals(wanted.type):
            chunks = [_given(each, wanted.type, field.name) for each in table.column(at).chunks]
            table = table.set_column(at, wanted, pa.chunked_array(chunks, wanted.type))
    return table if table.schema.equals(schema) else table.cast(schema)


def _given(array: Any, kind: Any, name: str) -> Any:
    """An array of the type that was asked for."""
    if array.type.equals(kind):
        return array
    if pa.types.is_dictionary(kind):
        # Arrow casts text to a dictionary, and nothing else.
        made = _given(array, kind.value_type, name).dictionary_encode()
        return pa.DictionaryArray.from_arrays(made.indices.cast(kind.index_type), made.dictionary, ordered=kind.ordered)
    if pa.types.is_duration(kind) and pa.types.is_string(array.type):
        return _durations(array, kind, name)
    if not kind.num_fields:
        return array.cast(kind)
    if array.offset:  # below, buffers are taken from their beginning
        array = array.take(pa.array(range(len(array)), pa.int64()))
    children = [array.field(at) for at in range(kind.num_fields)] if pa.types.is_struct(kind) else [array.values]
    inner = [_given(each, kind.field(at).type, name) for at, each in enumerate(children)]
    buffers = array.buffers()[: 1 if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind) else 2]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, 0, inner)


def _durations(texts: Any, kind: Any, name: str) -> Any:
    """Texts as ISO 8601 has them, or whole numbers in the unit of the column, as durations. Nothing is cut."""
    found = pc.extract_regex(texts, _DURATION)
    scale = _IN_A_SECOND[kind.unit]
    is_one = pc.fill_null(pc.and_(found.is_valid(), pc.invert(pc.match_substring_regex(texts, _EMPTY))), False)
    is_bad = pc.and_(texts.is_valid(), pc.invert(is_one))
    if pc.any(is_bad).as_py():
        raise _no_duration(texts.filter(is_bad)[0].as_py(), kind, name)
    signs = pc.if_else(pc.equal(found.field("sign"), "-"), pa.scalar(-1), pa.scalar(1))
    places = len(str(scale)) - 1
    fraction = pc.utf8_rtrim(found.field("fraction"), "0")
    is_fine = pc.greater(pc.utf8_length(fraction), places)
    if pc.any(is_fine).as_py():
        raise _no_duration(texts.filter(is_fine)[0].as_py(), kind, name)
    try:
        total = pc.multiply_checked(signs, _whole(pc.utf8_rpad(fraction, places, "0")))
        for part, seconds in _PARTS.items():
            count = pc.multiply_checked(signs, _whole(found.field(part)))
            total = pc.add_checked(total, pc.multiply_checked(count, pa.scalar(seconds * scale)))
    except pa.ArrowInvalid as error:
        if len(texts) == 1:
            raise _no_duration(texts[0].as_py(), kind, name) from error
        raise ValueError(f"whilst decoding field {name!r}: {error}") from error
    return pc.if_else(texts.is_valid(), total, pa.scalar(None, pa.int64())).cast(kind)


def _whole(digits: Any) -> Any:
    return pc.if_else(pc.equal(digits, ""), pa.scalar("0"), digits).cast(pa.int64())


def _no_duration(text: str, kind: Any, name: str) -> NoDurationError:
    return NoDurationError(f"whilst decoding field {name!r}: {text!r} is no duration that {kind} has room for")


def _readable(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return _readable(kind.value_type)
    if pa.types.is_decimal(kind) and kind.scale < 0:
        digits = kind.precision - kind.scale
        return pa.decimal128(digits, 0) if digits <= _WIDEST_128 else pa.decimal256(digits, 0)
    return kind


def _text(kind: Any) -> Any:
    return pa.utf8() if pa.types.is_duration(kind) else kind


def _changed(kind: Any, change: Callable[[Any], Any]) -> Any:
    """A type with others in place of its single values."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_changed(each.type, change)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_changed(kind.item_type, change)))
    makers = ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list))
    for is_such, make in makers:
        if is_such(kind):
            return make(kind.value_field.with_type(_changed(kind.value_type, change)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_changed(kind.value_type, change)), kind.list_size)
    return change(kind)

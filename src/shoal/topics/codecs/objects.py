"""Records as JSON objects. Called through `shoal.topics.codecs`; calls arro3, which is quick both ways."""

from __future__ import annotations

import functools
import io
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.topics.codecs.base import Decoded, Encoded, numbers, one_batch, poison, reason_of, unfit, without
from shoal.topics.codecs.fractions import Bytes, may_have_fractions

_SUSPICIOUS = np.zeros(256, bool)
_SUSPICIOUS[list(b"{ \t\r\n")] = True
_NOTHING = np.zeros(0, np.uint8)
#: Of an object: its two braces.
_SHORTEST = 2


class JsonCodec:
    """One JSON object in each record.

    Nulls are left out when writing unless `nulls` is set; bytes are written in hexadecimal, times as RFC 3339. When
    reading, a whole number may be written as text; a number with a fraction is poison where the schema asks for a
    whole one. Objects in which a name stands twice count with the last.
    """

    name = "json"

    def __init__(self, *, nulls: bool = False) -> None:
        self._nulls = nulls

    def decode(self, batch: Any, schema: Any) -> Decoded:
        """All records at once; when that fails, halves of them, until what is left is the poison."""
        values = batch.column(batch.schema.get_field_index("value"))
        text = _plain_text(values)
        bad: dict[int, str] = {}
        if text is None:
            text = np.frombuffer(_joined(values.fill_null(b"") if values.null_count else values), np.uint8)
            bad = _not_one_object(values, text)
        bad |= {at: reason for at, reason in _fractions(values, text, schema).items() if at not in bad}
        kept = without(len(values), bad)
        parts: list[Any] = []
        worse: dict[int, str] = {}
        if bad:
            _decode_objects(values.take(kept), None, schema, start=0, parts=parts, bad=worse)
        else:
            _decode_objects(values, text, schema, start=0, parts=parts, bad=worse)
        for at, reason in worse.items():
            bad[kept[at].as_py()] = reason
        good = without(len(values), bad) if worse else kept
        return Decoded(one_batch(parts, schema), good, poison(batch, bad))

    def encode(self, rows: Any) -> Encoded:
        """All rows at once."""
        from arro3.io import write_ndjson

        sink = io.BytesIO()
        try:
            write_ndjson(pa.Table.from_batches([rows]), sink, explicit_nulls=self._nulls)
        except Exception as error:
            raise unfit(rows.schema, f"must be of types that JSON can hold ({reason_of(error)})") from error
        return Encoded(_lines(sink.getvalue(), rows.num_rows), numbers(rows.num_rows))


def _decode_objects(values: Any, text: Any, schema: Any, *, start: int, parts: list[Any], bad: dict[int, str]) -> None:
    """Decode values, of which the first has the number `start`: rows go to `parts`, poison goes to `bad`."""
    if not len(values):
        return
    try:
        table = _read_objects(_joined(values) if text is None else text, len(values), schema)
        reason = "" if table.num_rows == len(values) else "not one JSON object"
    except Exception as error:  # noqa: BLE001 - the library raises bare exceptions of its own
        reason = reason_of(error)
    if not reason:
        parts.append(table)
    elif len(values) == 1:
        bad[start] = reason
    else:
        half = len(values) // 2
        _decode_objects(values.slice(0, half), None, schema, start=start, parts=parts, bad=bad)
        _decode_objects(values.slice(half), None, schema, start=start + half, parts=parts, bad=bad)


def _read_objects(text: Any, count: int, schema: Any) -> Any:
    from arro3.io import read_json

    table = pa.table(read_json(io.BytesIO(text), schema, batch_size=count + 1))
    return table if table.schema.equals(schema) else table.cast(schema)


def _plain_text(values: Any) -> Bytes | None:
    """The records one after another, as they lie in memory, if each is surely no more than one object.

    So they are when each begins and ends with a brace, and nowhere else is a brace closed before one is opened.
    """
    count = len(values)
    if not count or values.null_count or values.type != pa.binary():
        return None
    _validity, offsets, content = values.buffers()
    bounds = np.frombuffer(offsets, np.int32, count + 1, values.offset * 4)
    text = np.frombuffer(content, np.uint8, int(bounds[-1] - bounds[0]), int(bounds[0])) if content else _NOTHING
    begins, ends = bounds[:-1] - bounds[0], bounds[1:] - bounds[0]
    if (ends - begins).min() < _SHORTEST or (text[begins] != ord("{")).any() or (text[ends - 1] != ord("}")).any():
        return None
    closed = text == ord("}")
    if np.count_nonzero(closed) == count:
        return text
    following = text[np.flatnonzero(closed)[:-1] + 1]
    return text if np.count_nonzero(_SUSPICIOUS[following]) == count - 1 else None


def _joined(values: Any) -> bytes:
    if not len(values):
        return b""
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    joined: bytes = pc.binary_join(lists, pa.scalar(b"\n", pa.binary()))[0].as_py()
    return joined


def _not_one_object(values: Any, text: Bytes) -> dict[int, str]:
    """Records that are null, or hold two objects: the reader would count on, and give the rows of others to them.

    Where no record holds two, as many objects as records means one in each. One that holds two has a closing brace
    before an opening one; as that hardly ever is so, the whole is searched first for any way of writing it.
    """
    bad: dict[int, str] = {}
    if values.null_count:
        bad = dict.fromkeys(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).tolist(), "no value")
        values = values.fill_null(b"")
    if np.count_nonzero(text == ord("\n")) == max(0, len(values) - 1) and not _has_brace_after_brace(text):
        return bad
    suspicious = pc.match_substring_regex(values, r"\}\s*\{").to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(suspicious).tolist():
        if not _is_one_object(values[at].as_py()):
            bad[at] = "not one JSON object"
    return bad


def _fractions(values: Any, text: Bytes, schema: Any) -> dict[int, str]:
    """Records with a fraction where a whole number belongs: the reader would cut it off.

    A quick look at the whole says whether there may be any, a closer one in which records; only these are read with
    care.
    """
    wanted = _whole_numbers(schema)
    if not wanted.pattern or (not wanted.is_deep and not may_have_fractions(text, wanted.names)):
        return {}
    found = pc.match_substring_regex(values, wanted.pattern).fill_null(False).to_numpy(zero_copy_only=False)
    bad: dict[int, str] = {}
    for at in np.flatnonzero(found).tolist():
        try:
            content = json.loads(values[at].as_py(), parse_float=Decimal)
        except (ValueError, RecursionError):
            continue  # the reader says what is wrong with it
        reason = _fraction_in(content, pa.struct(list(schema)), "")
        if reason:
            bad[at] = reason
    return bad


@dataclass(frozen=True, slots=True)
class _WholeNumbers:
    """Where a schema asks for whole numbers."""

    #: The names of such columns, as JSON writes them.
    names: tuple[bytes, ...]
    #: Whether some are inside of lists, structs or maps.
    is_deep: bool
    #: What stands in a record that may have a fraction in such a place; empty when there is none.
    pattern: str


@functools.lru_cache(maxsize=64)
def _whole_numbers(schema: Any) -> _WholeNumbers:
    flat = [_written(each.name) for each in schema if pa.types.is_integer(each.type)]
    deep = [_written(each.name) for each in schema if each.type.num_fields and _has_whole_numbers(each.type)]
    parts = []
    if flat:
        parts.append(rf'"(?:{"|".join(map(re.escape, flat))})"\s*:\s*-?[0-9]+[.eE]')
    if deep:
        parts.append(rf'"(?:{"|".join(map(re.escape, deep))})"\s*:\s*[\[{{](?s:.)*[0-9][.eE]')
    # A name may be written with escapes. Letters hardly ever are.
    pattern = "|".join([*parts, r"\\u00[2-7]"]) if parts else ""
    return _WholeNumbers(tuple(each.encode() for each in flat), bool(deep), pattern)


def _written(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]


def _has_whole_numbers(kind: Any) -> bool:
    if pa.types.is_integer(kind):
        return True
    return any(_has_whole_numbers(kind.field(at).type) for at in range(kind.num_fields))


def _fraction_in(value: Any, kind: Any, where: str) -> str:
    """Where a fraction is in a value of which the type knows whole numbers only."""
    if pa.types.is_integer(kind):
        is_cut = isinstance(value, Decimal) and value != value.to_integral_value()
        return f"whilst decoding field '{where}': {value} is no whole number, as {kind} needs" if is_cut else ""
    parts: list[tuple[Any, Any, str]] = []
    if pa.types.is_map(kind) and isinstance(value, dict):
        parts = [(each, kind.item_type, where) for each in value.values()]
    elif pa.types.is_struct(kind) and isinstance(value, dict):
        parts = [(value.get(each.name), each.type, f"{where}.{each.name}".lstrip(".")) for each in kind]
    elif kind.num_fields == 1 and isinstance(value, list):
        parts = [(each, kind.value_type, where) for each in value]
    return next((reason for part in parts if (reason := _fraction_in(*part))), "")


def _has_brace_after_brace(content: Bytes) -> bool:
    """Whether a closing brace is followed by an opening one or by a space, after which one might come."""
    after = np.flatnonzero(content == ord("}")) + 1
    following = content[after[after < len(content)]]
    return bool(_SUSPICIOUS[following].any())


def _is_one_object(value: bytes) -> bool:
    """Whether a text in which braces follow each other is one object, with the braces inside a string."""
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


def _lines(content: bytes, count: int) -> Any:
    """The lines of a text as a binary Array, without their ends."""
    bounds = np.array([0, len(content)], np.int32)
    text = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(content)])
    lines = pc.split_pattern(text, pattern="\n").values
    if len(lines) != count + 1:
        raise AssertionError("JSON has as many lines as there are rows")
    return lines.slice(0, count)

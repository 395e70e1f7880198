"""Records as JSON objects. Called through `shoal.topics.codecs`; calls arro3, which is quick both ways."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.topics.codecs.base import Decoded, Encoded, numbers, one_batch, poison, reason_of, unfit, without
from shoal.topics.codecs.exact import inexact
from shoal.topics.codecs.forms import NoDurationError, may_have_durations, readable, restored, with_texts, writable
from shoal.topics.codecs.fractions import Bytes

_SUSPICIOUS = np.zeros(256, bool)
_SUSPICIOUS[list(b"{ \t\r\n")] = True
_NUL = b"\\u0000"
_NOTHING = np.zeros(0, np.uint8)
#: Of an object: its two braces.
_SHORTEST = 2


class JsonCodec:
    """One JSON object in each record.

    Nulls are left out when writing unless `nulls` is set or a map has one; floats that are no number or infinite are
    written as null; bytes are written in hexadecimal, times as RFC 3339, durations as ISO 8601. When reading, a whole
    number may be written as text, and durations as whole numbers in the unit of their column, if all of a record are;
    what a column has no room for is poison and never cut: a fraction of a whole number, a time that is finer than the
    unit, the time of day of a date, a zone. Objects in which a name stands twice count with the last.
    """

    name = "json"

    def __init__(self, *, nulls: bool = False) -> None:
        self._nulls = nulls

    def decode(self, batch: Any, schema: Any) -> Decoded:
        """All records at once; when that fails, halves of them, until what is left is the poison."""
        values = batch.column(batch.schema.get_field_index("value"))
        text = _plain_text(values)
        bad: dict[int, str] = {}
        nested: list[int] = []
        if text is None:
            bad, nested = _not_one_object(values)
            text = np.frombuffer(_joined(values.fill_null(b"") if values.null_count else values), np.uint8)
        bad |= {at: reason for at, reason in inexact(values, text, readable(schema)).items() if at not in bad}
        if not bad and not nested:
            return _decode_groups(batch, [(numbers(len(values)), values, text)], schema, bad)
        # Those that have braces in their text are read by themselves: after half an object they could pass for several.
        groups = [without(len(values), {*bad, *nested}), pa.array([at for at in nested if at not in bad], pa.int64())]
        return _decode_groups(batch, [(each, values.take(each), None) for each in groups], schema, bad)

    def encode(self, rows: Any) -> Encoded:
        """All rows at once."""
        from arro3.io import write_ndjson

        sink = io.BytesIO()
        rows, has_nulls = writable(rows)
        try:
            write_ndjson(pa.Table.from_batches([rows]), sink, explicit_nulls=self._nulls or has_nulls)
        except Exception as error:
            raise unfit(rows.schema, f"must be of types that JSON can hold ({reason_of(error)})") from error
        return Encoded(_lines(sink.getvalue(), rows.num_rows), numbers(rows.num_rows))


def _decode_groups(batch: Any, groups: list[tuple[Any, Any, Any]], schema: Any, bad: dict[int, str]) -> Decoded:
    """Decode groups of records: their numbers in the batch, their values, and these one after another if known."""
    parts: list[Any] = []
    good: list[Any] = []
    for which, values, text in groups:
        worse: dict[int, str] = {}
        _decode_objects(values, text, schema, start=0, parts=parts, bad=worse)
        bad |= {which[at].as_py(): reason for at, reason in worse.items()}
        good.append(which.take(without(len(which), worse)) if worse else which)
    rows, records = one_batch(parts, schema), pa.concat_arrays(good)
    if 0 < len(good[-1]) < len(records):
        order = pc.sort_indices(records)
        rows, records = rows.take(order), records.take(order)
    return Decoded(rows, records, poison(batch, bad))


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

    content = np.frombuffer(text, np.uint8)
    # The reader's complaints quote the text, and one with a NUL in it ends the process: it is handed on as a C string.
    if not content.all():
        raise ValueError("a NUL byte, which JSON does not allow")
    if (content == ord("\\")).any() and _NUL in (whole := content.tobytes()):
        # What is read with another character in its place is read with it, too.
        pa.table(read_json(io.BytesIO(whole.replace(_NUL, b"\\u0001")), schema, batch_size=count + 1))
    plain = readable(schema)
    texts = with_texts(plain)
    wrong: Exception | None = None
    if texts is not None and may_have_durations(whole := content.tobytes()):
        try:
            return restored(pa.table(read_json(io.BytesIO(whole), texts, batch_size=count + 1)), schema)
        except Exception as error:  # noqa: BLE001 - the library raises bare exceptions of its own
            wrong = error  # a record that has them as numbers is found by halving, and read below
    try:
        return restored(pa.table(read_json(io.BytesIO(content.data), plain, batch_size=count + 1)), schema)
    except Exception as error:
        raise (wrong if isinstance(wrong, NoDurationError) else error) from error


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


def _not_one_object(values: Any) -> tuple[dict[int, str], list[int]]:
    """Records that are null, or hold two objects: the reader would count on, and give the rows of others to them.

    Where no record holds two, as many objects as records means one in each. One that holds two has a closing brace
    before an opening one. So may one that has them in its text: those are the second result.
    """
    bad: dict[int, str] = {}
    if values.null_count:
        bad = dict.fromkeys(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).tolist(), "no value")
        values = values.fill_null(b"")
    suspicious = pc.match_substring_regex(values, r"\}\s*\{").to_numpy(zero_copy_only=False)
    nested: list[int] = []
    for at in np.flatnonzero(suspicious).tolist():
        if _is_one_object(values[at].as_py()):
            nested.append(at)
        else:
            bad[at] = "not one JSON object"
    return bad, nested


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

"""Compiled kernels that copy values out of messages, from where others found them.

Called by `shoal.records.parsing.compiled` and `compiled_lines`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.records.parsing.kernels.caching import compiled
from shoal.records.parsing.kernels.memory import double_of, fixed32, fixed64, float_bits, memory
from shoal.records.parsing.kernels.wire import (
    FIXED64,
    FLOAT,
    NESTED,
    TYPE_SHIFT,
    V1,
    VARINT,
    WIRES,
    next_field,
    varint,
)

#: Codes of values that are packed in one piece.
PACKED_IDS = FIXED64 << TYPE_SHIFT
PACKED_FLOATS = FLOAT << TYPE_SHIFT


@compiled
def _one_part(buf: Any, lo: int, hi: int, kind: int, v1: bool, ints: Any, floats: Any, place: int, end: int) -> Any:
    """Copy packed values, or a single one, and say where the next ones go. None goes to `end` or beyond."""
    at = lo
    if kind == FIXED64:
        while at < hi and place < end:
            value = fixed64(buf, at)
            if v1:
                value = ((value >> np.uint64(54)) << np.uint64(48)) | (value & np.uint64(0xFFFFFFFFFFFF))
            ints[place] = np.int64(value)
            place += 1
            at += 8
    elif kind == VARINT:
        while at < hi and place < end:
            value, at = varint(buf, at, hi)
            ints[place] = np.int64(value)
            place += 1
    elif kind == FLOAT:
        while at < hi and place < end:
            floats[place] = fixed32(buf, at)
            place += 1
            at += 4
    else:
        while at < hi and place < end:
            floats[place] = float_bits(np.float32(double_of(fixed64(buf, at))))
            place += 1
            at += 8
    return place


@compiled
def _all_parts(buf: Any, code: int, lo: int, hi: int, ints: Any, floats: Any, place: int, end: int) -> Any:
    """The same for values that a field of a message holds."""
    kind = (code >> TYPE_SHIFT) & 7
    wanted = code & 0xFF
    nested = code & NESTED != 0
    v1 = code & V1 != 0
    at = lo
    while at < hi:
        number, wire, begin, at = next_field(buf, at, hi)
        # As when they were counted: anything else of that number is a field that nobody knows.
        if number != wanted or (wire != 2 and (nested or wire != WIRES[kind])):
            continue
        if not nested:
            place = _one_part(buf, begin, at, kind, v1, ints, floats, place, end)
            continue
        inner = begin
        while inner < at:
            number, wire, begin, inner = next_field(buf, inner, at)
            if number == 1 and (wire == 2 or wire == WIRES[kind]):
                place = _one_part(buf, begin, inner, kind, v1, ints, floats, place, end)
    return place


@compiled
def fill_rows(data: Any, spans: Any, places: Any, limits: Any, ints: Any, floats: Any) -> None:
    """Copy the values of all columns, row by row.

    Args:
        data: the records.
        spans: where the values are, by row and column.
        places: where the values of each column go in `ints` or `floats`; negative for those that go nowhere.
        limits: exactly so many values in each row of a column, which were zeros before; 0: as many as there are.
        ints: the values of columns of ids and whole numbers.
        floats: the values of columns of numbers, as bits.
    """
    buf = memory(data)
    for row in range(len(spans)):
        for column in range(len(places)):
            place = places[column]
            if place < 0:
                continue
            count = spans[row, column, 3]
            end = place + (limits[column] if limits[column] else count)
            places[column] = end
            if count == 0:
                continue
            code = spans[row, column, 0]
            lo, hi = np.int64(spans[row, column, 1]), np.int64(spans[row, column, 2])
            # The two that most columns are.
            if code == PACKED_IDS:
                while lo < hi and place < end:
                    ints[np.uint64(place)] = np.int64(fixed64(buf, lo))
                    place += 1
                    lo += 8
            elif code == PACKED_FLOATS:
                while lo < hi and place < end:
                    floats[np.uint64(place)] = fixed32(buf, lo)
                    place += 1
                    lo += 4
            elif code & 0xFF:
                _all_parts(buf, code, lo, hi, ints, floats, place, end)
            else:
                _one_part(buf, lo, hi, (code >> TYPE_SHIFT) & 7, code & V1 != 0, ints, floats, place, end)


@compiled
def fill_column(data: Any, spans: Any, limit: int, ints: Any, floats: Any) -> None:
    """The same for one column, whose spans are by row."""
    buf = memory(data)
    place = 0
    for row in range(len(spans)):
        count = spans[row, 3]
        end = place + (limit or count)
        if count:
            code = spans[row, 0]
            lo, hi = np.int64(spans[row, 1]), np.int64(spans[row, 2])
            if code == PACKED_IDS:
                for index in range(place, min(end, place + count)):
                    ints[np.uint64(index)] = np.int64(fixed64(buf, lo))
                    lo += 8
            elif code == PACKED_FLOATS:
                for index in range(place, min(end, place + count)):
                    floats[np.uint64(index)] = fixed32(buf, lo)
                    lo += 4
            elif code & 0xFF:
                _all_parts(buf, code, lo, hi, ints, floats, place, end)
            else:
                _one_part(buf, lo, hi, (code >> TYPE_SHIFT) & 7, code & V1 != 0, ints, floats, place, end)
        place = end


@compiled
def find_bytes(data: Any, spans: Any, begins: Any, ends: Any) -> None:
    """Where each value of a column of bytes is."""
    buf = memory(data)
    place = 0
    for row in range(len(spans)):
        if spans[row, 3] == 0:
            continue
        wanted = spans[row, 0] & 0xFF
        at = np.int64(spans[row, 1])
        hi = np.int64(spans[row, 2])
        while at < hi:
            number, wire, begin, at = next_field(buf, at, hi)
            if number != wanted or wire != 2:
                continue
            if spans[row, 0] & NESTED == 0:
                begins[place], ends[place] = begin, at
                place += 1
                continue
            inner = begin
            while inner < at:
                number, wire, begin, inner = next_field(buf, inner, at)
                if number == 1 and wire == 2:
                    begins[place], ends[place] = begin, inner
                    place += 1


@compiled
def copy_bytes(buf: Any, begins: Any, ends: Any, out: Any) -> None:
    """Put pieces of the buffer one after the other."""
    place = 0
    for index in range(len(begins)):
        for at in range(begins[index], ends[index]):
            out[place] = buf[at]
            place += 1

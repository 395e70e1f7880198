"""The wire format of protobuf for compiled kernels, and how they note where values lie. Needs numba.

A kernel walks records once and notes, for each column and row, where its values lie and how many there are; a second
one copies them out. Every step is checked against the end of the message that it is in. Anything that is rare in what
serializers write makes a record `ODD`, such as a message in two parts or a group: the caller lets protobuf write it
anew, and comes back. So what the kernels accept means what protobuf says it means, and they stay small.

Where values lie is three numbers: `lo` and `hi`, and a code of

    bits 0..7    the number of the field in the message from `lo` to `hi`; 0: the packed values themselves
    bit 8        the field holds messages, whose field 1 holds the values
    bits 9..11   the type of a value: `FIXED64`, `FLOAT`, `DOUBLE`, `VARINT` or `BYTES`
    bit 12       they are feature ids of version 1

Called by the kernels beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.records.parsing.kernels.caching import compiled, inlined
from shoal.records.parsing.kernels.memory import byte, entry, fixed64, memory

# The types of values.
FIXED64, FLOAT, DOUBLE, VARINT, BYTES = 0, 1, 2, 3, 4
NESTED = 1 << 8
TYPE_SHIFT = 9
V1 = 1 << 12

# What a record is.
GOOD, ODD, WRONG_KIND, WRONG_COUNT = 0, 1, 2, 3

#: How one value of each type stands on the wire.
WIRES = np.array([1, 5, 1, 0, 2], np.int64)


@compiled
def varint(buf: Any, at: int, end: int) -> Any:
    """A number and where it ends; the latter is negative for one that is cut off or too long."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        next_byte = np.uint64(byte(buf, at))
        at += 1
        value |= (next_byte & np.uint64(0x7F)) << shift
        if next_byte < np.uint64(0x80):
            return value, at
        shift += np.uint64(7)
    return value, -1


@inlined
def next_field(buf: Any, at: int, end: int) -> Any:
    """The next field: its number, its wire type, and where its content begins and ends. A negative end: odd."""
    tag = byte(buf, at)
    at += 1
    if tag >= 0x80:  # the rest of a longer one
        more, at = varint(buf, at, end)
        if at < 0 or more > np.uint64(0xFFFFFFFF >> 7):
            return 0, 0, 0, -1
        tag = (tag & 0x7F) | (np.int64(more) << 7)
    number = tag >> 3
    kind = tag & 7
    if number == 0:
        return 0, 0, 0, -1
    if kind == 2:
        if at >= end:
            return 0, 0, 0, -1
        size = byte(buf, at)
        at += 1
        if size >= 0x80:
            more, at = varint(buf, at, end)
            if at < 0 or more > np.uint64(0x7FFFFFFF):
                return 0, 0, 0, -1
            size = (size & 0x7F) | (np.int64(more) << 7)
        if size > end - at:
            return 0, 0, 0, -1
        return number, kind, at, at + size
    if kind == 0:
        _, after = varint(buf, at, end)
        return number, kind, at, after
    if kind == 1 and end - at >= 8:
        return number, kind, at, at + 8
    if kind == 5 and end - at >= 4:
        return number, kind, at, at + 4
    return 0, 0, 0, -1


@inlined
def packed_count(buf: Any, lo: int, hi: int, kind: int) -> int:
    """How many values are packed there; negative when they do not fit."""
    if kind in (FIXED64, DOUBLE):
        return (hi - lo) >> 3 if (hi - lo) & 7 == 0 else -1
    if kind == FLOAT:
        return (hi - lo) >> 2 if (hi - lo) & 3 == 0 else -1
    count = 0
    run = 0
    for at in range(lo, hi):
        run += 1
        if byte(buf, at) < 0x80:
            count += 1
            run = 0
        elif run >= 10:
            return -1
    return count if run == 0 else -1


@compiled
def field_count(buf: Any, lo: int, hi: int, wanted: int, kind: int) -> int:
    """How many values one field of a message has, packed or not; negative when it is odd."""
    count = 0
    at = lo
    while at < hi:
        number, wire, begin, at = next_field(buf, at, hi)
        if at < 0:
            return -1
        if number == wanted:
            if wire == WIRES[kind]:
                count += 1
            elif wire == 2:
                more = packed_count(buf, begin, at, kind)
                if more < 0:
                    return -1
                count += more
    return count


@compiled
def nested_count(buf: Any, lo: int, hi: int, wanted: int, kind: int) -> int:
    """The same for the messages in a field."""
    count = 0
    at = lo
    while at < hi:
        number, wire, begin, at = next_field(buf, at, hi)
        if at < 0:
            return -1
        if number == wanted and wire == 2:
            more = field_count(buf, begin, at, 1, kind)
            if more < 0:
                return -1
            count += more
    return count


@compiled
def list_values(buf: Any, lo: int, hi: int, kind: int) -> Any:
    """The values of a message that is a list: a code, where they are, and how many. A negative count: odd."""
    if lo == hi:
        return 0, lo, hi, 0
    if kind != BYTES:
        number, wire, begin, end = next_field(buf, lo, hi)
        if end == hi and number == 1 and wire == 2:
            return kind << TYPE_SHIFT, begin, end, packed_count(buf, begin, end, kind)
    return 1 | (kind << TYPE_SHIFT), lo, hi, field_count(buf, lo, hi, 1, kind)


# ---------------------------------------------------------------------------------------------------------
# Names of columns


@inlined
def _hash(buf: Any, lo: int, hi: int) -> Any:
    value = np.uint64(hi - lo)
    at = lo
    while at < hi:
        # The last eight bytes may have been read before; a shorter name is read byte by byte.
        if at + 8 <= hi:
            piece = fixed64(buf, at)
            at += 8
        elif hi - lo >= 8:
            piece = fixed64(buf, hi - 8)
            at = hi
        else:
            piece = np.uint64(byte(buf, at))
            at += 1
        value = (value ^ piece) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(32)
    return value


@inlined
def _is_name(buf: Any, lo: int, hi: int, names: Any, begin: int, end: int) -> Any:
    size = hi - lo
    if size != end - begin:
        return False
    at = 0
    if size >= 8:
        while at + 8 <= size:
            if fixed64(buf, lo + at) != fixed64(names, begin + at):
                return False
            at += 8
        return fixed64(buf, hi - 8) == fixed64(names, end - 8)
    while at < size:
        if byte(buf, lo + at) != byte(names, begin + at):
            return False
        at += 1
    return True


@compiled
def fill_buckets(names: Any, splits: Any, buckets: Any) -> None:
    """Put the names into an open table, whose size is a power of two and more than twice their number."""
    mask = np.uint64(len(buckets) - 1)
    for index in range(len(splits) - 1):
        place = _hash(memory(names), splits[index], splits[index + 1]) & mask
        while buckets[place] >= 0:
            place = (place + np.uint64(1)) & mask
        buckets[place] = index


@inlined
def names_of(names: Any, splits: Any, buckets: Any) -> Any:
    """The names of columns, where each begins, and the table that `fill_buckets` made, for `find_name`."""
    return memory(names), memory(splits), memory(buckets)


@compiled
def _look_up(buf: Any, lo: int, hi: int, table: Any) -> Any:
    names, splits, buckets = table
    mask = np.uint64((buckets[1] >> 3) - 1)
    place = _hash(buf, lo, hi) & mask
    while True:
        index = entry(buckets, place)
        if index < 0 or _is_name(buf, lo, hi, names, entry(splits, index), entry(splits, index + 1)):
            return index
        place = (place + np.uint64(1)) & mask


@inlined
def find_name(buf: Any, lo: int, hi: int, table: Any, guess: int) -> Any:
    """The number of the column with this name; negative when there is none. The guess is looked at first."""
    names, splits, _ = table
    if guess >= 0 and _is_name(buf, lo, hi, names, entry(splits, guess), entry(splits, guess + 1)):
        return guess
    return _look_up(buf, lo, hi, table)


# ---------------------------------------------------------------------------------------------------------
# Notes


@inlined
def put(spans: Any, first: int, second: int, code: int, lo: int, hi: int, count: int) -> None:
    """Note where the values of one column and row lie."""
    spans[first, second, 0] = code
    spans[first, second, 1] = lo
    spans[first, second, 2] = hi
    spans[first, second, 3] = count

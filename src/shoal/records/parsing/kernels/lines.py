"""Compiled kernels that read the lines of CSV. Called by `shoal.records.parsing.compiled_csv`.

`scan_lines` walks the bytes once and writes the values of all cells one after the other; `take_…` copy those of one
column out. What is plain is read here: digits, decimal points, exponents, quotes around a cell. At anything else the
scan stops, and the caller lets Arrow read the lines, so that a cell always means what Arrow says it means.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.records.parsing.kernels.caching import compiled, inlined
from shoal.records.parsing.kernels.memory import byte, double_bits, fixed64, memory

# What a column of the file is for. Of a text the place is noted: where it begins, times 2^32, and where it ends.
SKIP, TEXT, INT, UINT, FLOAT = 0, 1, 2, 3, 4

_NEWLINE, _RETURN, _QUOTE, _MINUS, _POINT, _ZERO = 10, 13, 34, 45, 46, 48
_TENS = np.array([10**power for power in range(9)], np.uint64)
#: Below this a value has place for so many digits more in 64 bits.
_PLACE_FOR = np.array([10 ** (19 - more) for more in range(9)], np.uint64)
#: Powers of ten that a double holds exactly.
_EXACT = np.array([10.0**power for power in range(23)], np.float64)

_LOW_BITS = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)


@inlined
def _digits(data: Any, at: Any, value: Any) -> Any:
    """The digits from a place on, behind those of a value; and where they end: negative when they are too many."""
    while at + 8 <= data[1]:
        eight = fixed64(data, at) ^ np.uint64(0x3030303030303030)
        # The high bit of the first byte that is no digit; bytes behind it may be wrong, and do not count.
        others = ((eight + np.uint64(0x7676767676767676)) | eight) & _HIGH_BITS
        count = np.uint64(8)
        if others != 0:
            first = others & (~others + np.uint64(1))
            count = ((((first - np.uint64(1)) & _LOW_BITS) * _LOW_BITS) >> np.uint64(56)) - np.uint64(1)
            if count == 0:
                return value, at
            eight <<= (np.uint64(8) - count) << np.uint64(3)
        if value >= _PLACE_FOR[count]:
            return value, -1
        # Pairs of digits, then pairs of those, then both halves.
        eight = eight * np.uint64(10) + (eight >> np.uint64(8))
        low = (eight & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
        high = ((eight >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
        value = value * _TENS[count] + ((low + high) >> np.uint64(32))
        at += np.int64(count)
        if count < 8:
            return value, at
    # The last line ends with a newline, so this ends.
    while True:
        digit = np.uint64(byte(data, at) - _ZERO)
        if digit > 9:
            return value, at
        if value >= _PLACE_FOR[1]:
            return value, -1
        value = value * np.uint64(10) + digit
        at += 1


@inlined
def _whole(data: Any, at: int) -> Any:
    """A whole number, and where it ends, negative when it needs a closer look."""
    negative = byte(data, at) == _MINUS
    begin = at + 1 if negative else at
    value, at = _digits(data, begin, np.uint64(0))
    if at <= begin or value > np.uint64(0x7FFFFFFFFFFFFFFF):
        return np.int64(0), -1
    return (-np.int64(value) if negative else np.int64(value)), at


@inlined
def _exponent(data: Any, at: int) -> Any:
    """The power of ten behind an `e`, and where it ends; negative when it needs a closer look."""
    if (byte(data, at) | 0x20) != 101:
        return np.int64(0), at
    at += 1
    sign = byte(data, at)
    if sign in (43, _MINUS):
        at += 1
    power, end = _digits(data, at, np.uint64(0))
    if end <= at or power > 99:
        return np.int64(0), -1
    return (-np.int64(power) if sign == _MINUS else np.int64(power)), end


@inlined
def _real(data: Any, at: int) -> Any:
    """The bits of a number that will be a 32-bit float, and where it ends, negative when it needs a closer look.

    The double may be off by two units of its last place. It is refused where that could change how it is rounded to 32
    bits: next to the middle of two floats.
    """
    negative = byte(data, at) == _MINUS
    begin = at + 1 if negative else at
    value, at = _digits(data, begin, np.uint64(0))
    if at <= begin:
        return np.int64(0), -1
    power: Any = np.int64(0)
    if byte(data, at) == _POINT:
        begin = at + 1
        value, at = _digits(data, begin, value)
        if at <= begin:
            return np.int64(0), -1
        power = begin - at
    exponent, at = _exponent(data, at)
    power += exponent
    if at < 0 or power < -22 or power > 22:
        return np.int64(0), -1
    made = np.float64(value)
    made = made / _EXACT[np.uint64(-power)] if power < 0 else made * _EXACT[np.uint64(power)]
    if value != 0 and (made < 1.2e-38 or made > 3.4e38):
        return np.int64(0), -1
    bits = double_bits(-made if negative else made)
    exact = power == 0 and value < np.uint64(1 << 53)
    off = (bits & 0x1FFFFFFF) - 0x10000000
    return bits, (-1 if -4 <= off <= 4 and not exact else at)


@inlined
def _text_end(data: Any, at: int, delimiter: int, quoted: bool) -> int:
    """Where the text of a cell ends; negative when it needs a closer look."""
    while True:
        found = byte(data, at)
        if found == _QUOTE:
            return at if quoted else -1
        if found == _NEWLINE:
            return -1 if quoted else at
        if found == _RETURN:
            return at if not quoted and byte(data, at + 1) == _NEWLINE else -1
        if found == delimiter and not quoted:
            return at
        at += 1


@compiled
def scan_lines(
    lines: Any, delimiter: int, separator: int, kinds: Any, sizes: Any, bits: Any, ends: Any, counts: Any
) -> Any:
    """Read every cell of some lines, the last of which ends with a newline.

    Args:
        lines: the bytes.
        delimiter: between cells.
        separator: between the values of a cell.
        kinds: what each column of the file is for.
        sizes: how many values a cell of it has; -1: any number, 0 as well.
        bits: takes the values: whole numbers, doubles as they are in memory, and places of texts.
        ends: takes the place behind the last value of each cell, line after line.
        counts: takes how many values each column has.

    Returns:
        How many rows there are; negative when some line needs a closer look.
    """
    data = memory(lines)
    at = np.int64(0)
    row = np.int64(0)
    place = np.int64(0)
    cell = np.int64(0)
    columns = len(kinds)
    while at < data[1]:
        if byte(data, at) == _NEWLINE:
            at += 1
            continue
        if byte(data, at) == _RETURN and byte(data, at + 1) == _NEWLINE:
            at += 2
            continue
        for column in range(columns):
            kind = kinds[column]
            quoted = byte(data, at) == _QUOTE
            if quoted:
                at += 1
            first = place
            following = byte(data, at)
            if kind <= TEXT:
                begin = at
                at = _text_end(data, at, delimiter, quoted)
                if kind == TEXT and at >= 0:
                    if place >= len(bits):
                        return -1
                    bits[np.uint64(place)] = (begin << 32) | at
                    place += 1
            elif following not in (delimiter, _NEWLINE, _RETURN) and not (quoted and following == _QUOTE):
                while place < len(bits):
                    if kind == FLOAT:
                        bits[np.uint64(place)], at = _real(data, at)
                    elif kind == UINT and byte(data, at) == _MINUS:
                        return -1
                    else:
                        bits[np.uint64(place)], at = _whole(data, at)
                    place += 1
                    if at < 0 or byte(data, at) != separator or place - first == sizes[column]:
                        break
                    at += 1
                if sizes[column] not in (-1, place - first):
                    return -1
            elif sizes[column] >= 0:
                return -1
            if at < 0:
                return -1
            if quoted:
                if byte(data, at) != _QUOTE:
                    return -1
                at += 1
            ends[np.uint64(cell)] = place
            counts[np.uint64(column)] += place - first
            cell += 1
            following = byte(data, at)
            if column < columns - 1:
                if following != delimiter:
                    return -1
            elif following == _RETURN:
                at += 1
                if byte(data, at) != _NEWLINE:
                    return -1
            elif following != _NEWLINE:
                return -1
            at += 1
        row += 1
    return row


@inlined
def _take(values: Any, ends: Any, columns: int, column: int, splits: Any, out: Any) -> None:
    place = np.int64(0)
    cell = np.int64(column)
    for row in range(len(splits) - 1):
        begin = np.int64(ends[np.uint64(cell - 1)]) if cell > 0 else np.int64(0)
        for at in range(begin, np.int64(ends[np.uint64(cell)])):
            out[np.uint64(place)] = values[np.uint64(at)]
            place += 1
        splits[np.uint64(row + 1)] = place
        cell += columns


@compiled
def take_whole(bits: Any, ends: Any, columns: int, column: int, splits: Any, out: Any) -> None:
    """Copy the whole numbers of one column out, and where those of each row end."""
    _take(bits, ends, columns, column, splits, out)


@compiled
def take_real(reals: Any, ends: Any, columns: int, column: int, splits: Any, out: Any) -> None:
    """The same for 32-bit floats."""
    _take(reals, ends, columns, column, splits, out)

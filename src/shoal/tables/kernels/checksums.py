"""Checksums of TFRecords, many at a time: CRC-32C by tables, eight bytes at once. Called by `shoal.tables.dumps`.

`shoal.core.tfrecords` says what a record is, and explains what is wrong with one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.tables.kernels.compiling import helper, kernel

_POLYNOMIAL = 0x82F63B78
_ALL = np.uint32(0xFFFFFFFF)
_DELTA = np.uint32(0xA282EAD8)
_8, _15, _17, _255 = np.uint32(8), np.uint32(15), np.uint32(17), np.uint32(255)
HEADER, TRAILER = 12, 4


def make_tables() -> Any:
    """Line k has the checksum of each byte with k zero bytes after it."""
    made = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        made[0, byte] = value
    for line in range(1, 8):
        made[line] = (made[line - 1] >> 8) ^ made[0, made[line - 1] & 255]
    return made


@helper
def _word(content: Any, at: int) -> Any:
    return (
        np.uint32(content[at])
        | np.uint32(content[at + 1]) << _8
        | np.uint32(content[at + 2]) << np.uint32(16)
        | np.uint32(content[at + 3]) << np.uint32(24)
    )


@helper
def _masked(tables: Any, content: Any, start: int, end: int) -> Any:
    """The checksum of some bytes, as it stands in files."""
    found, at = _ALL, start
    while at + 8 <= end:
        low = _word(content, at) ^ found
        high = _word(content, at + 4)
        found = (
            tables[7, low & _255]
            ^ tables[6, (low >> _8) & _255]
            ^ tables[5, (low >> np.uint32(16)) & _255]
            ^ tables[4, low >> np.uint32(24)]
            ^ tables[3, high & _255]
            ^ tables[2, (high >> _8) & _255]
            ^ tables[1, (high >> np.uint32(16)) & _255]
            ^ tables[0, high >> np.uint32(24)]
        )
        at += 8
    while at < end:
        found = (found >> _8) ^ tables[0, (found ^ np.uint32(content[at])) & _255]
        at += 1
    found ^= _ALL
    return np.uint32(((found >> _15) | (found << _17)) + _DELTA)


@kernel("void(uint32[:,::1], uint8[:,::1])")
def close_records(tables: Any, lines: Any) -> None:
    """Write the checksum of the payload at the end of each line, which is one record."""
    end = lines.shape[1] - TRAILER
    for number in range(lines.shape[0]):
        found = _masked(tables, lines[number], HEADER, end)
        for place in range(TRAILER):
            lines[number, end + place] = np.uint8((found >> np.uint32(8 * place)) & _255)


@kernel("Tuple((int64, int64))(uint32[:,::1], uint8[::1], int64, int64[::1], int64[::1])")
def find_records(tables: Any, content: Any, longest: int, starts: Any, lengths: Any) -> tuple[int, int]:
    """Where payloads are, up to the first record that is wrong or not whole. Returns how many, and where they end."""
    at, found = np.int64(0), 0
    while found < starts.size and content.size - at >= HEADER + TRAILER:
        low, high = _word(content, at), _word(content, at + 4)
        length = np.int64(low)
        # The length first: what it says is trusted no further than the bytes that are here.
        if high != 0 or length > longest or length > content.size - at - HEADER - TRAILER:
            break
        if _masked(tables, content, at, at + 8) != _word(content, at + 8):
            break
        end = at + HEADER + length
        if _masked(tables, content, at + HEADER, end) != _word(content, end):
            break
        starts[found], lengths[found] = at + HEADER, length
        found += 1
        at = end + TRAILER
    return found, at

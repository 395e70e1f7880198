"""Compiled kernels that copy values out of messages, from where others found them.

Called by `shoal.records.parsing.compiled` and `compiled_lines`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.records.parsing.kernels.wire import (
    FLOAT,
    NESTED,
    TYPE_SHIFT,
    V1,
    VARINT,
    WIRES,
    compiled,
    fixed32,
    fixed64,
    next_field,
    varint,
)


@compiled
def _fill_ints(buf: Any, lo: int, hi: int, kind: int, v1: bool, out: Any, place: int) -> int:
    at = lo
    if kind == VARINT:
        while at < hi:
            value, at = varint(buf, at, hi)
            out[place] = np.int64(value)
            place += 1
        return place
    while at < hi:
        value = fixed64(buf, at)
        if v1:
            value = ((value >> np.uint64(54)) << np.uint64(48)) | (value & np.uint64(0xFFFFFFFFFFFF))
        out[place] = np.int64(value)
        place += 1
        at += 8
    return place


@compiled
def _fill_floats(buf: Any, lo: int, hi: int, kind: int, out: Any, place: int, bits: Any, number: Any) -> int:
    at = lo
    while at < hi:
        if kind == FLOAT:
            out[place] = np.uint32(fixed32(buf, at))
            at += 4
        else:
            bits[0] = fixed64(buf, at)
            number[0] = np.float32(bits.view(np.float64)[0])
            out[place] = number.view(np.uint32)[0]
            at += 8
        place += 1
    return place


@compiled
def fill_ints(buf: Any, codes: Any, los: Any, his: Any, counts: Any, out: Any) -> None:
    """The values of a column of ids or whole numbers, row after row."""
    place = 0
    for row in range(len(codes)):
        if counts[row] == 0:
            continue
        code = codes[row]
        kind = (code >> TYPE_SHIFT) & 7
        wanted = code & 0xFF
        v1 = code & V1 != 0
        if wanted == 0:
            place = _fill_ints(buf, los[row], his[row], kind, v1, out, place)
            continue
        at = los[row]
        while at < his[row]:
            number, wire, begin, at = next_field(buf, at, his[row])
            if number != wanted or wire not in (WIRES[kind], 2):
                continue
            if code & NESTED == 0:
                place = _fill_ints(buf, begin, at, kind, v1, out, place)
                continue
            inner = begin
            while inner < at:
                number, wire, begin, inner = next_field(buf, inner, at)
                if number == 1 and wire in (WIRES[kind], 2):
                    place = _fill_ints(buf, begin, inner, kind, v1, out, place)


@compiled
def fill_floats(buf: Any, codes: Any, los: Any, his: Any, counts: Any, out: Any) -> None:
    """The values of a column of numbers, as bits of 32-bit floats."""
    place = 0
    bits = np.zeros(1, np.uint64)
    single = np.zeros(1, np.float32)
    for row in range(len(codes)):
        if counts[row] == 0:
            continue
        code = codes[row]
        kind = (code >> TYPE_SHIFT) & 7
        wanted = code & 0xFF
        if wanted == 0:
            place = _fill_floats(buf, los[row], his[row], kind, out, place, bits, single)
            continue
        at = los[row]
        while at < his[row]:
            number, wire, begin, at = next_field(buf, at, his[row])
            if number != wanted or wire not in (WIRES[kind], 2):
                continue
            if code & NESTED == 0:
                place = _fill_floats(buf, begin, at, kind, out, place, bits, single)
                continue
            inner = begin
            while inner < at:
                number, wire, begin, inner = next_field(buf, inner, at)
                if number == 1 and wire in (WIRES[kind], 2):
                    place = _fill_floats(buf, begin, inner, kind, out, place, bits, single)


@compiled
def find_bytes(codes: Any, los: Any, his: Any, counts: Any, buf: Any, begins: Any, ends: Any) -> None:
    """Where each value of a column of bytes is."""
    place = 0
    for row in range(len(codes)):
        if counts[row] == 0:
            continue
        wanted = codes[row] & 0xFF
        at = los[row]
        while at < his[row]:
            number, wire, begin, at = next_field(buf, at, his[row])
            if number != wanted or wire != 2:
                continue
            if codes[row] & NESTED == 0:
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
        size = ends[index] - begins[index]
        out[place : place + size] = buf[begins[index] : ends[index]]
        place += size

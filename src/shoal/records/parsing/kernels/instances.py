"""Compiled kernels that find columns in Instances, and fields in line ids.

Called by `shoal.records.parsing.compiled` and `compiled_lines`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.records.parsing.kernels.wire import (
    BYTES,
    FIXED64,
    FLOAT,
    GOOD,
    NESTED,
    ODD,
    TYPE_SHIFT,
    VARINT,
    WIRES,
    WRONG_KIND,
    compiled,
    field_count,
    find_name,
    fixed32,
    fixed64,
    nested_count,
    next_field,
    packed_count,
    put,
    varint,
)

#: The type of a value, by the number of a field in idl.matrix.proto.Feature.
_INSTANCE_TYPES = np.array([0, 0, FIXED64, FLOAT, VARINT, BYTES, FIXED64, FLOAT, VARINT, BYTES], np.int64)


@compiled
def _instance_values(buf: Any, lo: int, hi: int, order: Any, chunks: Any) -> Any:
    """A feature of an Instance: a status, a code, where its values are, and how many, or the field that has some.

    `order` lists the fields that the column takes; the first with values counts. `chunks` is scratch space.
    """
    chunks[:] = 0
    at = lo
    while at < hi:
        number, wire, begin, at = next_field(buf, at, hi)
        if at < 0:
            return ODD, 0, lo, lo, 0
        if 2 <= number <= 9 and (wire == 2 or (number < 5 and wire == WIRES[_INSTANCE_TYPES[number]])):
            chunks[number, 0] += 1 if wire == 2 else 2
            chunks[number, 1] = begin
            chunks[number, 2] = at
    for field in order:
        if field == 0:
            break
        if chunks[field, 0] == 0:
            continue
        kind = _INSTANCE_TYPES[field]
        if field >= 6:
            count = nested_count(buf, lo, hi, field, kind)
            if count < 0:
                return ODD, 0, lo, lo, 0
            return GOOD, field | NESTED | (kind << TYPE_SHIFT), lo, hi, count
        if field < 5 and chunks[field, 0] == 1:
            begin, end = chunks[field, 1], chunks[field, 2]
            count = packed_count(buf, begin, end, kind)
            code = kind << TYPE_SHIFT
        else:
            begin, end = lo, hi
            count = field_count(buf, lo, hi, field, kind)
            code = field | (kind << TYPE_SHIFT)
        if count < 0:
            return ODD, 0, lo, lo, 0
        if count > 0:
            return GOOD, code, begin, end, count
    for field in range(2, 10):
        if chunks[field, 0] and (field >= 5 or field_count(buf, lo, hi, field, _INSTANCE_TYPES[field])):
            accepted = False
            for each in order:
                accepted = accepted or each == field
            if not accepted:
                return WRONG_KIND, 0, lo, lo, field
    return GOOD, 0, lo, lo, 0


@compiled
def index_instances(
    buf: Any, starts: Any, ends: Any, names: Any, splits: Any, buckets: Any, orders: Any,
    codes: Any, los: Any, his: Any, counts: Any, weights: Any, status: Any, details: Any,
) -> None:  # fmt: skip
    """The same for Instances. After label and line id comes one more line: where the flat ids are."""
    columns = len(splits) - 1
    following = np.full(columns + 1, -1, np.int64)
    chunks = np.zeros((10, 3), np.int64)
    for row in range(len(starts)):
        hi = ends[row]
        at = starts[row]
        previous = columns
        label, line, flat = 0, 0, 0
        while at < hi:
            number, wire, begin, at = next_field(buf, at, hi)
            if at < 0:
                status[row] = ODD
                break
            if number == 9 and wire == 2:
                name_lo, name_hi = begin, begin
                inner = begin
                while 0 <= inner < at:
                    inner_number, inner_wire, inner_begin, inner = next_field(buf, inner, at)
                    if inner_number == 1 and inner_wire == 2:
                        name_lo, name_hi = inner_begin, inner
                if inner < 0:
                    status[row] = ODD
                    break
                column = find_name(buf, name_lo, name_hi, names, splits, buckets, following[previous])
                if column < 0:
                    continue
                following[previous] = column
                previous = column
                if orders[column, 0] == 0:  # a column of flat ids
                    continue
                state, code, first, last, count = _instance_values(buf, begin, at, orders[column], chunks)
                if state != GOOD:
                    status[row] = state
                    details[row, 0] = column
                    details[row, 1] = count
                    break
                put(column, row, code, first, last, count, codes, los, his, counts)
            elif (number == 1 and wire in (1, 2)) or (number == 3 and wire in (2, 5)):
                kind = FIXED64 if number == 1 else FLOAT
                count = packed_count(buf, begin, at, kind)
                seen = flat if number == 1 else label
                if seen or count < 0:
                    status[row] = ODD
                    break
                place = columns + 2 if number == 1 else columns
                put(place, row, kind << TYPE_SHIFT, begin, at, count, codes, los, his, counts)
                flat = 1 if number == 1 else flat
                label = 1 if number == 3 else label
            elif number == 5 and wire == 2:
                if line:
                    status[row] = ODD
                    break
                put(columns + 1, row, 0, begin, at, 1, codes, los, his, counts)
                line = 1
            elif number == 4 and wire == 5:
                weights[row] = np.uint32(fixed32(buf, begin))


@compiled
def count_slots(buf: Any, los: Any, his: Any, slots: Any, counts: Any) -> None:
    """How many flat ids of each row each column has; `slots` says which column a slot is."""
    for row in range(len(los)):
        for at in range(los[row], his[row], 8):
            column = slots[fixed64(buf, at) >> np.uint64(54)]
            if column >= 0:
                counts[column, row] += 1


@compiled
def fill_slot(buf: Any, los: Any, his: Any, slot: int, counts: Any, out: Any) -> None:
    """The flat ids of one slot, as ids of version 2."""
    place = 0
    upper = np.uint64(slot) << np.uint64(48)
    for row in range(len(los)):
        if counts[row] == 0:
            continue
        for at in range(los[row], his[row], 8):
            fid = fixed64(buf, at)
            if fid >> np.uint64(54) == np.uint64(slot):
                out[place] = np.int64(upper | (fid & np.uint64(0xFFFFFFFFFFFF)))
                place += 1


# ---------------------------------------------------------------------------------------------------------
# Line ids


@compiled
def index_line_ids(
    buf: Any, los: Any, his: Any, fields: Any, wires: Any, raw: Any, begins: Any, ends: Any, status: Any
) -> None:
    """The single fields of line ids: numbers as bits, texts by where they are. `fields` says which line each fills."""
    for row in range(len(los)):
        hi = his[row]
        at = los[row]
        while at < hi:
            number, wire, begin, at = next_field(buf, at, hi)
            if at < 0:
                status[row] = ODD
                break
            if number >= len(fields) or fields[number] < 0 or wire != wires[number]:
                continue
            place = fields[number]
            if wire == 2:
                begins[place, row] = begin
                ends[place, row] = at
            elif wire == 0:
                value, _ = varint(buf, begin, hi)
                raw[place, row] = value
            else:
                raw[place, row] = np.uint64(fixed32(buf, begin)) if wire == 5 else fixed64(buf, begin)


@compiled
def count_field(buf: Any, los: Any, his: Any, number: int, kind: int, counts: Any, status: Any) -> None:
    """How many values one field of each message has."""
    for row in range(len(los)):
        count = field_count(buf, los[row], his[row], number, kind)
        if count < 0:
            status[row] = ODD
        else:
            counts[row] = count

"""Compiled kernels that find columns in Instances, and fields in line ids.

Called by `shoal.records.parsing.compiled` and `compiled_lines`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.records.parsing.kernels.caching import compiled, inlined
from shoal.records.parsing.kernels.memory import fixed32, fixed64, memory
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
    field_count,
    find_name,
    names_of,
    nested_count,
    next_field,
    packed_count,
    put,
    varint,
)

#: The type of a value, by the number of a field in idl.matrix.proto.Feature.
_INSTANCE_TYPES = np.array([0, 0, FIXED64, FLOAT, VARINT, BYTES, FIXED64, FLOAT, VARINT, BYTES], np.int64)


@compiled
def _instance_values(buf: Any, lo: int, hi: int, orders: Any, column: int, chunks: Any) -> Any:
    """A feature of an Instance: a status, a code, where its values are, and how many, or the field that has some.

    `orders` lists the fields that each column takes; the first with values counts. `chunks` is scratch space.
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
    for place in range(orders.shape[1]):
        field = orders[column, place]
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
            for place in range(orders.shape[1]):
                accepted = accepted or orders[column, place] == field
            if not accepted:
                return WRONG_KIND, 0, lo, lo, field
    return GOOD, 0, lo, lo, 0


@compiled
def index_instances(
    data: Any, starts: Any, ends: Any, names: Any, splits: Any, buckets: Any, orders: Any, taken: Any,
    spans: Any, weights: Any, status: Any, details: Any,
) -> None:  # fmt: skip
    """The same for Instances. After label and line id comes one more line: where the flat ids are.

    `orders` lists the fields that each column takes, `taken` has a bit for each of them. Both are zero for flat ids.
    """
    buf = memory(data)
    table = names_of(names, splits, buckets)
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
                name_lo, name_hi, field, first, last = _simple_feature(buf, begin, at)
                if field == 0:
                    name_lo, name_hi = _name_of(buf, begin, at)
                    if name_hi < 0:
                        status[row] = ODD
                        break
                column = find_name(buf, name_lo, name_hi, table, following[previous])
                if column < 0:
                    continue
                following[previous] = column
                previous = column
                if taken[column] == 0:  # a column of flat ids
                    continue
                if field and (taken[column] >> field) & 1:
                    code = _INSTANCE_TYPES[field] << TYPE_SHIFT
                    count = packed_count(buf, first, last, _INSTANCE_TYPES[field])
                    state = GOOD if count >= 0 else ODD
                else:
                    state, code, first, last, count = _instance_values(buf, begin, at, orders, column, chunks)
                if state != GOOD:
                    status[row] = state
                    details[row, 0] = column
                    details[row, 1] = count
                    break
                put(spans, row, column, code, first, last, count)
            elif (number == 1 and wire in (1, 2)) or (number == 3 and wire in (2, 5)):
                kind = FIXED64 if number == 1 else FLOAT
                count = packed_count(buf, begin, at, kind)
                seen = flat if number == 1 else label
                if seen or count < 0:
                    status[row] = ODD
                    break
                place = columns + 2 if number == 1 else columns
                put(spans, row, place, kind << TYPE_SHIFT, begin, at, count)
                flat = 1 if number == 1 else flat
                label = 1 if number == 3 else label
            elif number == 5 and wire == 2:
                if line:
                    status[row] = ODD
                    break
                put(spans, row, columns + 1, 0, begin, at, 1)
                line = 1
            elif number == 4 and wire == 5:
                weights[row] = np.uint32(fixed32(buf, begin))


@inlined
def _simple_feature(buf: Any, lo: int, hi: int) -> Any:
    """A feature that is a name and then packed values, as most are: the name, the field of the values, and they.

    Field 0: it is something else.
    """
    if lo < hi:
        number, wire, name_lo, name_hi = next_field(buf, lo, hi)
        if number == 1 and wire == 2 and name_hi < hi:
            field, wire, begin, end = next_field(buf, name_hi, hi)
            if end == hi and wire == 2 and 2 <= field <= 4:
                return name_lo, name_hi, field, begin, end
    return lo, lo, 0, lo, lo


@compiled
def _name_of(buf: Any, lo: int, hi: int) -> Any:
    """The name of a feature. A negative end: odd."""
    name_lo, name_hi = lo, lo
    at = lo
    while at < hi:
        number, wire, begin, at = next_field(buf, at, hi)
        if at < 0:
            return lo, -1
        if number == 1 and wire == 2:
            name_lo, name_hi = begin, at
    return name_lo, name_hi


@compiled
def count_slots(data: Any, spans: Any, slots: Any) -> None:
    """How many flat ids of each row each column has; `slots` says which column a slot is."""
    buf = memory(data)
    flat = spans.shape[1] - 1
    for row in range(len(spans)):
        for at in range(spans[row, flat, 1], spans[row, flat, 2], 8):
            column = slots[fixed64(buf, at) >> np.uint64(54)]
            if column >= 0:
                spans[row, column, 3] += 1


@compiled
def fill_slots(data: Any, spans: Any, slots: Any, places: Any, limits: Any, out: Any) -> None:
    """The flat ids of every column that has a slot, as ids of version 2. See `fill_rows` for the arguments."""
    buf = memory(data)
    flat = spans.shape[1] - 1
    filled = np.zeros(len(places), np.int64)
    for row in range(len(spans)):
        filled[:] = 0
        for at in range(spans[row, flat, 1], spans[row, flat, 2], 8):
            fid = fixed64(buf, at)
            column = slots[fid >> np.uint64(54)]
            if column < 0 or (limits[column] and filled[column] >= limits[column]):
                continue
            upper = (fid >> np.uint64(54)) << np.uint64(48)
            out[places[column] + filled[column]] = np.int64(upper | (fid & np.uint64(0xFFFFFFFFFFFF)))
            filled[column] += 1
        for column in range(len(places)):
            places[column] += limits[column] if limits[column] else filled[column]


# ---------------------------------------------------------------------------------------------------------
# Line ids


@compiled
def index_line_ids(
    data: Any, los: Any, his: Any, fields: Any, wires: Any, raw: Any, begins: Any, ends: Any, status: Any
) -> None:
    """The single fields of line ids: numbers as bits, texts by where they are. `fields` says which line each fills."""
    buf = memory(data)
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
def count_field(data: Any, los: Any, his: Any, number: int, kind: int, counts: Any, status: Any) -> None:
    """How many values one field of each message has."""
    buf = memory(data)
    for row in range(len(los)):
        count = field_count(buf, los[row], his[row], number, kind)
        if count < 0:
            status[row] = ODD
        else:
            counts[row] = count

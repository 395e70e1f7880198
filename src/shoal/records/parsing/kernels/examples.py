"""Compiled kernels that find columns in Examples and ExampleBatches. Called by `shoal.records.parsing.compiled`."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.records.parsing.kernels.caching import compiled, inlined
from shoal.records.parsing.kernels.memory import byte, fixed32, memory
from shoal.records.parsing.kernels.wire import (
    BYTES,
    DOUBLE,
    FIXED64,
    FLOAT,
    GOOD,
    NESTED,
    ODD,
    TYPE_SHIFT,
    V1,
    VARINT,
    WRONG_COUNT,
    WRONG_KIND,
    find_name,
    list_values,
    names_of,
    nested_count,
    next_field,
    packed_count,
    put,
    varint,
)

#: The type of a value, by the number of a field in monolith.io.proto.Feature; 4 bits more: nested, and version 1.
_EXAMPLE_TYPES = np.array(
    [0, FIXED64 | 16, FIXED64, FLOAT, DOUBLE, VARINT, BYTES, FIXED64 | 8, FLOAT | 8, DOUBLE | 8, VARINT | 8, BYTES | 8,
     VARINT, FLOAT, DOUBLE, BYTES, FIXED64 | 8 | 16],
    np.int64,
)  # fmt: skip
#: How each of them stands on the wire.
_EXAMPLE_WIRES = np.array([9, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 5, 1, 2, 2], np.int64)


@compiled
def _feature(buf: Any, lo: int, hi: int) -> Any:
    """The value of a monolith.io.proto.Feature: its field and where it is. 0: none; negative: odd."""
    found, begin, end = 0, lo, lo
    at = lo
    while at < hi:
        number, wire, start, at = next_field(buf, at, hi)
        if at < 0:
            return -1, lo, lo
        if number <= 16 and wire == _EXAMPLE_WIRES[number]:
            if found:
                return -1, lo, lo  # the last one counts, or both are one message
            found, begin, end = number, start, at
    return found, begin, end


@inlined
def _plain_list(buf: Any, lo: int, hi: int) -> Any:
    """The field of a feature that is one short packed list of numbers, as most are; 0 if it is something else.

    Its values begin after four bytes: two tags and two lengths.
    """
    size = hi - lo
    if size < 4 or size > 129:
        return 0
    head = fixed32(buf, lo)
    # The lengths must reach to the end, and the list must be its field 1.
    if head >> np.uint32(8) != np.uint32((size - 2) | 0x0A00 | ((size - 4) << 16)):
        return 0
    tag = np.int64(head & np.uint32(0xFF))
    return tag >> 3 if tag & 7 == 2 and 8 <= tag < 48 else 0


@compiled
def _example_values(buf: Any, lo: int, hi: int, taken: int) -> Any:
    """A feature for a column: a status, a code, where its values are, and how many, or its field."""
    field = _plain_list(buf, lo, hi)
    if field and (taken >> field) & 1:
        kind = _EXAMPLE_TYPES[field] & 7
        count = packed_count(buf, lo + 4, hi, kind)
        if count < 0:
            return ODD, 0, lo, lo, 0
        return GOOD, (kind << TYPE_SHIFT) | (V1 if field == 1 else 0), lo + 4, hi, count
    field, begin, end = _feature(buf, lo, hi)
    if field < 0:
        return ODD, 0, lo, lo, 0
    if field == 0:
        return GOOD, 0, lo, lo, 0
    if not (taken >> field) & 1:
        return WRONG_KIND, 0, lo, lo, field
    kind = _EXAMPLE_TYPES[field] & 7
    v1 = V1 if _EXAMPLE_TYPES[field] & 16 else 0
    if _EXAMPLE_TYPES[field] & 8:
        count = nested_count(buf, begin, end, 1, kind)
        code = 1 | NESTED | (kind << TYPE_SHIFT)
    elif field == 15:
        code, begin, end, count = field | (kind << TYPE_SHIFT), lo, hi, 1
    elif 12 <= field < 15:  # one number: packed values of which there is one
        code, count = kind << TYPE_SHIFT, 1
    else:
        code, begin, end, count = list_values(buf, begin, end, kind)
    if count < 0:
        return ODD, 0, lo, lo, 0
    return GOOD, code | v1, begin, end, count


@compiled
def _first_float(buf: Any, code: int, lo: int, hi: int, count: int) -> Any:
    """The first of some floats, as bits; those of 1.0 when there is none."""
    if count == 0:
        return np.uint32(0x3F800000)
    if code & 0xFF == 0:
        return np.uint32(fixed32(buf, lo))
    at = lo
    while at < hi:
        number, wire, begin, at = next_field(buf, at, hi)
        if number == 1 and (wire == 5 or (wire == 2 and at > begin)):
            return np.uint32(fixed32(buf, begin))
    return np.uint32(0x3F800000)


@compiled
def _first_bytes(buf: Any, lo: int, hi: int) -> Any:
    """The first of some bytes."""
    at = lo
    while at < hi:
        number, wire, begin, at = next_field(buf, at, hi)
        if number == 1 and wire == 2:
            return begin, at
    return lo, lo


@inlined
def _special_or_values(buf: Any, lo: int, hi: int, taken: int, special: bool) -> Any:
    """The values of a feature. A label, weight or line id of another kind has none, and is no error."""
    state, code, begin, end, count = _example_values(buf, lo, hi, taken)
    if special and state == WRONG_KIND:
        return GOOD, 0, lo, lo, 0
    return state, code, begin, end, count


@inlined
def _named(buf: Any, lo: int, hi: int) -> Any:
    """The name and the feature of a NamedFeature. A negative end of the feature: odd."""
    if lo + 4 <= hi and byte(buf, lo) == 0x0A:
        # As most are: a name, then the feature.
        _, _, name_lo, name_hi = next_field(buf, lo, hi)
        if 0 < name_hi < hi and byte(buf, name_hi) == 0x12:
            _, _, value_lo, value_hi = next_field(buf, name_hi, hi)
            if value_hi == hi:
                return name_lo, name_hi, value_lo, value_hi
    name_lo, name_hi, value_lo, value_hi = lo, lo, lo, lo
    features = 0
    at = lo
    while at < hi:
        number, wire, begin, at = next_field(buf, at, hi)
        if at < 0:
            return lo, lo, lo, -1
        if number == 1 and wire == 2:
            name_lo, name_hi = begin, at
        elif number == 2 and wire == 2:
            features += 1
            value_lo, value_hi = begin, at
    if features > 1:
        return lo, lo, lo, -1
    return name_lo, name_hi, value_lo, value_hi


@compiled
def index_examples(
    data: Any, starts: Any, ends: Any, names: Any, splits: Any, buckets: Any, taken: Any,
    spans: Any, weights: Any, status: Any, details: Any,
) -> None:  # fmt: skip
    """Find the columns of Examples.

    The last three names are those of the label, the weight and the line id. They win over the fields of the Example.
    In `spans`, by row and column, the label and the line id come after the columns.
    """
    buf = memory(data)
    table = names_of(names, splits, buckets)
    columns = len(splits) - 4
    following = np.full(columns + 4, -1, np.int64)
    for row in range(len(starts)):
        hi = ends[row]
        at = starts[row]
        previous = columns + 3
        # 1: the field was there, 2: the name was there.
        label, line, weight = 0, 0, 0
        while at < hi:
            number, wire, begin, at = next_field(buf, at, hi)
            if at < 0:
                status[row] = ODD
                break
            if number == 1 and wire == 2:
                name_lo, name_hi, value_lo, value_hi = _named(buf, begin, at)
                if value_hi < 0:
                    status[row] = ODD
                    break
                column = find_name(buf, name_lo, name_hi, table, following[previous])
                if column < 0:
                    continue
                following[previous] = column
                previous = column
                state, code, first, last, count = _special_or_values(
                    buf, value_lo, value_hi, taken[column], column >= columns
                )
                if state != GOOD:
                    status[row] = state
                    details[row, 0] = column
                    details[row, 1] = count
                    break
                if column == columns + 1:
                    weights[row] = _first_float(buf, code, first, last, count)
                    weight = 2
                elif column == columns + 2:
                    first, last = _first_bytes(buf, first, last)
                    put(spans, row, columns + 1, 0, first, last, 1)
                    line = 2
                else:
                    label = 2 if column == columns else label
                    put(spans, row, column, code, first, last, count)
            elif number == 100 and wire == 2 and line < 2:
                if line == 1:
                    status[row] = ODD
                    break
                put(spans, row, columns + 1, 0, begin, at, 1)
                line = 1
            elif number == 101 and wire in (2, 5) and label < 2:
                count = packed_count(buf, begin, at, FLOAT)
                if label == 1 or count < 0:
                    status[row] = ODD
                    break
                put(spans, row, columns, FLOAT << TYPE_SHIFT, begin, at, count)
                label = 1
            elif number == 102 and wire == 5 and weight < 2:
                bits = np.uint32(fixed32(buf, begin))
                # Without presence, a zero is a weight that was not set.
                weights[row] = bits if bits & np.uint32(0x7FFFFFFF) else np.uint32(0x3F800000)


# ---------------------------------------------------------------------------------------------------------
# Batches


@compiled
def batch_sizes(data: Any, starts: Any, ends: Any, sizes: Any, status: Any) -> None:
    """The `batch_size` of each ExampleBatch."""
    buf = memory(data)
    for index in range(len(starts)):
        hi = ends[index]
        at = starts[index]
        while at < hi:
            number, wire, begin, at = next_field(buf, at, hi)
            if at < 0:
                status[index] = ODD
                break
            if number == 3 and wire == 0:
                value, _ = varint(buf, begin, hi)
                sizes[index] = np.int64(np.int32(value & np.uint64(0xFFFFFFFF)))


@compiled
def _column(buf: Any, lo: int, hi: int) -> Any:
    """A NamedFeatureList: its name, its type, and how many features it has. A negative number: odd."""
    name_lo, name_hi, kind, features = lo, lo, np.int64(0), 0
    at = lo
    while at < hi:
        number, wire, begin, at = next_field(buf, at, hi)
        if at < 0:
            return lo, lo, np.int64(0), -1
        if number == 2 and wire == 2:
            features += 1
        elif number == 1 and wire == 2:
            name_lo, name_hi = begin, at
        elif number == 3 and wire == 0:
            value, _ = varint(buf, begin, hi)
            kind = np.int64(value)
    return name_lo, name_hi, kind, features


@compiled
def index_batches(
    data: Any, starts: Any, ends: Any, rows: Any, names: Any, splits: Any, buckets: Any, taken: Any,
    spans: Any, weights: Any, status: Any, details: Any,
) -> None:  # fmt: skip
    """The same for ExampleBatches; `rows` says which rows each of them fills. Their `spans` are by column and row."""
    buf = memory(data)
    table = names_of(names, splits, buckets)
    columns = len(splits) - 4
    following = np.full(columns + 4, -1, np.int64)
    for index in range(len(starts)):
        hi = ends[index]
        at = starts[index]
        previous = columns + 3
        size = rows[index + 1] - rows[index]
        while at < hi and status[index] == GOOD:
            number, wire, begin, at = next_field(buf, at, hi)
            if at < 0:
                status[index] = ODD
                break
            if number != 1 or wire != 2:
                continue
            name_lo, name_hi, kind, features = _column(buf, begin, at)
            if features < 0:
                status[index] = ODD
                break
            column = find_name(buf, name_lo, name_hi, table, following[previous])
            if column < 0:
                continue
            following[previous] = column
            previous = column
            shared = kind == 1
            if (shared and features < 1 and size > 0) or (not shared and features != size):
                status[index] = WRONG_COUNT
                details[index, 0] = column
                details[index, 1] = features
                break
            row = rows[index]
            inner = begin
            while inner < at and row < rows[index + 1]:
                number, wire, value_lo, inner = next_field(buf, inner, at)
                if number != 2 or wire != 2:
                    continue
                state, code, first, last, count = _special_or_values(
                    buf, value_lo, inner, taken[column], column >= columns
                )
                if state != GOOD:
                    status[index] = state
                    details[index, 0] = column
                    details[index, 1] = count
                    break
                after = rows[index + 1] if shared else row + 1
                if column == columns + 1:
                    bits = _first_float(buf, code, first, last, count)
                    for each in range(row, after):
                        weights[each] = bits
                elif column == columns + 2:
                    first, last = _first_bytes(buf, first, last)
                    for each in range(row, after):
                        put(spans, columns + 1, each, 0, first, last, 1)
                else:
                    for each in range(row, after):
                        put(spans, column, each, code, first, last, count)
                row = after

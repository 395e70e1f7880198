"""Keys: from columns to hashes, to key groups, to the tasks that own them; and a batch cut accordingly.

The hash is part of the format of checkpoints: it must never change, and it depends on values alone. Equal values hash
alike in every layout (dictionary, large, view) and width of their type; null, -0.0 and NaN have one hash each. Called
by the edges between tasks and by operators when they snapshot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.core.errors import InvalidError, problem
from shoal.dataflow.language.elements import Batch

Array: TypeAlias = Any
Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

#: Longer values are hashed one by one: a loop over their words would cost as many numpy calls as the longest has.
_LONG = 256

_NULL = np.uint64(0x9E3779B97F4A7C15)
_TEXT_SEED = np.uint64(0xD6E8FEB86659FD93)
_FLOAT_SEED = np.uint64(0xA0761D6478BD642F)
_SHIFTS = tuple(np.uint64(each) for each in (30, 27, 31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
#: Words that are mixed at once: so many stay in a core's cache from one step to the next.
_MIXED_AT_ONCE = 8192
#: Masks for the bytes of the last word of a value: by how many bytes of it there are.
_TAILS = np.array([0, *((1 << (8 * size)) - 1 for size in range(1, 9))], dtype=np.uint64)
_NAN = np.float64("nan")


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """The share of the key space that one task has: key groups `first` up to, not including, `end`, of `total`."""

    first: int
    end: int
    total: int

    def __contains__(self, key_group: int) -> bool:
        return self.first <= key_group < self.end


def hash_columns(batch: Batch, names: Sequence[str]) -> Hashes:
    """A hash for each row over these columns, stable over processes and versions."""
    result: Hashes | None = None
    for name in names:
        hashes = hash_array(batch.column(name))
        result = hashes if result is None else _combine(result, hashes)
    return np.zeros(batch.num_rows, np.uint64) if result is None else result


def hash_arrays(arrays: Sequence[Array]) -> Hashes:
    """The same over columns that are not in a batch; there is at least one."""
    result = hash_array(arrays[0])
    for array in arrays[1:]:
        result = _combine(result, hash_array(array))
    return result


def key_groups(batch: Batch, names: Sequence[str], total: int) -> Integers:
    """The key group of each row."""
    return groups_of(hash_columns(batch, names), total)


def groups_of(hashes: Hashes, total: int) -> Integers:
    """The key group of each of these hashes."""
    if total & (total - 1) == 0:  # a power of two, as by default: a mask costs a tenth of a division
        return (hashes & np.uint64(total - 1)).view(np.int64)
    return (hashes % np.uint64(total)).astype(np.int64)


def tasks_of(groups: Integers, parallelism: int, total: int) -> Integers:
    """The task that owns each of these key groups."""
    owners: Integers = np.arange(total) * parallelism // total
    return owners[groups]


def partition(batch: Batch, tasks: Integers, parallelism: int) -> list[tuple[int, Batch]]:
    """The batch cut by task: one copy in the tasks' order, then slices of it. Rows of a task keep their order."""
    if batch.num_rows == 0:
        return []
    if parallelism == 1:
        return [(0, batch)]
    counts = np.bincount(tasks, minlength=parallelism)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        return [(int(present[0]), batch)]
    # Arrow counts numbers of a small range instead of comparing them, which is quicker than a radix sort. It is stable.
    moved = batch.take(pc.array_sort_indices(pa.array(tasks)))
    ends = np.cumsum(counts)
    return [(int(task), moved.slice(int(ends[task] - counts[task]), int(counts[task]))) for task in present]


def hash_array(array: Array) -> Hashes:
    """A hash for each value of a column."""
    array = combined(array)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _hash_dictionary(array)
    if pa.types.is_struct(kind):
        return _with_nulls(array, hash_arrays([*array.flatten(), pa.nulls(len(array))]))
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL)
    if is_textual(kind) or pa.types.is_decimal(kind):
        return _with_nulls(array, _hash_bytes(array))
    return _with_nulls(array, _hash_numbers(array))


def is_textual(kind: Any) -> bool:
    """Strings and bytes of any layout."""
    check = pa.types
    return bool(
        check.is_string(kind)
        or check.is_large_string(kind)
        or check.is_string_view(kind)
        or check.is_binary(kind)
        or check.is_large_binary(kind)
        or check.is_binary_view(kind)
        or check.is_fixed_size_binary(kind)
    )


def canonical(array: Array, *, name: str = "") -> Array:
    """A column as int64 or binary, such that two rows have equal values exactly when they are the same key."""
    array = combined(array)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return canonical(array.dictionary_decode(), name=name)
    if pa.types.is_null(kind):
        return array.cast(pa.int64())
    if pa.types.is_decimal(kind):
        return array.view(pa.binary(kind.byte_width)).cast(pa.binary())
    if is_textual(kind):
        return array if pa.types.is_binary(kind) else array.cast(pa.binary())
    if pa.types.is_floating(kind):
        bits = pa.array(_canonical_floats(array).view(np.int64))
        return bits if not array.null_count else pc.if_else(array.is_valid(), bits, pa.scalar(None, pa.int64()))
    return as_int64(array, name=name)


def from_canonical(array: Array, kind: Any) -> Array:
    """The inverse of `canonical`, up to which zero and which NaN it was."""
    if pa.types.is_null(kind):
        return pa.nulls(len(array))
    if pa.types.is_decimal(kind):
        return array.cast(pa.binary(kind.byte_width)).view(kind)
    if is_textual(kind):
        return array if array.type == kind else _cast_bytes(array, kind)
    if pa.types.is_floating(kind):
        return array.view(pa.float64()).cast(kind)
    if pa.types.is_temporal(kind):
        return array.view(kind) if kind.bit_width == 64 else array.cast(pa.int32()).view(kind)
    if pa.types.is_uint64(kind):
        return array.view(kind)
    return array if array.type == kind else array.cast(kind)


def _cast_bytes(array: Array, kind: Any) -> Array:
    """Bytes as text of some layout. They were text, so they are not checked again."""
    narrow = array.cast(pa.binary()) if pa.types.is_large_binary(array.type) else array
    return narrow.cast(kind)


def as_int64(array: Array, *, name: str = "") -> Array:
    """Whole numbers, truth values and times as int64, nulls kept. An unsigned one keeps its bits."""
    kind = array.type
    if pa.types.is_int64(kind):
        return array
    if pa.types.is_uint64(kind):
        return array.view(pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return array.cast(pa.int64())
    if pa.types.is_temporal(kind) and kind.bit_width in {32, 64}:
        return array.view(pa.int64()) if kind.bit_width == 64 else array.view(pa.int32()).cast(pa.int64())
    raise InvalidError(
        [problem(name or "key", str(kind), "must be a number, text, bytes, a truth value or a time to be a key")],
        hint="make a column of such a type from it with with_columns, and use that",
    )


def combined(array: Array) -> Array:
    """A column as one array, whatever it was cut into."""
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _mix(values: Hashes) -> Hashes:
    """Spread the bits of 64-bit words in place, so that every bit of the input decides over every bit of the output."""
    spare = np.empty(min(len(values), _MIXED_AT_ONCE), np.uint64)
    for start in range(0, len(values), _MIXED_AT_ONCE):
        words = values[start : start + _MIXED_AT_ONCE]
        shifted = spare[: len(words)]
        for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
            words ^= np.right_shift(words, shift, out=shifted)
            words *= factor
        words ^= np.right_shift(words, _SHIFTS[-1], out=shifted)
    return values


def _combine(one: Hashes, other: Hashes) -> Hashes:
    return _mix((one * _FACTORS[0]) ^ (other + _NULL))


def _with_nulls(array: Array, hashes: Hashes) -> Hashes:
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _hash_dictionary(array: Array) -> Hashes:
    if not len(array.dictionary):
        return np.full(len(array), _NULL)
    indices = array.indices.fill_null(0) if array.null_count else array.indices
    hashes = hash_array(array.dictionary)[indices.to_numpy(zero_copy_only=False)]
    return _with_nulls(array, hashes)


def _hash_numbers(array: Array) -> Hashes:
    if pa.types.is_floating(array.type):
        return _mix(_canonical_floats(array).view(np.uint64) + _FLOAT_SEED)
    return _mix(_filled(as_int64(array)).view(np.uint64) + _NULL)


def _canonical_floats(array: Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Its values with one zero and one NaN."""
    values = _filled(array.cast(pa.float64())) + 0.0  # -0.0 + 0.0 is 0.0; and it is a copy
    values[np.isnan(values)] = _NAN
    return values


def _filled(array: Array) -> np.ndarray[Any, Any]:
    if array.null_count:
        array = array.fill_null(pa.scalar(0, array.type))
    values: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
    return values


def _hash_bytes(array: Array) -> Hashes:
    """Word by word over all values at once: as many steps as the longest has words."""
    starts, lengths, content = byte_ranges(array)
    hashes = _mix(lengths.astype(np.uint64) + _TEXT_SEED)
    words = _words(content)
    rows = np.flatnonzero(lengths)
    place, left = starts[rows], lengths[rows]
    long = left > _LONG
    if long.any():
        hashes[rows[long]] = [
            _hash_long(content, int(at), int(size)) for at, size in zip(place[long], left[long], strict=True)
        ]
        rows, place, left = rows[~long], place[~long], left[~long]
    while len(rows):
        word = words[place] & _TAILS[np.minimum(left, 8)]
        whole = len(rows) == len(hashes)
        mixed = _mix((hashes if whole else hashes[rows]) * _FACTORS[1] ^ word)
        if whole:
            hashes = mixed
        else:
            hashes[rows] = mixed
        place, left = place + 8, left - 8
        going = left > 0
        if not going.all():
            rows, place, left = rows[going], place[going], left[going]
    return hashes


def _hash_long(content: np.ndarray[Any, np.dtype[np.uint8]], start: int, size: int) -> int:
    digest = hashlib.blake2b(content[start : start + size].tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def byte_ranges(array: Array) -> tuple[Integers, Integers, np.ndarray[Any, np.dtype[np.uint8]]]:
    """Where each value lies in the bytes of its column."""
    if pa.types.is_decimal(array.type):
        array = array.view(pa.binary(array.type.byte_width))
    if pa.types.is_fixed_size_binary(array.type):
        return _fixed_ranges(array)
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _validity, offset_buffer, content = array.buffers()
    width = np.int64 if wide else np.int32
    every: np.ndarray[Any, Any] = np.frombuffer(offset_buffer, width)
    offsets = every[array.offset : array.offset + len(array) + 1]
    starts = offsets[:-1].astype(np.int64)
    lengths = offsets[1:] - starts
    if not len(starts):
        return starts, lengths, _content(None)
    # Of a slice only its own bytes: the column that it was cut from may be as large as a file.
    first, end = int(offsets[0]), int(offsets[-1])
    return starts - first, lengths, _content(content)[first:end]


def _fixed_ranges(array: Array) -> tuple[Integers, Integers, np.ndarray[Any, np.dtype[np.uint8]]]:
    width = array.type.byte_width
    starts = np.arange(len(array), dtype=np.int64) * width
    content = _content(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
    return starts, np.full(len(array), width, np.int64), content


def _content(buffer: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _words(content: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The eight bytes from each place on, as a view: words overlap, and the last ones reach into zeros behind."""
    padded = np.concatenate([content, np.zeros(8, np.uint8)])
    return np.ndarray((len(content) + 1,), np.dtype("<u8"), buffer=padded.data, strides=(1,))

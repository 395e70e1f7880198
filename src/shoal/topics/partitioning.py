"""Which partition a key belongs to: as the Java client of Kafka decides it, so that it is the same everywhere.

`murmur2` over the bytes of the key, without its sign, modulo the number of partitions; for whole columns at once.
Called by the backends of `shoal.topics.base`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.core.errors import InvalidError, problem

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_R = np.uint32(24)

Words = npt.NDArray[np.uint32]


def murmur2(keys: Any) -> Words:
    """The hash of each key of a binary Array; of a null as of an empty one."""
    offsets, content = _buffers(keys)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    hashes = _SEED ^ lengths.astype(np.uint32)
    # Four bytes at a time, for all keys that still have as many. Padded, so that the last ones can be read whole.
    padded = np.concatenate([content, np.zeros(4, np.uint8)])
    longest = int(lengths.max(initial=0))
    with np.errstate(over="ignore"):
        for step in range(longest // 4):
            rows = slice(None) if int(lengths.min()) >= 4 * step + 4 else np.flatnonzero(lengths >= 4 * step + 4)
            hashes[rows] = (hashes[rows] * _M) ^ _mixed(_words(padded, starts[rows] + 4 * step))
        _finish(hashes, padded, starts, lengths)
        hashes ^= hashes >> np.uint32(13)
        hashes *= _M
        hashes ^= hashes >> np.uint32(15)
    return hashes


def partitions_of(keys: Any, count: int, *, without_key: int = 0) -> npt.NDArray[np.int32]:
    """The partition of each key of a binary Array; `without_key` for a null."""
    chosen = (murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(count)
    result = chosen.astype(np.int32)
    if keys.null_count:
        result[keys.is_null().to_numpy(zero_copy_only=False)] = without_key
    return result


@dataclass(frozen=True, slots=True)
class Share:
    """The records of one partition."""

    partition: int
    batch: Any


def split(batch: Any, *, count: int, partition: int | Any | None, without_key: int) -> Iterator[Share]:
    """Cut a batch of records by partition, each part in the old order.

    Args:
        batch: records, as `shoal.topics.base.RECORDS` has them.
        count: how many partitions the topic has.
        partition: one for all, or an Array with one for each record; None: the keys decide.
        without_key: where records without a key go.
    """
    if partition is None and (count == 1 or batch.column(0).null_count == batch.num_rows):
        partition = 0 if count == 1 else without_key
    if partition is None:
        chosen = partitions_of(batch.column(0), count, without_key=without_key)
    elif isinstance(partition, int):
        _check(partition, partition, count)
        yield Share(partition, batch)
        return
    else:
        chosen = _given(partition, batch.num_rows, count)
    order = np.argsort(chosen, kind="stable")
    ordered = chosen[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    if not len(cuts):
        yield Share(int(chosen[0]), batch)
        return
    sorted_batch = batch.take(pa.array(order))
    for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True):
        yield Share(int(ordered[start]), sorted_batch.slice(int(start), int(end - start)))


def _given(partition: Any, rows: int, count: int) -> npt.NDArray[np.int32]:
    if isinstance(partition, pa.ChunkedArray):
        partition = partition.combine_chunks()
    values = partition if isinstance(partition, pa.Array) else pa.array(partition, type=pa.int32())
    if len(values) != rows or values.null_count or not pa.types.is_integer(values.type):
        rule = f"must be a number, or an integer for each of the {rows} records"
        raise InvalidError([problem("partition", values, rule)], what="append")
    chosen: npt.NDArray[np.int32] = values.to_numpy().astype(np.int32)
    _check(int(chosen.min()), int(chosen.max()), count)
    return chosen


def _check(lowest: int, highest: int, count: int) -> None:
    if lowest < 0 or highest >= count:
        worst = lowest if lowest < 0 else highest
        raise InvalidError([problem("partition", worst, f"must be between 0 and {count - 1}")], what="append")


def _buffers(keys: Any) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    _, offsets, content = keys.buffers()
    if offsets is None or not len(keys):
        return np.zeros(len(keys) + 1, np.int32), np.zeros(0, np.uint8)
    positions = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    body = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return positions, body


def _words(padded: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> Words:
    """The four bytes at each place, the lowest first."""
    overlapping: Words = np.ndarray((len(padded) - 3,), dtype="<u4", buffer=padded, strides=(1,))
    return overlapping[at]


def _mixed(words: Words) -> Words:
    words = words * _M
    words ^= words >> _R
    mixed: Words = words * _M
    return mixed


def _finish(
    hashes: Words, padded: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> None:
    """Take in the one to three bytes that are left over."""
    left = lengths % 4
    rows = np.flatnonzero(left)
    if not len(rows):
        return
    words = _words(padded, np.minimum((starts + lengths - left)[rows], len(padded) - 4))
    masked = words & ((np.uint32(1) << (np.uint32(8) * left[rows].astype(np.uint32))) - np.uint32(1))
    hashes[rows] = (hashes[rows] ^ masked) * _M

"""A key has the partition that the Java client gives it, and every record lands in exactly one, in order."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.topics.base import records
from shoal.topics.partitioning import murmur2, partitions_of, split

# From the Java client's own tests.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_the_hashes_that_everybody_agrees_on() -> None:
    assert murmur2(pa.array(list(KNOWN), pa.binary())).astype("int32").tolist() == list(KNOWN.values())


def one_by_one(key: bytes) -> int:
    """The same hash, as a text book has it."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(key)
    for at in range(0, len(key) // 4 * 4, 4):
        word = int.from_bytes(key[at : at + 4], "little") * m & mask
        value = (value * m & mask) ^ ((word ^ word >> 24) * m & mask)
    rest = key[len(key) // 4 * 4 :]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * m & mask
    value = (value ^ value >> 13) * m & mask
    return value ^ value >> 15


@given(st.lists(st.none() | st.binary(max_size=20), max_size=20), st.data())
def test_a_column_is_hashed_as_its_keys_are(keys: list[bytes | None], data: st.DataObject) -> None:
    column = pa.array(keys, pa.binary())
    start = data.draw(st.integers(0, len(keys)))
    expected = [one_by_one(key or b"") for key in keys]
    assert murmur2(column).tolist() == expected
    assert murmur2(column.slice(start)).tolist() == expected[start:]
    numbers = partitions_of(column, 7, without_key=3).tolist()
    assert numbers == [3 if k is None else (h & 0x7FFFFFFF) % 7 for k, h in zip(keys, expected, strict=True)]


@given(st.lists(st.none() | st.binary(max_size=3), min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 4))
def test_a_batch_is_cut_without_loss(keys: list[bytes | None], count: int, without_key: int) -> None:
    batch = records([b"%d" % number for number in range(len(keys))], keys=keys)
    shares = list(split(batch, count=count, partition=None, without_key=without_key % count))
    numbers = [share.partition for share in shares]
    assert numbers == sorted(set(numbers))
    expected = partitions_of(batch.column(0), count, without_key=without_key % count).tolist()
    for share in shares:
        assert share.batch["value"].to_pylist() == [b"%d" % n for n, p in enumerate(expected) if p == share.partition]
    assert sum(share.batch.num_rows for share in shares) == len(keys)


@pytest.mark.parametrize(
    "partition", [3, -1, [0, 1, 3], [0, 1], pa.array([0, None, 1], pa.int32()), pa.array([0.0, 1, 2])]
)
def test_a_partition_that_is_none_is_refused(partition: object) -> None:
    with pytest.raises(InvalidError):
        list(split(records([b"1", b"2", b"3"]), count=3, partition=partition, without_key=0))


def test_partitions_may_come_in_chunks() -> None:
    chosen = pa.chunked_array([pa.array([1], pa.int64()), pa.array([0, 1], pa.int64())])
    shares = list(split(records([b"a", b"b", b"c"]), count=2, partition=chosen, without_key=0))
    assert [(share.partition, share.batch["value"].to_pylist()) for share in shares] == [(0, [b"b"]), (1, [b"a", b"c"])]

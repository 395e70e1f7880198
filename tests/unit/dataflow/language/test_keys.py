"""Hashes of keys, key groups, and batches cut by task."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.dataflow.language import keys as keying
from shoal.dataflow.language.keys import (
    canonical,
    from_canonical,
    hash_array,
    hash_columns,
    key_groups,
    partition,
    tasks_of,
)

texts = st.lists(st.none() | st.text(max_size=30), max_size=20)


def test_the_hash_never_changes():
    """It is the format of checkpoints: a change here orphans every one of them."""
    batch = pa.record_batch(
        {
            "int": pa.array([0, 1, -1, None], pa.int64()),
            "text": pa.array(["", "a", "longer than eight bytes", None]),
            "long": pa.array(["x" * 300, "x" * 256, "x" * 257, "y" * 300]),
            "float": pa.array([0.0, 1.5, float("nan"), None]),
            "bool": pa.array([True, False, None, True]),
            "time": pa.array([0, 1, 2, 3], pa.timestamp("us")),
            "decimal": pa.array([Decimal("1.5"), Decimal("-1.5"), None, Decimal("0.0")]),
        }
    )
    found = {name: hash_columns(batch, [name]).tolist() for name in batch.schema.names}
    found["two"] = hash_columns(batch, ["int", "text"]).tolist()
    assert found == EXPECTED


EXPECTED: dict[str, list[int]] = {
    "int": [16294208416658607535, 10451216379200822465, 16490336266968443936, 11400714819323198485],
    "text": [13067915187859978867, 9398442959464572547, 17641926975623150516, 11400714819323198485],
    "long": [1533152188014638354, 16690092407743924455, 8557773044231383636, 17954614675875514879],
    "float": [9071725088682436940, 16141422176168164610, 18190575611581629711, 11400714819323198485],
    "bool": [10451216379200822465, 16294208416658607535, 11400714819323198485, 10451216379200822465],
    "time": [16294208416658607535, 10451216379200822465, 10905525725756348110, 2092789425003139053],
    "decimal": [18327120560320711231, 17230910948000986362, 11400714819323198485, 13470456795491736407],
    "two": [12127297323645555434, 13473695526224043097, 16950931812499030643, 9360563393285169017],
}


@given(texts)
def test_equal_texts_hash_alike_in_every_layout(values):
    plain = pa.array(values, pa.string())
    expected = hash_array(plain).tolist()
    for kind in (pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()):
        assert hash_array(plain.cast(kind)).tolist() == expected
    assert hash_array(plain.dictionary_encode()).tolist() == expected
    assert hash_array(pa.chunked_array([plain, plain.slice(0, 0)])).tolist() == expected
    for start in range(len(values)):
        assert hash_array(plain.slice(start, 3)).tolist() == expected[start : start + 3]


@given(st.lists(st.none() | st.integers(-100, 100), max_size=20))
def test_equal_numbers_hash_alike_in_every_width(values):
    expected = hash_array(pa.array(values, pa.int64())).tolist()
    for kind in (pa.int8(), pa.int16(), pa.int32()):
        assert hash_array(pa.array(values, kind)).tolist() == expected
    floats = hash_array(pa.array(values, pa.float64())).tolist()
    assert hash_array(pa.array(values, pa.float64()).cast(pa.float32())).tolist() == floats


def test_zeros_and_not_a_number_have_one_hash_each():
    zeros = hash_array(pa.array([0.0, -0.0]))
    assert zeros[0] == zeros[1]
    strange = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    nans = hash_array(pa.array(strange))
    assert nans[0] == nans[1]
    assert nans[0] != zeros[0]


def test_nulls_have_one_hash_whatever_lies_below_them():
    array = pa.array(["abc", None, "d"])
    hidden = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x00"), pa.array([0, 3, 4], pa.int32()).buffers()[1], pa.py_buffer(b"abcd")]
    )
    assert hash_array(array)[1] == hash_array(hidden)[0] == hash_array(hidden)[1] == hash_array(pa.nulls(1))[0]


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=1, max_size=30, unique=True))
def test_several_columns_are_one_key(rows):
    batch = pa.record_batch({"a": [a for a, _b in rows], "b": [b for _a, b in rows]})
    assert len(set(hash_columns(batch, ["a", "b"]).tolist())) == len(rows)


def test_hashes_spread_evenly():
    for array in (
        pa.array(range(20_000)),
        pa.array([f"key-{n}" for n in range(20_000)]),
        pa.array(range(0, 10**9, 50_000)),
    ):
        groups = key_groups(pa.record_batch({"k": array}), ["k"], 128)
        counts = np.bincount(groups, minlength=128)
        assert counts.min() > 90
        assert counts.max() < 230


@pytest.mark.parametrize("total", [1, 2, 100, 127, 128, 129, 32_768])
def test_groups_are_the_rest_of_a_division(total: int):
    hashes = np.array([0, 1, total - 1, total, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    groups = keying.groups_of(hashes, total)
    assert groups.dtype == np.int64
    assert groups.tolist() == [each % total for each in hashes.tolist()]


def test_structs_are_keys_and_lists_are_not():
    array = pa.array([{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, None, {"a": 1, "b": "x"}])
    hashes = hash_array(array)
    assert hashes[0] == hashes[3]
    assert len(set(hashes.tolist())) == 3
    with pytest.raises(InvalidError, match="to be a key"):
        hash_array(pa.array([[1]]))


@given(
    st.lists(st.tuples(st.text(max_size=3), st.integers(0, 1000)), max_size=60),
    st.integers(1, 7),
    st.sampled_from([7, 16, 128]),
)
def test_a_batch_is_cut_without_loss_and_in_order(rows, parallelism, total):
    batch = pa.record_batch(
        {"k": pa.array([k for k, _v in rows], pa.string()), "v": pa.array([v for _k, v in rows], pa.int64())}
    )
    groups = key_groups(batch, ["k"], total)
    parts = partition(batch, tasks_of(groups, parallelism, total), parallelism)
    assert [task for task, _part in parts] == sorted({task for task, _part in parts})
    for task, part in parts:
        expected = [
            (k, v) for (k, v), group in zip(rows, groups.tolist(), strict=True) if group * parallelism // total == task
        ]
        assert list(zip(part["k"].to_pylist(), part["v"].to_pylist(), strict=True)) == expected
    assert sum(part.num_rows for _task, part in parts) == len(rows)


@pytest.mark.parametrize("parallelism", [2, 3, 100])
def test_a_large_batch_is_cut_without_loss_and_in_order(parallelism: int):
    rows = 50_000
    tasks = np.random.default_rng(3).integers(0, parallelism, rows)
    batch = pa.record_batch({"row": pa.array(np.arange(rows)), "task": pa.array(tasks)})
    parts = partition(batch, tasks, parallelism)
    assert [task for task, _part in parts] == list(range(parallelism))
    for task, part in parts:
        assert part["row"].to_numpy().tolist() == np.flatnonzero(tasks == task).tolist()
        assert set(part["task"].to_pylist()) == {task}


def test_the_hash_of_a_row_does_not_depend_on_the_rows_around_it():
    numbers = pa.array(np.random.default_rng(4).integers(-(2**62), 2**62, 50_000))
    whole = hash_array(numbers)
    pieces = [hash_array(numbers.slice(start, 1_000)) for start in range(0, len(numbers), 1_000)]
    assert np.array_equal(whole, np.concatenate(pieces))


def test_a_batch_of_one_task_is_not_copied():
    batch = pa.record_batch({"k": ["a", "a"]})
    ((task, part),) = partition(batch, np.array([2, 2]), 4)
    assert task == 2
    assert part is batch


def test_a_slice_of_a_large_column_costs_what_it_is():
    """Only the bytes of the slice are looked at."""
    large = pa.array(["x" * 100] * 10_000)
    starts, lengths, content = keying.byte_ranges(large.slice(5_000, 3))
    assert (starts.tolist(), lengths.tolist(), len(content)) == ([0, 100, 200], [100, 100, 100], 300)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -5], pa.int32()),
        ([2**64 - 1, 0], pa.uint64()),
        ([True, None, False], pa.bool_()),
        (["a", None, ""], pa.string()),
        (["a", None], pa.large_string()),
        (["a", None], pa.string_view()),
        ([b"a", None], pa.binary(1)),
        ([1.5, None], pa.float32()),
        ([Decimal("1.50"), None], pa.decimal128(9, 2)),
        ([dt.date(2020, 1, 1), None], pa.date32()),
        ([dt.date(2020, 1, 1), None], pa.date64()),
        ([dt.datetime(2020, 1, 1, 5, tzinfo=dt.UTC), None], pa.timestamp("ms", "UTC")),
        ([dt.time(5), None], pa.time32("s")),
        ([dt.timedelta(5), None], pa.duration("us")),
        ([None, None], pa.null()),
    ],
)
def test_canonical_values_come_back(values: list[Any], kind: Any):
    array = pa.array(values, kind)
    plain = canonical(array)
    assert plain.type in (pa.int64(), pa.binary())
    assert from_canonical(plain, kind).equals(array)

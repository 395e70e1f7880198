"""Slots of keys: the same key always has the same one, and no two keys share one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dataflow.language import keys as keying
from shoal.dataflow.operators.keys import index as keyindex
from shoal.dataflow.operators.keys.index import KeyIndex

columns = st.sampled_from(
    [
        (pa.int64(), st.none() | st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)),
        (pa.uint64(), st.integers(0, 2**64 - 1)),
        (pa.string(), st.none() | st.text(max_size=12)),
        (pa.large_binary(), st.none() | st.binary(max_size=3)),
        (pa.float64(), st.none() | st.floats()),
        (pa.bool_(), st.none() | st.booleans()),
        (pa.timestamp("ms"), st.none() | st.integers(0, 50)),
    ]
)


@st.composite
def keyed_batches(draw: Any) -> tuple[list[Any], list[list[tuple[Any, ...]]]]:
    chosen = draw(st.lists(columns, min_size=1, max_size=3))
    row = st.tuples(*(values for _kind, values in chosen))
    return [kind for kind, _values in chosen], draw(st.lists(st.lists(row, max_size=25), max_size=5))


def canonical(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """As Python compares keys: one NaN, one zero."""
    return tuple("nan" if value != value else value + 0.0 if isinstance(value, float) else value for value in key)  # noqa: PLR0124


def check(kinds: list[Any], batches: list[list[tuple[Any, ...]]], *, with_compaction: bool = True) -> None:
    index = KeyIndex([f"k{place}" for place in range(len(kinds))])
    known: dict[tuple[Any, ...], int] = {}
    for number, rows in enumerate(batches):
        arrays = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
        slots = index.slots_of(arrays, len(rows)).tolist()
        for row, slot in zip(rows, slots, strict=True):
            assert known.setdefault(canonical(row), slot) == slot
        assert sorted(known.values()) == list(range(len(index)))
        assert index.find(arrays, len(rows)).tolist() == slots
        if with_compaction and number % 2 and known:
            kept = np.array([slot % 3 > 0 for slot in range(len(index))])
            moved = index.compact(kept)
            known = {key: int(moved[slot]) for key, slot in known.items() if kept[slot]}
            assert len(index) == len(known)
    if known:
        slots = np.array(list(known.values()))
        for key, *values in zip(known, *(array.to_pylist() for array in index.take(slots)), strict=True):
            plain = [
                value if not pa.types.is_temporal(kind) else pa.scalar(value, kind).cast(pa.int64()).as_py()
                for value, kind in zip(values, kinds, strict=True)
            ]
            assert canonical(tuple(plain)) == key


@given(keyed_batches())
@settings(max_examples=80, deadline=None)
def test_each_key_has_one_slot(case):
    check(*case)


@given(keyed_batches())
@settings(max_examples=30, deadline=None)
def test_keys_of_one_hash_are_not_taken_for_each_other(case):
    original = keying.hash_arrays
    keying.hash_arrays = lambda arrays: np.zeros(len(arrays[0]), np.uint64)
    try:
        check(*case)
    finally:
        keying.hash_arrays = original


def test_few_and_many_keys_are_found_the_same_way(monkeypatch: pytest.MonkeyPatch):
    for few in (0, 10, 10**6):
        monkeypatch.setattr(keyindex, "_FEW", few)
        index = KeyIndex(["k"])
        first = pa.array([f"key-{number % 700}" for number in range(5_000)])
        slots = index.slots_of([first], 5_000)
        again = index.slots_of([first.cast(pa.large_string()).dictionary_encode()], 5_000)
        assert (slots == again).all()
        assert len(index) == 700
        more = index.slots_of([pa.array(["key-3", "new", None])], 3)
        assert more.tolist() == [slots[3], 700, 701]


def test_whole_numbers_near_and_far():
    index = KeyIndex(["k"])
    for low in (0, 10**6, -(10**6), 2**60, 10**7, 5 * 10**6, 0):
        values = np.arange(low, low + 100)
        slots = index.slots_of([pa.array(values)], 100)
        assert (index.slots_of([pa.array(values.astype(np.int64))], 100) == slots).all()
        assert index.take(slots)[0].to_pylist() == values.tolist()
    assert len(index) == 600


def test_without_keys_there_is_one_slot():
    index = KeyIndex([])
    assert index.slots_of([], 3).tolist() == [0, 0, 0]
    assert index.find([], 2).tolist() == [0, 0]
    assert len(index) == 1
    assert index.take(np.zeros(2, np.int64)) == []


def test_key_groups_are_those_of_the_exchange():
    batch = pa.record_batch({"a": ["x", "y", None], "b": [1.5, -0.0, 2.0]})
    index = KeyIndex(["a", "b"])
    slots = index.slots(batch)
    assert index.groups(slots, 128).tolist() == keying.key_groups(batch, ["a", "b"], 128).tolist()


@given(
    st.lists(
        st.lists(
            st.integers(0, 40) | st.sampled_from([-(2**63), -(2**40), 2**22 + 3, 2**40, 2**63 - 1]),
            min_size=1,
            max_size=60,
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(-(2**63), 2**63 - 41),
)
@settings(max_examples=150, deadline=None)
def test_a_few_numbers_far_from_the_others(batches, base):
    """Those that lie close are looked up in an array, the others by their hash: it is one index all the same."""
    index = KeyIndex(["key"])
    known: dict[int, int] = {}
    for values in batches:
        keys = [base + value if 0 <= value <= 40 else value for value in values]
        slots = index.slots(pa.record_batch({"key": pa.array(keys, pa.int64())})).tolist()
        for key, slot in zip(keys, slots, strict=True):
            assert known.setdefault(key, slot) == slot
    assert len(set(known.values())) == len(known) == len(index)


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 40, 100, -70, 2**62]), st.lists(st.integers(0, 30) | st.just(500), max_size=25)),
        max_size=12,
    ),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_numbers_in_ranges_that_move_and_far_from_them(batches, with_nulls):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyindex, "_RANGE", 32)
        rows = [[(base + number,) for number in numbers] for base, numbers in batches]
        if with_nulls and rows:
            rows.insert(len(rows) // 2, [(None,), (7,), (45,)])
        check([pa.int64()], rows)
        check([pa.int64()], rows, with_compaction=False)


def test_keys_that_were_compacted_are_not_taken_for_keys_of_one_hash():
    index = KeyIndex(["k"])
    for start in range(0, 5000, 1000):
        keys = pa.array(np.arange(start, start + 1500))
        slots = index.slots_of([keys], 1500)
        index.compact(np.isin(np.arange(len(index)), slots[500:]))
        assert index.find([keys], 1500).tolist() == [*[-1] * 500, *range(1000)]
    assert not index._collided


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float64()])
def test_frozen_keys_stay_while_others_come_and_go(kind):
    def keys(first: int, end: int) -> Any:
        return pa.array(range(first, end)).cast(kind)

    index = KeyIndex(["key"])
    slots = index.slots_of([keys(0, 100)], 100)
    now, groups = index.frozen(), index.groups(slots, 16).tolist()
    index.slots_of([keys(100, 300)], 200)
    index.compact(np.arange(300) >= 50)
    index.slots_of([keys(300, 600)], 300)
    assert now.take(slots)[0].to_pylist() == keys(0, 100).to_pylist()
    assert now.groups(slots, 16).tolist() == groups
    assert len(index) == 550

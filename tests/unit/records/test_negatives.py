"""Generated negatives, checked row by row, and flows that are split and merged."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.records.formats.payloads import Payloads
from shoal.records.operators.flows import merge_flows, of_sources
from shoal.records.operators.negatives import GenerateNegatives, ItemPool


def rows(first, channels, labels):
    """Rows with one user, one item (its number is unique) and one channel each."""
    numbers = range(first, first + len(channels))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([[each] for each in labels], pa.list_(pa.float32())),
            pa.array([f"user {each}" for each in numbers]),
            pa.array([[each, each + 1] for each in numbers], pa.list_(pa.int64())),
            pa.array(numbers, pa.int64()),
            pa.array(channels, pa.string()),
        ],
        names=["label", "user", "tags", "item", "channel"],
    )


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0])), min_size=1, max_size=30)


@given(
    batches=st.lists(ROWS, min_size=1, max_size=6),
    size=st.integers(1, 8),
    start=st.integers(0, 12),
    wanted=st.tuples(st.integers(1, 3), st.sampled_from([0.0, 0.5, 1.0])),
    seed=st.integers(0, 9),
)
def test_negatives_have_the_user_of_their_row_and_a_recent_item_of_another(batches, size, start, wanted, seed):
    count, easy = wanted
    pool = ItemPool(("tags", "item"), items_per_channel=size, start=start)
    make = GenerateNegatives(pool, count, "channel", easy)
    rng = np.random.default_rng(seed)
    recent: dict[str, list[int]] = defaultdict(list)
    first = 0
    for chosen in batches:
        batch = rows(first, [each for each, _ in chosen], [label for _, label in chosen])
        for offset, (channel, _) in enumerate(chosen):
            recent[channel] = [*recent[channel], first + offset][-size:]
        made = make.apply(batch, rng)
        made.validate(full=True)
        assert len(pool) == sum(map(len, recent.values()))
        found = made.to_pylist()
        is_first = [user not in {each["user"] for each in found[:at]} for at, user in
                    enumerate(each["user"] for each in found)]  # fmt: skip
        assert [row for row, kept in zip(found, is_first, strict=True) if kept] == batch.to_pylist()
        channel_of = {item: name for name, items in recent.items() for item in items}
        negatives = defaultdict(list)
        for row, kept in zip(found, is_first, strict=True):
            if not kept:
                negatives[row["user"]].append(row)
        for original in batch.to_pylist():
            mine = negatives.pop(original["user"], [])
            others = {
                name: [each for each in items if each != original["item"]] for name, items in recent.items() if items
            }
            hard = len(others.get(original["channel"], ())) > 0
            away = any(items for name, items in others.items() if name != original["channel"])
            ready = len(pool) >= max(start, 1)
            if original["label"] != [1.0] or not ready:
                assert not mine
            elif easy == 0.0:
                assert len(mine) == (count if hard else 0)
            elif easy == 1.0:
                assert len(mine) == (count if away else 0)
            for row in mine:
                assert row["label"] == [0.0]
                assert row["channel"] == original["channel"], "only the item's columns change"
                assert row["item"] != original["item"]
                assert row["tags"] == [row["item"], row["item"] + 1], "an item stays whole"
                assert row["item"] in channel_of
                if easy in {0.0, 1.0}:
                    assert (channel_of[row["item"]] == original["channel"]) == (easy == 0.0)
        assert not negatives
        first += len(chosen)


def test_a_pool_stays_bounded_and_counts_what_it_leaves_out():
    pool = ItemPool(("item", "tags"), items_per_channel=10, max_channels=2, start=0)
    make = GenerateNegatives(pool, channel="channel")
    rng = np.random.default_rng(0)
    for first in range(0, 3000, 30):
        make.apply(rows(first, ["a", "b", "c"] * 10, [1.0] * 30), rng)
        assert pool._items.num_rows <= 2 * 20 + 30
    assert len(pool) == 20
    assert pool.left_out == 1000


def test_equal_seeds_make_equal_negatives():
    def run(seed):
        make = GenerateNegatives(ItemPool(("item",), start=0), 2, "channel", 0.5)
        return make.apply(rows(0, list("abcab"), [1.0] * 5), np.random.default_rng(seed))

    assert run(1).equals(run(1))
    assert not run(1).equals(run(2))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ItemPool(()), "columns"),
        (lambda: ItemPool(("item",), items_per_channel=0), "items_per_channel"),
        (lambda: ItemPool(("item",), max_channels=0), "max_channels"),
        (lambda: ItemPool(("item",), start=-1), "start"),
        (lambda: GenerateNegatives(ItemPool(("item",)), 0), "count"),
        (lambda: GenerateNegatives(ItemPool(("item",)), easy_share=1.5), "easy_share"),
        (lambda: of_sources([], ()), "source_keys"),
        (lambda: of_sources([], (1 << 32,)), "source_keys"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, field):
    with pytest.raises(InvalidError, match=field):
        make()


@pytest.mark.parametrize("name", ["absent", "channel"])
def test_rows_without_a_channel_are_refused_and_change_nothing(name):
    pool = ItemPool(("item",), start=0)
    with pytest.raises(InvalidError, match=name):
        GenerateNegatives(pool, channel=name).apply(rows(0, ["a", None], [1.0, 1.0]), np.random.default_rng(0))
    assert len(pool) == 0


def test_the_columns_of_an_item_keep_their_types():
    pool = ItemPool(("item",), start=0)
    pool.add(rows(0, ["a"], [1.0]), np.zeros(1))
    other = pa.RecordBatch.from_arrays([pa.array(["x"])], names=["item"])
    with pytest.raises(InvalidError, match="stay the same"):
        pool.add(other, np.zeros(1))
    assert len(pool) == 1


def test_records_are_split_by_their_source_and_merged_in_turn():
    payloads = Payloads.of([b"a", b"b", b"c", b"d"])
    payloads.source_keys[:] = [256, 512, 256, 768]
    found = [bytes(each) for part in of_sources([payloads, payloads], {256, 768}) for each in part]
    assert found == [b"a", b"c", b"d"] * 2
    assert list(of_sources([payloads], {1024})) == []
    assert list(merge_flows([iter("abc"), iter(""), iter("1")])) == ["a", "1", "b", "c"]

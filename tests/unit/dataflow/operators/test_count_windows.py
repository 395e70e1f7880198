"""Count windows that overlap: all that a batch makes full come out of one pass, as if each were put together alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dataflow.language.elements import TIME
from shoal.dataflow.language.logical import Aggregation
from shoal.dataflow.language.windows import CountWindow
from shoal.dataflow.operators import counts
from shoal.dataflow.operators.aggregates.store import Store
from shoal.dataflow.operators.counts import CountAggregate
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.keys.index import KeyIndex
from tests.unit.dataflow.operators.driving import Fleet, cut

FUNCTIONS = ("sum", "min", "last", "list", "count_distinct")
NAMES = ("key", "total", *FUNCTIONS)
AGGREGATIONS = (Aggregation("total", "float", "sum"), *(Aggregation(each, "value", each) for each in FUNCTIONS))

Row = tuple[str, int, float]
rows_strategy = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-9, 9), st.floats(-1e6, 1e6)), min_size=1, max_size=80
)


def make_fleet(size: int, slide: int, aggregations: Sequence[Aggregation], max_rows: int = 7) -> Fleet:
    grouping = Grouping(keys=("key",), aggregations=tuple(aggregations))
    make = lambda: CountAggregate(grouping=grouping, window=CountWindow(size, slide))  # noqa: E731  made anew each time
    return Fleet(make, [("key",)], max_rows=max_rows)


def batch_of(rows: Sequence[Row], start: int) -> Any:
    keys, values, floats = (list(column) for column in zip(*rows, strict=True))
    times = list(range(start, start + len(rows)))
    return pa.record_batch({"key": keys, "value": values, "float": floats, TIME: pa.array(times, pa.int64())})


def expected(batches: Sequence[Sequence[Row]], size: int, slide: int) -> list[tuple[Any, ...]]:
    """Of each batch: the first pane that every key filled, then the second; keys in the order of their slots."""
    pane = math.gcd(size, slide)
    known: dict[str, list[Row]] = {}
    index = KeyIndex(("key",))
    slots: dict[str, int] = {}
    found: list[tuple[Any, ...]] = []
    for batch in batches:
        before = {key: len(rows) // pane for key, rows in known.items()}
        for row in batch:
            known.setdefault(row[0], []).append(row)
        keys = [row[0] for row in batch]
        slots.update(zip(keys, index.slots(pa.record_batch({"key": keys})).tolist(), strict=True))
        due = []
        for key, rows in known.items():
            for turn, number in enumerate(range(before.get(key, 0), len(rows) // pane)):
                start = (number + 1) * pane - size
                if start >= 0 and start % slide == 0:
                    place = (turn, slots[key]) if slide < size else (slots[key], turn)
                    due.append((place, result_of(rows[start : start + size], pane)))
        found += [result for _place, result in sorted(due, key=lambda each: each[0])]
    return found


def result_of(rows: Sequence[Row], pane: int) -> tuple[Any, ...]:
    total = 0.0
    for start in range(0, len(rows), pane):
        part = 0.0
        for _key, _value, each in rows[start : start + pane]:
            part += each
        total += part  # floats are rounded in this order, and in no other
    values = [value for _key, value, _float in rows]
    return (rows[0][0], total, sum(values), min(values), values[-1], values, len(set(values)))


@given(
    rows_strategy,
    st.sampled_from([(1, 1), (2, 1), (3, 3), (4, 2), (5, 2), (7, 1), (12, 1), (15, 6), (16, 4)]),
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.sets(st.integers(0, 5), max_size=2),
    st.sampled_from([1, 20, 1 << 20]),
)
@settings(max_examples=80, deadline=None)
def test_overlapping_count_windows_are_those_of_one_at_a_time(rows, window, sizes, restarts, at_once):
    fleet = make_fleet(*window, AGGREGATIONS)
    batches, start = cut(rows, sizes), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "_AT_ONCE", at_once)
        for number, batch in enumerate(batches):
            fleet.feed(batch_of(batch, start))
            start += len(batch)
            if number in restarts:
                fleet = fleet.restored(1)
        fleet.end()
    found, wanted = fleet.out.rows(*NAMES), expected(batches, *window)
    # Keys that come out of a snapshot are numbered anew, so windows of one batch may change places.
    assert (sorted(found) == sorted(wanted)) if restarts else (found == wanted)


def test_a_window_that_ends_in_a_later_batch_has_the_panes_of_all():
    fleet = make_fleet(100, 1, AGGREGATIONS[:2])
    rows = [("a", number, number / 3) for number in range(250)]
    batches = cut(rows, [1, 98, 1, 3, 120, 27])
    for number, batch in enumerate(batches):
        fleet.feed(batch_of(batch, number))
    assert fleet.out.rows("key", "total", "sum") == [each[:3] for each in expected(batches, 100, 1)]


@pytest.mark.parametrize("functions", [("sum", "min", "last"), ("list",), ("count_distinct",)])
def test_the_windows_of_a_batch_are_put_together_at_once(functions, monkeypatch):
    """However many windows there are, there are as many steps as their length has bits; and few batches come out."""
    calls = []
    merge = Store.merge
    monkeypatch.setattr(Store, "merge", lambda *given: calls.append(1) or merge(*given))
    for rows in (400, 1600):
        fleet = make_fleet(100, 1, [each for each in AGGREGATIONS if each.name in functions], 1000)
        calls.clear()
        fleet.feed(batch_of([("a", number, 0.0) for number in range(rows)], 0))
        assert len(calls) <= 3 * (100).bit_length() + 3
        assert len(fleet.out.batches) == -(-(rows - 99) // 1000)


def test_floats_are_added_in_their_order_at_one_step_for_each_pane(monkeypatch):
    calls = []
    merge = Store.merge
    monkeypatch.setattr(Store, "merge", lambda *given: calls.append(1) or merge(*given))
    fleet = make_fleet(100, 1, AGGREGATIONS[:1], 1000)
    fleet.feed(batch_of([("a", 0, number / 7) for number in range(900)], 0))
    assert len(calls) <= 100 + 3 * (100).bit_length() + 3
    assert len(fleet.out.batches) == 1

"""Joins against nested loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.dataflow.language.elements import START_OF_TIME, TIME
from shoal.dataflow.language.logical import JoinKind
from shoal.dataflow.language.windows import SlidingWindow
from shoal.dataflow.operators.joins.asof import AsOfJoin
from shoal.dataflow.operators.joins.interval import IntervalJoin
from shoal.dataflow.operators.joins.lookup import BroadcastJoin, TableJoin
from shoal.dataflow.operators.joins.matching import bisect, pairs
from shoal.dataflow.operators.joins.regular import RegularJoin
from shoal.dataflow.operators.joins.window import WindowJoin
from tests.unit.dataflow.operators.driving import Fleet, cut

LEFT = pa.schema({"key": pa.string(), "value": pa.int64(), "note": pa.string(), TIME: pa.int64()})
RIGHT = pa.schema({"id": pa.large_string(), "value": pa.int64(), TIME: pa.int64()})
SETTINGS: dict[str, Any] = {"left": LEFT, "right": RIGHT, "left_keys": ("key",), "right_keys": ("id",)}
KEYS = [("key",), ("id",)]
NAMES = ("key", "value", "id", "value_right")

row = st.tuples(st.integers(0, 60), st.sampled_from(["a", "b", "c", None]), st.integers(0, 9))
events = st.lists(st.tuples(st.booleans(), row), max_size=40)
sizes_strategy = st.lists(st.integers(1, 8), min_size=1, max_size=3)
restarts_strategy = st.dictionaries(st.integers(0, 8), st.integers(1, 3), max_size=2)
kinds = st.sampled_from(list(JoinKind))
FOREVER = 2**63 - 1


def left_batch(rows: Sequence[Any]) -> Any:
    times, keys, values = ([each[place] for each in rows] for place in range(3))
    return pa.record_batch([keys, values, [f"n{value}" for value in values], times], schema=LEFT)


def right_batch(rows: Sequence[Any]) -> Any:
    times, keys, values = ([each[place] for each in rows] for place in range(3))
    return pa.record_batch([keys, values, times], schema=RIGHT)


def runs(rows: Sequence[tuple[bool, Any]]) -> list[tuple[int, list[Any]]]:
    """Neighbours of one side, together."""
    found: list[tuple[int, list[Any]]] = []
    for is_right, each in rows:
        if found and found[-1][0] == int(is_right):
            found[-1][1].append(each)
        else:
            found.append((int(is_right), [each]))
    return found


def drive(make: Any, given_events: Any, sizes: Any, restarts: dict[int, int], disorder: int = FOREVER) -> Any:
    """Feeds both sides; the watermark is the greatest time of both, less the disorder."""
    fleet = Fleet(make, KEYS, 2)
    greatest = START_OF_TIME
    for number, part in enumerate(cut(given_events, sizes)):
        for port, rows in runs(part):
            fleet.feed((left_batch, right_batch)[port](rows), port)
        if number in restarts:
            fleet = fleet.restored(restarts[number])
        greatest = max(greatest, *(each[0] for _side, each in part))
        if disorder < FOREVER:
            fleet.watermark(greatest - disorder)
    fleet.end()
    assert all(batch.num_rows <= fleet.max_rows for batch in fleet.out.batches)
    return fleet


def expected_pairs(lefts: Any, rights: Any, kind: JoinKind, is_pair: Any) -> list[tuple[Any, ...]]:
    rows = []
    matched_left, matched_right = set(), set()
    for i, left in enumerate(lefts):
        for j, right in enumerate(rights):
            if left[1] is not None and left[1] == right[1] and is_pair(left, right):
                rows.append((left[1], left[2], right[1], right[2]))
                matched_left.add(i)
                matched_right.add(j)
    if kind in (JoinKind.LEFT, JoinKind.OUTER):
        rows += [(left[1], left[2], None, None) for i, left in enumerate(lefts) if i not in matched_left]
    if kind in (JoinKind.RIGHT, JoinKind.OUTER):
        rows += [(None, None, right[1], right[2]) for j, right in enumerate(rights) if j not in matched_right]
    return rows


def sides(given_events: Any) -> tuple[list[Any], list[Any]]:
    return [each for side, each in given_events if not side], [each for side, each in given_events if side]


@given(events, sizes_strategy, restarts_strategy, kinds)
@settings(max_examples=60, deadline=None)
def test_the_regular_join_of_bounded_input(given_events, sizes, restarts, kind):
    fleet = drive(lambda: RegularJoin(kind=kind, **SETTINGS), given_events, sizes, restarts)
    expected = expected_pairs(*sides(given_events), kind, lambda _l, _r: True)
    assert Counter(fleet.out.rows(*NAMES)) == Counter(expected)


@given(events, sizes_strategy, restarts_strategy, kinds)
@settings(max_examples=60, deadline=None)
def test_changes_of_the_regular_join_add_up(given_events, sizes, restarts, kind):
    fleet = drive(lambda: RegularJoin(kind=kind, emits_changes=True, **SETTINGS), given_events, sizes, restarts)
    standing: Counter[Any] = Counter()
    for *values, op in fleet.out.rows(*NAMES, "op"):
        standing[tuple(values)] += 1 if op.startswith("+") else -1
        assert standing[tuple(values)] >= 0
    expected = expected_pairs(*sides(given_events), kind, lambda _l, _r: True)
    assert +standing == Counter(expected)


def test_the_regular_join_forgets_after_its_time():
    operator = RegularJoin(kind=JoinKind.LEFT, ttl=1000, **SETTINGS)
    fleet = Fleet(lambda: operator, KEYS)
    fleet.feed(left_batch([(1, "a", 1), (1, "b", 2)]))
    fleet.clock.advance(600)
    fleet.feed(right_batch([(1, "a", 7)]), 1)
    fleet.clock.advance(650)
    fleet.tick()
    assert operator.statistics() == {"late": 0, "late_right": 0, "left_rows": 0, "right_rows": 1, "keys": 2}
    assert fleet.out.rows(*NAMES) == [("a", 1, "a", 7), ("b", 2, None, None)]
    fleet.feed(left_batch([(2, "a", 3)]))
    assert fleet.out.rows(*NAMES)[2:] == [("a", 3, "a", 7)]


def test_a_hot_key_comes_out_in_chunks():
    fleet = Fleet(lambda: RegularJoin(kind=JoinKind.INNER, **SETTINGS), KEYS, max_rows=100)
    fleet.feed(left_batch([(0, "a", number) for number in range(150)]))
    fleet.feed(right_batch([(0, "a", number) for number in range(150)]), 1)
    assert sum(batch.num_rows for batch in fleet.out.batches) == 150 * 150
    assert max(batch.num_rows for batch in fleet.out.batches) == 100


def test_equal_key_names_are_one_column_and_traces_go_along():
    schema = pa.schema({"key": pa.string(), "value": pa.int64(), TIME: pa.int64(), "__trace": pa.binary()})
    make = RegularJoin(
        kind=JoinKind.OUTER, left=schema, right=schema, left_keys=("key",), right_keys=("key",), suffix="_2"
    )
    fleet = Fleet(lambda: make, [("key",), ("key",)])
    fleet.feed(pa.record_batch([["a", "b"], [1, 2], [5, 6], [b"x", None]], schema=schema))
    fleet.feed(pa.record_batch([["a", "c"], [3, 4], [9, 1], [b"y", b"z"]], schema=schema), 1)
    fleet.end()
    assert fleet.out.batches[0].schema.names == ["key", "value", "value_2", TIME, "__trace"]
    assert sorted(fleet.out.rows()) == [("a", 1, 3, 9, b"x"), ("b", 2, None, 6, None), ("c", None, 4, 1, b"z")]


@given(
    given_events=events,
    sizes=sizes_strategy,
    restarts=restarts_strategy,
    kind=kinds,
    lower=st.integers(-20, 20),
    width=st.integers(0, 30),
)
@settings(max_examples=80, deadline=None)
def test_the_interval_join_pairs_what_is_near(*, given_events, sizes, restarts, kind, lower, width):
    upper = lower + width
    fleet = drive(
        lambda: IntervalJoin(kind=kind, lower=lower, upper=upper, **SETTINGS), given_events, sizes, restarts, 100
    )
    expected = expected_pairs(*sides(given_events), kind, lambda lt, rt: lower <= rt[0] - lt[0] <= upper)
    assert Counter(fleet.out.rows(*NAMES)) == Counter(expected)
    assert not fleet.out.sides


def interval_oracle(parts: Any, kind: JoinKind, lower: int, upper: int, disorder: int) -> tuple[Any, Any]:
    """Row by row, with two lists. A row waits as [time, key, value, whether it had a partner]."""
    waiting: tuple[list[Any], list[Any]] = ([], [])
    keeps = (kind in (JoinKind.LEFT, JoinKind.OUTER), kind in (JoinKind.RIGHT, JoinKind.OUTER))
    found: list[Any] = []
    late: tuple[list[Any], list[Any]] = ([], [])
    watermark = greatest = START_OF_TIME

    def alone(port: int, one: Any) -> None:
        if keeps[port]:
            found.append((one[1], one[2], None, None) if port == 0 else (None, None, one[1], one[2]))

    for part in [*parts, None]:
        for side, (time, key, value) in part or []:
            port = int(side)
            if time < min(watermark, watermark - upper if port == 0 else watermark + lower):
                late[port].append(value)
                continue
            one = [time, key, value, False]
            for other in waiting[1 - port] if key is not None else []:
                left, right = (one, other) if port == 0 else (other, one)
                if left[1] == right[1] and lower <= right[0] - left[0] <= upper:
                    found.append((left[1], left[2], right[1], right[2]))
                    one[3] = other[3] = True
            waiting[port].append(one)
        before = watermark
        if part is None:
            watermark = FOREVER
        else:
            greatest = max(greatest, *(each[0] for _side, each in part))
            watermark = greatest - disorder
        if watermark == before:  # rows are freed when time goes on, and not before
            continue
        for port, bound in ((0, watermark - upper), (1, watermark + lower)):
            for one in [each for each in waiting[port] if each[0] < bound]:
                waiting[port].remove(one)
                if not one[3]:
                    alone(port, one)
    return found, late


@given(
    given_events=events,
    sizes=sizes_strategy,
    kind=kinds,
    lower=st.integers(-20, 20),
    width=st.integers(0, 30),
    disorder=st.integers(0, 20),
)
@settings(max_examples=80, deadline=None)
def test_the_interval_join_with_late_rows(*, given_events, sizes, kind, lower, width, disorder):
    upper = lower + width
    fleet = drive(
        lambda: IntervalJoin(kind=kind, lower=lower, upper=upper, **SETTINGS), given_events, sizes, {}, disorder
    )
    found, late = interval_oracle(cut(given_events, sizes), kind, lower, upper, disorder)
    assert Counter(fleet.out.rows(*NAMES)) == Counter(found)
    for tag, expected in zip(("late", "late_right"), late, strict=True):
        assert sorted(value for (value,) in fleet.out.side_rows(tag, "value")) == sorted(expected)


def test_the_interval_join_frees_rows_and_holds_its_watermark_back():
    operator = IntervalJoin(kind=JoinKind.LEFT, lower=-5, upper=10, **SETTINGS)
    fleet = Fleet(lambda: operator, KEYS)
    fleet.feed(left_batch([(0, "a", 1), (20, "a", 2)]))
    fleet.feed(right_batch([(20, "a", 7)]), 1)
    fleet.watermark(10)
    assert operator.statistics()["left_rows"] == 2
    assert operator.output_watermark(10) == 0
    fleet.watermark(11)
    assert operator.statistics()["left_rows"] == 1
    assert fleet.out.rows("value", "value_right", TIME) == [(2, 7, 20), (1, None, 0)]
    fleet.watermark(26)
    assert operator.statistics()["right_rows"] == 0
    fleet.feed(right_batch([(20, "a", 9), (21, "a", 8)]), 1)
    assert fleet.out.side_rows("late_right", "value") == [(9,)]
    assert fleet.out.rows("value", "value_right")[2:] == [(2, 8)]


def test_a_row_that_is_in_time_meets_partners_that_lie_far_back():
    """When it comes none can come any more for it; those that it waits for are there already."""
    for lower, upper, early, now in ((5, 10, 0, 1), (-10, -5, 1, 0)):
        fleet = Fleet(
            lambda low=lower, high=upper: IntervalJoin(kind=JoinKind.OUTER, lower=low, upper=high, **SETTINGS), KEYS
        )
        make = (left_batch, right_batch)
        fleet.feed(make[early]([(95, "a", 1)]), early)
        fleet.watermark(100)
        fleet.feed(make[now]([(101, "a", 2), (102, "b", 3)]), now)
        fleet.end()
        mine, theirs = ("value", "value_right") if early == 0 else ("value_right", "value")
        assert fleet.out.rows(mine, theirs) == [(1, 2), (None, 3)]
        assert not fleet.out.sides


@given(events, sizes_strategy, restarts_strategy, kinds, st.sampled_from([(10, 10), (10, 5), (9, 3)]))
@settings(max_examples=60, deadline=None)
def test_the_window_join_pairs_within_windows(given_events, sizes, restarts, kind, window):
    size, slide = window
    fleet = drive(
        lambda: WindowJoin(kind=kind, window=SlidingWindow(size, slide), **SETTINGS), given_events, sizes, restarts, 100
    )
    lefts, rights = sides(given_events)
    expected: Counter[Any] = Counter()
    for start in range(-size, 70):
        if start % slide == 0:
            inside = [[each for each in side if start <= each[0] < start + size] for side in (lefts, rights)]
            for values in expected_pairs(*inside, kind, lambda _l, _r: True):
                expected[(*values, start, start + size)] += 1
    assert Counter(fleet.out.rows(*NAMES, "window_start", "window_end")) == expected


def test_rows_of_windows_that_have_ended_are_late_for_the_window_join():
    fleet = Fleet(
        lambda: WindowJoin(kind=JoinKind.INNER, window=SlidingWindow(10, 10), emits_time=True, **SETTINGS), KEYS
    )
    fleet.feed(left_batch([(1, "a", 1)]))
    fleet.feed(right_batch([(9, "a", 2), (10, "a", 3)]), 1)
    fleet.watermark(10)
    fleet.feed(right_batch([(9, "a", 4)]), 1)
    fleet.feed(left_batch([(8, "a", 5), (9, None, 6)]))
    fleet.end()
    assert fleet.out.rows("value", "value_right", "window_end", TIME) == [(1, 2, 10, 9)]
    assert fleet.out.side_rows("late", "value", "note") == [(5, "n5"), (6, "n6")]
    assert fleet.out.side_rows("late_right", "id", "value") == [("a", 4)]


@pytest.mark.parametrize(
    ("make", "late_right"),
    [
        (lambda: WindowJoin(kind=JoinKind.LEFT, window=SlidingWindow(10, 10), **SETTINGS), 2),
        (lambda: IntervalJoin(kind=JoinKind.OUTER, lower=-1, upper=1, **SETTINGS), 2),
        # A right row may be the nearest of left rows to come, however late it is.
        (lambda: AsOfJoin(kind=JoinKind.LEFT, **SETTINGS), 0),
    ],
)
def test_late_rows_are_counted_for_each_side_and_come_out_nowhere_else(make, late_right):
    operator = make()
    fleet = Fleet(lambda: operator, KEYS)
    fleet.watermark(100)
    fleet.feed(left_batch([(5, "a", 1), (100, "a", 2)]))
    fleet.feed(right_batch([(5, "a", 7), (6, "a", 8)]), 1)
    counted = operator.statistics()
    assert (counted["late"], counted["late_right"]) == (1, late_right)
    fleet.end()
    assert [value for (value,) in fleet.out.rows("value")] == [2]
    assert len(fleet.out.side_rows("late_right", "value")) == late_right


def asof_oracle(lefts: Any, rights: Any, kind: JoinKind, direction: str, tolerance: int) -> list[tuple[Any, ...]]:
    found = []
    for time, key, value in lefts:
        best = None
        for number, (other, right_key, right_value) in enumerate(rights):
            distance = other - time
            if key is None or right_key != key or (tolerance and abs(distance) > tolerance):
                continue
            if (direction == "backward" and distance > 0) or (direction == "forward" and distance < 0):
                continue
            # Nearer is better; of equally near ones the earlier; of one moment the last before, the first behind.
            rank = (abs(distance), distance, number if distance > 0 or direction == "forward" else -number)
            if best is None or rank < best[0]:
                best = (rank, right_key, right_value)
        if best is not None:
            found.append((key, value, best[1], best[2]))
        elif kind is JoinKind.LEFT:
            found.append((key, value, None, None))
    return found


@given(
    given_events=events,
    sizes=sizes_strategy,
    restarts=restarts_strategy,
    kind=st.sampled_from([JoinKind.INNER, JoinKind.LEFT]),
    direction=st.sampled_from(["backward", "forward", "nearest"]),
    tolerance=st.sampled_from([0, 3, 20]),
)
@settings(max_examples=100, deadline=None)
def test_the_as_of_join_takes_the_nearest(*, given_events, sizes, restarts, kind, direction, tolerance):
    fleet = drive(
        lambda: AsOfJoin(kind=kind, direction=direction, tolerance=tolerance, **SETTINGS),
        given_events,
        sizes,
        restarts,
        100,
    )
    expected = asof_oracle(*sides(given_events), kind, direction, tolerance)
    assert Counter(fleet.out.rows(*NAMES)) == Counter(expected)


@given(events, sizes_strategy, st.sampled_from(["backward", "forward", "nearest"]), st.sampled_from([0, 5]))
@settings(max_examples=60, deadline=None)
def test_the_as_of_join_gives_the_same_when_the_watermark_follows_closely(given_events, sizes, direction, tolerance):
    given_events = sorted(given_events, key=lambda each: each[1][0])
    fleet = drive(
        lambda: AsOfJoin(kind=JoinKind.LEFT, direction=direction, tolerance=tolerance, **SETTINGS),
        given_events,
        sizes,
        {},
        0,
    )
    expected = asof_oracle(*sides(given_events), JoinKind.LEFT, direction, tolerance)
    assert Counter(fleet.out.rows(*NAMES)) == Counter(expected)
    assert not fleet.out.sides


def test_the_as_of_join_keeps_only_what_may_be_needed():
    operator = AsOfJoin(kind=JoinKind.LEFT, **SETTINGS)
    fleet = Fleet(lambda: operator, KEYS)
    fleet.feed(right_batch([(time, "a", time) for time in range(50)]), 1)
    fleet.feed(left_batch([(60, "a", 1)]))
    fleet.watermark(40)
    assert operator.statistics()["right_rows"] == 11  # from 39, the last before, up to 49
    fleet.watermark(60)
    assert operator.output_watermark(60) == 60
    assert not fleet.out.batches  # one more of this very moment may come
    fleet.watermark(61)
    assert fleet.out.rows("value", "value_right", TIME) == [(1, 49, 60)]
    fleet.feed(left_batch([(59, "a", 2)]))
    assert fleet.out.side_rows("late", "value") == [(2,)]


@given(events, sizes_strategy, restarts_strategy, st.sampled_from([JoinKind.INNER, JoinKind.LEFT]))
@settings(max_examples=60, deadline=None)
def test_a_table_is_looked_up_by_its_newest_row(given_events, sizes, restarts, kind):
    fleet = Fleet(lambda: TableJoin(kind=kind, **SETTINGS), KEYS, 2)
    newest: dict[Any, int] = {}
    expected = []
    for number, part in enumerate(cut(given_events, sizes)):
        for port, rows in runs(part):
            fleet.feed((left_batch, right_batch)[port](rows), port)
            for _time, key, value in rows:
                if port:
                    newest[key] = value
                elif key is not None and key in newest:
                    expected.append((key, value, key, newest[key]))
                elif kind is JoinKind.LEFT:
                    expected.append((key, value, None, None))
        if number in restarts:
            fleet = fleet.restored(restarts[number])
    fleet.end()
    assert Counter(fleet.out.rows(*NAMES)) == Counter(expected)


def test_a_table_of_changes_loses_rows():
    schema = RIGHT.append(pa.field("op", pa.string()))
    fleet = Fleet(lambda: TableJoin(kind=JoinKind.INNER, **{**SETTINGS, "right": schema}), KEYS)
    fleet.feed(pa.record_batch([["a", "b"], [1, 2], [0, 0], ["+I", "+I"]], schema=schema), 1)
    fleet.feed(pa.record_batch([["a", "a", "b"], [1, 5, 2], [0, 0, 0], ["-U", "+U", "-D"]], schema=schema), 1)
    fleet.feed(left_batch([(0, "a", 7), (0, "b", 8)]))
    assert fleet.out.rows("key", "value", "value_right") == [("a", 7, 5)]


def test_a_table_takes_no_more_room_than_its_keys():
    operator = TableJoin(kind=JoinKind.INNER, **SETTINGS)
    fleet = Fleet(lambda: operator, KEYS)
    for turn in range(30):
        fleet.feed(right_batch([(0, f"k{number % 100}", turn) for number in range(5_000)]), 1)
    assert operator.statistics()["keys"] == 100
    assert operator.statistics()["rows"] < 71_000
    fleet.feed(left_batch([(0, "k7", 1)]))
    assert fleet.out.rows("value_right") == [(29,)]


@pytest.mark.parametrize("kind", [TableJoin, BroadcastJoin])
def test_left_rows_wait_for_a_table_that_has_an_end(kind):
    fleet = Fleet(lambda: kind(kind=JoinKind.LEFT, waits=True, **SETTINGS), KEYS)
    operator = fleet.operators[0]
    assert operator.preferred_ports() == frozenset({1})
    fleet.feed(left_batch([(3, "a", 1), (4, "b", 2)]))
    assert not fleet.out.batches
    assert operator.output_watermark(10) == 3
    fleet.feed(right_batch([(0, "a", 5)]), 1)
    fleet = fleet.restored(1)
    operator = fleet.operators[0]
    operator.on_port_end(1, fleet.out)
    assert operator.preferred_ports() == frozenset()
    assert sorted(fleet.out.rows("value", "value_right", TIME)) == [(1, 5, 3), (2, None, 4)]
    fleet = fleet.restored(1)
    fleet.feed(left_batch([(9, "a", 6)]))
    assert fleet.out.rows("value", "value_right")[2:] == [(6, 5)]


@given(events, sizes_strategy, st.sampled_from([JoinKind.INNER, JoinKind.LEFT]), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_broadcast_rows_are_in_every_task(given_events, sizes, kind, width):
    """Rows of the left go anywhere; the right ones go everywhere."""
    lefts, rights = sides(given_events)
    fleet = Fleet(lambda: BroadcastJoin(kind=kind, **SETTINGS), KEYS, 2)

    def tell(rows: Any) -> None:
        for operator in fleet.operators:
            operator.process(right_batch(rows), fleet.out, port=1)

    for rows in cut(rights[: len(rights) // 2], sizes):
        tell(rows)
    fleet = fleet.restored(width)
    for rows in cut(rights[len(rights) // 2 :], sizes):
        tell(rows)
    for number, rows in enumerate(cut(lefts, sizes)):
        fleet.operators[number % width].process(left_batch(rows), fleet.out, port=0)
    expected = expected_pairs(lefts, rights, kind, lambda _l, _r: True)
    assert Counter(fleet.out.rows(*NAMES)) == Counter(expected)


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidError, match="inner or left"):
        TableJoin(kind=JoinKind.OUTER, **SETTINGS)
    with pytest.raises(InvalidError, match=r"direction.*tolerance.*inner or left"):
        AsOfJoin(kind=JoinKind.RIGHT, direction="sideways", tolerance=-1, **SETTINGS)
    with pytest.raises(InvalidError, match="lower <= upper"):
        IntervalJoin(kind=JoinKind.INNER, lower=2, upper=1, **SETTINGS)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12), st.integers(1, 5))
def test_pairs_come_in_order_and_never_more_than_asked_for(ranges, most):
    first = np.array([low for low, _size in ranges], np.int64)
    end = first + np.array([size for _low, size in ranges], np.int64)
    found = [pair for chunk in pairs(first, end, most) for pair in zip(*(part.tolist() for part in chunk), strict=True)]
    assert found == [(row, place) for row, (low, size) in enumerate(ranges) for place in range(low, low + size)]
    assert all(len(rows) <= most for rows, _places in pairs(first, end, most))


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(-1, 21), st.booleans())
def test_bisecting_a_range(times, target, right):
    ordered = np.array(sorted(times), np.int64)
    side = "right" if right else "left"
    found = bisect(ordered, np.array([0]), np.array([len(ordered)]), target, right=right)
    assert found.tolist() == [np.searchsorted(ordered, target, side)]

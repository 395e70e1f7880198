"""Sessions, count windows, running aggregates, reductions and distinct against naive readings of what they mean."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.dataflow.language.elements import CHANGE, GROUP, START_OF_TIME, TIME
from shoal.dataflow.language.keys import key_groups
from shoal.dataflow.language.logical import Aggregation
from shoal.dataflow.language.windows import CountWindow, Firing, SessionWindow, SlidingWindow
from shoal.dataflow.operators.counts import CountAggregate
from shoal.dataflow.operators.distinct import Distinct
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.partial import PartialAggregate
from shoal.dataflow.operators.running import RunningAggregate
from shoal.dataflow.operators.sessions.aggregate import SessionAggregate
from shoal.dataflow.operators.windows.aggregate import WindowAggregate
from tests.unit.dataflow.operators.driving import TOTAL, Collected, Fleet, HandClock, batch_of, cut
from tests.unit.dataflow.operators.test_windows import ALL, canonical, result_of, rows_strategy, sizes_strategy

restarts_strategy = st.dictionaries(st.integers(0, 10), st.integers(1, 4), max_size=3)


def drive(
    make: Any,
    batches: Sequence[Any],
    disorder: int,
    restarts: dict[int, int],
    width: int = 1,
    *,
    keys: tuple[str, ...] = ("key",),
) -> Collected:
    fleet = Fleet(make, [keys], width)
    greatest = START_OF_TIME
    for number, rows in enumerate(batches):
        fleet.feed(batch_of(rows))
        if number in restarts:
            fleet = fleet.restored(restarts[number])
        greatest = max([greatest, *(row[0] for row in rows)])
        fleet.watermark(greatest - disorder)
    fleet.end()
    return fleet.out


# -- sessions -------------------------------------------------------------------------------------------------


def sessions_oracle(batches: Sequence[Any], gap: int, disorder: int) -> tuple[list[Any], list[Any]]:
    """Row by row within a batch, with the watermark before it: what ends before it by all means is late."""
    watermark = greatest = START_OF_TIME
    open_ones: dict[Any, list[list[tuple[int, int, Any]]]] = {}
    results, late, arrival = [], [], 0
    for batch in [*batches, None]:
        fresh = []
        for time, key, value in batch or []:
            arrival += 1
            fresh.append((key, (time, arrival, value)))
        for key in {key for key, _row in fresh}:
            mine = sorted(
                [row for session in open_ones.pop(key, []) for row in session]
                + [row for other, row in fresh if other == key],
                key=lambda row: row[:2],
            )
            sessions: list[list[tuple[int, int, Any]]] = []
            for row in mine:
                if sessions and row[0] - sessions[-1][-1][0] < gap:
                    sessions[-1].append(row)
                else:
                    sessions.append([row])
            for session in sessions:
                if session[-1][0] + gap <= watermark:
                    late += [(time, key, value) for time, _arrival, value in session]
                else:
                    open_ones.setdefault(key, []).append(session)
        if batch is None:
            watermark = 2**63 - 1
        else:
            greatest = max([greatest, *(row[0] for row in batch)])
            watermark = greatest - disorder
        for key, sessions in open_ones.items():
            for session in [each for each in sessions if each[-1][0] + gap <= watermark]:
                sessions.remove(session)
                results.append((key, session[0][0], session[-1][0] + gap, *result_of(session)))
    return results, late


@given(
    rows=rows_strategy,
    gap=st.integers(1, 30),
    sizes=sizes_strategy,
    disorder=st.integers(0, 40),
    restarts=restarts_strategy,
    width=st.integers(1, 3),
)
@settings(max_examples=66, deadline=None)
def test_sessions_merge_in_any_order(*, rows, gap, sizes, disorder, restarts, width):
    batches = cut(rows, sizes)
    out = drive(
        lambda: SessionAggregate(grouping=Grouping(keys=("key",), aggregations=ALL), window=SessionWindow(gap)),
        batches,
        disorder,
        restarts,
        width,
    )
    expected, late = sessions_oracle(batches, gap, disorder)
    assert canonical(out.rows()) == canonical(expected)
    assert canonical(out.side_rows("late", TIME, "key", "value")) == canonical(late)


@given(rows_strategy, st.integers(1, 30), sizes_strategy, sizes_strategy)
@settings(max_examples=25, deadline=None)
def test_sessions_do_not_depend_on_the_size_of_batches(rows, gap, sizes, others):
    rows = sorted(rows, key=lambda row: row[0])  # in order, without any disorder allowed for
    one, other = (
        drive(
            lambda: SessionAggregate(grouping=Grouping(keys=("key",), aggregations=ALL), window=SessionWindow(gap)),
            cut(rows, each),
            0,
            {},
        )
        for each in (sizes, others)
    )
    assert canonical(one.rows()) == canonical(other.rows())
    assert not one.sides


def test_a_late_row_joins_two_sessions_that_were_given():
    fleet = Fleet(
        lambda: SessionAggregate(
            grouping=Grouping(keys=("key",), aggregations=ALL[:1]),
            window=SessionWindow(10),
            firing=Firing(allowed_lateness=100, early_every=50),
        ),
        [("key",)],
    )
    names = ("window_start", "window_end", "rows", "op")
    fleet.feed(batch_of([(0, "a", 1), (15, "a", 1)]))
    fleet.clock.advance(50)
    fleet.tick()
    assert fleet.out.rows(*names) == [(0, 10, 1, "+I"), (15, 25, 1, "+I")]
    fleet.watermark(30)
    assert len(fleet.out.rows(*names)) == 2  # they were given already
    fleet = fleet.restored(2)
    fleet.feed(batch_of([(7, "a", 1)]))
    assert fleet.out.rows(*names)[2:] == [(0, 10, 1, "-D"), (15, 25, 1, "-D"), (0, 25, 3, "+I")]
    fleet.watermark(124)
    fleet = fleet.restored(1)
    fleet.feed(batch_of([(14, "a", 1)]))
    assert fleet.out.rows(*names)[5:] == [(0, 25, 3, "-U"), (0, 25, 4, "+U")]
    fleet.feed(batch_of([(20, "a", 1)]))
    assert fleet.out.rows(*names)[7:] == [(0, 25, 4, "-D"), (0, 30, 5, "+I")]
    fleet.watermark(130)
    fleet.feed(batch_of([(20, "a", 1)]))
    assert fleet.out.side_rows("late", TIME) == [(20,)]
    assert fleet.operators[0].statistics()["sessions"] == 0


@given(
    rows=rows_strategy,
    sizes=sizes_strategy,
    restarts=restarts_strategy,
    width=st.integers(1, 3),
    gap=st.integers(1, 20),
    lateness=st.sampled_from([0, 5, 40, 1_000]),
    early=st.sampled_from([0, 10]),
)
@settings(max_examples=60, deadline=None)
def test_changes_of_sessions_add_up_whatever_merges(*, rows, sizes, restarts, width, gap, lateness, early):
    """What is taken back was given, no two sessions of a key that stand are within a gap, and every row is counted."""
    firing = Firing(allowed_lateness=lateness, early_every=early)

    def make() -> SessionAggregate:
        grouping = Grouping(keys=("key",), aggregations=ALL[:3])
        return SessionAggregate(grouping=grouping, window=SessionWindow(gap), firing=firing)

    fleet = Fleet(make, [("key",)], width)
    greatest = START_OF_TIME
    for number, part in enumerate(cut(rows, sizes)):
        fleet.feed(batch_of(part))
        fleet.clock.advance(7)
        fleet.tick()
        if number in restarts:
            fleet = fleet.restored(restarts[number])
        greatest = max([greatest, *(row[0] for row in part)])
        fleet.watermark(greatest - 10)
    fleet.end()
    changing = firing != Firing()
    names = ("key", "window_start", "window_end", "rows", "n", "total", *(["op"] if changing else []))
    table: dict[tuple[Any, int, int], tuple[Any, ...]] = {}
    for key, start, end, *result in fleet.out.rows(*names):
        word = result.pop() if changing else "+I"
        if word in ("-U", "-D"):
            assert table.pop((key, start, end)) == tuple(result)
        else:
            assert (key, start, end) not in table
            table[key, start, end] = tuple(result)
    late = fleet.out.side_rows("late", TIME, "key", "value")
    assert sum(result[0] for result in table.values()) + len(late) == len(rows)
    standing = sorted(table, key=lambda each: (repr(each[0]), each[1]))
    apart = [two[1] - (one[2] - gap) for one, two in itertools.pairwise(standing) if one[0] == two[0]]
    if lateness == 1_000:  # else one may begin right behind one that was over and forgotten
        assert all(each >= gap for each in apart)


def test_sessions_of_keys_that_no_longer_come_are_forgotten():
    operator = SessionAggregate(grouping=Grouping(keys=("key",), aggregations=ALL[:1]), window=SessionWindow(5))
    fleet = Fleet(lambda: operator, [("key",)], max_rows=100_000)
    for turn in range(30):
        fleet.feed(batch_of([(turn * 10, f"{turn}-{number}", 1) for number in range(2_000)]))
        fleet.watermark(turn * 10)
    assert operator.statistics()["keys"] < 25_000
    fleet.end()
    assert sum(count for (count,) in fleet.out.rows("rows")) == 60_000


# -- count windows ----------------------------------------------------------------------------------------------


@given(
    rows_strategy,
    st.sampled_from([(1, 1), (3, 3), (4, 2), (5, 2), (6, 1)]),
    sizes_strategy,
    restarts_strategy,
    st.integers(1, 3),
)
@settings(max_examples=50, deadline=None)
def test_count_windows_are_full_windows_of_each_key(rows, window, sizes, restarts, width):
    size, slide = window
    out = drive(
        lambda: CountAggregate(grouping=Grouping(keys=("key",), aggregations=ALL), window=CountWindow(size, slide)),
        cut(rows, sizes),
        0,
        restarts,
        width,
    )
    expected = []
    numbered = [(key, (time, arrival, value)) for arrival, (time, key, value) in enumerate(rows)]
    for key in {key for key, _row in numbered}:
        mine = [row for other, row in numbered if other == key]
        for start in range(0, len(mine) - size + 1, slide):
            expected.append((key, *result_of(mine[start : start + size])))
    assert canonical(out.rows()) == canonical(expected)


@given(rows_strategy, st.sampled_from([(1, 1), (3, 3), (4, 2)]), sizes_strategy, restarts_strategy)
@settings(max_examples=25, deadline=None)
def test_a_count_window_has_the_time_of_the_row_that_filled_it(rows, window, sizes, restarts):
    """So a window behind it does not depend on how rows were cut into batches."""
    grouping = Grouping(keys=("key",), aggregations=ALL[:1], emits_time=True)
    make = lambda: CountAggregate(grouping=grouping, window=CountWindow(*window))  # noqa: E731  made anew each time
    out = drive(make, cut(rows, sizes), 200, restarts)
    expected = []
    for key in {key for _time, key, _value in rows}:
        times = [time for time, other, _value in rows if other == key]
        expected += [(key, times[end - 1]) for end in range(window[0], len(times) + 1, window[1])]
    assert canonical(out.rows("key", TIME)) == canonical(expected)


def test_a_count_window_that_a_late_row_fills_is_not_late():
    grouping = Grouping(keys=("key",), aggregations=ALL[:1], emits_time=True)
    fleet = Fleet(lambda: CountAggregate(grouping=grouping, window=CountWindow(2, 2)), [("key",)])
    fleet.feed(batch_of([(50, "a", 1)]))
    fleet.watermark(40)
    fleet = fleet.restored(1)
    fleet.feed(batch_of([(7, "a", 1)]))
    assert fleet.out.rows("key", TIME) == [("a", 40)]


# -- without a window ---------------------------------------------------------------------------------------------


@given(rows_strategy, sizes_strategy, restarts_strategy, st.integers(1, 3), st.booleans())
@settings(max_examples=33, deadline=None)
def test_the_end_of_bounded_input_brings_the_results(rows, sizes, restarts, width, partial):
    grouping = Grouping(keys=("key",), aggregations=ALL)
    out = drive(lambda: RunningAggregate(grouping=grouping, emits_changes=False), cut(rows, sizes), 0, restarts, width)
    numbered = [(key, (time, arrival, value)) for arrival, (time, key, value) in enumerate(rows)]
    expected = [
        (key, *result_of([row for other, row in numbered if other == key])) for key in {key for key, _r in numbered}
    ]
    assert canonical(out.rows()) == canonical(expected)


def fold(rows: list[tuple[Any, ...]]) -> dict[Any, tuple[Any, ...]]:
    """The table that a stream of changes (key, values…, op) makes; every change must fit what is there."""
    table: dict[Any, tuple[Any, ...]] = {}
    for key, *values, op in rows:
        if op in ("+I", "+U"):
            assert key not in table
            table[key] = tuple(values)
        else:
            assert table.pop(key) == tuple(values)
    return table


@given(rows_strategy, sizes_strategy, restarts_strategy, st.integers(1, 3))
@settings(max_examples=33, deadline=None)
def test_changes_add_up_to_the_result(rows, sizes, restarts, width):
    grouping = Grouping(keys=("key",), aggregations=ALL)
    out = drive(lambda: RunningAggregate(grouping=grouping, emits_changes=True), cut(rows, sizes), 0, restarts, width)
    numbered = [(key, (time, arrival, value)) for arrival, (time, key, value) in enumerate(rows)]
    expected = {
        key: result_of([row for other, row in numbered if other == key]) for key in {key for key, _r in numbered}
    }
    assert fold(out.rows()) == expected
    ops = [op for *_rest, op in out.rows()]
    assert ops.count("+I") == len(expected)
    assert ops.count("-U") == ops.count("+U")


@pytest.mark.parametrize("emits_changes", [True, False])
@given(rows_strategy, sizes_strategy, restarts_strategy)
@settings(max_examples=25, deadline=None)
def test_aggregates_over_changes_take_rows_back(emits_changes, rows, sizes, restarts):
    """The sum over keys of their greatest value, from changes of the greatest values."""
    first = Fleet(
        lambda: RunningAggregate(
            grouping=Grouping(keys=("key",), aggregations=(Aggregation("most", "value", "max"),)), emits_changes=True
        ),
        [("key",)],
    )
    second = Fleet(
        lambda: RunningAggregate(
            grouping=Grouping(
                keys=("most",),
                aggregations=(Aggregation("n", "*", "count"), Aggregation("total", "most", "sum")),
            ),
            emits_changes=emits_changes,
            takes_changes=True,
        ),
        [("most",)],
    )
    for number, part in enumerate(cut(rows, sizes)):
        first.feed(batch_of(part))
        for batch in first.out.batches:
            second.feed(batch)
        first.out.batches.clear()
        if number in restarts:
            second = second.restored(restarts[number])
    greatest: dict[Any, Any] = {}
    for _time, key, value in rows:
        known = greatest.get(key)
        greatest[key] = value if known is None else max(known, value) if value is not None else known
    expected = {
        most: (count := list(greatest.values()).count(most), None if most is None else most * count)
        for most in greatest.values()
    }
    if emits_changes:
        assert fold(second.out.rows()) == expected
        return
    second.end()
    assert {most: (n, total) for most, n, total in second.out.rows("most", "n", "total")} == expected


def test_keys_whose_rows_were_taken_back_stay_gone_after_a_restart():
    grouping = Grouping(keys=("key",), aggregations=(Aggregation("n", "*", "count"),))
    fleet = Fleet(lambda: RunningAggregate(grouping=grouping, emits_changes=False, takes_changes=True), [("key",)])
    fleet.feed(pa.record_batch({"key": list("abcde"), CHANGE: ["+I"] * 5}))
    fleet.snapshot()
    fleet.feed(pa.record_batch({"key": ["a"], CHANGE: ["-D"]}))
    again = fleet.restored(1)
    again.end()
    assert sorted(again.out.rows("key", "n")) == [(key, 1) for key in "bcde"]


def test_what_cannot_be_taken_back_is_refused():
    operator = RunningAggregate(
        grouping=Grouping(aggregations=(Aggregation("m", "value", "max"),)), emits_changes=True, takes_changes=True
    )
    batch = batch_of([(1, "a", 1)]).append_column(CHANGE, pa.array(["+I"]))
    with pytest.raises(InvalidError, match="count, sum and mean"):
        Fleet(lambda: operator, [()]).feed(batch)


def test_partial_results_add_up_without_a_window():
    grouping = Grouping(keys=("key",), aggregations=ALL)
    partial = Fleet(lambda: PartialAggregate(grouping=grouping), [("key",)])
    final = Fleet(
        lambda: RunningAggregate(
            grouping=Grouping(keys=("key",), aggregations=ALL, is_partial=True), emits_changes=False
        ),
        [("key",)],
        2,
    )
    rows = [(number, "abc"[number % 3], number * 7 % 11) for number in range(50)]
    for part in cut(rows, [9, 4]):
        partial.feed(batch_of(part))
    final.feed(pa.concat_batches(partial.out.batches))
    final.end()
    numbered = [(key, (time, time, value)) for time, key, value in rows]
    expected = [(key, *result_of([row for other, row in numbered if other == key])) for key in "abc"]
    assert canonical(final.out.rows()) == canonical(expected)


@pytest.mark.parametrize(
    "keys",
    [
        {"key": pa.array(["a", None, "", "a", "ünï"])},
        {"key": pa.array([1.0, -0.0, 0.0, float("nan"), None])},
        {"key": pa.array([1, 2, 3, None, 2**40]), "other": pa.array(["x", "y", "x", None, "z"]).dictionary_encode()},
        {"key": pa.array([True, False, None, True, False])},
    ],
)
def test_partial_results_have_the_key_group_of_their_key(keys):
    grouping = Grouping(keys=tuple(keys), aggregations=(Aggregation("rows", "*", "count"),))
    partial = Fleet(lambda: PartialAggregate(grouping=grouping), [tuple(keys)])
    partial.feed(pa.record_batch({**keys, TIME: pa.array(range(5))}))
    (batch,) = partial.out.batches
    assert batch.column(GROUP).to_pylist() == key_groups(batch, tuple(keys), TOTAL).tolist()


# -- reductions ---------------------------------------------------------------------------------------------------


def add(one: Any, other: Any) -> dict[str, Any]:
    return {"key": one["key"], "value": one.get("value") if other.value is None else (one["value"] or 0) + other.value}


@given(rows_strategy, sizes_strategy, restarts_strategy, st.sampled_from([None, (10, 10), (10, 4)]))
@settings(max_examples=25, deadline=None)
def test_a_reduction_is_a_sum_when_its_function_adds(rows, sizes, restarts, window):
    rows = [(time, key, value or 0) for time, key, value in rows]

    def make(grouping: Grouping) -> Any:
        if window is None:
            return RunningAggregate(grouping=grouping, emits_changes=False)
        return WindowAggregate(grouping=grouping, window=SlidingWindow(*window))

    function = Grouping(keys=("key",), function=lambda a, b: {"key": a["key"], "value": a["value"] + b["value"]})
    summed = Grouping(keys=("key",), aggregations=(Aggregation("value", "value", "sum"),))
    one, other = (drive(lambda g=grouping: make(g), cut(rows, sizes), 5, restarts) for grouping in (function, summed))
    names = ("key", "value") if window is None else ("key", "value", "window_start", "window_end")
    assert canonical(one.rows(*names)) == canonical(other.rows(*names))
    if rows and one.batches:
        assert one.batches[0].schema.names == list(names)


# -- distinct -----------------------------------------------------------------------------------------------------


@given(rows_strategy, sizes_strategy, restarts_strategy, st.integers(1, 3))
@settings(max_examples=26, deadline=None)
def test_distinct_lets_the_first_row_of_each_combination_through(rows, sizes, restarts, width):
    keys = ("key", "value")
    out = drive(lambda: Distinct(columns=keys), cut(rows, sizes), 0, restarts, width, keys=keys)
    seen, expected = set(), []
    for time, key, value in rows:
        if (key, value) not in seen:
            seen.add((key, value))
            expected.append((key, value, time))
    assert canonical(out.rows()) == canonical(expected)


@given(rows_strategy, sizes_strategy, restarts_strategy, st.integers(1, 3), st.integers(0, 30))
@settings(max_examples=26, deadline=None)
def test_distinct_within_windows(rows, sizes, restarts, width, disorder):
    batches = cut(rows, sizes)
    out = drive(lambda: Distinct(columns=("key",), window=SlidingWindow(10, 10)), batches, disorder, restarts, width)
    seen, expected, late = set(), [], []
    watermark = greatest = START_OF_TIME
    for part in batches:
        for time, key, value in part:
            if time // 10 * 10 + 10 <= watermark:
                late.append((key, value, time))
            elif (key, time // 10) not in seen:
                seen.add((key, time // 10))
                expected.append((key, value, time))
        greatest = max([greatest, *(row[0] for row in part)])
        watermark = greatest - disorder
    assert canonical(out.rows()) == canonical(expected)
    assert canonical(out.side_rows("late")) == canonical(late)


def test_distinct_forgets_after_its_time():
    clock = HandClock()
    operator = Distinct(columns=("key",), ttl=1000)
    fleet = Fleet(lambda: operator, [("key",)], clock=clock)
    fleet.feed(batch_of([(1, "a", 1), (2, "b", 2)]))
    clock.advance(999)
    fleet.feed(batch_of([(3, "a", 3)]))
    clock.advance(1)
    fleet.feed(batch_of([(4, "a", 4)]))
    assert fleet.out.rows("value") == [(1,), (2,), (4,)]
    assert operator.statistics()["keys"] == 2
    clock.advance(400)
    fleet.tick()
    assert operator.statistics()["keys"] == 1  # b is freed, though it never came again
    clock.advance(2000)
    fleet.tick()
    assert operator.statistics()["keys"] == 0
    assert operator.next_tick() is None


def test_distinct_takes_tumbling_windows_only():
    with pytest.raises(InvalidError, match="tumbling"):
        Distinct(columns=("key",), window=SlidingWindow(10, 5))

"""Windowed aggregates against a naive reading of what they mean, row by row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.core.errors import ExhaustedError
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, TIME
from shoal.dataflow.language.logical import Aggregation
from shoal.dataflow.language.windows import Firing, SlidingWindow
from shoal.dataflow.operators.aggregates.store import Store
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.partial import PartialAggregate
from shoal.dataflow.operators.windows.aggregate import WindowAggregate
from tests.unit.dataflow.operators.driving import TOTAL, Collected, Fleet, HandClock, batch_of, cut

ALL = (
    Aggregation("rows", "*", "count"),
    Aggregation("n", "value", "count"),
    Aggregation("total", "value", "sum"),
    Aggregation("least", "value", "min"),
    Aggregation("most", "value", "max"),
    Aggregation("first", "value", "first"),
    Aggregation("last", "value", "last"),
    Aggregation("kinds", "value", "count_distinct"),
    Aggregation("all", "value", "list"),
)
WHOLE = ALL[:3]

windows = st.sampled_from([(10, 10), (10, 5), (10, 2), (6, 4), (7, 3), (60, 1), (1, 1)])
rows_strategy = st.lists(
    st.tuples(st.integers(-30, 120), st.sampled_from(["a", "b", "c", "d", None]), st.none() | st.integers(-50, 50)),
    max_size=60,
)
sizes_strategy = st.lists(st.integers(1, 20), min_size=1, max_size=4)


def result_of(values: list[tuple[int, int, Any]]) -> tuple[Any, ...]:
    """The aggregates of ALL over (time, arrival, value)."""
    there = [(time, arrival, value) for time, arrival, value in values if value is not None]
    numbers = [value for _t, _a, value in there]
    return (
        len(values),
        len(there),
        sum(numbers) if there else None,
        min(numbers, default=None),
        max(numbers, default=None),
        min(there)[2] if there else None,
        max(there)[2] if there else None,
        len(set(numbers)),
        [value for _t, _a, value in sorted(values, key=lambda each: each[:2])],
    )


def oracle(
    batches: Sequence[Sequence[tuple[int, Any, Any]]], size: int, slide: int, disorder: int
) -> tuple[list[tuple[Any, ...]], list[tuple[int, Any, Any]]]:
    """Results and late rows: each row is judged by the watermark before its batch."""
    watermark, greatest = START_OF_TIME, START_OF_TIME
    found: dict[tuple[int, Any], list[tuple[int, int, Any]]] = {}
    late, arrival = [], 0
    for batch in batches:
        for time, key, value in batch:
            arrival += 1
            starts = [s for s in range(time // slide * slide, time - size, -slide) if s <= time < s + size]
            open_ones = [start for start in starts if start + size > watermark]
            if not open_ones:
                late.append((time, key, value))
            for start in open_ones:
                found.setdefault((start, key), []).append((time, arrival, value))
        greatest = max([greatest, *(time for time, _k, _v in batch)])
        watermark = greatest - disorder
    return [(key, start, start + size, *result_of(values)) for (start, key), values in found.items()], late


def run(
    batches: Sequence[Sequence[tuple[int, Any, Any]]],
    size: int,
    slide: int,
    disorder: int,
    *,
    aggregations: tuple[Aggregation, ...] = ALL,
    restarts: dict[int, int] | None = None,
    width: int = 1,
) -> Collected:
    def make() -> WindowAggregate:
        return WindowAggregate(
            grouping=Grouping(keys=("key",), aggregations=aggregations), window=SlidingWindow(size, slide)
        )

    fleet = Fleet(make, [("key",)], width)
    greatest = START_OF_TIME
    for number, rows in enumerate(batches):
        fleet.feed(batch_of(rows))
        if restarts and number in restarts:
            fleet = fleet.restored(restarts[number])
        greatest = max([greatest, *(row[0] for row in rows)])
        fleet.watermark(greatest - disorder)
    fleet.end()
    return fleet.out


def canonical(rows: list[tuple[Any, ...]]) -> list[str]:
    return sorted(map(repr, rows))


@given(rows_strategy, windows, sizes_strategy, st.integers(0, 40))
@settings(max_examples=50, deadline=None)
def test_results_and_late_rows_are_those_of_the_naive_reading(rows, window, sizes, disorder):
    batches = cut(rows, sizes)
    out = run(batches, *window, disorder)
    expected, late = oracle(batches, *window, disorder)
    assert canonical(out.rows()) == canonical(expected)
    assert canonical(out.side_rows("late", TIME, "key", "value")) == canonical(late)


@given(rows_strategy, windows, sizes_strategy, st.integers(0, 40))
@settings(max_examples=33, deadline=None)
def test_whole_numbers_that_are_added_and_subtracted_give_the_same(rows, window, sizes, disorder):
    batches = cut(rows, sizes)
    out = run(batches, *window, disorder, aggregations=WHOLE)
    expected, _late = oracle(batches, *window, disorder)
    assert canonical(out.rows()) == canonical([row[:6] for row in expected])


@given(
    st.lists(st.tuples(st.integers(0, 25), st.sampled_from("ab"), st.none() | st.integers(-9, 9)), max_size=200),
    st.sampled_from([(10, 2), (6, 4), (12, 1), (60, 1)]),
    st.sampled_from([[40], [100], [15, 60]]),
    st.integers(0, 20),
)
@settings(max_examples=60, deadline=None)
def test_many_panes_of_one_batch_are_filled_at_once(rows, window, sizes, disorder):
    batches = cut(rows, sizes)
    out = run(batches, *window, disorder, aggregations=ALL[:5])
    expected, late = oracle(batches, *window, disorder)
    assert canonical(out.rows()) == canonical([row[:8] for row in expected])
    assert canonical(out.side_rows("late", TIME, "key", "value")) == canonical(late)


@given(rows_strategy, windows, sizes_strategy, sizes_strategy)
@settings(max_examples=25, deadline=None)
def test_the_size_of_batches_does_not_matter_while_nothing_is_late(rows, window, sizes, others):
    one, other = (run(cut(rows, each), *window, 200) for each in (sizes, others))
    assert canonical(one.rows()) == canonical(other.rows())
    assert not one.sides


@given(
    rows=rows_strategy,
    window=windows,
    sizes=sizes_strategy,
    disorder=st.integers(0, 40),
    restarts=st.dictionaries(st.integers(0, 10), st.integers(1, 4), min_size=1, max_size=3),
    width=st.integers(1, 3),
)
@settings(max_examples=33, deadline=None)
def test_a_restart_at_another_width_changes_nothing(*, rows, window, sizes, disorder, restarts, width):
    batches = cut(rows, sizes)
    whole = run(batches, *window, disorder)
    parts = run(batches, *window, disorder, restarts=restarts, width=width)
    assert canonical(parts.rows()) == canonical(whole.rows())
    assert canonical(parts.side_rows("late")) == canonical(whole.side_rows("late"))


@given(rows_strategy, windows, sizes_strategy, st.integers(0, 40), st.booleans())
@settings(max_examples=25, deadline=None)
def test_aggregated_in_part_before_the_exchange_it_is_the_same(rows, window, sizes, disorder, keyed):
    check_in_parts(rows, window, sizes, disorder, ("key",) if keyed else (), ALL)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abcdef"), st.integers(-9, 9)), max_size=80),
    st.sampled_from([(10, 2), (6, 4), (12, 1), (60, 1)]),
    sizes_strategy,
    st.integers(0, 20),
)
@settings(max_examples=40, deadline=None)
def test_many_windows_at_once_of_what_was_aggregated_in_part(rows, window, sizes, disorder):
    """Keys come from the exchange in any order; the matrix of many windows must not mind."""
    check_in_parts(rows, window, sizes, disorder, ("key",), ALL[:5])


@given(
    rows=st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abcdef"), st.integers(-9, 9)), max_size=80),
    window=st.sampled_from([(10, 2), (6, 4), (12, 1), (60, 1)]),
    sizes=sizes_strategy,
    restarts=st.dictionaries(st.integers(0, 8), st.integers(1, 3), min_size=1, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_many_windows_at_once_after_a_restart(*, rows, window, sizes, restarts):
    """Keys come from a checkpoint by key group, and so in another order than they had."""
    batches = cut(rows, sizes)
    out = run(batches, *window, 30, aggregations=ALL[:5], restarts=restarts, width=2)
    expected, _late = oracle(batches, *window, 30)
    assert canonical(out.rows()) == canonical([row[:8] for row in expected])


def test_keys_that_come_in_another_order_stay_themselves():
    """The second task meets b before a, and all windows end at once, as a matrix of panes and keys."""
    rows = [(1, key, 1) for key in "abcaaca"] + [(21, "b", 8), (21, "a", 16), (21, "c", 32)]
    check_in_parts(rows, (10, 2), [1, 1, 1, 1, 1, 1, 1, 3], 100, ("key",), ALL[:5])


def check_in_parts(rows, window, sizes, disorder, keys, aggregations) -> None:  # noqa: PLR0917  as it is drawn
    """Two tasks before the exchange, which meet the keys in orders of their own, give what none would."""
    grouping = Grouping(keys=keys, aggregations=aggregations)
    batches = cut(rows, sizes)
    firsts = [PartialAggregate(grouping=grouping, window=SlidingWindow(*window)) for _task in range(2)]
    for each in firsts:
        Fleet(lambda task=each: task, [keys])

    def drive(*, in_parts: bool) -> list[tuple[Any, ...]]:
        final = WindowAggregate(
            grouping=Grouping(keys=keys, aggregations=aggregations, is_partial=in_parts),
            window=SlidingWindow(*window),
        )
        fleet = Fleet(lambda: final, [keys])
        greatest = START_OF_TIME
        for number, part in enumerate(batches):
            between = Collected()
            if in_parts:
                firsts[number % 2].process(batch_of(part), between)
            else:
                between.batches = [batch_of(part)]
            for batch in between.batches:
                fleet.feed(batch)
            greatest = max([greatest, *(row[0] for row in part)])
            fleet.watermark(greatest - disorder)
        fleet.end()
        return fleet.out.rows()

    assert canonical(drive(in_parts=True)) == canonical(drive(in_parts=False))


def test_two_key_columns_of_any_type_make_a_key():
    batch = pa.record_batch(
        {
            "x": pa.array([1.0, -0.0, 0.0, float("nan"), float("nan"), None]),
            "y": pa.array(["a", "b", "b", "c", "c", "a"]).dictionary_encode(),
            TIME: pa.array([1, 2, 3, 4, 5, 6]),
        }
    )
    fleet = Fleet(
        lambda: WindowAggregate(grouping=Grouping(keys=("x", "y"), aggregations=ALL[:1]), window=SlidingWindow(10, 10)),
        [("x", "y")],
    )
    fleet.feed(batch)
    fleet.end()
    rows = {(repr(x), y): count for x, y, count in fleet.out.rows("x", "y", "rows")}
    assert rows == {("1.0", "a"): 1, ("0.0", "b"): 2, ("nan", "c"): 2, ("None", "a"): 1}


def test_floats_texts_and_decimals():
    aggregations = tuple(
        Aggregation(f"{column}_{function}", column, function)
        for column, functions in {
            "f": ("sum", "mean", "min", "max", "variance", "stddev"),
            "t": ("min", "max", "first", "last", "count_distinct", "list", "count"),
            "d": ("sum", "mean", "min", "max"),
            "b": ("any", "all"),
            "w": ("min", "max", "last"),
            "u": ("sum", "max"),
        }.items()
        for function in functions
    )
    decimal = pa.decimal128(10, 2)
    columns = {
        "f": pa.array([1.5, None, 2.5, 6.0]),
        "t": pa.array(["m", "a", None, "z"]),
        "d": pa.array(["1.10", "2.20", None, "3.30"]).cast(decimal),
        "b": pa.array([True, None, False, True]),
        "w": pa.array([3, 1, None, 2], pa.timestamp("ms")),
        "u": pa.array([2**64 - 10, 1, 2, 3], pa.uint64()),
        TIME: pa.array([1, 2, 3, 11]),
    }
    for window in (SlidingWindow(20, 20), SlidingWindow(20, 5)):
        fleet = Fleet(lambda w=window: WindowAggregate(grouping=Grouping(aggregations=aggregations), window=w), [()])
        fleet.feed(pa.record_batch(columns))
        fleet = fleet.restored(1)
        fleet.end()
        whole = next(
            row for batch in fleet.out.batches for row in batch.to_pylist() if row["window_start"].microsecond == 0
        )
        assert whole["f_sum"] == 10.0
        assert whole["f_mean"] == pytest.approx(10 / 3)
        assert (whole["f_min"], whole["f_max"]) == (1.5, 6.0)
        assert whole["f_variance"] == pytest.approx(statistics.pvariance([1.5, 2.5, 6.0]))
        assert whole["f_stddev"] == pytest.approx(statistics.pstdev([1.5, 2.5, 6.0]))
        assert (whole["t_min"], whole["t_max"], whole["t_first"], whole["t_last"]) == ("a", "z", "m", "z")
        assert (whole["t_count_distinct"], whole["t_count"]) == (3, 3)
        assert whole["t_list"] == ["m", "a", None, "z"]
        assert str(whole["d_sum"]) == "6.60"
        assert whole["d_mean"] == pytest.approx(2.2)
        assert (str(whole["d_min"]), str(whole["d_max"])) == ("1.10", "3.30")
        assert (whole["b_any"], whole["b_all"]) == (True, False)
        assert whole["w_last"].microsecond == 2000
        assert whole["u_sum"] == 2**64 - 4
        assert whole["u_max"] == 2**64 - 10
        types = {field.name: field.type for field in fleet.out.batches[0].schema}
        assert types["w_min"] == pa.timestamp("ms")
        assert types["d_sum"] == pa.decimal128(38, 2)
        assert types["window_start"] == pa.timestamp("us")


def test_nothing_but_nulls():
    fleet = Fleet(lambda: WindowAggregate(grouping=Grouping(aggregations=ALL), window=SlidingWindow(10, 10)), [()])
    fleet.feed(batch_of([(1, "a", None), (2, "a", None)]))
    fleet.end()
    assert fleet.out.rows() == [(0, 10, 2, 0, None, None, None, None, None, 0, [None, None])]


def test_a_sum_that_does_not_fit_is_an_error():
    for function, value in (("sum", 2**62), ("sum", -(2**62) - 1)):
        fleet = Fleet(
            lambda f=function: WindowAggregate(
                grouping=Grouping(aggregations=(Aggregation("s", "value", f),)), window=SlidingWindow(10, 10)
            ),
            [()],
        )
        fleet.feed(batch_of([(1, "a", value)]))
        with pytest.raises(ExhaustedError, match="'value' does not fit"):
            fleet.feed(batch_of([(1, "a", value), (2, "b", value)]))


def test_sums_up_to_the_limit_are_exact():
    fleet = Fleet(
        lambda: WindowAggregate(
            grouping=Grouping(aggregations=(Aggregation("s", "value", "sum"),)), window=SlidingWindow(10, 10)
        ),
        [()],
    )
    for value in (2**62, 2**62 - 1, -5, 5):
        fleet.feed(batch_of([(1, "a", value)]))
    fleet.end()
    assert fleet.out.rows("s") == [(2**63 - 1,)]


def test_results_carry_their_last_moment_where_somebody_needs_it():
    fleet = Fleet(
        lambda: WindowAggregate(
            grouping=Grouping(keys=("key",), aggregations=WHOLE, emits_time=True), window=SlidingWindow(10, 5)
        ),
        [("key",)],
    )
    fleet.feed(batch_of([(7, "a", 1)]))
    fleet.end()
    assert fleet.out.rows("window_end", TIME) == [(10, 9), (15, 14)]


def test_early_results_and_corrections_are_changes():
    clock = HandClock()
    fleet = Fleet(
        lambda: WindowAggregate(
            grouping=Grouping(keys=("key",), aggregations=WHOLE[2:]),
            window=SlidingWindow(10, 10),
            firing=Firing(early_every=1000, allowed_lateness=20),
        ),
        [("key",)],
        clock=clock,
    )
    names = ("key", "window_start", "total", "op")
    fleet.feed(batch_of([(1, "a", 1), (2, "b", 2)]))
    fleet.tick()
    assert not fleet.out.batches
    clock.advance(1000)
    fleet.tick()
    assert fleet.out.rows(*names) == [("a", 0, 1, "+I"), ("b", 0, 2, "+I")]
    fleet.feed(batch_of([(1, "a", 4)]))
    fleet.watermark(10)
    assert fleet.out.rows(*names)[2:] == [("a", 0, 1, "-U"), ("a", 0, 5, "+U")]  # b is as it was given
    fleet = fleet.restored(2)
    fleet.feed(batch_of([(3, "a", 10), (3, "c", 1)]))
    assert sorted(fleet.out.rows(*names)[4:]) == [("a", 0, 5, "-U"), ("a", 0, 15, "+U"), ("c", 0, 1, "+I")]
    fleet.watermark(29)
    fleet.feed(batch_of([(4, "b", 20)]))
    assert fleet.out.rows(*names)[7:] == [("b", 0, 2, "-U"), ("b", 0, 22, "+U")]
    fleet.watermark(30)
    fleet.feed(batch_of([(5, "b", 40), (11, "b", 7)]))
    assert fleet.out.side_rows("late", "value") == [(40,)]
    assert fleet.out.rows(*names)[9:] == [("b", 10, 7, "+I")]


@given(
    rows=rows_strategy,
    window=st.sampled_from([(10, 10), (10, 5), (6, 4)]),
    lateness=st.integers(0, 30),
    sizes=sizes_strategy,
    restarts=st.dictionaries(st.integers(0, 10), st.integers(1, 4), max_size=3),
    early=st.sampled_from([0, 10]),
)
@settings(max_examples=40, deadline=None)
def test_the_last_correction_counts_every_row_that_was_not_too_late(*, rows, window, lateness, sizes, restarts, early):
    assume(lateness or early)  # else there are no changes
    size, slide = window
    fleet = Fleet(
        lambda: WindowAggregate(
            grouping=Grouping(keys=("key",), aggregations=WHOLE[:1]),
            window=SlidingWindow(size, slide),
            firing=Firing(allowed_lateness=lateness, early_every=early),
        ),
        [("key",)],
    )
    expected: dict[tuple[Any, int], int] = {}
    watermark = greatest = START_OF_TIME
    for number, part in enumerate(cut(rows, sizes)):
        fleet.feed(batch_of(part))
        fleet.clock.advance(7)
        fleet.tick()
        if number in restarts:
            fleet = fleet.restored(restarts[number])
        for time, key, _value in part:
            for start in range(time // slide * slide, time - size, -slide):
                if start + size + lateness > watermark:
                    expected[key, start] = expected.get((key, start), 0) + 1
        greatest = max([greatest, *(row[0] for row in part)])
        watermark = greatest
        fleet.watermark(watermark)
    fleet.end()
    table: dict[tuple[Any, int], int] = {}
    for key, start, count, op in fleet.out.rows("key", "window_start", "rows", "op"):
        if op == "-U":
            assert table.pop((key, start)) == count
        else:
            assert (key, start) not in table
            table[key, start] = count
    assert table == expected


@pytest.mark.parametrize("aggregations", [WHOLE, ALL[3:7]], ids=["subtracted", "stacked"])
def test_what_a_window_costs_does_not_grow_with_the_overlap(monkeypatch, aggregations):
    """Counted in cells that are put together: with ten times the overlap there are not twice as many."""

    def cost(overlap: int) -> int:
        touched = 0

        def counted(method: Any) -> Any:
            def call(store: Store, sparse: Any) -> None:
                nonlocal touched
                touched += len(sparse.cells)
                method(store, sparse)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(Store, "merge", counted(Store.merge))
            patch.setattr(Store, "remove", counted(Store.remove))
            make = lambda: WindowAggregate(  # noqa: E731  made once
                grouping=Grouping(keys=("key",), aggregations=aggregations), window=SlidingWindow(overlap, 1)
            )
            fleet = Fleet(make, [("key",)], max_rows=1000)
            for time in range(200):
                fleet.feed(batch_of([(time, key, time) for key in "abcd"]))
                fleet.watermark(time)
            assert len(fleet.out.rows()) == 199 * 4
        return touched

    assert 0 < cost(80) < 2 * cost(8)


def test_keys_that_no_longer_come_are_forgotten():
    operator = WindowAggregate(grouping=Grouping(keys=("key",), aggregations=WHOLE), window=SlidingWindow(10, 5))
    fleet = Fleet(lambda: operator, [("key",)], max_rows=100_000)
    total = 0
    for turn in range(40):
        rows = [(turn * 10 + 1, f"{turn}-{number}", 1) for number in range(2_000)]
        fleet.feed(batch_of(rows))
        fleet.watermark(turn * 10)
        total += 2 * len(rows)
    assert operator.statistics()["keys"] < 25_000
    fleet.end()
    assert sum(count for (count,) in fleet.out.rows("rows")) == total


def test_a_silence_and_a_row_far_ahead_cost_nothing():
    fleet = Fleet(
        lambda: WindowAggregate(grouping=Grouping(keys=("key",), aggregations=ALL), window=SlidingWindow(60, 1)),
        [("key",)],
    )
    far = 10**15
    fleet.feed(batch_of([(0, "a", 1), (far, "a", 2)]))
    fleet.watermark(far - 5)
    assert len(fleet.out.rows()) == 60
    fleet.end()
    assert len(fleet.out.rows()) == 120


def test_an_unused_operator_snapshots_and_restores():
    fleet = Fleet(lambda: WindowAggregate(grouping=Grouping(aggregations=ALL), window=SlidingWindow(5, 5)), [()])
    fleet.watermark(17)
    fleet = fleet.restored(1)
    fleet.feed(batch_of([(3, "a", 1)]))
    assert fleet.out.side_rows("late", "value") == [(1,)]
    fleet.watermark(END_OF_TIME)
    assert not fleet.out.batches
    assert math.gcd(TOTAL, 2) == 2

"""Very many windows with few rows each: made in bulk they are what they are one by one, and as few calls make them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import ExhaustedError
from shoal.dataflow.language.elements import START_OF_TIME
from shoal.dataflow.language.logical import Aggregation
from shoal.dataflow.language.windows import Firing, SlidingWindow
from shoal.dataflow.operators.aggregates.store import Store
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.partial import PartialAggregate
from shoal.dataflow.operators.windows import ranges
from shoal.dataflow.operators.windows.aggregate import WindowAggregate
from shoal.dataflow.operators.windows.packed import PackedPanes
from shoal.dataflow.operators.windows.panes import Pane
from tests.unit.dataflow.operators.driving import Fleet, batch_of, cut
from tests.unit.dataflow.operators.test_windows import ALL, WHOLE, canonical, check_in_parts, oracle, run

#: Rows far apart: most of them have a pane of their own.
wide = st.lists(
    st.tuples(st.integers(-500, 2000), st.sampled_from(["a", "b", None]), st.none() | st.integers(-50, 50)),
    min_size=20,
    max_size=120,
)
#: Rows of few panes, of which some were met before: they are no longer thin.
crowd = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(-9, 9)), min_size=0, max_size=3).map(
    lambda rows: rows * 120
)
small_windows = st.sampled_from([(1, 1), (10, 10), (10, 1), (7, 3), (60, 1), (300, 7), (1000, 10)])
sizes = st.lists(st.integers(20, 80), min_size=1, max_size=3)


def in_batches(rows: Sequence[Any], many: Sequence[Any], cuts: Sequence[int]) -> list[Any]:
    """The crowd behind the first batch, in one batch."""
    batches = cut(rows, cuts)
    return [batches[0], *([many] if many else []), *batches[1:]]


@given(wide, crowd, small_windows, sizes, st.integers(0, 2500))
@settings(max_examples=60, deadline=None)
def test_results_and_their_order_are_those_of_the_naive_reading(rows, many, window, cuts, disorder):
    batches = in_batches(rows, many, cuts)
    out = run(batches, *window, disorder)
    expected, late = oracle(batches, *window, disorder)
    assert canonical(out.rows()) == canonical(expected)
    assert len(out.side_rows("late", "value")) == len(late)
    ends = [end for (end,) in out.rows("window_end")]
    assert ends == sorted(ends)
    assert max((batch.num_rows for batch in out.batches), default=0) <= 7


@given(wide, crowd, small_windows, sizes, st.sampled_from([WHOLE, ALL[:5], ALL[3:7], ALL[7:]]))
@settings(max_examples=60, deadline=None)
def test_any_choice_of_aggregates_gives_the_same(rows, many, window, cuts, aggregations):
    batches = in_batches(rows, many, cuts)
    places = [3 + ALL.index(each) for each in aggregations]
    expected, _late = oracle(batches, *window, 2500)
    wanted = [(*row[:3], *(row[place] for place in places)) for row in expected]
    assert canonical(run(batches, *window, 2500, aggregations=aggregations).rows()) == canonical(wanted)


@given(
    rows=wide,
    many=crowd,
    window=small_windows,
    cuts=sizes,
    disorder=st.sampled_from([0, 300, 2500]),
    restarts=st.dictionaries(st.integers(0, 4), st.integers(1, 3), max_size=3),
    width=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_a_restart_at_another_width_changes_nothing(*, rows, many, window, cuts, disorder, restarts, width):
    batches = in_batches(rows, many, cuts)
    out = run(batches, *window, disorder, restarts=restarts, width=width)
    expected, _late = oracle(batches, *window, disorder)
    assert canonical(out.rows()) == canonical(expected)


@given(wide, small_windows, sizes, st.sampled_from([0, 300, 2500]))
@settings(max_examples=25, deadline=None)
def test_aggregated_in_part_before_the_exchange_it_is_the_same(rows, window, cuts, disorder):
    check_in_parts(rows, window, cuts, disorder, ("key",), ALL)


OTHER = (
    Aggregation("total", "value", "sum"),
    Aggregation("mean", "value", "mean"),
    Aggregation("least", "value", "min"),
    Aggregation("wide", "value", "variance"),
    Aggregation("early", "text", "first"),
    Aggregation("late", "text", "last"),
    Aggregation("least_text", "text", "min"),
    Aggregation("texts", "text", "count_distinct"),
)


@given(wide, small_windows, sizes, st.sampled_from([0, 300, 2500]))
@settings(max_examples=30, deadline=None)
def test_floats_and_texts_are_what_they_are_window_by_window(rows, window, cuts, disorder):
    def drive() -> list[tuple[Any, ...]]:
        make = lambda: WindowAggregate(  # noqa: E731  made once
            grouping=Grouping(keys=("key",), aggregations=OTHER), window=SlidingWindow(*window)
        )
        fleet, greatest = Fleet(make, [("key",)], max_rows=100), START_OF_TIME
        for part in cut(rows, cuts):
            batch = batch_of([(time, key, None if value is None else value / 7) for time, key, value in part], value=F)
            texts = pa.array([None if value is None else f"t{value % 5}" for _time, _key, value in part], pa.string())
            fleet.feed(batch.append_column("text", texts))
            greatest = max([greatest, *(row[0] for row in part)])
            fleet.watermark(greatest - disorder)
        fleet.end()
        return fleet.out.rows()

    in_bulk = drive()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedPanes, "suits", lambda *_: False)
        patch.setattr(ranges, "is_worth_it", lambda *_: False)
        one_by_one = drive()
    assert [row[:3] for row in in_bulk] == [row[:3] for row in one_by_one]
    for left, right in zip(in_bulk, one_by_one, strict=True):
        assert left[7:] == right[7:]
        for one, other in zip(left[3:7], right[3:7], strict=True):
            assert (one is None) == (other is None)
            assert one is None or one == pytest.approx(other, abs=1e-9)


F = pa.float64()


@given(wide, small_windows, sizes)
@settings(max_examples=30, deadline=None)
def test_a_reduction_applies_its_function_in_order(rows, window, cuts):
    """Panes follow each other in time, and rows of a pane as they came."""
    size, slide = window
    grouping = Grouping(keys=("key",), function=lambda one, other: {**one, "value": one["value"] + other["value"]})
    make = lambda: WindowAggregate(grouping=grouping, window=SlidingWindow(size, slide))  # noqa: E731  made once
    fleet = Fleet(make, [("key",)])
    named = [(time, key, f"{number}.") for number, (time, key, _value) in enumerate(rows)]
    for part in cut(named, cuts):
        fleet.feed(batch_of(part, value=pa.string()))
    fleet.end()
    pane = SlidingWindow(size, slide).pane
    found: dict[tuple[int, Any], str] = {}
    for time, key, value in sorted(named, key=lambda row: row[0] // pane):
        for start in range(time // slide * slide, time - size, -slide):
            found[start, key] = found.get((start, key), "") + value
    assert canonical(fleet.out.rows("key", "window_start", "value")) == canonical(
        [(key, start, value) for (start, key), value in found.items()]
    )


@pytest.mark.parametrize("aggregations", [WHOLE, ALL], ids=["whole", "all"])
@pytest.mark.parametrize("window", [(1, 1), (10, 10), (10, 1), (500, 1)], ids=str)
def test_what_is_called_does_not_grow_with_the_windows(monkeypatch, aggregations, window):
    """Counted in stores and panes that are made, and in batches that are put out."""

    def calls(rows: int) -> int:
        made = 0

        def counted(method: Any) -> Any:
            def call(self: Any, *given: Any, **named: Any) -> None:
                nonlocal made
                made += 1
                method(self, *given, **named)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(Store, "__init__", counted(Store.__init__))
            patch.setattr(Pane, "__init__", counted(Pane.__init__))
            make = lambda: WindowAggregate(  # noqa: E731  made once
                grouping=Grouping(keys=("key",), aggregations=aggregations), window=SlidingWindow(*window)
            )
            fleet = Fleet(make, [("key",)], max_rows=100_000)
            fleet.feed(batch_of([(time, "ab"[time % 2], time) for time in range(rows)]))
            fleet.end()
        return made + len(fleet.out.batches)

    assert calls(2_000) <= 20


def test_parts_of_a_few_panes_each_are_put_together_at_once(monkeypatch):
    grouping = Grouping(keys=("key",), aggregations=WHOLE)
    first_half = PartialAggregate(grouping=grouping, window=SlidingWindow(10, 10))
    before = Fleet(lambda: first_half, [("key",)], max_rows=100_000)
    for first in range(0, 1200, 60):
        before.feed(batch_of([(time, "ab"[time % 2], time) for time in range(first, first + 60)]))
    made = 0

    def counted(original: Any) -> Any:
        def call(self: Any, *arguments: Any, **named: Any) -> None:
            nonlocal made
            made += 1
            original(self, *arguments, **named)

        return call

    final = Grouping(keys=("key",), aggregations=WHOLE, is_partial=True)
    second_half = WindowAggregate(grouping=final, window=SlidingWindow(10, 10))
    behind = Fleet(lambda: second_half, [("key",)], max_rows=100_000)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "__init__", counted(Store.__init__))
        patch.setattr(Pane, "__init__", counted(Pane.__init__))
        for batch in before.out.batches:
            behind.feed(batch)
        behind.end()
    assert len(before.out.batches) == 20
    assert len(behind.out.rows()) == 240
    assert made <= 10


def test_two_rows_in_very_many_windows_are_few_batches():
    make = lambda: WindowAggregate(  # noqa: E731  made once
        grouping=Grouping(keys=("key",), aggregations=ALL), window=SlidingWindow(200_000, 1)
    )
    fleet = Fleet(make, [("key",)], max_rows=10_000)
    fleet.feed(batch_of([(0, "a", 1), (5, "b", 2)]))
    fleet.end()
    assert sum(batch.num_rows for batch in fleet.out.batches) == 400_000
    assert len(fleet.out.batches) <= 100
    ends = [end for (end,) in fleet.out.rows("window_end")]
    assert all(one <= other for one, other in itertools.pairwise(ends))


def test_a_sum_that_does_not_fit_is_an_error_in_one_of_many_windows_too():
    make = lambda: WindowAggregate(  # noqa: E731  made once
        grouping=Grouping(aggregations=(Aggregation("s", "value", "sum"),)), window=SlidingWindow(10, 1)
    )
    fleet = Fleet(make, [()])
    fleet.feed(batch_of([(time * 20, "a", 2**62) for time in range(30)]))
    fleet.watermark(601)
    assert {value for (value,) in fleet.out.rows("s")} == {2**62}
    fleet.feed(batch_of([(time * 5, "a", 2**62) for time in range(200, 230)]))
    with pytest.raises(ExhaustedError, match="'value' does not fit"):
        fleet.end()


def test_keys_of_packed_panes_that_no_longer_come_are_forgotten():
    for window in ((1, 1), (10, 5)):
        operator = WindowAggregate(grouping=Grouping(keys=("key",), aggregations=WHOLE), window=SlidingWindow(*window))
        fleet = Fleet(lambda task=operator: task, [("key",)], max_rows=100_000)
        for turn in range(40):
            fleet.feed(batch_of([(turn * 2_000 + number, f"{turn}-{number}", 1) for number in range(2_000)]))
            fleet.watermark(turn * 2_000)
            assert operator.statistics()["panes"] <= 2_010
        assert operator.statistics()["keys"] < 25_000
        fleet.end()
        total = sum(count for (count,) in fleet.out.rows("rows"))
        assert total == 80_000 * window[0] // window[1]


def test_rows_very_far_apart_stay_apart():
    far = 10**16
    make = lambda: WindowAggregate(  # noqa: E731  made once
        grouping=Grouping(keys=("key",), aggregations=ALL), window=SlidingWindow(6, 2)
    )
    fleet = Fleet(make, [("key",)])
    rows = [(number * far, f"{number}", number) for number in range(500)]
    fleet.feed(batch_of(rows))
    fleet.end()
    assert canonical(fleet.out.rows()) == canonical(oracle([rows], 6, 2, 0)[0])


def test_changes_of_many_windows_go_out_together():
    """Windows that may still be corrected say the same, in the same order, in few batches."""
    operator = WindowAggregate(
        grouping=Grouping(keys=("key",), aggregations=WHOLE),
        window=SlidingWindow(1, 1),
        firing=Firing(allowed_lateness=5_000),
    )
    fleet = Fleet(lambda: operator, [("key",)], max_rows=500)
    rows = [(time, "a", time) for time in range(2_000)]
    fleet.feed(batch_of(rows))
    fleet.watermark(2_000)
    assert len(fleet.out.batches) == 4
    assert fleet.out.rows("window_start", "total", "op") == [(time, time, "+I") for time in range(2_000)]
    fleet.out.batches.clear()
    fleet.feed(batch_of([(time, "ab"[time % 2], 1) for time in range(100)]))
    said = [(time, word) for time in range(100) for word in (("+I",) if time % 2 else ("-U", "+U"))]
    assert fleet.out.rows("window_start", "op") == said
    assert len(fleet.out.batches) == 1


@pytest.mark.parametrize("window", [(1, 1), (5, 5), (5, 1)], ids=str)
def test_many_rows_of_a_pane_that_was_kept_with_others_stay_behind_its_first(window):
    wide_rows = [(time * 3, "a", time) for time in range(40)]
    batches = [wide_rows, [(time, "ab"[number % 2], number) for number in range(300) for time in (30, 60)], wide_rows]
    out = run(batches, *window, 1000)
    assert canonical(out.rows()) == canonical(oracle(batches, *window, 1000)[0])


@pytest.mark.parametrize("aggregations", [WHOLE, ALL[:7]], ids=["subtracted", "stacked"])
def test_rows_between_those_of_the_window_before_are_in_the_next(aggregations):
    """The windows up to 30 are made together, then one by one, with rows that come between those of the last."""
    even, odd = ([(time, "a", (time * 37) % 101) for time in range(start, 58, 2)] for start in (0, 1))
    batches = [[*even, (58, "a", 1)], [(59, "a", 2)], odd, [(60, "a", 3)], [(61, "a", 4)]]
    places = [3 + ALL.index(each) for each in aggregations]
    wanted = [(*row[:3], *(row[place] for place in places)) for row in oracle(batches, 60, 1, 28)[0]]
    assert canonical(run(batches, 60, 1, 28, aggregations=aggregations).rows()) == canonical(wanted)

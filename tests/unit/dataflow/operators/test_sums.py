"""Sums are right or an error: decimals do not wrap, and what is taken back leaves no trace in sums of floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal import Stream, count, session, sliding, tumbling
from shoal.dataflow.errors import OperatorFailedError
from shoal.dataflow.language.elements import CHANGE, TIME
from shoal.dataflow.language.logical import Aggregation
from shoal.dataflow.operators.grouping import Grouping
from shoal.dataflow.operators.running import RunningAggregate
from tests.unit.dataflow.operators.driving import Fleet

MOST = Decimal("9" * 38)
LEAST = Decimal("-" + "9" * 38)
MOST_CENTS = Decimal("9" * 36 + ".99")

SHAPES: dict[str, Callable[[Stream], Any]] = {
    "all rows": lambda stream: stream,
    "keys": lambda stream: stream.group_by("k"),
    "tumbling": lambda stream: stream.group_by("k").window(tumbling(60)),
    "tumbling over all": lambda stream: stream.window(tumbling(60)),
    "sliding": lambda stream: stream.group_by("k").window(sliding(60, 30)),
    "many sliding": lambda stream: stream.group_by("k").window(sliding(60, 1)),
    "session": lambda stream: stream.group_by("k").window(session(60)),
    "count": lambda stream: stream.window(count(2)),
}


def stream_of(values: Sequence[Any], kind: Any) -> Stream:
    times = pa.array(range(1000, 1000 + len(values)), pa.timestamp("s"))
    table = pa.table({"k": ["a"] * len(values), "v": pa.array(values, kind), "t": times})
    return Stream.from_table(table, event_time="t")


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([MOST, MOST], pa.decimal128(38, 0)),
        ([LEAST, LEAST], pa.decimal128(38, 0)),
        ([MOST, Decimal(1)], pa.decimal128(38, 0)),
        ([MOST_CENTS, MOST_CENTS], pa.decimal128(38, 2)),
        ([MOST, MOST], pa.decimal256(40, 0)),
        ([Decimal("9" * 50), Decimal(0)], pa.decimal256(60, 0)),
    ],
    ids=["most", "least", "by one", "fractions", "wide", "too wide"],
)
def test_a_sum_of_decimals_that_does_not_fit_is_an_error(values, kind, shape, parallelism):
    with pytest.raises(OperatorFailedError, match="the sum of 'v' does not fit into 38 digits") as caught:
        SHAPES[shape](stream_of(values, kind)).aggregate(total=("v", "sum")).to_pylist(parallelism=parallelism)
    assert "float64" in caught.value.hint


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("values", "kind", "total"),
    [
        ([Decimal("9" * 37 + "8"), Decimal(1)], pa.decimal128(38, 0), MOST),
        ([MOST, LEAST], pa.decimal128(38, 0), Decimal(0)),
        ([Decimal("0.10"), Decimal("0.20")], pa.decimal128(3, 2), Decimal("0.30")),
        ([Decimal("9.99"), Decimal("9.99")], pa.decimal32(3, 2), Decimal("19.98")),
        ([Decimal("9" * 18), Decimal("9" * 18)], pa.decimal64(18, 0), Decimal("1" + "9" * 17 + "8")),
    ],
    ids=["to the brim", "both ends", "small", "narrow", "wider than its type"],
)
def test_a_sum_of_decimals_that_fits_is_exact(values, kind, total, shape):
    found = SHAPES[shape](stream_of(values, kind)).aggregate(total=("v", "sum")).to_pylist()
    assert total in [row["total"] for row in found]


def test_means_of_decimals_do_not_wrap():
    (row,) = stream_of([MOST, MOST], pa.decimal128(38, 0)).aggregate(mean=("v", "mean")).to_pylist()
    assert row["mean"] == pytest.approx(1e38)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_of_whole_numbers_says_what_a_decimal_holds(shape):
    with pytest.raises(OperatorFailedError, match="the sum of 'v' does not fit into 64 bits") as caught:
        SHAPES[shape](stream_of([2**62, 2**62], pa.int64())).aggregate(total=("v", "sum")).to_pylist()
    assert "38 digits" in caught.value.hint


# -- rows that are taken back -----------------------------------------------------------------------------

BOTH = (Aggregation("total", "value", "sum"), Aggregation("mean", "value", "mean"))


def changes(kind: Any, *rows: tuple[str, Any]) -> Any:
    words, values = [word for word, _value in rows], [value for _word, value in rows]
    return pa.record_batch(
        {
            "key": ["a"] * len(rows),
            "value": pa.array(values, kind),
            CHANGE: pa.array(words, pa.string()),
            TIME: pa.array(range(len(rows)), pa.int64()),
        }
    )


def fleet_of(width: int = 1, aggregations: tuple[Aggregation, ...] = BOTH) -> Fleet:
    grouping = Grouping(keys=("key",), aggregations=aggregations)
    return Fleet(lambda: RunningAggregate(grouping=grouping, emits_changes=True, takes_changes=True), [("key",)], width)


def last(fleet: Fleet) -> tuple[Any, Any]:
    """What stands now."""
    *_before, (total, mean, word) = fleet.out.rows("total", "mean", CHANGE)
    assert word in ("+I", "+U")
    return total, mean


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("in_one_batch", [False, True])
@pytest.mark.parametrize(
    "gone",
    [math.inf, -math.inf, math.nan, 1e16, -1e16, 1.7e308, 5e-324, 0.1],
)
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_a_float_that_is_taken_back_leaves_no_trace(gone, in_one_batch, restarts, kind):
    steps = [("+I", 1.0), ("+I", gone), ("+I", 0.5), ("-D", gone)]
    fleet = fleet_of()
    for part in [steps] if in_one_batch else [[each] for each in steps]:
        fleet.feed(changes(kind, *part))
        if restarts:
            fleet = fleet.restored(1)
    assert last(fleet) == (1.5, 0.75)


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([math.inf, 1.0], math.inf),
        ([-math.inf, 1.0], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], math.nan),
        ([1.7e308, 1.7e308], math.inf),
        ([-1.7e308, -1.7e308], -math.inf),
        ([1.7e308, 1.7e308, -1.7e308], 1.7e308),
        ([1e16, 1.0, -1e16], 1.0),
        ([0.1] * 10, 1.0),
        ([-0.0], 0.0),
    ],
)
def test_sums_over_changes_are_rounded_once(values, total):
    fleet = fleet_of()
    fleet.feed(changes(pa.float64(), *(("+I", value) for value in values)))
    assert last(fleet)[0] == pytest.approx(total, abs=0, rel=0, nan_ok=True)


floats = st.floats(width=64)


@given(st.lists(st.tuples(floats, st.booleans()), min_size=1, max_size=30), st.integers(1, 7), st.booleans())
@example([(1e16, True), (1.0, False)], 1, True)
@settings(max_examples=150, deadline=None)
def test_whatever_is_taken_back_the_sum_is_that_of_what_is_left(rows, size, restarts):
    steps = [("+I", value) for value, _gone in rows] + [("-D", value) for value, gone in rows if gone]
    fleet = fleet_of()
    for start in range(0, len(steps), size):
        fleet.feed(changes(pa.float64(), *steps[start : start + size]))
        if restarts:
            fleet = fleet.restored(1)
    left = [value for value, gone in rows if not gone]
    if not left:
        assert fleet.out.rows(CHANGE)[-1:] in ([], [("-D",)])
        return
    assert last(fleet)[0] == pytest.approx(sum_of(left), abs=0, rel=0, nan_ok=True)


def sum_of(values: Sequence[float]) -> float:
    if not all(map(math.isfinite, values)):
        return sum(value for value in values if not math.isfinite(value))
    whole = sum(map(Fraction, values), Fraction(0))
    try:
        return float(whole)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf


def test_sums_of_decimals_over_changes_are_exact():
    fleet = fleet_of()
    kind = pa.decimal128(38, 2)
    fleet.feed(changes(kind, ("+I", Decimal("0.10")), ("+I", MOST_CENTS), ("-D", MOST_CENTS), ("+I", None)))
    assert last(fleet)[0] == Decimal("0.10")
    fleet = fleet.restored(1)
    fleet.feed(changes(kind, ("-D", Decimal("0.10"))))
    assert last(fleet) == (None, None)  # a row without a value is left


def test_whole_numbers_may_go_beyond_64_bits_within_a_batch():
    """The old value is taken back in the batch that brings the new one: only what is left has to fit."""
    fleet = fleet_of()
    fleet.feed(changes(pa.int64(), ("+I", 2**63 - 10)))
    fleet.feed(changes(pa.int64(), ("-U", 2**63 - 10), ("+U", 2**63 - 5)))
    assert last(fleet)[0] == 2**63 - 5


def test_a_sum_that_stays_not_a_number_is_no_change():
    fleet = fleet_of(aggregations=(Aggregation("total", "value", "sum"),))
    fleet.feed(changes(pa.float64(), ("+I", math.nan)))
    fleet.feed(changes(pa.float64(), ("+I", 1.0)))
    assert fleet.out.rows(CHANGE) == [("+I",)]

"""Event times that are missing or fit no clock: null in the column of times, with a reason, and an error that helps."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import tumbling
from shoal.dataflow.errors import OperatorFailedError, PoisonError
from shoal.dataflow.execution.event_time import NO_TIME, to_micros, why_unfit
from shoal.dataflow.language.expressions.trees import col

FIRST = -62_135_596_800_000_000
LAST = 253_402_300_799_999_999
HUGE = 2**62


@pytest.mark.parametrize(
    ("column", "unit", "good", "counted"),
    [
        (pa.array([HUGE, 1, None]), "s", 1_000_000, "s"),
        (pa.array([-(2**63), 1, None]), "s", 1_000_000, "s"),
        (pa.array([HUGE, 1, None]), "ms", 1000, "ms"),
        (pa.array([2**63 - 1, 1, None]), "us", 1, "us"),
        (pa.array([-(2**63), 1, None]), "us", 1, "us"),
        (pa.array([2**64 - 1, 1, None], pa.uint64()), "us", 1, "us"),
        (pa.array([2**64 - 1, 1000, None], pa.uint64()), "ns", 1, "ns"),
        (pa.array([2**64 - 1, 1, None], pa.uint64()), "s", 1_000_000, "s"),
        (pa.array([HUGE, 1, None], pa.timestamp("s")), "", 1_000_000, "s"),
        (pa.array([HUGE, 1, None], pa.timestamp("ms", "UTC")), "", 1000, "ms"),
        (pa.array([HUGE, 1, None], pa.timestamp("us")), "", 1, "us"),
        (pa.array([2**31 - 1, 1, None], pa.int32()).cast(pa.date32()), "", 86_400_000_000, "d"),
        (pa.array([HUGE, 86_400_000, None]).cast(pa.date64()), "", 86_400_000_000, "ms"),
    ],
)
def test_times_that_do_not_fit_are_null_and_say_why(column, unit, good, counted):
    assert to_micros(column, unit).to_pylist() == [None, good, None]
    why, missing = why_unfit(column, unit, [0, 2], "event time column 'at'")
    assert why.startswith(
        f"event time column 'at': must be a time of the years 1 to 9999, in {counted} since 1970 (got "
    )
    assert missing == NO_TIME


@pytest.mark.parametrize("bad", ["nope", "99999-01-01", "2026-13-01T00:00:00", ""])
def test_texts_that_are_no_times(bad):
    column = pa.array(["2026-01-01", bad, None, "2026-01-01T00:00:01"])
    expected = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000
    assert to_micros(column).to_pylist() == [expected, None, None, expected + 1_000_000]
    (why,) = why_unfit(column, "", [1], "event time column 'at'")
    assert why.endswith(f"must be a time of the years 1 to 9999, such as 2026-01-31T12:00:00 (got {bad!r})")


@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-300_000_000_000, 300_000_000_000)),
    st.sampled_from(["s", "ms", "us"]),
)
def test_whole_numbers_are_exact_or_null(values, unit):
    factor = {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
    exact = [None if each is None or not FIRST <= each * factor <= LAST else each * factor for each in values]
    assert to_micros(pa.array(values, pa.int64()), unit).to_pylist() == exact
    assert to_micros(pa.array(values, pa.int64()).cast(pa.timestamp(unit))).to_pylist() == exact


def test_the_first_and_the_last_that_fit():
    assert to_micros(pa.array([FIRST - 1, FIRST, LAST, LAST + 1]), "us").to_pylist() == [None, FIRST, LAST, None]
    assert to_micros(pa.array([dt.date.min, dt.date.max])).to_pylist() == [FIRST, LAST + 1 - 86_400_000_000]


@pytest.mark.parametrize("values", [[1.5], [float("nan")], [float("inf")]])
def test_fractions_are_refused_whatever_they_are(values):
    with pytest.raises(InvalidError, match="must be a timestamp, a date or a whole number"):
        to_micros(pa.array(values), "s")


def test_an_unknown_unit_is_refused():
    with pytest.raises(InvalidError, match="time unit: must be s, ms, us or ns"):
        to_micros(pa.array([1]), "fortnights")


# -- sources without on_error -----------------------------------------------------------------------------


def test_what_the_hint_for_a_missing_time_says_works():
    rows = [{"a": 1, "at": None}, {"a": 2, "at": 3}]
    with pytest.raises(OperatorFailedError, match=r'value b\'{"a": 1, "at": null}\': no event time') as caught:
        Stream.from_dicts(rows, event_time="at", time_unit="s").window(tumbling(10)).sum("a").to_pylist()
    assert isinstance(caught.value.__cause__, PoisonError)
    assert ".filter(col(\"at\").is_valid()).event_time('at', unit='s')" in caught.value.hint
    mended = Stream.from_dicts(rows).filter(col("at").is_valid()).event_time("at", unit="s")
    assert [row["a"] for row in mended.window(tumbling(10)).sum("a").to_pylist()] == [2]


def test_times_that_python_cannot_show_are_shown_as_numbers():
    table = pa.table({"a": [1], "at": pa.array([HUGE], pa.timestamp("s"))})
    with pytest.raises(OperatorFailedError, match=rf'"at": {HUGE}.*event time column \'at\': must be a time') as caught:
        Stream.from_table(table, event_time="at").window(tumbling(10)).sum("a").to_pylist()
    assert ".filter(…).event_time('at')" in caught.value.hint


def test_event_time_in_the_middle_of_a_stream_names_the_value_and_the_rule():
    late = Stream.from_dicts([{"a": 1, "at": HUGE}]).filter(col("a") > 0).event_time("at", unit="s")
    with pytest.raises(
        OperatorFailedError, match=rf"'at': must be a time of the years 1 to 9999.*\(got {HUGE}"
    ) as caught:
        late.window(tumbling(5)).sum("a").to_pylist()
    assert isinstance(caught.value.__cause__, PoisonError)
    assert ".filter(" in caught.value.hint

"""Windows as users name them: what is refused, in the words that it was written in."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from shoal.core.errors import InvalidError
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import count, session, sliding, tumbling
from shoal.dataflow.errors import PlanError
from shoal.dataflow.language.windows import CountWindow, SessionWindow, SlidingWindow


def test_lengths_add_up() -> None:
    assert tumbling(1, milliseconds=500, minutes=1) == SlidingWindow(61_500_000, 61_500_000)
    assert tumbling(hours=1, days=1) == SlidingWindow(90_000_000_000, 90_000_000_000)
    assert (
        sliding(60, 10) == sliding(size_minutes=1, slide_milliseconds=10_000) == SlidingWindow(60_000_000, 10_000_000)
    )
    assert session(gap_hours=0.5) == SessionWindow(1_800_000_000)
    assert count(3) == CountWindow(3, 3)
    assert count(3, 1) == CountWindow(3, 1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tumbling(seconds=-1), "tumbling(seconds=-1): its length must be above 0, and is -1 seconds"),
        (tumbling, "tumbling(): its length must be above 0, and is 0 seconds"),
        (lambda: tumbling(minutes=1, seconds=-90), "tumbling(seconds=-90, minutes=1): its length must be above 0"),
        (lambda: tumbling("5s"), "tumbling(seconds='5s'): must be numbers"),  # type: ignore[arg-type]
        (lambda: tumbling(True), "tumbling(seconds=True): must be numbers"),
        (lambda: tumbling(float("inf")), "tumbling(seconds=inf): must be numbers that have an end"),
        (lambda: sliding(5, 10), "sliding(size_seconds=5, slide_seconds=10): must not slide by more than its size"),
        (lambda: sliding(5), "sliding(size_seconds=5): its slide must be above 0"),
        (lambda: session(gap_minutes=-2), "session(gap_minutes=-2): its gap must be above 0, and is -120 seconds"),
        (lambda: count(0), "count(size=0): must be at least 1 row"),
        (lambda: count(3, 4), "count(size=3, slide=4): must be at least 1 row, and slide by no more than its size"),
        (lambda: count(2.5), "count(size=2.5): must be whole numbers of rows"),  # type: ignore[arg-type]
        (lambda: tumbling(seconds=10**12), "tumbling(seconds=1000000000000): its length must be at most 36500 days"),
        (lambda: tumbling(days=10**15), "tumbling(days=1000000000000000): its length must be at most 36500 days"),
        (lambda: tumbling(10**310), ""),
        (lambda: session(gap_hours=10**9), "session(gap_hours=1000000000): its gap must be at most 36500 days"),
        (lambda: sliding(10**12, 10**12), "its size must be at most 36500 days"),
        (lambda: sliding(10**6, slide_milliseconds=1), "would put each row into 1,000,000,000 windows, and at most"),
        (lambda: count(10**10), "count(size=10000000000): must be at most 1,000,000,000 rows"),
        (lambda: count(10**7, 1), "count(size=10000000, slide=1): would put each row into 10,000,000 windows"),
    ],
)
def test_what_is_wrong_is_shown_as_it_was_written(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(PlanError) as raised:
        make()
    assert said in str(raised.value)
    assert re.match(r".*test_windows\.py:\d+: ", str(raised.value))


def timed() -> Stream:
    return Stream.from_dicts([{"a": 1, "at": 1}, {"a": 1, "at": 30}], event_time="at", time_unit="s")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: timed().event_time("at", unit="s", disorder=10**12), "disorder"),
        (lambda: timed().event_time("at", unit="s", disorder=1e300), "disorder"),
        (lambda: timed().event_time("at", unit="s", idle_after=timedelta.max), "idle_after"),
        (lambda: timed().window(tumbling(1), allowed_lateness=10**10), "allowed_lateness"),
        (lambda: timed().window(tumbling(1), early_every=10**10), "early_every"),
        (lambda: timed().distinct("a", ttl=10**10), "ttl"),
        (lambda: timed().join(timed(), on="a", ttl=10**10), "ttl"),
        (lambda: timed().join(timed(), on="a", within=(0, 10**11)), "within"),
        (lambda: timed().interval_join(timed(), on="a", lower_bound=0, upper_bound=10**15), "upper_bound"),
        (lambda: timed().asof_join(timed(), on="a", tolerance=10**10), "tolerance"),
        (lambda: timed().event_time("at", unit="s", disorder="99999999h"), "disorder"),
    ],
)
def test_no_length_of_time_is_longer_than_a_century(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(PlanError, match=rf"test_windows\.py:\d+: {field}: must be .*at most 36500 days"):
        make()


def test_the_longest_windows_work() -> None:
    (row,) = timed().window(tumbling(days=36_500)).count().to_pylist()
    assert row["count"] == 2
    (row,) = timed().window(session(gap_hours=36_500 * 24)).count().to_pylist()
    assert row["count"] == 2


def test_windows_of_plans_from_elsewhere_have_the_same_bounds() -> None:
    for make in (
        lambda: SlidingWindow(10**18, 10**18),
        lambda: SlidingWindow(10**12, 1),
        lambda: SessionWindow(10**18),
        lambda: CountWindow(10**12, 10**12),
        lambda: CountWindow(10**8, 1),
    ):
        with pytest.raises(InvalidError, match=r"at most|<= 1,000,000,000"):
            make()


@pytest.mark.parametrize(
    "make", [Stream.from_dicts, lambda rows, **time: Stream.from_table(pa.Table.from_pylist(rows), **time)]
)
def test_whole_numbers_of_any_unit_are_times(make):
    rows = [{"at": 9, "n": 1}, {"at": 10, "n": 2}]
    counted = make(rows, event_time="at", time_unit="s").window(tumbling(seconds=10)).sum("n", "total")
    assert [row["total"] for row in counted.to_pylist()] == [1, 2]

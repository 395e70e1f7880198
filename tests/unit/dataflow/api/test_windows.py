"""Windows as users name them: what is refused, in the words that it was written in."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from shoal.dataflow.api.stream import Stream
from shoal.dataflow.api.windows import count, session, sliding, tumbling
from shoal.dataflow.language.errors import PlanError
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
    ],
)
def test_what_is_wrong_is_shown_as_it_was_written(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(PlanError) as raised:
        make()
    assert said in str(raised.value)
    assert re.match(r".*test_windows\.py:\d+: ", str(raised.value))


@pytest.mark.parametrize(
    "make", [Stream.from_dicts, lambda rows, **time: Stream.from_table(pa.Table.from_pylist(rows), **time)]
)
def test_whole_numbers_of_any_unit_are_times(make):
    rows = [{"at": 9, "n": 1}, {"at": 10, "n": 2}]
    counted = make(rows, event_time="at", time_unit="s").window(tumbling(seconds=10)).sum("n", "total")
    assert [row["total"] for row in counted.to_pylist()] == [1, 2]

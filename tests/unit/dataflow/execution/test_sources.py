"""Watermarks of splits, times of columns, rows that cannot be read."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.connectors.memory import IterableSource
from shoal.dataflow.errors import OperatorFailedError
from shoal.dataflow.execution import engine
from shoal.dataflow.execution.coordinator.splits import assign_splits
from shoal.dataflow.execution.event_time import Watermarks, to_micros
from shoal.dataflow.execution.sources import BatchSize, SourceDriver, SourceShare
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME
from shoal.dataflow.language.functions import make_ref
from shoal.dataflow.language.logical import EventTime, OnError, SideOutput, Source
from shoal.dataflow.settings import FlowSettings
from tests.unit.dataflow.execution.flows import SCHEMA, Tap, collect, rows, tap_source, window_sums

A, B, C = Split("a"), Split("b"), Split("c")
TIME = EventTime("t", disorder=5, idle_after=10_000_000)


def test_the_watermark_is_the_greatest_time_less_the_disorder():
    marks = Watermarks(TIME, [A], 0.0)
    marks.saw(A, 100, 1.0)
    assert marks.current(1.0) == (95, False)
    marks.saw(A, 40, 2.0)  # it never goes back
    assert marks.current(2.0) == (95, False)


def test_a_split_that_was_not_heard_of_holds_it_back():
    marks = Watermarks(TIME, [A, B], 0.0)
    marks.saw(A, 100, 1.0)
    assert marks.current(1.0) == (START_OF_TIME, False)
    marks.saw(B, 50, 2.0)
    assert marks.current(2.0) == (45, False)


def test_an_idle_split_does_not_and_counts_again_when_it_is_back():
    marks = Watermarks(TIME, [A, B], 0.0)
    marks.saw(A, 100, 9.0)
    assert marks.current(10.0) == (95, False)
    marks.saw(B, 50, 11.0)
    assert marks.current(11.0) == (95, False)  # it does not go back for it
    marks.saw(A, 200, 12.0)
    assert marks.current(12.0) == (95, False)


def test_it_stands_still_when_all_are_idle():
    marks = Watermarks(TIME, [A], 0.0)
    marks.saw(A, 100, 1.0)
    assert marks.current(1.0) == (95, False)
    assert marks.current(50.0) == (95, True)
    assert Watermarks(TIME, [], 0.0).current(0.0) == (START_OF_TIME, True)


def test_an_ended_split_does_not_count():
    marks = Watermarks(TIME, [A, B], 0.0)
    marks.saw(A, 100, 1.0)
    marks.end(B)
    assert marks.current(1.0) == (95, False)


def test_never_idle_when_the_user_said_so():
    marks = Watermarks(EventTime("t", idle_after=0), [A], 0.0)
    assert marks.current(1e9) == (START_OF_TIME, False)


def test_a_split_that_is_not_at_its_end_is_not_idle():
    marks = Watermarks(TIME, [A, B], 0.0, confirms=True)
    marks.saw(A, 100, 1.0)
    for now in (5.0, 11.0, 30.0):
        marks.saw(A, 100, now)
        assert marks.see_ends({"a"}, now) == []
        assert marks.current(now) == (START_OF_TIME, False)


def test_a_split_is_idle_when_it_was_at_its_end_all_the_time_and_that_was_confirmed():
    marks = Watermarks(TIME, [A, B], 0.0, confirms=True)
    marks.see_ends({"a"}, 4.0)  # b is not
    marks.saw(A, 100, 13.0)
    assert marks.see_ends({"a", "b"}, 13.0) == []
    assert marks.see_ends({"a", "b"}, 14.0) == ["b"]
    assert marks.current(14.0) == (START_OF_TIME, False)  # it was not confirmed yet
    marks.confirm(["b"], {"b"}, 14.0)
    assert marks.current(14.0) == (95, False)
    assert marks.see_ends({"a", "b"}, 15.0) == []  # not every time
    marks.saw(A, 200, 24.0)
    assert marks.see_ends({"a", "b"}, 24.0) == ["b"]


def test_a_split_that_nobody_confirms_is_waited_for_anew():
    marks = Watermarks(TIME, [A], 0.0, confirms=True)
    assert marks.see_ends({"a"}, 10.0) == ["a"]
    marks.confirm(["a"], set(), 10.0)
    assert marks.see_ends({"a"}, 19.0) == []
    assert marks.see_ends({"a"}, 20.0) == ["a"]
    marks.confirm(["a"], {"a"}, 20.0)
    assert marks.current(20.0) == (START_OF_TIME, True)
    marks.confirm(["a"], set(), 30.0)  # its leader is gone
    assert marks.current(30.0) == (START_OF_TIME, False)


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.integers(-1000, 1000), st.floats(0, 30), st.booleans()), max_size=30
    )
)
def test_whatever_comes_it_is_monotone_and_never_ahead_of_a_split_that_counts(script):
    marks = Watermarks(TIME, [A, B, C], 0.0)
    now, before = 0.0, START_OF_TIME
    greatest: dict[Split, int] = {}
    heard = dict.fromkeys((A, B, C), 0.0)
    for split, time, pause, ends in script:
        now += pause
        if ends and len(heard) > 1:
            marks.end(split)
            heard.pop(split, None)
        elif split in heard:
            marks.saw(split, time, now)
            greatest[split] = max(time, greatest.get(split, START_OF_TIME))
            heard[split] = now
        current, _idle = marks.current(now)
        assert current >= before
        active = [each for each, at in heard.items() if now - at < 10]
        if current > before:
            assert current <= min(greatest[each] - 5 for each in active)
        before = current


@given(st.integers(0, 40), st.integers(1, 12))
def test_every_split_is_read_by_one_task(count, parallelism):
    splits = [Split(str(each)) for each in range(count)]
    shared = assign_splits(splits, parallelism).by_task
    assert len(shared) == parallelism
    assert sorted((each for share in shared for each in share), key=lambda each: int(each.name)) == splits
    sizes = [len(share) for share in shared]
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.sets(st.integers(0, 20)), max_size=6), st.integers(1, 5))
def test_splits_that_appear_later_move_no_other_and_each_is_sent_once(looks, parallelism):
    now = assign_splits([], parallelism)
    sent = [[] for _ in range(parallelism)]
    for look in looks:
        after = now.add([Split(str(each)) for each in look])
        for task, new in enumerate(after.since(now)):
            sent[task] += new
        now = after
    assert [list(each) for each in now.by_task] == sent
    assert {int(split.name) for split in now.known} == {each for look in looks for each in look}
    assert len({split.name for split in now.known}) == len(now.known)


MOMENT = dt.datetime(2024, 5, 1, 12, 30, 15, 123456, tzinfo=dt.UTC)
MICROS = 1714566615123456


@pytest.mark.parametrize(
    ("column", "unit", "expected"),
    [
        (pa.array([MOMENT], pa.timestamp("us")), "", MICROS),
        (pa.array([MOMENT], pa.timestamp("ns", "UTC")), "", MICROS),
        (pa.array([MOMENT], pa.timestamp("ms")), "", MICROS // 1000 * 1000),
        (pa.array([MOMENT.date()], pa.date32()), "", 1714521600000000),
        (pa.array([MICROS], pa.int64()), "us", MICROS),
        (pa.array([MICROS * 1000], pa.int64()), "ns", MICROS),
        (pa.array([1714566615], pa.uint32()), "s", 1714566615000000),
        (pa.array([1714566615123], pa.int64()), "ms", 1714566615123000),
        (pa.array(["2024-05-01T12:30:15.123456"]), "", MICROS),
    ],
)
def test_times_of_all_kinds_become_microseconds(column, unit, expected):
    assert to_micros(column, unit).to_pylist() == [expected]


def test_what_is_no_time_is_refused():
    with pytest.raises(InvalidError, match="must be a timestamp"):
        to_micros(pa.array([1.5]))


def test_batches_are_sized_by_their_bytes():
    size = BatchSize(FlowSettings(batch_rows=1000, batch_bytes=8000))
    assert size.rows == 1000
    size.saw(pa.record_batch({"x": pa.array(range(10), pa.int64()), "y": pa.array(range(10), pa.int64())}))
    assert size.rows == 500
    wide = BatchSize(FlowSettings(batch_rows=1000, batch_bytes=10))
    wide.saw(pa.record_batch({"x": ["a" * 1000]}))
    assert wide.rows == 1


def poisoned(policy: OnError) -> Source:
    items = [{"key": "a", "value": 1, "time": 1}, {"key": "a", "value": "many", "time": 2}, {"key": "a", "value": 3}]
    connector = IterableSource(make_ref(lambda: items), schema=SCHEMA, replayable=True, on_error=policy)
    return Source(connector=connector, schema=SCHEMA, time=EventTime("time", unit="us"), uid="in")


def test_rows_that_cannot_be_read_fail_the_run():
    with pytest.raises(OperatorFailedError, match="source"):
        engine.run([collect(window_sums(poisoned(OnError.FAIL)))])


def test_or_they_are_skipped_and_counted():
    report = engine.run([collect(window_sums(poisoned(OnError.SKIP)))])
    assert report.tables["out"].to_pylist() == [{"key": "a", "start": 0, "total": 1}]
    assert next(each.statistics for each in report.steps if each.uid == "in") == {"skipped": 2}


def test_or_put_out_on_the_side():
    source = poisoned(OnError.SIDE)
    side = SideOutput(inputs=(source,), tag="errors")
    report = engine.run([collect(window_sums(source)), collect(side, "bad")])
    unread = "Could not convert 'many' with type str: tried to convert to int64 (got 'many')"
    bad = report.tables["bad"].select(["split", "error"]).to_pylist()
    assert [each["split"] for each in bad] == ["0", "0"]
    assert bad[0]["error"].endswith(f"value: cannot be a column of int64: {unread}")
    assert bad[1]["error"] == "no event time"


def test_the_end_of_a_bounded_source_is_the_end_of_time():
    report = engine.run([collect(window_sums(poisoned(OnError.SKIP)))])
    assert {each.watermark for each in report.steps} == {END_OF_TIME}


def test_a_driver_says_once_that_it_was_woken():
    tap = Tap()
    share = SourceShare(tap_source(tap), SCHEMA, (Split("0"),), needs_time=False)
    driver = SourceDriver(share, FlowSettings(), SystemClock())
    assert not driver.was_woken()
    driver.wake()  # before there is a reader
    assert driver.was_woken()
    assert not driver.was_woken()
    driver.open()
    driver.wake()
    driver.wake()
    assert driver.was_woken()
    assert not driver.was_woken()
    driver.close()
    driver.wake()
    assert driver.was_woken()


def test_a_task_that_was_woken_without_an_order_does_not_oversleep_rows():
    tap = Tap()
    flow = engine.start([collect(tap_source(tap))], settings=FlowSettings(poll=60))
    (task,) = flow._hosts._host._tasks.values()
    tap.give(rows(("a", 1, 1)))
    tap.wait_fetched(1)
    task.mailbox.interrupt()  # as the end of `put` does, when the order was found before it
    tap.wait_empty(1)
    tap.give(rows(("b", 2, 2)))
    tap.wait_fetched(2)  # or the task waits for orders for a minute
    report = flow.stop(finish=True)
    assert report.tables["out"]["key"].to_pylist() == ["a", "b"]

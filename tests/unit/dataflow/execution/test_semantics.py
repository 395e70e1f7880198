"""What whole programs promise: no row is lost in silence, windows close by themselves, results that change say how."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import session, tumbling
from shoal.dataflow.connectors.memory import BatchesSource, CollectSink
from shoal.dataflow.execution import engine
from shoal.dataflow.language.expressions.trees import col, lit
from shoal.dataflow.language.functions import add_blobs
from shoal.dataflow.language.logical import Node, Sink
from shoal.dataflow.language.windows import SECOND, SlidingWindow
from shoal.dataflow.plan.documents import read_plan, write_plan
from shoal.dataflow.settings import FlowSettings
from tests.unit.dataflow.blobs import forget_blobs
from tests.unit.dataflow.execution.flows import SCHEMA, Tap, TapSource, collect, rows
from tests.unit.dataflow.execution.timed_plans import Flow, ends_of, timed_plans

TEN = tumbling(milliseconds=0.01)

events = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9), st.integers(0, 100)), min_size=1, max_size=60)


def stream_of(found: list[tuple[str, int, int]], size: int, disorder: int) -> Stream:
    batches = tuple(rows(*found[at : at + size]) for at in range(0, len(found), size))
    return Stream.from_source(
        BatchesSource(batches), schema=SCHEMA, event_time="time", time_unit="us", disorder=disorder / SECOND
    )


def tapped(tap: Tap, *, bounded: bool = False) -> Stream:
    return Stream.from_source(TapSource(tap, bounded), schema=SCHEMA, event_time="time", time_unit="us")


def run(*streams: Stream, width: int = 1, batch_rows: int = 16_384) -> engine.RunReport:
    plan = [collect(stream.node, f"out{number}") for number, stream in enumerate(streams)]
    return engine.run(plan, parallelism=width, settings=FlowSettings(batch_rows=batch_rows))


def values(report: engine.RunReport, *names: str, of: str = "out0") -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in report.tables[of].to_pylist()]


# -- every row is somewhere ---------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(events, st.integers(1, 9), st.integers(0, 30), st.sampled_from([1, 3]), st.sampled_from(["ten", "session"]))
def test_every_row_is_in_a_window_or_on_the_side(found, size, disorder, width, kind):
    window = TEN if kind == "ten" else session(gap_milliseconds=0.005)
    counted = stream_of(found, size, disorder).key_by("key").window(window).aggregate(n=("*", "count"))
    report = run(counted, counted.side_output("late"), width=width, batch_rows=size)
    late = values(report, "key", "value", "time", of="out1")
    assert sum(count for (count,) in values(report, "n")) + len(late) == len(found)
    remaining = list(found)
    for row in late:
        remaining.remove(row)
    if kind == "ten":
        expected: dict[tuple[str, int], int] = {}
        for key, _value, time in remaining:
            expected[key, time // 10 * 10] = expected.get((key, time // 10 * 10), 0) + 1
        assert sorted(expected.values()) == sorted(count for (count,) in values(report, "n"))


@settings(max_examples=15, deadline=None)
@given(events, st.integers(1, 9), st.integers(0, 20), st.sampled_from([1, 3]))
def test_late_rows_that_nobody_reads_are_counted(found, size, disorder, width):
    """Also where rows were put together before the exchange."""
    counted = stream_of(found, size, disorder).key_by("key").window(TEN).aggregate(n=("*", "count"))
    report = run(counted.uid("windows"), width=width, batch_rows=size)
    late = sum(each.statistics.get("late", 0) for each in report.steps if each.uid == "windows")
    assert sum(count for (count,) in values(report, "n")) + late == len(found)


@settings(max_examples=25, deadline=None)
@given(events, events, st.booleans(), st.integers(1, 9), st.sampled_from([1, 3]), st.sampled_from(["window", "within"]))
def test_every_row_of_a_join_meets_its_partners_or_is_on_the_side(  # noqa: PLR0917  as it is drawn
    lefts, rights, is_sorted, size, width, kind
):
    if is_sorted:
        lefts, rights = (sorted(each, key=lambda row: row[2]) for each in (lefts, rights))
    left = stream_of(lefts, size, 0).with_columns(side=lit("left"))
    right = stream_of(rights, size, 0)
    how = {"window": TEN} if kind == "window" else {"within": (3 / SECOND, 7 / SECOND)}
    joined = left.join(right, on="key", **how)
    counted = joined.side_output("late_right").group_by("key").aggregate(n=("*", "count"))
    report = run(
        joined, joined.side_output("late"), joined.side_output("late_right"), counted, width=width, batch_rows=size
    )
    given, put_aside = [list(lefts), list(rights)], []
    for number in (1, 2):
        aside = values(report, "key", "value", "time", of=f"out{number}")
        put_aside.append(aside)
        for row in aside:
            given[number - 1].remove(row)
    expected = [
        (one[0], one[1], one[2], other[1], other[2])
        for one in given[0]
        for other in given[1]
        if one[0] == other[0] and _belong(one[2], other[2], kind)
    ]
    found = values(report, "key", "value", "time", "value_right", "time_right")
    if kind == "window" or is_sorted:
        assert sorted(found) == sorted(expected)
    else:  # a row that is behind the watermark, but not altogether late, meets those of its partners that are left
        assert Counter(found) <= Counter(expected)
    assert not (is_sorted and any(put_aside))
    assert all(row["side"] == "left" for row in report.tables["out1"].to_pylist())
    assert dict(values(report, "key", "n", of="out3")) == Counter(row[0] for row in put_aside[1])


def _belong(left: int, right: int, kind: str) -> bool:
    return left // 10 == right // 10 if kind == "window" else 3 <= right - left <= 7


def test_a_row_is_given_to_those_of_its_windows_that_are_open():
    """It is late for one of two: it counts in the other, and is not put aside."""
    found = [("a", 1, 20), ("a", 1, 30), ("a", 1, 25)]
    window = SlidingWindow(20, 10)
    counted = stream_of(found, 1, 0).key_by("key").window(window).aggregate(n=("*", "count"))
    report = run(counted, counted.side_output("late"), batch_rows=1)
    assert values(report, "key", of="out1") == []
    assert ends_of(window, 25) == [40, 30]
    assert sorted(count for (count,) in values(report, "n")) == [1, 1, 3]


# -- windows close by themselves ----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3])
def test_a_window_closes_without_another_row_of_its_key(width):
    tap, closed = Tap(), threading.Event()
    seen: list[tuple[str, int]] = []

    def note(batch: Any) -> None:
        seen.extend(zip(batch["key"].to_pylist(), batch["n"].to_pylist(), strict=True))
        closed.set()

    stream = tapped(tap).key_by("key").window(TEN).aggregate(n=("*", "count")).to_callback(note)
    flow = engine.start([stream.node], parallelism=width)
    tap.give(rows(("a", 1, 1), ("a", 1, 9)))
    tap.give(rows(("b", 1, 10)))  # another key, as late as the window's end
    assert closed.wait(10)
    assert seen == [("a", 2)]
    flow.abort()


class Held:
    """An operator of a user's own that gives its rows when event time has passed them, and the rest at the end."""

    def __init__(self):
        self.rows = []

    def process_batch(self, batch):
        self.rows += batch.to_pylist()

    def on_watermark(self, time):
        return self.take(time)

    def finish(self):
        return self.take(2**62)

    def take(self, time):
        due = [row for row in self.rows if row["time"] < time]
        self.rows = [row for row in self.rows if row["time"] >= time]
        return pa.RecordBatch.from_pylist(due, schema=SCHEMA) if due else None


@pytest.mark.parametrize("width", [1, 2])
def test_rows_that_an_operator_gives_later_are_not_late(width):
    found = [("a", 1, 1), ("b", 1, 2), ("a", 1, 30), ("b", 1, 95)]
    held = stream_of(found, 1, 0).apply(Held, schema=SCHEMA)
    counted = held.window(TEN).aggregate(n=("*", "count"))
    report = run(counted, counted.side_output("late"), width=width, batch_rows=1)
    assert report.tables["out1"].num_rows == 0
    assert sum(count for (count,) in values(report, "n")) == 4


def test_rows_without_a_partner_are_not_late_for_a_window_behind():
    left, right = stream_of([("a", 1, 1), ("b", 1, 2)], 1, 0), stream_of([("a", 1, 3)], 1, 0)
    counted = left.join(right, on="key", how="left").window(TEN).group_by("key").aggregate(n=("*", "count"))
    for width in (1, 3):
        assert sorted(values(run(counted, width=width), "key", "n")) == [("a", 1), ("b", 1)]


# -- results that change ------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(events, st.integers(1, 9), st.sampled_from([1, 3]))
def test_changes_of_an_endless_aggregate_lead_to_its_result(found, size, width):
    tap = Tap()
    for at in range(0, len(found), size):
        tap.give(rows(*found[at : at + size]))
    changes = tapped(tap).group_by("key").aggregate(total=("value", "sum"), n=("*", "count")).changes_as_rows("op")
    flow = engine.start([collect(changes.node)], parallelism=width)
    tap.wait_fetched(len(tap.batches["0"]))
    report = flow.stop()
    table: dict[str, tuple[int, int]] = {}
    ever: set[str] = set()
    for row in report.tables["out"].to_pylist():
        result = (row["total"], row["n"])
        if row["op"] == "-U":
            assert table.pop(row["key"]) == result
        else:
            assert row["op"] == ("+U" if row["key"] in ever else "+I")
            assert row["key"] not in table
            table[row["key"]] = result
            ever.add(row["key"])
    expected = {
        key: (sum(value for other, value, _t in found if other == key), sum(other == key for other, _v, _t in found))
        for key, _value, _time in found
    }
    assert table == expected


def test_changes_can_be_filtered_and_renamed_and_still_add_up():
    tap = Tap()
    tap.give(rows(("a", 1, 1), ("b", 5, 1)))
    tap.give(rows(("a", 2, 2)))
    changes = tapped(tap).group_by("key").aggregate(total=("value", "sum"))
    changes = changes.filter(col("total") < 5).select(k=col("key"), t=col("total") * 10).changes_as_rows("op")
    flow = engine.start([collect(changes.node)], parallelism=2)
    tap.wait_fetched(2)
    found = flow.stop().tables["out"].to_pylist()
    assert [(row["op"], row["k"], row["t"]) for row in found] == [("+I", "a", 10), ("-U", "a", 10), ("+U", "a", 30)]


# -- plans that were written down ---------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(flow=timed_plans(), width=st.sampled_from([1, 3]))
def test_a_plan_that_was_written_down_runs_the_same(flow: Flow, width: int) -> None:
    out = flow.stream.select("key", "value", "time").records().map(plus_nothing, schema=SCHEMA)
    found: list[tuple[Any, ...]] = []
    document = write_plan([out.to_callback(print).uid("out").node])
    (read,) = read_plan(document.to_json(), document.blobs)
    plan: list[Node] = [Sink(inputs=read.inputs, connector=CollectSink(), uid="out")]
    add_blobs(document.blobs)
    try:
        report = engine.run(plan, parallelism=width)
    finally:
        forget_blobs(list(document.blobs))
    found = [tuple(row.values()) for row in report.tables["out"].to_pylist()]
    expected = [(row["key"], row["value"], row["time"]) for _time, row in flow.rows]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def plus_nothing(record: Any) -> dict[str, Any]:
    """An opaque function, which travels as a blob."""
    return {"key": record.key, "value": record.value, "time": record.time}

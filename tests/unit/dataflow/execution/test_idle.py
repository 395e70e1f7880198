"""Which splits hold the watermark back: slow ones do, empty ones do not; and splits that came while a job was down."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal import App, PlanError, Stream
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.execution import engine
from shoal.dataflow.execution.sources import SourceDriver, SourceShare
from shoal.dataflow.language.elements import START_OF_TIME
from shoal.dataflow.language.logical import EventTime, Source
from shoal.dataflow.operators.base import StepOperator
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from tests.unit.dataflow.execution.flows import (
    SCHEMA,
    Tap,
    TapReader,
    TapSource,
    collect,
    custom,
    rows,
    window_sums,
)
from tests.unit.dataflow.operators.driving import HandClock

SECOND = 1_000_000
FIVE = EventTime("time", unit="us")


class TailingTap(Tap):
    """A tap whose splits may have rows that do not come out yet, and whose other side may be away."""

    def __init__(self, splits: int = 2) -> None:
        super().__init__(splits)
        self.stuck: set[str] = set()
        self.away: set[str] = set()


@dataclass(frozen=True, slots=True)
class TailingSource(TapSource):
    def open_reader(self, splits: Sequence[Split], schema: pa.Schema, *, clock: Any) -> TailingTapReader:
        return TailingTapReader(self.tap, splits)


class TailingTapReader(TapReader):
    def at_end(self) -> Collection[str]:
        return [name for name, at in self._at.items() if at >= len(self._tap.batches[name]) and name not in self.stuck]

    def confirm_end(self, splits: Collection[str]) -> Collection[str]:
        return [name for name in splits if name not in self._tap.away]

    @property
    def stuck(self) -> set[str]:
        return self._tap.stuck


class Out:
    def emit(self, batch: pa.RecordBatch) -> None:
        raise AssertionError("nothing is emitted here")

    emit_side = emit


class Reading:
    """A driver over two splits, driven by hand in virtual time."""

    def __init__(self, tap: Tap, time: EventTime = FIVE, *, connector: type = TailingSource, bounded: bool = False):
        self.tap, self.clock = tap, HandClock()
        node = Source(connector=connector(tap, bounded), schema=SCHEMA, time=time)
        splits = tuple(node.connector.find_splits())
        share = SourceShare(node, SCHEMA, splits, needs_time=True)
        self.driver = SourceDriver(share, FlowSettings(), self.clock)
        self.driver.open()

    def live(self, seconds: float) -> int:
        """So many seconds in which split 0 brings a row ten times a second. Gives the watermark."""
        for _ in range(round(seconds * 10)):
            now = self.clock.advance(SECOND // 10)
            self.tap.give(rows(("a", 1, now)), "0")
            self.driver.fetch(Out(), timeout=0.0)
            watermark, _idle = self.driver.watermark()
        return watermark


def test_an_empty_split_holds_nothing_back_after_the_time_that_was_said():
    reading = Reading(TailingTap())
    assert reading.live(4.5) == START_OF_TIME
    assert reading.live(1.0) == reading.clock.micros


def test_a_split_that_is_slow_is_waited_for():
    """Its rows are there, and come later: they are not late."""
    reading = Reading(TailingTap())
    reading.tap.stuck = {"1"}
    assert reading.live(30.0) == START_OF_TIME
    reading.tap.stuck = set()
    assert reading.live(4.5) == START_OF_TIME  # it has to stay empty for the whole time
    assert reading.live(1.0) > START_OF_TIME


def test_a_split_whose_leader_does_not_answer_is_waited_for():
    reading = Reading(TailingTap())
    reading.tap.away = {"1"}
    assert reading.live(30.0) == START_OF_TIME
    reading.tap.away = set()
    assert reading.live(6.0) > START_OF_TIME


def test_a_split_that_was_idle_holds_back_again_when_its_leader_goes_away():
    reading = Reading(TailingTap())
    idle = reading.live(6.0)
    reading.tap.away = {"1"}
    stopped = reading.live(6.0)
    assert idle < stopped
    assert reading.live(4.0) == stopped


def test_never_is_never():
    reading = Reading(TailingTap(), EventTime("time", unit="us", idle_after=0))
    assert reading.live(60.0) == START_OF_TIME


def test_of_a_reader_that_cannot_tell_silence_is_all_that_is_known():
    assert Reading(Tap(2), connector=TapSource).live(6.0) > START_OF_TIME


@pytest.mark.parametrize("connector", [TapSource, TailingSource])
def test_a_split_that_has_an_end_is_never_idle_before_it(connector):
    reading = Reading(TailingTap(), connector=connector, bounded=True)
    assert reading.live(60.0) == START_OF_TIME


def test_event_time_named_behind_a_slow_source_is_not_idle_either():
    """The step that names event time sees no rows. Whether there are any the source knows."""
    slow, busy, closed = TailingTap(1), Tap(), threading.Event()

    class Tell(StepOperator):
        def process(self, batch, out, *, port=0):
            closed.set()

    slow.stuck = {"0"}
    timed = {"event_time": "time", "time_unit": "us", "idle_after": 0.02}
    plain = Stream.from_source(TailingSource(slow)).uid("slow").map(lambda batch: batch, schema=SCHEMA)
    named = plain.event_time("time", unit="us", idle_after=0.02)
    both = named.union(Stream.from_source(TapSource(busy), **timed).uid("busy")).node
    flow = engine.start([collect(custom(window_sums(both), Tell))], parallelism=1)
    busy.give(rows(("a", 1, 1)))
    busy.give(rows(("a", 1, 30)))
    slow.wait_empty(20)  # many times as long as idle_after
    assert not closed.is_set()
    slow.stuck = set()
    for each in range(200):  # when both are idle time stands still
        busy.give(rows(("a", 1, 60 + each)))
        slow.wait_empty(slow.empty + 1)
        if closed.is_set():
            break
    assert closed.is_set()
    flow.abort()


# -- as users say it --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "micros"), [({}, 5 * SECOND), ({"idle_after": "1m"}, 60 * SECOND), ({"idle_after": None}, 0)]
)
def test_topics_say_after_how_long_a_partition_is_idle(tmp_path, said, micros):
    app = App("idle", data_dir=str(tmp_path))
    app.topic("orders", schema={"n": "int64"}, **said)
    assert app.stream("orders").node.time.idle_after == micros
    assert app.stream("others", schema=pa.schema({"n": pa.int64()}), **said).node.time.idle_after == micros


@pytest.mark.parametrize(("said", "micros"), [("10s", 10 * SECOND), (None, 0)])
def test_a_stream_may_say_something_else_than_its_topic(tmp_path, said, micros):
    app = App("idle", data_dir=str(tmp_path))
    app.topic("orders", schema={"n": "int64"}, idle_after="1m")
    assert app.stream("orders", idle_after=said).node.time.idle_after == micros


@pytest.mark.parametrize("said", [0, "0s", -1, "soon", True])
def test_what_is_no_length_of_time_is_refused(tmp_path, said):
    app = App("idle", data_dir=str(tmp_path))
    with pytest.raises(PlanError, match="idle_after"):
        app.topic("orders", schema={"n": "int64"}, idle_after=said)
    with pytest.raises(PlanError, match="idle_after"):
        app.stream("orders", schema=pa.schema({"n": pa.int64()}), idle_after=said)


# -- splits that are new ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LatestSource(TapSource):
    """Begins with what comes from now on, as `start="latest"` does."""

    def open_reader(self, splits: Sequence[Split], schema: pa.Schema, *, clock: Any) -> LatestReader:
        return LatestReader(self.tap, splits)


class LatestReader(TapReader):
    def __init__(self, tap: Tap, splits: Sequence[Split]) -> None:
        super().__init__(tap, splits)
        self._at = {name: len(tap.batches[name]) for name in self._at}

    def add(self, splits: Sequence[Split]) -> None:
        self._at |= {split.name: 0 for split in splits}

    def places(self) -> dict[str, int]:
        return dict(self._at)


def run_latest(tap: Tap, directory: Path, value: int, fetches: int) -> list[int]:
    """One life of the job, with one row while it runs: what it reads until the tap has given so many batches in all."""
    source = Source(connector=LatestSource(tap), schema=SCHEMA, uid="in")
    settings = FlowSettings(checkpoint=CheckpointSettings(directory=str(directory), interval=60))
    flow = engine.start([collect(source)], name="latest", settings=settings)
    tap.wait_empty(tap.empty + 1)
    tap.give(rows(("live", value, 1)), "0")
    tap.wait_fetched(fetches)
    return sorted(flow.stop(timeout=20).tables["out"]["value"].to_pylist())


def test_a_split_that_came_while_the_job_was_down_is_read_from_its_start(tmp_path):
    tap = Tap()
    tap.give(rows(("old", 1, 1)))
    assert run_latest(tap, tmp_path, 100, 1) == [100]
    tap.give(rows(("missed", 2, 2)), "0")
    tap.batches["1"] = [rows(("new", 3, 3))]
    assert run_latest(tap, tmp_path, 101, 4) == [2, 3, 101]

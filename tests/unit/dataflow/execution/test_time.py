"""The time of day, idle inputs, and inputs of several ports."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from shoal.core.errors import InvalidError
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.execution import engine
from shoal.dataflow.execution.alignment import AlignedInbox, Idle
from shoal.dataflow.execution.chain import Router
from shoal.dataflow.execution.event_time import Silence, Watermarks
from shoal.dataflow.language.elements import END_OF_TIME, START_OF_TIME, Watermark
from shoal.dataflow.language.logical import EventTime, Source, Union
from shoal.dataflow.operators.base import OperatorState, StepOperator
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from tests.unit.dataflow.execution.flows import (
    SCHEMA,
    Tap,
    TapReader,
    TapSource,
    collect,
    custom,
    rows,
    sums_of,
    table_source,
    tap_source,
    window_sums,
)
from tests.unit.dataflow.operators.driving import HandClock

SOON = EventTime("time", unit="us", idle_after=20_000)


class Echo(StepOperator):
    """Puts out the rows of a batch a little later, when it is called for the time."""

    def open(self, context):
        self._clock = context.clock
        self._held = None
        self._due = None

    def process(self, batch, out, *, port=0):
        self._held = batch
        self._due = int(self._clock.wall().timestamp() * 1_000_000) + 5_000

    def next_tick(self):
        return self._due

    def on_tick(self, now, out):
        assert now >= self._due
        held, self._held, self._due = self._held, None, None
        out.emit(held)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_operators_are_called_when_their_time_has_come(parallelism):
    came, tap = threading.Event(), Tap()

    class Tell(StepOperator):
        def process(self, batch, out, *, port=0):
            came.set()

    node = custom(custom(tap_source(tap), Echo, keys=("key",)), Tell)
    flow = engine.start([collect(node)], parallelism=parallelism)
    tap.give(rows(("a", 1, 1)))
    assert came.wait(10)
    flow.stop()


def test_a_silent_input_does_not_hold_windows_open_for_ever():
    silent, busy, closed = Tap(), Tap(), threading.Event()

    class Tell(StepOperator):
        def process(self, batch, out, *, port=0):
            closed.set()

    both = Union(inputs=(tap_source(silent, time=SOON, uid="silent"), tap_source(busy, time=SOON, uid="busy")))
    flow = engine.start([collect(custom(window_sums(both), Tell))], parallelism=2)
    busy.give(rows(("a", 1, 1), ("b", 1, 2)))
    busy.give(rows(("a", 1, 30)))
    assert closed.wait(10)
    flow.abort()


def test_an_input_that_ended_does_not_hold_windows_open():
    ended, busy = Tap(), Tap()
    ended.give(rows(("a", 1, 3)))
    ended.close()
    never = EventTime("time", unit="us", idle_after=0)
    both = Union(
        inputs=(tap_source(ended, time=never, bounded=True, uid="ended"), tap_source(busy, time=never, uid="busy"))
    )
    flow = engine.start([collect(window_sums(both))])
    busy.give(rows(("a", 1, 4), ("a", 1, 30)))
    busy.wait_fetched(1)
    assert sums_of(flow.stop().tables["out"]) == [("a", 0, 2)]


class Ports(StepOperator):
    """Notes what it hears of each of its inputs."""

    heard: ClassVar[dict[str, list]] = {}

    def process(self, batch, out, *, port=0):
        self.heard.setdefault(f"rows {port}", []).append(batch.num_rows)

    def on_port_watermark(self, time, port, out):
        self.heard.setdefault(f"time {port}", []).append(time)

    def on_port_end(self, port, out):
        self.heard.setdefault("ends", []).append(port)

    def on_end(self, out):
        self.heard.setdefault("ends", []).append("all")


def test_each_input_is_heard_of_by_itself():
    Ports.heard = {}
    one, other = (
        table_source(rows(("a", 1, 5), ("a", 1, 6)), EventTime("time", unit="us")),
        table_source(rows(("a", 1, 7), ("b", 1, 9)), EventTime("time", unit="us")),
    )
    engine.run([collect(custom(one, Ports, other))], settings=FlowSettings(batch_rows=1))
    heard = Ports.heard
    assert (heard["rows 0"], heard["rows 1"]) == ([1, 1], [1, 1])
    assert heard["time 0"] == [5, END_OF_TIME]
    assert heard["time 1"] == [7, END_OF_TIME]
    assert sorted(heard["ends"][:2]) == [0, 1]
    assert heard["ends"][2:] == ["all"]


class Held(StepOperator):
    """Holds the watermark back by three."""

    def process(self, batch, out, *, port=0):
        out.emit(batch)

    def output_watermark(self, time):
        return time if time == END_OF_TIME else time - 3

    def snapshot(self):
        return OperatorState()


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_operator_can_hold_the_watermark_back(parallelism):
    tap = Tap()
    flow = engine.start([collect(window_sums(custom(tap_source(tap), Held)))], parallelism=parallelism)
    tap.give(rows(("a", 1, 5), ("a", 1, 12)))
    tap.wait_fetched(1)
    report = flow.stop()
    assert max(each.watermark for each in report.steps if each.uid == "sums") == 9
    assert report.tables["out"].num_rows == 0


class Growing(TapReader):
    def add(self, splits):
        self._at |= {split.name: 0 for split in splits}


class GrowingSource(TapSource):
    def open_reader(self, splits, schema, *, clock):
        return Growing(self.tap, splits)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_splits_that_turn_up_later_are_read_by_one_task(parallelism):
    tap = Tap()
    source = Source(connector=GrowingSource(tap), schema=SCHEMA)
    flow = engine.start([collect(source)], parallelism=parallelism, settings=FlowSettings(discovery=0.01))
    with tap.changed:
        for name in ("1", "2", "3"):
            tap.batches[name] = [rows((name, int(name), 0))]
    tap.wait_fetched(3)
    assert sorted(flow.stop().tables["out"]["value"].to_pylist()) == [1, 2, 3]
    assert len({Split(name) for name in tap.batches}) == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: FlowSettings(batch_rows=0, queue_bytes=0, poll=0),
        lambda: CheckpointSettings(directory="", keep=0, interval=0),
    ],
)
def test_settings_list_everything_that_is_wrong(make):
    with pytest.raises(InvalidError) as caught:
        make()
    assert len(caught.value.problems) == 3


# -- who waits is not idle --------------------------------------------------------------------------------------


def test_a_task_that_waits_for_a_slow_one_is_not_silent():
    clock = HandClock()
    silence = Silence(clock, 0.25)
    marks = Watermarks(EventTime("time", idle_after=5_000_000), [Split("a"), Split("b")], silence.seconds())
    marks.saw(Split("a"), 100, silence.seconds())
    clock.advance(60_000_000)  # one batch of a kept it busy for a minute; b has rows that it could not read
    assert marks.current(silence.seconds()) == (START_OF_TIME, False)
    marks.saw(Split("b"), 40, silence.seconds())
    assert marks.current(silence.seconds()) == (40, False)


def test_a_task_that_reads_and_finds_nothing_is():
    clock = HandClock()
    silence = Silence(clock, 0.25)
    marks = Watermarks(EventTime("time", idle_after=5_000_000), [Split("a"), Split("b")], silence.seconds())
    for _look in range(51):
        marks.saw(Split("a"), 100, silence.seconds())
        clock.advance(100_000)
    assert marks.current(silence.seconds()) == (100, False)


def test_rows_of_an_input_that_was_idle_wake_all_tasks():
    """It brings a row for one task only. All others have to wait for it again, too: they have one watermark."""
    inboxes = [AlignedInbox([0, 0], capacity=1_000_000) for _task in range(2)]
    quiet, busy = (
        Router([inbox.sender(writer, "c") for inbox in inboxes], lambda batch: [(0, batch)]) for writer in range(2)
    )
    quiet.advance(10)
    quiet.rest()
    busy.advance(100)
    quiet.send(rows(("a", 1, 11)))
    busy.advance(200)
    found = []
    for inbox in inboxes:
        idle, marks = set(), {0: START_OF_TIME, 1: START_OF_TIME}
        while (received := inbox.receive(0)) is not None:
            if isinstance(received.element, Idle):
                idle.add(received.channel)
            else:
                idle.discard(received.channel)
            if isinstance(received.element, Watermark):
                marks[received.channel] = max(marks[received.channel], received.element.time)
        found.append((idle, marks))
    assert found[0] == found[1] == (set(), {0: 10, 1: 200})

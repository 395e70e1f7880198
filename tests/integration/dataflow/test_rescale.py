"""Whole programs in three lives of different widths give what one life gives: windows, sessions, joins, distinct."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.dataflow.api.process_function import ProcessFunction
from shoal.dataflow.api.streams.stream import Stream
from shoal.dataflow.api.streams.windows import session, sliding, tumbling
from shoal.dataflow.execution import engine
from shoal.dataflow.language.expressions.trees import col
from shoal.dataflow.language.logical import Node
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from tests.unit.dataflow.execution.flows import SCHEMA, Recording, RecordingSink, Tap, TapSource, rows

pytestmark = pytest.mark.integration


def stream(tap: Tap, *, bounded: bool, uid: str) -> Stream:
    made = Stream.from_source(
        TapSource(tap, bounded), schema=SCHEMA, event_time="time", time_unit="us", disorder=0.000_05
    )
    return made.uid(uid)


class Buckets(ProcessFunction):
    """The sum of each stretch of time, put out by a timer."""

    def open(self, context: Any) -> None:
        self.sums = context.map_state("sums")

    def process(self, record: Any, context: Any) -> None:
        end = record.time // 100 * 100 + 100
        self.sums[end] = self.sums.get(end, 0) + record.value
        context.set_timer(end)

    def on_timer(self, time: int, context: Any) -> dict[str, Any]:
        return {"key": context.key, "end": time, "total": self.sums.get(time)}


Program = Callable[[Stream, Stream], Stream]

PROGRAMS: dict[str, Program] = {
    "tumbling": lambda a, _b: (
        a.key_by("key")
        .window(tumbling(milliseconds=0.1))
        .aggregate({"total": ("value", "sum"), "n": ("*", "count"), "most": ("value", "max")})
    ),
    "sliding": lambda a, _b: (
        a.key_by("key")
        .window(sliding(size_milliseconds=0.3, slide_milliseconds=0.1))
        .aggregate({"total": ("value", "sum")})
    ),
    "session": lambda a, _b: a.key_by("key").window(session(gap_milliseconds=0.05)).aggregate({"n": ("*", "count")}),
    "without a key": lambda a, _b: a.window(tumbling(milliseconds=0.1)).aggregate({"total": ("value", "sum")}),
    "distinct": lambda a, _b: a.select("key").distinct("key"),
    "join": lambda a, b: a.join(b, on="key", within=0.000_02).select("key", "value", "value_right"),
    "window join": lambda a, b: a.join(b, on="key", window=tumbling(milliseconds=0.05), how="outer").select(
        "key", "value", "value_right"
    ),
    "distinct in windows": lambda a, _b: (
        a.with_columns(value=col("value") // 10, time=col("time") // 100)
        .key_by("key")
        .window(tumbling(milliseconds=0.1))
        .distinct("value", "time")
    ),
    "reduce": lambda a, _b: (
        a.key_by("key")
        .window(tumbling(milliseconds=0.1))
        .reduce(lambda one, other: {**one, "value": one["value"] + other["value"], "time": 0})
        .select("key", "value")
    ),
    "two windows": lambda a, _b: (
        a.key_by("key")
        .window(tumbling(milliseconds=0.1))
        .aggregate({"total": ("value", "sum")})
        .window(tumbling(milliseconds=0.2))
        .aggregate({"most": ("total", "max"), "n": ("*", "count")})
    ),
    "process function": lambda a, _b: a.key_by("key").process(Buckets),
    "named time": lambda a, _b: (
        a.key_by("key")
        .window(tumbling(milliseconds=0.1), time_column="time", time_unit="us", disorder=0.000_05)
        .aggregate({"n": ("*", "count")})
    ),
    "filtered": lambda a, _b: a.filter(col("value") > 10).with_columns(twice=col("value") * 2),
}


def plan(program: Program, taps: list[Tap], recording: Recording, *, bounded: bool) -> list[Node]:
    inputs = [stream(tap, bounded=bounded, uid=f"in{number}") for number, tap in enumerate(taps)]
    return [program(*inputs).to_sink(RecordingSink(recording)).uid("out").node]


def make_batches(seed: int) -> list:
    chance = random.Random(seed)
    found = []
    for number in range(30):
        times = [number * 20 + chance.randrange(40) for _ in range(20)]
        found.append(rows(*((f"k{chance.randrange(6)}", chance.randrange(50), time) for time in times)))
    return found


def visible(recording: Recording) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in recording.rows)


def settings(directory: Path) -> FlowSettings:
    return FlowSettings(
        batch_rows=16, checkpoint=CheckpointSettings(directory=str(directory), interval=0.02, min_pause=0.0)
    )


def feed(taps: list[Tap], share: slice) -> int:
    """Some of the batches: those of even number to one split, the others to another."""
    fed = 0
    for seed, tap in enumerate(taps):
        for number, batch in list(enumerate(make_batches(seed)))[share]:
            tap.give(batch, str(number % 2))
            fed += 1
    return fed


def run_once(program: Program) -> list[str]:
    taps, recording = [Tap(2), Tap(2)], Recording()
    feed(taps, slice(None))
    for tap in taps:
        tap.close()
    engine.run(plan(program, taps, recording, bounded=True))
    return visible(recording)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("widths", [(4, 1, 3)])
def test_three_lives_of_different_widths_give_what_one_gives(tmp_path, name, widths):
    program = PROGRAMS[name]
    taps, recording = [Tap(2), Tap(2)], Recording()
    for width, share in zip(widths[:2], (slice(0, 9), slice(9, 21)), strict=True):
        feed(taps, share)
        flow = engine.start(
            plan(program, taps, recording, bounded=False), name="job", parallelism=width, settings=settings(tmp_path)
        )
        for tap in taps if "join" in name else taps[:1]:
            tap.wait_fetched(share.stop)
        flow.stop()
    feed(taps, slice(21, None))
    for tap in taps:
        tap.close()
    engine.run(
        plan(program, taps, recording, bounded=True), name="job", parallelism=widths[2], settings=settings(tmp_path)
    )
    assert visible(recording) == run_once(program)
    assert visible(recording)

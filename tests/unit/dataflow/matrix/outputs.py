"""The matrix of outputs, in virtual time: every step and sink × paces × widths × intervals × crashes.

A quiet run without checkpoints says what the output is. `check` runs one combination: with checkpoints, with a crash
where a named point is reached, started again at another width. It ends within a bound of virtual time and its output
is that of the quiet run. A run with an endless input is stopped when its script is over. Used by `test_outputs` and,
for all combinations, by `tests/long/dataflow`.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from shoal import Stream
from shoal.core import faults
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import Node
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.testing.streams import Pause, Recording, RecordingSink, Script, ScriptedSource
from shoal.testing.streams import Step as ScriptStep
from shoal.testing.virtual_time import VirtualTime
from tests.unit.dataflow.matrix.cases import NORMAL, OPERATORS, SCHEMA, SINKS, TINY, Case, Promise, SinkCase

#: Seconds of virtual time within which a run ends: many checkpoints, and more than any time-out.
LIMIT = 600.0
#: How late threads run, as a part of the interval: so barriers of one checkpoint reach a task at different times.
DELAY = 0.25
#: In intervals: when a split without rows is idle, how long a silent one brings none, when an endless run is stopped.
IDLE_AFTER, SILENCE, STOP_AFTER = 1.2, 3.0, 8.0
#: Where a run crashes; empty for nowhere.
POINTS = ("", *(name for name in faults.POINTS if name.startswith("dataflow.")))
STARTING = ("dataflow.start.", "dataflow.recover.")
WIDTHS = (1, 2, 3)
INTERVALS = (TINY, NORMAL)
ROWS: tuple[Case | SinkCase, ...] = (*OPERATORS, *SINKS)


class Shape(enum.Enum):
    """How an input gives its rows."""

    TRICKLE = "trickle"  # a few rows now and then
    BURST = "burst"  # all at once
    IDLE = "idle"  # some, then a long pause, then the rest
    ENDED = "ended"  # none: it has ended when it begins
    SILENT = "silent"  # endless: some, then none until it is idle, then the rest of one split


@dataclass(frozen=True)
class Combination:
    """A cell of the matrix."""

    case: Case | SinkCase
    shapes: tuple[Shape, ...]
    width: int
    interval: float
    point: str
    #: The crash is where the point is reached for this time.
    turn: int = 1

    @property
    def is_endless(self) -> bool:
        return Shape.SILENT in self.shapes

    def __str__(self) -> str:
        shapes = "-".join(shape.value for shape in self.shapes)
        crash = f"{self.point.removeprefix('dataflow.')}@{self.turn}" if self.point else "no crash"
        return f"{self.case}-{shapes}-{self.width}-{self.interval:g}-{crash}"


def combinations(case: Case | SinkCase, width: int, interval: float) -> Iterator[Combination]:
    """All of one row, width and interval. Of three inputs the last two are alike."""
    inputs = case.inputs if isinstance(case, Case) else 1
    for number, (shapes, point) in enumerate(itertools.product(_shapes_of(case), POINTS)):
        given = (*shapes, *shapes[1:])[:inputs]
        if Shape.SILENT in given and (number + INTERVALS.index(interval)) % 2:
            continue  # these runs are long: every second one at each interval
        yield Combination(case, given, width, interval, point, turn_of(point, given, number))


def _shapes_of(case: Case | SinkCase) -> list[tuple[Shape, ...]]:
    """Every combination of shapes that end; and of those that do not with the first and the last of these."""
    inputs, endless = (case.inputs, case.endless) if isinstance(case, Case) else (1, 1)
    found = itertools.product(Shape, repeat=min(inputs, 2))
    few = {Shape.TRICKLE, Shape.ENDED, Shape.SILENT}
    return [
        shapes
        for shapes in found
        if Shape.SILENT not in shapes or (set(shapes) <= few and Shape.SILENT not in shapes[endless:])
    ]


def turn_of(point: str, shapes: Sequence[Shape], number: int) -> int:
    """The first or the second time. A start comes to its points once, and so does a short run to most of the others."""
    is_of_start = point.startswith(STARTING)
    is_long = not {Shape.TRICKLE, Shape.IDLE, Shape.SILENT}.isdisjoint(shapes)
    return 1 + number % 2 if is_long and not is_of_start else 1


def sample() -> Iterator[Combination]:
    """Each row twice, so that every shape, width, interval and point comes with many rows."""
    shapes = list(Shape)
    for number, case in enumerate(case for row in ROWS for case in (row, row)):
        inputs, endless = (case.inputs, case.endless) if isinstance(case, Case) else (1, 1)
        found = [shapes[(number + place * (1 + number // 5)) % 5] for place in range(inputs)]
        given = (*found[:endless], *(Shape.TRICKLE if shape is Shape.SILENT else shape for shape in found[endless:]))
        point = POINTS[number % len(POINTS)]
        turn = turn_of(point, given, number // 2)
        yield Combination(case, given, WIDTHS[number % 3], INTERVALS[number // 2 % 2], point, turn)


# -- inputs -----------------------------------------------------------------------------------------------


def script(shape: Shape, splits: int, interval: float, *, wakes: bool) -> Script:
    """What an input does: checkpoints come between its rows, however long the interval is."""
    return Script(*(_steps(shape, split, splits, interval, wakes and not split) for split in range(splits)))


def _steps(shape: Shape, split: int, splits: int, interval: float, wakes: bool) -> list[ScriptStep]:
    batches = [] if shape is Shape.ENDED else [_rows(range(at * 4, at * 4 + 4), split, splits) for at in range(5)]
    match shape:
        case Shape.TRICKLE:
            phase = Pause(0.3 * interval * split)  # splits are not in step
            return [phase, *(step for batch in batches for step in (batch, Pause(0.7 * interval)))]
        case Shape.IDLE:
            return [*batches[:2], Pause(2.5 * interval), *batches[2:]]
        case Shape.SILENT:
            # Others have gone on meanwhile, so what comes then is later than all of their rows. Only one wakes up: of
            # two, the rows of the second could be late.
            rest = [_rows(range(at * 4, at * 4 + 4), split, splits) for at in range(25, 28)]
            later = [Pause(SILENCE * interval), *(step for each in rest for step in (each, Pause(0.5 * interval)))]
            return [*batches[:2], *(later if wakes else ()), Pause(1e6)]
        case _:
            return list(batches)


@functools.cache
def _rows(numbers: Sequence[int], split: int, splits: int) -> pa.RecordBatch:
    found = [number * splits + split for number in numbers]
    columns = {"key": found, "value": [float(each) for each in found], "time": [each * 100_000 for each in found]}
    return pa.record_batch(columns, schema=SCHEMA)


def inputs_of(shapes: Sequence[Shape], splits: int, interval: float) -> list[Stream]:
    """Streams over inputs of these shapes."""
    waking = shapes.index(Shape.SILENT) if Shape.SILENT in shapes else None
    sources = [
        ScriptedSource(script(shape, splits, interval, wakes=number == waking), is_bounded=shape is not Shape.SILENT)
        for number, shape in enumerate(shapes)
    ]
    time = {"event_time": "time", "time_unit": "us", "idle_after": IDLE_AFTER * interval}
    return [
        Stream.from_source(source, schema=SCHEMA, **time).uid(f"in-{number}") for number, source in enumerate(sources)
    ]


# -- one run ----------------------------------------------------------------------------------------------


class Crash(BaseException):
    """Nobody handles it, as nobody handles a kill."""


def _crash_at(turn: int) -> faults.Action:
    seen = 0

    def reach(name: str) -> None:
        nonlocal seen
        seen += 1
        if seen == turn:
            raise Crash(name)

    return reach


class Outcome:
    """The plan of a combination, and what is visible of its output."""

    def __init__(self, combination: Combination, at: Path) -> None:
        self._combination = combination
        self._at = at
        at.mkdir(parents=True)
        self._recording = Recording()

    def plan(self) -> Node:
        combination = self._combination
        case = combination.case
        if isinstance(case, SinkCase):
            (stream,) = inputs_of(combination.shapes, 2, combination.interval)
            return case.build(stream, self._at)
        in_tasks = combination.width == 2  # as topics commit; else as files and tables do
        stream = case.build(*inputs_of(combination.shapes, case.splits, combination.interval))
        return stream.to_sink(RecordingSink(self._recording, in_tasks)).uid("out").node

    def rows(self) -> list[str]:
        case = self._combination.case
        return _lines(case.read(self._at) if isinstance(case, SinkCase) else self._recording.rows)


def _lines(rows: Sequence[Any]) -> list[str]:
    """Rows as text, in order. Changes are carried out: early results come by the time of day, what is left does not.

    Files of some kinds do not tell 1 from 1.0.
    """
    found: collections.Counter[str] = collections.Counter()
    for row in rows:
        plain = {name: float(value) if isinstance(value, int) else value for name, value in row.items()}
        sign = -1 if str(plain.pop("op", "")).startswith("-") else 1
        found[json.dumps(plain, default=str, sort_keys=True)] += sign
    assert all(count >= 0 for count in found.values()), "something was taken back that was not there"
    return sorted(found.elements())


def _run(
    plan: Node, width: int, settings: FlowSettings, *, stop_after: float = 0.0, seed: int = 0, delay: float = 0.0
) -> None:
    """Run to the end; or, with `stop_after`, for so many seconds, and then bring event time to its end."""
    with VirtualTime(limit=LIMIT, seed=seed, delay=delay) as clock:
        flow = engine.start([plan], name="matrix", parallelism=width, settings=settings, clock=clock)
        try:
            ends_at = clock.monotonic() + stop_after
            while not flow.is_done and clock.monotonic() < ends_at:
                clock.event().wait(stop_after / 20)
            flow.stop(finish=True) if stop_after else flow.wait()
        finally:
            flow.abort()


@functools.cache
def quiet(case: Case | SinkCase, shapes: tuple[Shape, ...]) -> list[str]:
    """The output of a run without checkpoints, in one task."""
    recording = Recording()
    splits = case.splits if isinstance(case, Case) else 2
    streams = inputs_of(shapes, splits, TINY)
    stream = case.build(*streams) if isinstance(case, Case) else streams[0]
    options = case.settings if isinstance(case, Case) else {}
    stop_after = STOP_AFTER * TINY if Shape.SILENT in shapes else 0.0
    settings = FlowSettings(**{"poll": TINY / 5, **options})
    _run(stream.to_sink(RecordingSink(recording)).node, 1, settings, stop_after=stop_after)
    return _lines(recording.rows)


def check(combination: Combination, directory: Path) -> None:
    """The output is that of a run without checkpoints, whatever happens; and where a crash is wanted there is one."""
    case = combination.case
    outcome = Outcome(combination, directory / "out")
    options = case.settings if isinstance(case, Case) else {}
    checkpoint = CheckpointSettings(
        directory=str(directory / "checkpoints"), interval=combination.interval, min_pause=0.001
    )
    poll = combination.interval / 5
    settings = FlowSettings(**{"queue_bytes": 64 * 1024, "poll": poll, **options}, checkpoint=checkpoint)
    seed = zlib.crc32(str(combination).encode())
    timing = {"seed": seed, "delay": combination.interval * DELAY}
    if combination.is_endless:
        timing["stop_after"] = STOP_AFTER * combination.interval
    if combination.point:
        faults.arm(combination.point, _crash_at(combination.turn))
    crashed = False
    try:
        _run(outcome.plan(), combination.width, settings, **timing)
    except Crash:
        crashed = True
        faults.disarm_all()
        _run(outcome.plan(), 1 + combination.width % 3, settings, **timing)
    finally:
        faults.disarm_all()
    assert crashed == bool(combination.point), "the run never came to the point"
    _compare(combination, outcome.rows(), crashed=crashed)


def _compare(combination: Combination, found: list[str], *, crashed: bool) -> None:
    case = combination.case
    promise = case.promise if isinstance(case, SinkCase) else Promise.ONCE
    expected = quiet(case, combination.shapes)
    if promise is Promise.ONCE or not crashed:
        assert found == expected
    elif promise is Promise.AT_LEAST_ONCE:
        assert not collections.Counter(expected) - collections.Counter(found)
        assert set(found) <= set(expected)

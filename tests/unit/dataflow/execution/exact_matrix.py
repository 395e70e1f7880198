"""The matrix of outputs: every step × paces of its inputs × widths × crashes at named points.

`check` runs one combination: a quiet run without checkpoints says what the output is; a run with checkpoints that
crashes, and is started again at another width until it ends, has to give the same rows. Used by `test_exact_matrix`
here and by `tests/long/dataflow`.
"""

from __future__ import annotations

import enum
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from shoal import Stream
from shoal.core import faults
from shoal.dataflow.execution import engine
from shoal.dataflow.language.settings import CheckpointSettings, FlowSettings
from shoal.testing.streams import Pause, Recording, RecordingSink, Script, ScriptedSource
from shoal.testing.streams import Step as ScriptStep
from tests.unit.dataflow.execution.checkpoint_matrix import OPERATORS, SCHEMA, Case

#: Seconds within which a run ends. One that stalls takes longer than any.
PATIENCE = 60.0
#: Steps whose rows depend on when rows come, by design: what they give is checked by tests of their own.
LEFT_OUT = {
    "tumbling with corrections": "early results come by the time of day",
    "count window": "which rows are in one window depends on the order in which splits are read",
    "reduce": "keeps one of two rows, by arrival",
}
#: Points that these runs do not come to.
NEVER_REACHED: frozenset[str] = frozenset()
#: Where a run crashes; empty for nowhere.
POINTS = ("", *(name for name in faults.POINTS if name.startswith("dataflow.") and name not in NEVER_REACHED))


class Shape(enum.Enum):
    """How an input gives its rows."""

    TRICKLE = "trickle"  # a few rows now and then
    BURST = "burst"  # all at once
    IDLE = "idle"  # some, then a long pause, then the rest
    ENDED = "ended"  # none: it has ended when it begins


@dataclass(frozen=True)
class Combination:
    """A cell of the matrix."""

    case: Case
    shapes: tuple[Shape, ...]
    width: int
    interval: float
    point: str
    #: The crash is where the point is reached for this time.
    turn: int = 1

    def __str__(self) -> str:
        shapes = "-".join(shape.value for shape in self.shapes)
        crash = f"{self.point.removeprefix('dataflow.')}@{self.turn}" if self.point else "no crash"
        return f"{self.case}-{shapes}-{self.width}-{self.interval:g}-{crash}"


TINY, NORMAL = 0.01, 1.0
WIDTHS = (1, 2, 3)


def combinations() -> Iterator[Combination]:
    """All of them. Of three inputs each is in every shape with the two others alike."""
    for case in OPERATORS:
        if case.name in LEFT_OUT:
            continue
        shapes = list(itertools.product(Shape, repeat=min(case.inputs, 2)))
        for given, width, interval, point in itertools.product(shapes, WIDTHS, (TINY, NORMAL), POINTS):
            yield Combination(case, (*given, *given[1:])[: case.inputs], width, interval, point)


def sample() -> Iterator[Combination]:
    """Each step twice, so that every shape, width and point comes with many steps."""
    shapes = list(Shape)
    number = 0
    for case in OPERATORS:
        if case.name in LEFT_OUT:
            continue
        for _ in range(2):
            given = tuple(shapes[(number + place * (1 + number // 4)) % 4] for place in range(case.inputs))
            point = POINTS[number % len(POINTS)]
            yield Combination(case, given, WIDTHS[number % 3], TINY, point, 1 + number % 2)
            number += 1


def _script(shape: Shape, splits: int) -> Script:
    return Script(*(_steps(shape, split, splits) for split in range(splits)))


def _steps(shape: Shape, split: int, splits: int) -> list[ScriptStep]:
    batches = [] if shape is Shape.ENDED else [_rows(range(at * 4, at * 4 + 4), split, splits) for at in range(5)]
    match shape:
        case Shape.TRICKLE:
            return [step for batch in batches for step in (batch, Pause(0.004))]
        case Shape.IDLE:
            return [*batches[:2], Pause(0.05), *batches[2:]]
        case _:
            return list(batches)


def _rows(numbers: Sequence[int], split: int, splits: int) -> pa.RecordBatch:
    found = [number * splits + split for number in numbers]
    columns = {"key": found, "value": [float(each) for each in found], "time": [each * 100_000 for each in found]}
    return pa.record_batch(columns, schema=SCHEMA)


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


def _plan(combination: Combination, recording: Recording, *, in_tasks: bool = False) -> list:
    case = combination.case
    inputs = [
        Stream.from_source(
            ScriptedSource(_script(shape, case.splits)), schema=SCHEMA, event_time="time", time_unit="us"
        ).uid(f"in-{number}")
        for number, shape in enumerate(combination.shapes)
    ]
    return [case.build(*inputs).to_sink(RecordingSink(recording, in_tasks)).uid("out").node]


def _visible(recording: Recording) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in recording.rows)


def _run(plan: list, width: int, settings: FlowSettings) -> None:
    flow = engine.start(plan, name="matrix", parallelism=width, settings=settings)
    try:
        flow.wait(PATIENCE)
    finally:
        flow.abort()


def check(combination: Combination, directory: Path) -> None:
    """The output is that of a run without checkpoints, whatever happens."""
    options = {"queue_bytes": 64 * 1024, "poll": 0.01, **combination.case.settings}
    quiet, recording = Recording(), Recording()
    _run(_plan(combination, quiet), combination.width, FlowSettings(**options))
    checkpoint = CheckpointSettings(directory=str(directory), interval=combination.interval, min_pause=0.001)
    settings = FlowSettings(**options, checkpoint=checkpoint)
    in_tasks = combination.width == 2  # as topics commit; else as files and tables do
    if combination.point:
        faults.arm(combination.point, _crash_at(combination.turn))
    crashed = False
    try:
        _run(_plan(combination, recording, in_tasks=in_tasks), combination.width, settings)
    except Crash:
        crashed = True
        faults.disarm_all()
        _run(_plan(combination, recording, in_tasks=in_tasks), 1 + combination.width % 3, settings)
    finally:
        faults.disarm_all()
    assert crashed or not combination.point or combination.turn > 1  # every run comes to every point once
    assert _visible(recording) == _visible(quiet)

"""The matrix of stalls, in virtual time: every step over endless, slow, idle, loading and ended inputs.

`check` starts a flow, waits for checkpoints, and stops it. Nothing compares rows here: inputs have no end, `outputs`
does that. Used by `test_stalls` and, for all combinations, by `tests/long/dataflow`.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal import Stream
from shoal.core.clock import Clock
from shoal.core.threads import threads_of
from shoal.dataflow.connectors.base import Fetched, Split
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import Node
from shoal.dataflow.operators.base import StepOperator
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.testing.virtual_time import VirtualTime
from tests.unit.dataflow.matrix.cases import SCHEMA, TINY, Case

#: Seconds of virtual time within which checkpoints come and a stop returns.
LIMIT = 60.0
#: Seconds after which an input without rows is idle: before the first checkpoints are complete.
IDLE_AFTER = 0.01


class Pace(enum.Enum):
    """How an input gives its rows."""

    ENDLESS = "endless"  # more than can be taken
    SLOW = "slow"  # one now and then, without an end
    IDLE = "idle"  # none, without an end
    LOADING = "loading"  # one now and then, with an end that does not come while the flow runs
    ENDED = "ended"  # some, then the end

    @property
    def is_bounded(self) -> bool:
        return self in (Pace.LOADING, Pace.ENDED)


@dataclass(frozen=True)
class PacedSource:
    """A source of one pace. The rows of a split are in the order of every column, and no key comes twice."""

    pace: Pace
    most_splits: int = 1
    label: str = "paced"

    @property
    def is_bounded(self) -> bool:
        return self.pace.is_bounded

    def find_schema(self) -> pa.Schema:
        return SCHEMA

    def find_splits(self) -> Sequence[Split]:
        return [Split(str(number)) for number in range(self.most_splits)]

    def open_reader(self, splits: Sequence[Split], schema: pa.Schema, *, clock: Clock) -> PacedReader:
        assert len(splits) <= 1, "a task reads one split"
        return PacedReader(self, schema, splits[0] if splits else None, threads_of(clock).event())


class PacedReader:
    def __init__(self, source: PacedSource, schema: pa.Schema, split: Split | None, woken: threading.Event) -> None:
        self._pace = source.pace
        self._step = source.most_splits
        self._schema = schema
        self._split = split
        self._row = 0
        self._woken = woken

    def seek(self, split: Split, position: Any) -> None:
        self._row = position

    def fetch(self, *, max_rows: int, timeout: float) -> Fetched | None:
        match self._pace:
            case Pace.SLOW | Pace.LOADING if self._split is not None:
                if not self._woken.wait(min(timeout, 0.004)):
                    return self._rows(self._split, 1)
            case Pace.ENDLESS if self._split is not None:
                self._woken.wait(0.0002)  # work takes no virtual time, and without any no checkpoint would be due
                self._woken.clear()
                return self._rows(self._split, 20)
            case Pace.ENDED if self._split is not None and not self._row:
                return self._rows(self._split, 50)
            case Pace.ENDED:
                return None
            case _:
                self._woken.wait(timeout)
        self._woken.clear()
        return None

    def _rows(self, split: Split, number: int) -> Fetched:
        numbers = [row * self._step + int(split.name) for row in range(self._row, self._row + number)]
        self._row += number
        rows = {"key": numbers, "value": [float(each) for each in numbers], "time": [each * 1000 for each in numbers]}
        return Fetched(split, pa.record_batch(rows, schema=SCHEMA).select(self._schema.names), self._row)

    def ended(self) -> frozenset[Split]:
        has_ended = self._pace is Pace.ENDED and self._row and self._split is not None
        return frozenset({self._split}) if has_ended else frozenset()

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        pass


def streams(paces: Sequence[Pace], splits: int = 2) -> list[Stream]:
    """Inputs of these paces."""
    sources = [PacedSource(pace, splits) for pace in paces]
    return [
        Stream.from_source(source, event_time="time", time_unit="us", idle_after=IDLE_AFTER).uid(f"in-{number}")
        for number, source in enumerate(sources)
    ]


# -- one run ----------------------------------------------------------------------------------------------


def run(
    sink: Node, directory: Path, *, interval: float, checkpoints: int, parallelism: int = 2, **options: Any
) -> tuple[engine.RunReport, set[type[StepOperator]]]:
    """Start, wait for checkpoints, stop. Gives the report and the classes of the operators that ran.

    Raises `StalledError`, with where every thread waits, when it stalls, and what failed when something does.
    """
    settings = FlowSettings(
        **{"queue_bytes": 64 * 1024, "poll": 0.01, **options},
        checkpoint=CheckpointSettings(directory=str(directory), interval=interval, min_pause=0.001),
    )
    with VirtualTime(limit=LIMIT) as clock:
        flow = engine.start([sink], name="matrix", parallelism=parallelism, settings=settings, clock=clock)
        try:
            used = {type(step.operator) for task in flow._hosts._host._tasks.values() for step in task._chain._steps}
            while not flow.is_done and flow.metrics().checkpoints.completed < checkpoints:
                clock.event().wait(0.003)
            return flow.stop(), used
        finally:
            flow.abort()


def params(case: Case, paces: Sequence[Pace], interval: float) -> Any:
    """The parameters of one test."""
    return pytest.param(case, paces, interval, id=f"{case}-{'-'.join(pace.value for pace in paces)}-{interval:g}")


def check(case: Case, paces: Sequence[Pace], interval: float, directory: Path) -> None:
    """Checkpoints come, none fails, and the stop returns with one more."""
    sink = case.build(*streams(paces, case.splits)).to_callback(_nothing).node
    wanted = 3 if interval == TINY else 2
    report, used = run(sink, directory, interval=interval, checkpoints=wanted, **case.settings)
    assert case.made_by in used
    assert report.checkpoints.failed == 0
    assert report.checkpoints.completed > (0 if all(pace is Pace.ENDED for pace in paces) else wanted)


def _nothing(batch: pa.RecordBatch) -> None:
    """Rows go nowhere."""

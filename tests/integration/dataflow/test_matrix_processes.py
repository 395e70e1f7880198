"""The matrix of outputs over processes, in real time: a pairwise sample, with unix sockets and with Arrow Flight.

Every pair of values of two columns is in some run: step, pace of its inputs, width, transport, sink, and where which
host is killed, for the first or the second time. The columns and the scripts are those of
`tests/unit/dataflow/matrix`, which runs all combinations in virtual time in one process.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from shoal import Stream
from shoal.dataflow.execution import engine
from shoal.dataflow.execution.routing import assign_tasks
from shoal.dataflow.language.logical import Node, Sink
from shoal.dataflow.plan.physical import Stage
from shoal.dataflow.plan.prepare import prepare
from shoal.dataflow.settings import CheckpointSettings, FlowSettings
from shoal.testing.certificates import Certificates
from shoal.testing.virtual_time import VirtualTime
from tests.integration.dataflow.test_processes import HOST_POINTS, ROOT
from tests.unit.dataflow.matrix.cases import Case, read_topic
from tests.unit.dataflow.matrix.outputs import ROWS, Shape, inputs_of, turn_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TRANSPORTS = ("unix", "flight")
WIDTHS = (1, 2, 3)
HOSTS = (0, 1)
TURNS = (1, 2)
#: Early results are changes, which files do not take.
CHANGES = "tumbling with corrections"
CASES = tuple(case for case in ROWS if isinstance(case, Case) and case.name != CHANGES)
#: An endless input follows the time of day here, and would make a run last as long.
SHAPES = tuple(shape for shape in Shape if shape is not Shape.SILENT)
#: Of each kind of point the one before or the one after: else every step with every point would be too many runs.
MOMENTS = ("", *dict.fromkeys(point.rpartition(".")[0] for point in HOST_POINTS))
SIDES = ("before", "after")
#: Seconds between two checkpoints; scripts pause for longer, so that there are several.
INTERVAL, PAUSE = 0.1, 0.2


@dataclass(frozen=True, eq=False)
class Output:
    """A sink that is exact, and what a reader sees of it."""

    name: str
    build: Callable[[Stream, Path], Stream]
    read: Callable[[Path], list[dict[str, Any]]]

    def __str__(self) -> str:
        return self.name


def _read_files(at: Path) -> list[dict[str, Any]]:
    files = [path for path in at.rglob("*.jsonl") if ".pending" not in path.parts]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def _read_table(at: Path) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(at / "rows.sqlite")) as database:
        if not database.execute("select 1 from sqlite_master where name = 'rows'").fetchall():
            return []
        found = database.execute('select * from "rows"')
        names = [each[0] for each in found.description]
        return [dict(zip(names, row, strict=True)) for row in found]


OUTPUTS = (
    Output("files", lambda stream, at: stream.to_json(f"{at}/json/"), _read_files),
    Output("sqlite", lambda stream, at: stream.to_sql("rows", f"{at}/rows.sqlite"), _read_table),
    Output("topic", lambda stream, at: stream.to_kafka(f"{at}/log", "rows"), read_topic),
)
COLUMNS = (CASES, SHAPES, WIDTHS, TRANSPORTS, MOMENTS, SIDES, HOSTS, TURNS, OUTPUTS)


@dataclass(frozen=True)
class Run:
    """A row of the table: one value of each column."""

    case: Case
    shape: Shape
    width: int
    transport: str
    moment: str
    side: str
    host: int
    turn: int
    output: Output

    def __str__(self) -> str:
        return "-".join(str(getattr(self, each.name)) for each in fields(self))

    def plan(self, folder: Path) -> Node:
        folder.mkdir(exist_ok=True)
        stream = self.case.build(*inputs_of([self.shape] * self.case.inputs, self.case.splits, PAUSE))
        return self.output.build(stream, folder).uid("out").node

    @property
    def settings(self) -> FlowSettings:
        return FlowSettings(**self.case.settings)

    def fault(self, node: Node) -> dict[str, str]:
        """What kills the host, or the other one where this one has no task that comes to the point."""
        if not self.moment:
            return {}
        physical = engine.plan_and_check(prepare([node]), parallelism=self.width, settings=self.settings)
        is_of_sinks = self.moment in ("dataflow.prepare", "dataflow.commit")
        stages = {stage.number for stage in physical.stages if not is_of_sinks or _has_sink(stage)}
        hosts = {host for task, host in assign_tasks(physical, len(HOSTS)).items() if task.stage in stages}
        host = self.host if self.host in hosts else 1 - self.host
        point = f"{self.moment}.{self.side}"
        turn = min(self.turn, turn_of(point, [self.shape], 1))
        return {f"SHOAL_FAULTS_HOST_{host}_EPOCH_1": f"{point}=kill@{turn}"}


def _has_sink(stage: Stage) -> bool:
    return any(isinstance(step.node, Sink) for step in stage.steps)


def pairwise(columns: tuple[tuple[Any, ...], ...]) -> list[tuple[Any, ...]]:
    """Few rows in which every two values of two columns meet: each row takes as many new pairs as it can.

    Where values have as many, it takes the one that is in the fewest rows.
    """
    used: collections.Counter[tuple[int, Any]] = collections.Counter()
    left = {
        ((one, a), (other, b))
        for (one, first), (other, second) in itertools.combinations(enumerate(columns), 2)
        for a, b in itertools.product(first, second)
    }
    rows: list[tuple[Any, ...]] = []
    order = sorted(left, key=str)
    while left:
        (one, a), (other, b) = next(pair for pair in order if pair in left)
        row: dict[int, Any] = {one: a, other: b}
        for column, values in enumerate(columns):
            if column not in row:
                row[column] = max(
                    values, key=lambda value: (_new_pairs(row, column, value, left), -used[column, value])
                )
        found = tuple(row[column] for column in range(len(columns)))
        left -= set(itertools.combinations(enumerate(found), 2))
        used.update(enumerate(found))
        rows.append(found)
    return rows


def _new_pairs(row: dict[int, Any], column: int, value: Any, left: set[Any]) -> int:
    pairs = (tuple(sorted(((column, value), each), key=lambda place: place[0])) for each in row.items())
    return sum(pair in left for pair in pairs)


def params() -> list[Any]:
    """One of each sink is run every time, over both transports."""
    runs = [Run(*row) for row in pairwise(COLUMNS)]
    kills = [run for run in runs if run.moment and run.width > 1 and run.shape is not Shape.ENDED]
    kinds = list(zip(OUTPUTS, itertools.cycle(TRANSPORTS)))
    few = [next(run for run in kills if (run.output, run.transport) == kind) for kind in kinds]
    return [pytest.param(run, id=str(run), marks=() if run in few else pytest.mark.long) for run in runs]


def lines(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}")
    return monkeypatch


def use_flight(environment: pytest.MonkeyPatch, folder: Path) -> None:
    """Every process thinks that it is on a host of its own."""
    files = Certificates(folder / "certificates").workload("job", "n1")
    for name, value in {"SHOAL_CA": files.ca, "SHOAL_CERT": files.cert, "SHOAL_KEY": files.key}.items():
        environment.setenv(name, str(value))
    environment.setenv("SHOAL_EXCHANGE_HOST", "127.0.0.1")
    environment.setenv("SHOAL_HOST_ID", "")


@pytest.mark.parametrize("run", params())
def test_a_killed_host_changes_no_output(tmp_path: Path, environment: pytest.MonkeyPatch, run: Run) -> None:
    with VirtualTime() as clock:
        engine.run([run.plan(tmp_path / "quiet")], settings=run.settings, clock=clock)
    if run.transport == "flight":
        use_flight(environment, tmp_path)
    node = run.plan(tmp_path / "out")
    fault = run.fault(node)
    for name, value in fault.items():
        environment.setenv(name, value)
    checkpoint = CheckpointSettings(directory=str(tmp_path / "checkpoints"), interval=INTERVAL, min_pause=0.001)
    settings = replace(run.settings, checkpoint=checkpoint)
    flow = engine.start([node], name="matrix", parallelism=run.width, settings=settings, processes=len(HOSTS))
    try:
        flow.wait(120)
    finally:
        flow.abort()
    assert flow.recoveries == len(fault)
    assert lines(run.output.read(tmp_path / "out")) == lines(run.output.read(tmp_path / "quiet"))


def test_every_pair_of_values_is_in_some_run() -> None:
    rows = pairwise(COLUMNS)
    for (one, first), (other, second) in itertools.combinations(enumerate(COLUMNS), 2):
        met = {(row[one], row[other]) for row in rows}
        assert met == set(itertools.product(first, second))

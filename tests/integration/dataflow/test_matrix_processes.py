"""The matrix of outputs over processes, in real time: a pairwise sample, with unix sockets and with Arrow Flight.

Every pair of values of two columns is in some run: step, pace of its inputs, width, transport, and the point at which
a host is killed; but not every step with every point. The columns and the scripts are those of
`tests/unit/dataflow/matrix`, which runs all combinations in virtual time in one process.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from shoal.dataflow.connectors.files.sinks import JsonLinesSink
from shoal.dataflow.execution import engine
from shoal.dataflow.language.logical import Node
from shoal.dataflow.language.settings import CheckpointSettings, FlowSettings
from shoal.testing.certificates import Certificates
from shoal.testing.virtual_time import VirtualTime
from tests.integration.dataflow.test_processes import HOST_POINTS, ROOT
from tests.unit.dataflow.matrix.cases import Case
from tests.unit.dataflow.matrix.outputs import ROWS, Shape, inputs_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TRANSPORTS = ("unix", "flight")
WIDTHS = (1, 2, 3)
#: Early results are changes, which files do not take.
CHANGES = "tumbling with corrections"
CASES = tuple(case for case in ROWS if isinstance(case, Case) and case.name != CHANGES)
COLUMNS = (CASES, tuple(Shape), WIDTHS, TRANSPORTS, ("", *HOST_POINTS))
#: The two columns whose pairs would be too many runs.
STEP_AND_POINT = (0, 4)
#: So many of them are run every time; the first runs have the most pairs.
FEW = 4


def pairwise(columns: tuple[tuple[Any, ...], ...]) -> list[tuple[Any, ...]]:
    """Few rows in which every two values of two columns meet: each row takes as many new pairs as it can."""
    left = {
        ((one, a), (other, b))
        for (one, first), (other, second) in itertools.combinations(enumerate(columns), 2)
        for a, b in itertools.product(first, second)
        if (one, other) != STEP_AND_POINT
    }
    rows: list[tuple[Any, ...]] = []
    order = sorted(left, key=str)
    while left:
        (one, a), (other, b) = next(pair for pair in order if pair in left)
        row: dict[int, Any] = {one: a, other: b}
        for column, values in enumerate(columns):
            if column not in row:
                row[column] = max(values, key=lambda value: _new_pairs(row, column, value, left))
        found = tuple(row[column] for column in range(len(columns)))
        left -= set(itertools.combinations(enumerate(found), 2))
        rows.append(found)
    return rows


def _new_pairs(row: dict[int, Any], column: int, value: Any, left: set[Any]) -> int:
    pairs = (tuple(sorted(((column, value), each), key=lambda place: place[0])) for each in row.items())
    return sum(pair in left for pair in pairs)


def params() -> list[Any]:
    found = sorted(pairwise(COLUMNS), key=lambda row: (row[2] == 1, row[4] == ""))
    return [
        pytest.param(row, id="-".join(map(str, row)), marks=() if number % (len(found) // FEW) == 0 else _LONG)
        for number, row in enumerate(found)
    ]


_LONG = pytest.mark.long


def plan(case: Case, shape: Shape, folder: Path) -> Node:
    stream = case.build(*inputs_of([shape] * case.inputs, case.splits, 0.1))
    return stream.to_sink(JsonLinesSink(str(folder))).uid("out").node


def lines(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*.jsonl") if ".pending" not in path.parts]
    return sorted(json.dumps(json.loads(line)) for path in files for line in path.read_text().splitlines())


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


@pytest.mark.parametrize("row", params())
def test_a_killed_host_changes_no_output(
    tmp_path: Path, environment: pytest.MonkeyPatch, row: tuple[Case, Shape, int, str, str]
) -> None:
    case, shape, width, transport, point = row
    with VirtualTime() as clock:
        settings = FlowSettings(**case.settings)
        engine.run([plan(case, shape, tmp_path / "quiet")], settings=settings, clock=clock)
    if transport == "flight":
        use_flight(environment, tmp_path)
    if point:
        environment.setenv("SHOAL_FAULTS_HOST_0_EPOCH_1", f"{point}=kill@1")
    checkpoint = CheckpointSettings(directory=str(tmp_path / "checkpoints"), interval=0.1, min_pause=0.001)
    flow = engine.start(
        [plan(case, shape, tmp_path / "out")],
        name="matrix",
        parallelism=width,
        settings=FlowSettings(**case.settings, checkpoint=checkpoint),
        processes=2,
    )
    try:
        flow.wait(120)
    finally:
        flow.abort()
    assert flow.recoveries == (1 if point else 0)
    assert lines(tmp_path / "out") == lines(tmp_path / "quiet")


def test_every_pair_of_values_is_in_some_run() -> None:
    rows = pairwise(COLUMNS)
    for (one, first), (other, second) in itertools.combinations(enumerate(COLUMNS), 2):
        if (one, other) == STEP_AND_POINT:
            continue
        met = {(row[one], row[other]) for row in rows}
        assert met == set(itertools.product(first, second))

"""Every operator, join and sink over inputs of every pace, with and without a crash: the output is that of a quiet run.

All combinations are in the long tests; here each step is twice, and each value of every other column with many steps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.core import faults
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.execution import chain, sources
from shoal.dataflow.execution.event_time import Watermarks
from shoal.dataflow.execution.morsels import MorselStep
from shoal.dataflow.operators.joins import buffer, window
from shoal.dataflow.operators.windows import stored
from tests.unit.dataflow.matrix.cases import OPERATORS, SINKS, TINY
from tests.unit.dataflow.matrix.outputs import (
    INTERVALS,
    POINTS,
    ROWS,
    STARTING,
    WIDTHS,
    Combination,
    Shape,
    check,
    combinations,
    sample,
)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may lie in RocksDB lies there from the first row on; state is taken in by single key groups."""
    for module in (buffer, window, stored):
        monkeypatch.setattr(module, "MOST_BYTES", -1)
    monkeypatch.setattr(chain, "_PIECE_BYTES", 1)


@pytest.mark.parametrize("combination", list(sample()), ids=str)
def test_a_crash_anywhere_changes_no_output(tmp_path: Path, combination: Combination) -> None:
    check(combination, tmp_path)


def test_every_point_is_a_column_of_the_table():
    assert {name for name in faults.POINTS if name.startswith("dataflow.")} == {point for point in POINTS if point}


def test_silent_inputs_become_idle_and_wake_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else their cells would show nothing."""
    case = next(case for case in OPERATORS if case.name == "tumbling")
    woken: list[str] = []
    idle: set[str] = set()

    class Watched(Watermarks):
        def saw(self, split: Split, greatest: int, now: float) -> None:
            woken.extend({split.name} & idle)
            super().saw(split, greatest, now)

        def _is_idle(self, progress: Any, now: float) -> bool:
            found = super()._is_idle(progress, now)
            idle.update(name for name, each in self._open.items() if found and each is progress)
            return found

    monkeypatch.setattr(sources, "Watermarks", Watched)
    check(Combination(case, (Shape.SILENT,), 2, TINY, ""), tmp_path)
    assert idle == {"0", "1"}
    assert woken[0] == "0"


def test_the_morsels_of_a_batch_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in OPERATORS if case.name == "morsels")
    shared: list[int] = []
    monkeypatch.setattr(MorselStep, "_run_shared", _noted(MorselStep._run_shared, shared))
    check(Combination(case, (Shape.BURST,), 1, TINY, ""), tmp_path)
    assert shared


def _noted(run: Callable[..., Any], shared: list[int]) -> Callable[..., Any]:
    def noted(step: MorselStep, batch: Any, *more: Any) -> Any:
        shared.append(batch.num_rows)
        return run(step, batch, *more)

    return noted


def test_every_cell_with_a_point_crashes_there(tmp_path: Path) -> None:
    """A start comes to its points once; a cell that asks for the second time would check nothing."""
    cells = [each for case in ROWS for each in combinations(case, 2, TINY)]
    assert {(each.point, each.turn) for each in cells if each.point.startswith(STARTING)} == {
        (point, 1) for point in POINTS if point.startswith(STARTING)
    }
    assert {each.turn for each in cells if each.point and not each.point.startswith(STARTING)} == {1, 2}
    case = next(case for case in OPERATORS if case.name == "filter")
    with pytest.raises(AssertionError, match="never came to the point"):
        check(Combination(case, (Shape.ENDED,), 1, TINY, "dataflow.manifest.after", 9), tmp_path)


def test_the_sample_has_every_value_of_every_column():
    found = list(sample())
    rows = {case.name for case in OPERATORS} | {case.name for case in SINKS}
    assert {each.case.name for each in found} == rows
    assert {shape for each in found for shape in each.shapes} == set(Shape)
    assert {each.width for each in found} == set(WIDTHS)
    assert {each.interval for each in found} == set(INTERVALS)
    assert {each.point for each in found} == set(POINTS)

"""Every step and sink over inputs of every pace, at every width and interval, crashed at every point, in virtual time.

The output is that of a quiet run. A test runs all paces and points of one step, width and interval.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shoal.dataflow.execution import chain
from shoal.dataflow.operators.joins import buffer, window
from shoal.dataflow.operators.windows import stored
from tests.unit.dataflow.matrix.cases import Case, SinkCase
from tests.unit.dataflow.matrix.outputs import INTERVALS, ROWS, WIDTHS, check, combinations

#: A test is some three hundred runs, in virtual time.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may lie in RocksDB lies there from the first row on; state is taken in by single key groups."""
    for module in (buffer, window, stored):
        monkeypatch.setattr(module, "MOST_BYTES", -1)
    monkeypatch.setattr(chain, "_PIECE_BYTES", 1)


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_a_crash_anywhere_changes_no_output(tmp_path: Path, case: Case | SinkCase, width: int, interval: float) -> None:
    for number, combination in enumerate(combinations(case, width, interval)):
        folder = tmp_path / str(number)
        try:
            check(combination, folder)
        except BaseException as error:
            error.add_note(str(combination))
            raise
        shutil.rmtree(folder)

"""Every operator, join and sink over inputs of every pace, with and without a crash: the output is that of a quiet run.

All combinations are in the long tests; here each step is twice, and each value of every other column with many steps.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core import faults
from shoal.dataflow.execution import chain
from shoal.dataflow.operators.joins import buffer
from tests.unit.dataflow.matrix.cases import OPERATORS, SINKS
from tests.unit.dataflow.matrix.outputs import INTERVALS, POINTS, WIDTHS, Combination, Shape, check, sample


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of joins in RocksDB lie there from the first one on; state is taken in by single key groups."""
    monkeypatch.setattr(buffer, "MOST_BYTES", -1)
    monkeypatch.setattr(chain, "_PIECE_BYTES", 1)


@pytest.mark.parametrize("combination", list(sample()), ids=str)
def test_a_crash_anywhere_changes_no_output(tmp_path: Path, combination: Combination) -> None:
    check(combination, tmp_path)


def test_every_point_is_a_column_of_the_table():
    assert {name for name in faults.POINTS if name.startswith("dataflow.")} == {point for point in POINTS if point}


def test_the_sample_has_every_value_of_every_column():
    found = list(sample())
    rows = {case.name for case in OPERATORS} | {case.name for case in SINKS}
    assert {each.case.name for each in found} == rows
    assert {shape for each in found for shape in each.shapes} == set(Shape)
    assert {each.width for each in found} == set(WIDTHS)
    assert {each.interval for each in found} == set(INTERVALS)
    assert {each.point for each in found} == set(POINTS)

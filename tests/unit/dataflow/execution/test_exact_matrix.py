"""Every operator and join over inputs of every pace, with and without a crash: the output is that of a quiet run.

The quiet run has no checkpoints. The others have them often, crash where a named point is reached, and are started
again at another width. All combinations are in the long tests; here each step is once in every column of the table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core import faults
from tests.unit.dataflow.execution.checkpoint_matrix import OPERATORS
from tests.unit.dataflow.execution.exact_matrix import (
    LEFT_OUT,
    NEVER_REACHED,
    POINTS,
    Combination,
    Shape,
    check,
    combinations,
    sample,
)


@pytest.mark.parametrize("combination", list(sample()), ids=str)
def test_a_crash_anywhere_changes_no_output(tmp_path: Path, combination: Combination) -> None:
    check(combination, tmp_path)


def test_every_point_is_a_column_of_the_table():
    named = {name for name in faults.POINTS if name.startswith("dataflow.")}
    assert named == {point for point in POINTS if point} | NEVER_REACHED


def test_every_step_is_a_row_of_the_table():
    assert {each.case.name for each in combinations()} == {case.name for case in OPERATORS} - LEFT_OUT.keys()


def test_the_sample_has_every_step_shape_width_and_point():
    found = list(sample())
    assert {each.case.name for each in found} == {case.name for case in OPERATORS} - LEFT_OUT.keys()
    assert {shape for each in found for shape in each.shapes} == set(Shape)
    assert {each.width for each in found} == {1, 2, 3}
    assert {each.point for each in found} == set(POINTS)

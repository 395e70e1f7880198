"""Every step over inputs of every pace, at every width, crashed at every point: the output is that of a quiet run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.dataflow.execution.exact_matrix import Combination, check, combinations

#: One of so many combinations is run: the stride divides none of the table's dimensions, so each value of each of them
#: comes with every step.
_STRIDE = 13


@pytest.mark.parametrize("combination", list(combinations())[::_STRIDE], ids=str)
def test_a_crash_anywhere_changes_no_output(tmp_path: Path, combination: Combination) -> None:
    check(combination, tmp_path)

"""Every operator and join under checkpoints, over all combinations of paces: none stalls, and a stop returns."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.unit.dataflow.matrix.cases import NORMAL, OPERATORS, TINY, Case
from tests.unit.dataflow.matrix.stalls import Pace, check, params

#: Three inputs of every pace would be 125 combinations for each step.
_FEWER = (Pace.ENDLESS, Pace.SLOW, Pace.LOADING, Pace.ENDED)


def combinations() -> list:
    return [
        params(case, paces, interval)
        for case in OPERATORS
        for paces in itertools.product(Pace if case.inputs < 3 else _FEWER, repeat=case.inputs)
        for interval in (TINY, NORMAL)
    ]


@pytest.mark.parametrize(("case", "paces", "interval"), combinations())
def test_no_step_stalls_under_checkpoints(tmp_path: Path, case: Case, paces: tuple[Pace, ...], interval: float) -> None:
    check(case, paces, interval, tmp_path)

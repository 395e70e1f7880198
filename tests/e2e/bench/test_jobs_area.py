"""The area of jobs measures what it declares, on a real fleet and a small scale."""

from __future__ import annotations

import math

import pytest

from bench.jobs import AREA, FIGURES, measures
from bench.jobs.measures import PARTS, measure_part
from bench.jobs.scale import Scale
from shoal.core.errors import UnavailableError

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300)]

SMALL = Scale(
    rows=2_000_000,
    turns=1,
    bare_rows=200_000,
    bare_rounds=1,
    agents=(1, 2),
    agent_rows=2_000_000,
    rate=2000,
    seconds=1.0,
    trickle=200,
    starts=1,
    keys=4000,
    messages=20_000,
    batches=20,
)
MEASURED = {each.name for each in FIGURES if each.quotient is None and not each.optional}
SKIPPED = {"cpu_4", "cpu_8"}
OPTIONAL = {each.name for each in FIGURES if each.optional}


def test_every_figure_belongs_to_a_part_of_the_area():
    assert set(AREA.parts) == set(PARTS)


class NoPeer:
    """A peer that cannot be installed."""

    def run(self, *_arguments, **_more):
        raise UnavailableError("there is none")


@pytest.fixture(scope="module")
def found():
    """What the parts have measured so far."""
    return {}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_measured(part, found, monkeypatch):
    notes: list[str] = []
    monkeypatch.setattr(measures, "FLINK", NoPeer())
    found |= measure_part(part, SMALL, notes.append)
    assert all(math.isfinite(each) and each >= 0 for each in found.values())
    if part == list(PARTS)[-1] and len(found) > len(MEASURED) // 2:
        assert set(found) - OPTIONAL == MEASURED - SKIPPED

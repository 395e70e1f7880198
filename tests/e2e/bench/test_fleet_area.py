"""The fleet area measures what it declares, on real processes and a small scale."""

from __future__ import annotations

import math

import pytest

from bench import fleet
from bench.fleet import FIGURES, Scale, leaders, measure_more_nodes, measure_nodes
from bench.postgres import find_programs
from tests.services.postgres import do_without

pytestmark = pytest.mark.e2e

SMALL = Scale(
    nodes=4,
    more_nodes=6,
    interval=0.5,
    steady=1.5,
    rest=4.0,
    rates=(20, 40),
    each_rate=0.5,
    silent=2,
    updates=10,
)
MORE = {figure.name for figure in FIGURES if figure.name.startswith("more_")}
LEADERS = {"leader_death_to_write"}


async def test_every_figure_of_a_fleet_gets_a_value() -> None:
    found = await measure_nodes(SMALL, at_rest=True)
    assert found.keys() == {figure.name for figure in FIGURES} - MORE - LEADERS
    assert all(value >= 0 and math.isfinite(value) for value in found.values())
    assert found["overcommitted"] == found["not_ready"] == found["store_growth"] == 0
    assert found["placements"] > 0
    assert found["heartbeat_p50"] <= found["heartbeat_p99"]


@pytest.mark.long
async def test_what_breaks_first_is_told() -> None:
    notes: list[str] = []
    found = await measure_more_nodes(SMALL, notes.append)
    assert found.keys() == MORE
    assert all(value > 0 and math.isfinite(value) for value in found.values())
    (told,) = notes
    assert told.startswith(("6 nodes with 20 workloads each are held", "With 6 nodes with 20 workloads each"))


@pytest.mark.long
async def test_the_next_leader_takes_a_write() -> None:
    programs = find_programs()
    if programs is None:
        do_without()
    assert 0 < await leaders.next_write(programs) < 60


def test_without_postgres_the_rest_is_measured_and_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object, **__: object) -> dict[str, float]:
        return {}

    monkeypatch.setattr(fleet, "find_programs", lambda: None)
    monkeypatch.setattr(fleet, "measure_nodes", nothing)
    notes: list[str] = []
    assert "leader_death_to_write" not in fleet.measure(1, notes.append)
    assert notes == ["`leader_death_to_write` was left out: PostgreSQL is not installed."]

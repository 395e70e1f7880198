"""The control area measures what it declares, on real processes and a small scale."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from bench import control
from bench.control import FIGURES, Scale, measure_agents, measure_hollow

pytestmark = pytest.mark.e2e

SMALL = Scale(
    nodes=3,
    rate=20.0,
    operations=5,
    starts=2,
    idle=0.0,
    lease=timedelta(seconds=2),
    interval=timedelta(milliseconds=200),
)
ECHO_AND_SCHEDULER = {figure.name for figure in FIGURES if figure.name.startswith(("grpc_echo", "scheduler"))}
ONCE = {figure.name for figure in FIGURES if figure.once}


@pytest.mark.long
async def test_every_figure_of_the_fleets_gets_a_value() -> None:
    found = {**await measure_hollow(SMALL, at_defaults=False), **await measure_agents(SMALL)}
    assert found.keys() == {figure.name for figure in FIGURES} - ECHO_AND_SCHEDULER - ONCE
    assert all(value > 0 and math.isfinite(value) for value in found.values())
    assert found["apply_to_agent_p50"] <= found["apply_to_agent_p99"]
    assert found["delete_to_agent_p50"] <= found["delete_to_gone_p99"]
    assert found["loss_noticed"] <= found["loss_replaced"]
    assert found["agent_memory_shared_once"] <= found["agent_memory"]


def test_the_scheduler_has_its_figures() -> None:
    assert set(control._measure_scheduler()) == {name for name in ECHO_AND_SCHEDULER if name.startswith("scheduler")}

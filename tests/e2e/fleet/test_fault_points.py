"""Killed at every named fault point, on real processes: no acknowledged wish is lost, and nothing runs twice.

Each test arms one point in one process, lives a whole life of a workload through it, and checks that the process died
there. The same with SIGSTOP instead of a kill is in tests/long.
"""

import asyncio

import pytest

from shoal.core.errors import ShoalError
from shoal.core.faults import POINTS
from tests.e2e.fleet.conftest import LEASE
from tests.e2e.fleet.drill import life, nurse

CONTROL_POINTS = [name for name in POINTS if name.startswith(("store.", "control."))]
AGENT_POINTS = [name for name in POINTS if name.startswith("agent.")]

# Many lives in one test each, on a machine that may be busy.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


async def test_the_control_plane_is_killed_at_each_point(fleet, control):
    for point in CONTROL_POINTS:
        await fleet.kill_control()
        if point == "control.register.committed":
            await asyncio.sleep(
                LEASE.total_seconds() + 0.5
            )  # agents register anew when they had no contact for a lease
        await fleet.start_control(env={"SHOAL_FAULTS": f"{point}=kill"})
        async with nurse(fleet) as deaths:
            await life(fleet, control, f"life-{point.replace('.', '-').replace('_', '-')}")
            assert [death.name for death in deaths] == ["control"], f"{point} was not reached"


async def test_an_agent_is_killed_at_each_point(fleet, control):
    victim, other = fleet.names
    await fleet.kill_machine(other)  # so that everything goes through the one that dies
    for point in AGENT_POINTS:
        await fleet.kill_agent(victim)
        # The first beat comes before any order; what matters is one that carries something.
        count = "@4" if point == "agent.heartbeat.before" else ""
        async with nurse(fleet) as deaths:
            if not await _start_doomed(fleet, victim, f"{point}=kill{count}"):
                deaths.append(victim)
            await life(fleet, control, f"life-{point.replace('.', '-').replace('_', '-')}")
            assert deaths, f"{point} was not reached"


async def _start_doomed(fleet, victim, faults):
    """Start an agent that may die before it serves. False when it did; then a healthy one takes its place."""
    try:
        await fleet.start_agent(victim, env={"SHOAL_FAULTS": faults})
    except ShoalError:
        if not fleet.is_running(victim):
            await fleet.start_agent(victim)
        return False
    return True

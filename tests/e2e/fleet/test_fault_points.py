"""Killed at every named fault point, on real processes: nothing that was acknowledged is lost, and nothing runs twice.

Each test arms one point in one process, lives a whole life of a workload through it, and checks that the process died
there. A few points are in `make test`, all of them in `make test-long`. The same with SIGSTOP is in tests/long.
"""

import asyncio

import pytest

from shoal.core.errors import ShoalError
from shoal.core.faults import POINTS
from tests.e2e.fleet.conftest import LEASE
from tests.e2e.fleet.drill import life, nurse

#: The points that `make test` has: what was done is not known yet to the one who asked for it.
FEW = {"store.commit.after", "control.send.after", "agent.intent.after", "agent.start.after"}


def points(*prefixes):
    """The points with these prefixes, as parameters."""
    found = [name for name in POINTS if name.startswith(prefixes)]
    return [pytest.param(name, marks=() if name in FEW else pytest.mark.long) for name in found]


pytestmark = pytest.mark.e2e


def test_the_few_points_exist():
    assert set(POINTS) >= FEW


@pytest.mark.parametrize("point", points("store.", "control."))
async def test_the_control_plane_is_killed(fleet, control, point):
    await fleet.kill_control()
    if point == "control.register.committed":
        # Agents register anew when they had no contact for a lease.
        await asyncio.sleep(LEASE.total_seconds() + 0.5)
    await fleet.start_control(env={"SHOAL_FAULTS": f"{point}=kill"})
    async with nurse(fleet) as deaths:
        await life(fleet, control, "life")
        assert [death.name for death in deaths] == ["control"], f"{point} was not reached"


@pytest.mark.parametrize("point", points("agent."))
async def test_an_agent_is_killed(fleet, control, point):
    victim, other = fleet.names
    await fleet.kill_machine(other)  # so that everything goes through the one that dies
    await fleet.kill_agent(victim)
    # The first heartbeat comes before any command; what matters is one that carries something.
    count = "@4" if point == "agent.heartbeat.before" else ""
    async with nurse(fleet) as deaths:
        if not await _start_doomed(fleet, victim, f"{point}=kill{count}"):
            deaths.append(victim)
        await life(fleet, control, "life")
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

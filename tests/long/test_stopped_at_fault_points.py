"""Stopped (SIGSTOP) at every named fault point beyond a lease, then awake again: nothing is lost or doubled."""

import asyncio
import contextlib
import signal
from pathlib import Path

import pytest

from shoal.core.faults import POINTS
from tests.e2e.fleet.conftest import control, fleet, lease
from tests.e2e.fleet.drill import life

__all__ = ["control", "fleet", "lease"]

CONTROL_POINTS = [name for name in POINTS if name.startswith(("store.", "control."))]
AGENT_POINTS = [name for name in POINTS if name.startswith("agent.") and name != "agent.register.after"]

STOPPED_FOR = 4.0


@contextlib.asynccontextmanager
async def alarm_clock(fleet, name):
    """Wake a child each time it is found stopped, after a while. Yields the list of wake-ups."""
    woken = []

    async def watch():
        while True:
            await asyncio.sleep(0.1)
            with contextlib.suppress(Exception):
                pid = fleet.pid_of(name)
                stat = Path(f"/proc/{pid}/stat").read_text()
                state = stat.rpartition(")")[2].split()[0]
                if state == "T":
                    await asyncio.sleep(STOPPED_FOR)
                    fleet.signal(name, signal.SIGCONT)
                    woken.append(pid)

    task = asyncio.ensure_future(watch())
    try:
        yield woken
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def reached(woken, point):
    """A life may be over before the last one wakes."""
    for _ in range(100):
        if woken:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{point} was not reached")


@pytest.mark.parametrize("point", CONTROL_POINTS)
async def test_the_control_plane_is_stopped(fleet, control, point):
    await fleet.kill_control()
    async with alarm_clock(fleet, "control") as woken:  # it may come to its point before it serves
        await fleet.start_control(env={"SHOAL_FAULTS": f"{point}=stop"})
        if point == "control.register.committed":  # agents that are known keep their sessions
            await fleet.kill_agent(fleet.names[0])
            await fleet.start_agent(fleet.names[0])
        await life(fleet, control, "life")
        await reached(woken, point)


@pytest.mark.parametrize("point", AGENT_POINTS)
async def test_an_agent_is_stopped(fleet, control, point):
    victim, other = fleet.names
    await fleet.kill_machine(other)
    await fleet.kill_agent(victim)
    time = 1 if point == "agent.forget.before" else 2  # in one life only one is forgotten
    async with alarm_clock(fleet, victim) as woken:
        await fleet.start_agent(victim, env={"SHOAL_FAULTS": f"{point}=stop@{time}"})
        await life(fleet, control, "life")
        await reached(woken, point)

"""A job of forty tasks on ten agents, and one whose control plane is away for five minutes."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.cli.local.fleet import LocalFleet
from shoal.wire.methods import Jobs
from tests.e2e.jobs.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

AWAY = 300.0


def make_fleet(folder: Path, *, agents: int, slots: int) -> LocalFleet:
    return LocalFleet(
        folder / "fleet",
        agents=agents,
        slots=slots,
        cpu="8",
        memory="4096MB",
        lease=timedelta(seconds=30),
        heartbeat_interval=timedelta(seconds=1),
        stop_workloads_on_exit=False,
    )


async def test_ten_agents_of_four_slots_run_one_job_of_forty_tasks(tmp_path):
    fleet = make_fleet(tmp_path, agents=10, slots=4)
    try:
        await fleet.start()
        async with fleet.client() as client:
            world = World(fleet, client, tmp_path)
            world.feed(2000)
            await world.submit(40)
            await world.wait_state("Running", seconds=400)
            nodes = [(await world.workload(f"host-{number}")).assigned_node_id for number in range(40)]
            assert sorted(nodes) == sorted(fleet.names * 4)
            await world.wait_output()
            second = World(fleet, client, tmp_path / "second")
            await second.submit(1)
            waiting = await second.wait_state("Pending")
            async with asyncio.timeout(60):
                while not all(name in waiting.message for name in fleet.names):
                    waiting = await second.get()
                    await asyncio.sleep(0.2)
            assert "slot" in waiting.message
            await world.check()
            await world.ask(Jobs.SAVEPOINT, stop=True)
            await world.wait_state("Stopped")
            # The second job gets a slot as soon as there is one.
            await second.wait_state("Running", seconds=120)
    finally:
        await fleet.kill()


async def test_a_job_goes_on_while_the_control_plane_is_away_for_five_minutes(tmp_path):
    fleet = make_fleet(tmp_path, agents=3, slots=2)
    try:
        await fleet.start()
        async with fleet.client() as client:
            world = World(fleet, client, tmp_path)
            world.feed(400)
            await world.submit()
            await world.wait_state("Running")
            await world.wait_output()
            async with world.under_load():
                host = await world.workload("host-1")
                await fleet.kill_control()
                until = asyncio.get_running_loop().time() + AWAY
                count = await world.wait_output(await world.wait_output())
                os.kill(host.run.pid, signal.SIGKILL)  # its agent starts it again in its place
                while asyncio.get_running_loop().time() < until:
                    count = await world.wait_output(count)
                    await asyncio.sleep(5)
                await fleet.start_control()
                await world.wait_state("Running")
                await world.wait_output(count)
            await world.check()
    finally:
        await fleet.kill()

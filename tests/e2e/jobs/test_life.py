"""The life of dataflow jobs on three agents: deployed, stopped with a savepoint, resumed, canceled, ended, failed."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.wire.methods import Jobs
from tests.e2e.jobs.world import World

pytestmark = pytest.mark.e2e


async def show_graph(world) -> str:
    command = [sys.executable, "-m", "shoal", "job", "graph", world.job_id]
    shown = await asyncio.to_thread(
        subprocess.run,
        command,
        env=os.environ | world.fleet.client_variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return str(shown.stdout)


async def test_it_runs_stops_with_a_savepoint_goes_on_and_is_canceled_and_others_end_and_fail(world):
    world.feed(400)
    await world.submit()
    await world.wait_state("Running")
    await world.wait_output()
    async with asyncio.timeout(60):
        while "aggregate(key)" not in (shown := await show_graph(world)):  # the coordinator tells of steps each second
            await asyncio.sleep(0.1)
    assert "/s" in shown
    await world.ask(Jobs.SAVEPOINT, stop=True)
    stopped = await world.wait_state("Stopped")
    saved = Path(stopped.message)
    assert {"manifest.json", "savepoint"} <= {each.name for each in saved.iterdir()}, "it stays until it is deleted"
    assert saved.parent.parent == world.folder / "checkpoints"
    world.feed(400)
    await world.ask(Jobs.RESUME)
    await world.wait_state("Running")
    await world.check()
    await world.ask(Jobs.CANCEL)
    await world.wait_state("Canceled")
    await ends_with_its_input(World(world.fleet, world.client, world.folder))
    await says_which_step_failed(World(world.fleet, world.client, world.folder))


async def ends_with_its_input(world):
    world.feed(400)
    await world.submit(bounded=True)
    await world.wait_state("Finished")
    assert await asyncio.to_thread(world.found) == world.expected()


async def says_which_step_failed(world):
    world.feed(400)
    await world.submit(does="boom")
    failed = await world.wait_state("Failed")
    assert "boom" in failed.message

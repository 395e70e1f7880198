"""The life of a dataflow job on three agents: deployed, stopped with a savepoint, resumed, canceled, exact."""

import asyncio
import os
import subprocess
import sys

import pytest

from shoal.wire.methods import Jobs

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


async def test_it_runs_stops_with_a_savepoint_and_goes_on(world):
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
    assert "/checkpoints/" in stopped.message
    world.feed(400)
    await world.ask(Jobs.RESUME)
    await world.wait_state("Running")
    await world.check()
    await world.ask(Jobs.CANCEL)
    await world.wait_state("Canceled")

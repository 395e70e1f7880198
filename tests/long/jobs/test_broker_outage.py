"""A job whose Kafka is away for longer than its writers wait goes back to its last checkpoint until Kafka is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.e2e.jobs.conftest import fleet
from tests.e2e.jobs.world import World
from tests.services.private_broker import PrivateBroker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

__all__ = ["fleet"]

#: Seconds for recoveries to happen: a writer waits 30 s for its broker before it gives up.
LONG = 240.0


@pytest.fixture
def lease():
    """So long that no test passes because a lease has ended."""
    return timedelta(seconds=120)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PrivateBroker]:
    made = PrivateBroker(tmp_path)
    try:
        yield made
    finally:
        made.remove()


async def wait_recoveries(world: World, times: int) -> None:
    """Wait until the job has gone back so often, or tries to."""
    async with asyncio.timeout(LONG):
        while (await world.wait_state("Running", "Recovering")) and (await world.report()).recoveries < times:
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("recoveries", [1, 3])
async def test_a_broker_that_comes_back_finds_the_job_waiting(fleet, tmp_path, broker, recoveries):
    async with fleet.client() as client:
        world = World(fleet, client, tmp_path, broker=broker.address)
        await asyncio.to_thread(world.feed, 400)
        await world.submit()
        await world.wait_state("Running")
        await world.wait_output()
        await asyncio.to_thread(world.feed, 400)
        before = (await world.report()).recoveries
        await asyncio.to_thread(broker.kill)
        await wait_recoveries(world, before + recoveries)
        await asyncio.to_thread(broker.restart)
        await world.wait_state("Running", seconds=LONG)
        await asyncio.to_thread(world.feed, 400)
        await world.check()


async def test_a_job_whose_broker_is_away_at_its_start_begins_when_it_is_there(fleet, tmp_path, broker):
    async with fleet.client() as client:
        world = World(fleet, client, tmp_path, broker=broker.address)
        await asyncio.to_thread(world.feed, 400)
        package = await asyncio.to_thread(world.pack)
        await asyncio.to_thread(broker.kill)
        await world.submit_package(package)
        async with asyncio.timeout(LONG):
            while (report := await world.report()) is None or not report.message:
                await asyncio.sleep(0.2)
        assert broker.address in report.message
        await asyncio.to_thread(broker.restart)
        await world.wait_state("Running", seconds=LONG)
        await world.check()

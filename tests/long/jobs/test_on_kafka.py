"""A dataflow job on Kafka with transactions: stopped, rescaled, upgraded, its processes killed under load; exact."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from shoal.dataflow.fleet.spec import encode
from shoal.wire.methods import Jobs
from tests.e2e.jobs.conftest import fleet
from tests.e2e.jobs.world import World
from tests.services.kafka import kafka_broker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

__all__ = ["fleet", "kafka_broker"]


@pytest.fixture
def lease():
    """So long that no test passes because a lease has ended."""
    return timedelta(seconds=120)


async def stop_and_start(world: World) -> None:
    await world.ask(Jobs.SAVEPOINT, stop=True)
    await world.wait_state("Stopped")
    await world.ask(Jobs.RESUME)


async def rescale(world: World) -> None:
    for width in (4, 1):
        epoch = await world.epoch()
        await world.ask(Jobs.RESCALE, width=width)
        await world.wait_recovered(epoch)
        await world.wait_state("Running")


async def upgrade(world: World) -> None:
    epoch = await world.epoch()
    package = await asyncio.to_thread(world.pack, files={"more.py": b"VERSION = 2\n"})
    await world.client.upload_artifact(package.plan)
    await world.client.upload_artifact(package.bundle)
    await world.ask(Jobs.UPGRADE, spec=encode(package.spec))
    await world.wait_recovered(epoch)


async def lose_agent_alone(world: World) -> None:
    epoch, before = await world.epoch(), await world.workload("host-1")
    await world.fleet.kill_agent(before.assigned_node_id)
    await world.wait_output(await world.wait_output())
    await world.fleet.start_agent(before.assigned_node_id)
    await world.fleet.wait_ready()
    assert (await world.workload("host-1")).run.pid == before.run.pid
    assert await world.epoch() == epoch


async def lose_agent(world: World) -> None:
    epoch = await world.epoch()
    await world.fleet.kill_machine((await world.workload("host-1")).assigned_node_id)
    await world.wait_recovered(epoch)


async def lose_coordinator(world: World) -> None:
    epoch = await world.epoch()
    await world.fleet.kill_machine((await world.workload("coordinator")).assigned_node_id)
    await world.wait_recovered(epoch)


async def lose_control_plane(world: World) -> None:
    await world.fleet.kill_control()
    await world.wait_output(await world.wait_output())
    await world.fleet.start_control()


@pytest.mark.parametrize(
    "happens",
    [stop_and_start, rescale, upgrade, lose_agent_alone, lose_agent, lose_coordinator, lose_control_plane],
)
async def test_output_stays_exact(fleet, tmp_path, kafka_broker, happens):
    async with fleet.client() as client:
        world = World(fleet, client, tmp_path, broker=kafka_broker.address)
        world.feed(400)
        await world.submit()
        await world.wait_state("Running")
        await world.wait_output()
        async with world.under_load():
            await happens(world)
            await world.wait_state("Running")
            await world.wait_output(await world.wait_output())
        await world.check()

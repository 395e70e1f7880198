"""Dataflow jobs on three agents, and on machines of their own with Kafka: wide, without room, without luck."""

import asyncio
from datetime import timedelta

import pytest

from shoal.cli.local.fleet import LocalFleet
from tests.e2e.jobs.world import World
from tests.services.kafka import kafka_broker

pytestmark = pytest.mark.e2e

__all__ = ["kafka_broker"]


async def test_six_task_hosts_are_spread_over_three_agents_and_a_second_job_waits_for_room(world, tmp_path):
    world.feed(400)
    await world.submit(6)
    await world.wait_state("Running")
    nodes = [(await world.workload(f"host-{number}")).assigned_node_id for number in range(6)]
    assert sorted(nodes) == sorted(world.fleet.names * 2)
    second = World(world.fleet, world.client, tmp_path / "second")
    await second.submit(1)
    waiting = await second.wait_state("Pending")
    async with asyncio.timeout(30):
        while not all(name in waiting.message for name in world.fleet.names):
            waiting = await second.get()
            await asyncio.sleep(0.1)
    assert "slot" in waiting.message
    await world.check()


async def test_between_machines_rows_go_by_flight_over_losses_and_a_local_log_is_refused(tmp_path, kafka_broker):
    fleet = LocalFleet(
        tmp_path / "fleet",
        agents=0,
        slots=1,
        cpu="4",
        memory="4096MB",
        lease=timedelta(seconds=15),
        heartbeat_interval=timedelta(milliseconds=500),
        stop_workloads_on_exit=False,
    )
    try:
        await fleet.start()
        for name in ("m1", "m2"):
            fleet._agent_args = ("--host-id", name)  # each is a machine of its own
            await fleet.start_agent(name)
        await fleet.wait_ready()
        async with fleet.client() as client:
            local = World(fleet, client, tmp_path)
            await local.submit(2)
            assert "serves one" in (await local.wait_state("Failed")).message
            world = World(fleet, client, tmp_path, broker=kafka_broker.address)
            world.feed(400)
            await world.submit(2)
            await world.wait_state("Running")
            count = await world.wait_output()
            for part in ("host-0", "coordinator"):
                epoch = await world.epoch()
                await world.kill(part)
                await world.wait_recovered(epoch)
                await asyncio.to_thread(world.feed, 200)
                count = await world.wait_output(count)
            await world.check()
    finally:
        await fleet.kill()

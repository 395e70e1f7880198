"""A dataflow job on four machines whose network is cut, or whose Kafka says nothing for a while; exact each time.

Rows between machines go by Flight with TLS. The leases of nodes are so long that none ends.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.jobs.world import LONG, World
from tests.long.jobs.machines import CONTROL, Machines
from tests.services.kafka import kafka_broker
from tests.services.network import Network, require_network

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

__all__ = ["kafka_broker"]

AGENTS = ("a", "b", "c", "d")
#: Longer than a task host may be silent, and than a peer of Flight may.
CUT = 20.0


@pytest.fixture
async def world(tmp_path, kafka_broker):
    """The job runs, and has put something out."""
    require_network()
    with Network(CONTROL, *AGENTS) as network:
        machines = Machines(tmp_path / "fleet", network, agents=AGENTS, broker=kafka_broker.address)
        try:
            await machines.start()
            async with machines.client() as client:
                world = World(machines, client, tmp_path, broker=kafka_broker.address)
                world.feed(400)
                await world.submit(checkpoints=f"file://{tmp_path}/checkpoints")
                await world.wait_state("Running")
                await world.wait_output()
                yield world
        finally:
            await machines.kill()


async def node_of(world, part):
    return (await world.workload(part)).assigned_node_id


async def placed_anew(world, part, node, epoch):
    """Wait until a part is elsewhere and the job has gone on, while the network is still cut."""
    async with asyncio.timeout(LONG):
        while await node_of(world, part) == node:
            await asyncio.sleep(0.2)
    await world.wait_recovered(epoch)
    await world.wait_output(await world.wait_output())


async def task_hosts_do_not_reach_each_other(world):
    nodes = {part: await node_of(world, part) for part in ("host-0", "host-1")}
    epoch = await world.epoch()
    world.fleet.network.cut(*nodes.values())
    async with asyncio.timeout(LONG):
        while {part: await node_of(world, part) for part in nodes} == nodes:
            await asyncio.sleep(0.2)
    await world.wait_recovered(epoch + 1)
    await world.wait_output(await world.wait_output())


async def what_one_task_host_sends_to_the_other_is_lost(world):
    epoch = await world.epoch()
    world.fleet.network.drop(await node_of(world, "host-0"), await node_of(world, "host-1"))
    await world.wait_recovered(epoch)
    await asyncio.sleep(CUT)


async def a_task_host_is_cut_off(world):
    coordinator = await node_of(world, "coordinator")
    nodes = {part: await node_of(world, part) for part in ("host-0", "host-1")}
    part = next(part for part, node in nodes.items() if node != coordinator)
    epoch = await world.epoch()
    world.fleet.cut_off(nodes[part])
    await placed_anew(world, part, nodes[part], epoch)


async def the_coordinator_is_cut_off(world):
    node, before = await node_of(world, "coordinator"), await world.report()
    world.fleet.cut_off(node)
    await placed_anew(world, "coordinator", node, before.epoch)
    assert (await world.report()).term > before.term


async def the_coordinator_reaches_the_control_plane_alone(world):
    epoch, nodes = await world.epoch(), {await node_of(world, part) for part in ("coordinator", "host-0", "host-1")}
    world.fleet.cut_off(await node_of(world, "coordinator"), control=False)
    await world.wait_recovered(epoch)
    await world.wait_output(await world.wait_output())
    assert {await node_of(world, part) for part in ("coordinator", "host-0", "host-1")} != nodes


async def the_control_plane_is_cut_off(world):
    world.fleet.cut_off(CONTROL)
    count = await world.wait_output(await world.wait_output())
    await asyncio.sleep(CUT)
    await world.wait_output(count + 50)


async def nobody_reaches_anybody(world):
    for name in AGENTS:
        world.fleet.cut_off(name)
    await asyncio.sleep(CUT)


async def kafka_says_nothing_to_a_task_host(world):
    node = await node_of(world, "host-1")
    world.fleet.stop_kafka(node)
    await asyncio.sleep(CUT)
    world.fleet.continue_kafka(node)


@pytest.mark.parametrize(
    "happens",
    [
        task_hosts_do_not_reach_each_other,
        what_one_task_host_sends_to_the_other_is_lost,
        a_task_host_is_cut_off,
        the_coordinator_is_cut_off,
        the_coordinator_reaches_the_control_plane_alone,
        the_control_plane_is_cut_off,
        nobody_reaches_anybody,
        kafka_says_nothing_to_a_task_host,
    ],
)
async def test_output_stays_exact(world, happens):
    async with world.under_load():
        await happens(world)
        world.fleet.network.heal()
        await world.wait_state("Running")
        await world.wait_output(await world.wait_output())
    await world.check()

"""Placements come together when there are many, and at once when there are few."""

import asyncio
import time

import pytest

from shoal.control.placer import BUSY_BATCH, BUSY_SECONDS, GATHER_SECONDS

pytestmark = pytest.mark.looptime(start=time.monotonic)


async def apply(kit, *names):
    await asyncio.gather(*(kit.apply(name, cpu=10, memory=10) for name in names))


async def placed_at(kit, *names):
    workloads = kit.plane.reign.fleet.workloads
    await kit.wait(lambda: all(name in workloads and workloads[name].node_id for name in names))
    return {workloads[name].placed_at for name in names}


@pytest.fixture
async def busy(kit):
    """Right after many workloads were placed at once."""
    kit.node("n1")
    await kit.wait_node("n1", "Ready")
    names = [f"w{number}" for number in range(2 * BUSY_BATCH)]
    await apply(kit, *names)
    await placed_at(kit, *names)
    return kit


async def test_when_there_is_much_to_place_wishes_are_gathered(busy):
    await apply(busy, "one")
    await busy.clock.sleep(GATHER_SECONDS / 2)
    await apply(busy, "two")
    assert len(await placed_at(busy, "one", "two")) == 1


async def test_a_single_wish_is_not_kept_waiting(busy):
    await busy.clock.sleep(BUSY_SECONDS)
    wished = busy.clock.wall()
    await apply(busy, "alone")
    (placed,) = await placed_at(busy, "alone")
    assert (placed - wished).total_seconds() < GATHER_SECONDS

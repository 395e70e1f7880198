"""Placements come together when there are many, and at once when there are few."""

import asyncio
import dataclasses
import time

import pytest

from shoal.control.placement.placer import BACKLOG, BUSY_BATCH, BUSY_SECONDS, GATHER_SECONDS, MOMENT_SECONDS

pytestmark = pytest.mark.looptime(start=time.monotonic)


async def apply(kit, *names):
    await asyncio.gather(*(kit.apply(name, cpu=10, memory=10) for name in names))


async def placed_at(kit, *names):
    workloads = kit.plane.leadership.fleet.workloads
    await kit.wait(lambda: all(name in workloads and workloads[name].node_id for name in names))
    return {workloads[name].placed_at for name in names}


@pytest.fixture
async def busy(kit):
    """Right after very many workloads were placed at once."""
    kit.node("n1", cpu_millicores=100_000, memory_mb=100_000)
    await kit.wait_node("n1", "Ready")
    names = [f"w{number}" for number in range(BACKLOG)]
    await apply(kit, *names)
    workloads = kit.plane.leadership.fleet.workloads
    while not all(name in workloads and workloads[name].node_id for name in names):
        await asyncio.sleep(MOMENT_SECONDS / 100)  # a longer one would see the end of the rush
    return kit


async def test_when_there_is_much_to_place_requests_are_gathered(busy):
    names = ["one", "two", "three", "four"]
    for name in names:
        await apply(busy, name)
        await busy.clock.sleep(MOMENT_SECONDS / 2)
    assert len(await placed_at(busy, *names)) == 1


async def test_gathering_ends_when_no_request_comes_for_a_moment(busy):
    asked = busy.clock.wall()
    await apply(busy, "one")
    (placed,) = await placed_at(busy, "one")
    assert (placed - asked).total_seconds() < 3 * MOMENT_SECONDS < GATHER_SECONDS


async def test_what_waited_for_the_end_of_a_rush_goes_on_soon_after_it(busy):
    placer = busy.plane.leadership.placer
    assert placer.has_backlog
    assert placer.is_busy
    await busy.clock.sleep(4 * MOMENT_SECONDS)
    assert not placer.has_backlog
    assert not placer.is_busy


async def test_an_update_is_not_kept_waiting_by_new_workloads(busy):
    asked = busy.clock.wall()
    await apply(busy, "one")
    await busy.clock.sleep(MOMENT_SECONDS / 2)
    await busy.apply("w0", cpu=20, memory=10)
    workloads = busy.plane.leadership.fleet.workloads
    await busy.wait(lambda: workloads["w0"].placed_at > asked)
    assert (workloads["w0"].placed_at - asked).total_seconds() < MOMENT_SECONDS


async def test_a_few_at_once_are_not_kept_waiting(kit):
    kit.node("n1")
    await kit.wait_node("n1", "Ready")
    names = [f"w{number}" for number in range(2 * BUSY_BATCH)]
    await apply(kit, *names)
    await placed_at(kit, *names)
    preferred = kit.clock.wall()
    await apply(kit, "next")
    (placed,) = await placed_at(kit, "next")
    assert (placed - preferred).total_seconds() < GATHER_SECONDS


async def test_a_single_request_is_not_kept_waiting(busy):
    await busy.clock.sleep(BUSY_SECONDS)
    preferred = busy.clock.wall()
    await apply(busy, "alone")
    (placed,) = await placed_at(busy, "alone")
    assert (placed - preferred).total_seconds() < GATHER_SECONDS


async def test_memory_that_fell_behind_is_read_anew_and_nothing_waits_for_ever(kit):
    await kit.apply("w", cpu=10, memory=10)
    fleet = kit.plane.leadership.fleet
    unplaced = fleet.workloads["w"]
    kit.node("n1")
    await placed_at(kit, "w")
    await kit.wait_status("w", "Running")
    stored = await kit.store.load()
    fleet.load(dataclasses.replace(stored, workloads=(unplaced,)))
    kit.plane.leadership.queue.enqueue("w")
    await kit.wait(lambda: fleet.workloads["w"].node_id == "n1", what="it is known again where it runs")
    assert fleet.workloads["w"].version > unplaced.version

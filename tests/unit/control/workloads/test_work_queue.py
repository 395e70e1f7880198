"""Which workloads are due: each once, not while it is worked on, and nothing after the end."""

import asyncio
import time

import pytest

from shoal.control.workloads.work_queue import AT_ONCE, WorkQueue

pytestmark = pytest.mark.looptime(start=time.monotonic)


async def take(queue):
    return [workload_id for workload_id, _context in await queue.take()]


async def take_nothing(queue):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), 10)


async def test_a_workload_that_is_asked_for_twice_is_handed_out_once():
    queue = WorkQueue()
    queue.enqueue_all(["a", "b", "a"])
    assert await take(queue) == ["a", "b"]
    await take_nothing(queue)


async def test_a_workload_is_not_handed_out_while_it_is_worked_on():
    queue = WorkQueue()
    queue.begin("a")
    queue.enqueue("a")
    await take_nothing(queue)
    queue.end("a")
    assert await take(queue) == ["a"]


async def test_work_during_which_nothing_was_learned_brings_no_look():
    queue = WorkQueue()
    queue.begin("a")
    queue.end("a")
    await take_nothing(queue)


async def test_a_look_that_is_due_later_comes_then_or_sooner():
    queue = WorkQueue()
    queue.look_again_in("a", 5.0)
    queue.look_again_in("b", 5.0)
    queue.enqueue("b")
    assert await take(queue) == ["b"]
    began = asyncio.get_running_loop().time()
    assert await take(queue) == ["a"]
    assert asyncio.get_running_loop().time() - began == pytest.approx(5.0)
    await take_nothing(queue)


@pytest.mark.parametrize("seconds", [0.0, 1e-14])
async def test_time_passes_before_a_look_that_is_due_in_a_rounding_error(seconds):
    """Else a workload that waits for a moment would be looked at for ever, and the moment never come."""
    queue = WorkQueue()
    queue.look_again_in("a", seconds)
    began = asyncio.get_running_loop().time()
    assert await take(queue) == ["a"]
    assert asyncio.get_running_loop().time() > began


async def test_a_timer_does_not_put_off_what_is_due():
    queue = WorkQueue()
    queue.enqueue("a")
    queue.look_again_in("a", 5.0)
    assert await take(queue) == ["a"]


async def test_a_large_fleet_comes_in_lots():
    queue = WorkQueue()
    queue.enqueue_all(f"w{number}" for number in range(2 * AT_ONCE + 1))
    assert [len(await take(queue)) for _ in range(3)] == [AT_ONCE, AT_ONCE, 1]


async def test_nothing_is_due_after_the_end():
    queue = WorkQueue()
    queue.enqueue("a")
    queue.look_again_in("b", 1.0)
    queue.close()
    queue.enqueue("c")
    queue.look_again_in("d", 1.0)
    await take_nothing(queue)

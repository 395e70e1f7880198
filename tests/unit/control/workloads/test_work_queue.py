"""Looks at workloads end with their reign, whatever was asked for meanwhile."""

import asyncio

from shoal.control.workloads.work_queue import AT_ONCE, WorkQueue
from shoal.core.tasks import TaskScope


async def test_one_that_was_to_be_looked_at_again_is_not_after_the_end():
    scope, begun = TaskScope("reign"), []

    async def look(workload_id):
        begun.append(workload_id)
        await asyncio.sleep(3600)

    queue = WorkQueue(scope, look)
    queue.enqueue("w")
    await asyncio.sleep(0)
    queue.enqueue("w")
    queue.close()
    await scope.close()
    await scope.failed()
    queue.enqueue("w")
    queue.look_again_in("w", 0.0)
    await asyncio.sleep(0.01)
    assert begun == ["w"]


async def test_others_get_their_turn_while_a_large_fleet_is_looked_at():
    scope, looked, seen = TaskScope("reign"), [], []

    async def look(workload_id):
        looked.append(workload_id)

    queue = WorkQueue(scope, look)
    queue.enqueue_all(f"w{number}" for number in range(3 * AT_ONCE + 1))
    while len(looked) < 3 * AT_ONCE + 1:
        seen.append(len(looked))
        await asyncio.sleep(0)
    assert len(seen) > 3
    assert len(set(looked)) == len(looked)
    queue.enqueue_all(f"w{number}" for number in range(2 * AT_ONCE))
    queue.close()
    await scope.close()
    assert len(looked) <= 4 * AT_ONCE + 1

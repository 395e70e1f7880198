from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from shoal.core.tasks import Signal, TaskScope, task_scope, to_the_end


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ValueError("boom")


async def test_closing_ends_every_task() -> None:
    scope = TaskScope("s")
    tasks = [scope.start(forever(), name=str(number)) for number in range(3)]
    assert len(scope) == 3
    assert tasks[0].get_name() == "s/0"
    await scope.close()
    await scope.close()
    assert all(task.cancelled() for task in tasks)
    assert len(scope) == 0


async def test_a_task_that_ended_is_forgotten() -> None:
    scope = TaskScope("s")
    await scope.start(asyncio.sleep(0), name="short")
    await asyncio.sleep(0)
    assert len(scope) == 0
    await scope.close()


async def test_a_failure_reaches_every_waiter(caplog: pytest.LogCaptureFixture) -> None:
    scope = TaskScope("s")
    waiting = asyncio.create_task(scope.failed())
    await asyncio.sleep(0)
    scope.start(fail(), name="bad")
    scope.start(forever(), name="good")
    with pytest.raises(ValueError, match="boom"):
        await waiting
    with pytest.raises(ValueError, match="boom"):
        await scope.failed()
    assert "s/bad failed" in caplog.text
    await scope.close()


async def test_a_failure_before_anybody_waits_is_kept() -> None:
    scope = TaskScope("s")
    scope.start(fail(), name="bad")
    await asyncio.sleep(0.001)
    with pytest.raises(ValueError, match="boom"):
        await scope.failed()
    await scope.close()


async def test_waiting_ends_when_the_scope_is_closed() -> None:
    scope = TaskScope("s")
    waiting = asyncio.create_task(scope.failed())
    await asyncio.sleep(0)
    await scope.close()
    await asyncio.wait_for(waiting, 5)
    await asyncio.wait_for(scope.failed(), 5)


async def test_a_failure_that_nobody_waits_for_any_more_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    scope = TaskScope("s")
    waiting = asyncio.create_task(scope.failed())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    scope.start(fail(), name="bad")
    await asyncio.sleep(0.001)
    await scope.close()
    del scope
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "task s/bad failed"
    ]


async def test_nothing_starts_in_a_scope_that_is_closing() -> None:
    scope = TaskScope("s")
    await scope.close()
    with pytest.raises(RuntimeError, match="closing"):
        scope.start(forever(), name="late")


async def test_a_task_may_close_its_own_scope() -> None:
    scope = TaskScope("s")
    other = scope.start(forever(), name="other")

    async def stop() -> str:
        await scope.close()
        return "closed"

    assert await asyncio.wait_for(scope.start(stop(), name="stop"), 5) == "closed"
    assert other.cancelled()


async def test_a_task_that_is_slow_to_end_is_waited_for() -> None:
    scope = TaskScope("s")
    ended = False

    async def stubborn() -> None:
        nonlocal ended
        try:
            await forever()
        finally:
            await asyncio.sleep(0.001)
            ended = True

    scope.start(stubborn(), name="stubborn")
    await asyncio.sleep(0)
    await scope.close()
    assert ended


async def test_a_scope_for_the_length_of_a_block() -> None:
    async with task_scope("block") as scope:
        task = scope.start(forever(), name="x")
    assert task.cancelled()


async def test_many_signals_before_a_look_count_as_one() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    assert await signal.wait() is True
    assert await signal.wait(timeout=0.001) is False


@pytest.mark.looptime
async def test_a_signal_wakes_the_waiter_at_once() -> None:
    signal = Signal()
    asyncio.get_running_loop().call_later(7, signal.set)
    assert await signal.wait(timeout=100) is True
    assert asyncio.get_running_loop().time() == 7
    assert await signal.wait(timeout=10) is False
    assert asyncio.get_running_loop().time() == 17


async def test_work_goes_to_its_end_although_its_caller_is_canceled_again_and_again():
    steps = []
    go = asyncio.Event()

    async def work():
        steps.append("begun")
        await go.wait()
        steps.append("ended")

    caller = asyncio.ensure_future(to_the_end(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
    assert not caller.done()
    go.set()
    await asyncio.wait({caller})
    assert caller.cancelled()
    assert steps == ["begun", "ended"]


@pytest.mark.parametrize("is_canceled", [False, True])
async def test_the_result_or_error_of_work_that_goes_to_its_end(is_canceled):
    async def work(error):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if error:
            raise error
        return 5

    for error in (None, ValueError("no")):
        caller = asyncio.ensure_future(to_the_end(work(error)))
        await asyncio.sleep(0)
        if is_canceled:
            caller.cancel()
        await asyncio.wait({caller})
        assert caller.cancelled() is is_canceled
        if not is_canceled:
            assert (caller.exception() or caller.result()) == (error or 5)

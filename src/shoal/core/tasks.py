"""Background work with an owner.

A `TaskScope` owns the tasks started in it: it stops them when it is closed and raises the first unexpected error in
`failed`. Nothing else starts tasks, except the process backend of dataflows, test doubles and task groups: the linter
bans `asyncio.create_task` and `asyncio.ensure_future`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class TaskScope:
    """A set of background tasks with one owner.

    Unlike `asyncio.TaskGroup` it does not bind its life to a block of code: a server opens one when it starts and
    closes it when it stops. A task that fails ends up in `failed`, which the composition root awaits, so an error
    never disappears.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[None] | None = None
        self._first_error: BaseException | None = None
        self._closing = False

    def start(
        self, work: Coroutine[Any, Any, Any], *, name: str, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """Run `work` in the background until it ends or the scope is closed."""
        if self._closing:
            work.close()
            raise RuntimeError(f"scope {self.name} is closing")
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}/{name}", context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    @property
    def is_closing(self) -> bool:
        """Whether it takes no more tasks."""
        return self._closing

    async def failed(self) -> None:
        """Wait until a task fails and raise its error. Returns normally when the scope is closed."""
        if self._first_error is not None:
            raise self._first_error
        if self._closing:
            return
        if self._failure is None:
            self._failure = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._failure)

    async def close(self) -> None:
        """Cancel every task and wait for its end. Safe to call twice, and from one of the tasks itself."""
        self._closing = True
        while tasks := self._tasks - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.difference_update(tasks)
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(None)

    def __len__(self) -> int:
        return len(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        log.error("task %s failed", task.get_name(), exc_info=error)
        if self._first_error is None:
            self._first_error = error
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # it was logged above: the waiting task may be gone


class Signal:
    """A flag that wakes one loop: many calls of `set` before the loop looks count as one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiter, now or when it next waits."""
        self._event.set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for `set` and clear it. False when the time ran out first."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, T], *, name: str) -> AsyncIterator[asyncio.Task[T]]:
    """Run `work` beside a block. What is unfinished at the end of the block is cancelled and waited for.

    What it raised is for the block to read from the task.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end although the caller is canceled meanwhile. The cancellation is raised then.

    For a few bounded steps that must not be cut in two, such as asking another program for something and writing down
    that it did it. An error of `work` after the cancellation is logged.
    """
    task = asyncio.get_running_loop().create_task(work, name="to the end")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("what a canceled caller had begun failed: %s", error)
        raise


async def first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them ends, cancel the others, and raise what the first one raised."""
    async with contextlib.AsyncExitStack() as stack:
        tasks = [await stack.enter_async_context(running(work, name="first_of")) for work in works]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()


@contextlib.asynccontextmanager
async def task_scope(name: str) -> AsyncIterator[TaskScope]:
    """A `TaskScope` for the length of a block."""
    scope = TaskScope(name)
    try:
        yield scope
    finally:
        await scope.close()

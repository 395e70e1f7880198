"""Which workloads are to be looked at, and when: at most one task for each, any number side by side.

Made and called by `shoal.control.workloads.dispatch`, which says what looking at one means.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from shoal.core.ids import WorkloadId
from shoal.core.tasks import TaskScope

#: Looks that are begun before anything else gets its turn.
AT_ONCE = 1000


class WorkQueue:
    """Runs `look` for what was enqueued. A workload that is enqueued while it is looked at gets another look."""

    def __init__(self, scope: TaskScope, look: Callable[[WorkloadId], Coroutine[Any, Any, None]]) -> None:
        self._scope = scope
        self._look = look
        self._running: set[WorkloadId] = set()
        self._again: set[WorkloadId] = set()
        self._timers: dict[WorkloadId, asyncio.TimerHandle] = {}
        self._closed = False

    def enqueue(self, workload_id: WorkloadId) -> None:
        """Look at a workload soon."""
        if self._closed:
            return
        self._cancel_timer(workload_id)
        if workload_id in self._running:
            self._again.add(workload_id)
            return
        self._running.add(workload_id)
        self._scope.start(self._run(workload_id), name=f"workload/{workload_id}")

    def enqueue_all(self, workload_ids: Iterable[WorkloadId]) -> None:
        """Look at many. Those of a large fleet come one part after the other, so that others get their turn between."""
        self._enqueue_some(iter(list(workload_ids)))  # those of now, whatever becomes of the set

    def look_again_in(self, workload_id: WorkloadId, seconds: float) -> None:
        """Look at a workload after a while, unless something asks for it sooner."""
        if self._closed:
            return
        self._cancel_timer(workload_id)
        loop = asyncio.get_running_loop()
        self._timers[workload_id] = loop.call_later(seconds, self._timer_fired, workload_id)

    def begin_look(self, workload_id: WorkloadId) -> None:
        """The facts are about to be read: what asked for a look before is answered by this one."""
        self._again.discard(workload_id)

    def has_news(self, workload_id: WorkloadId) -> bool:
        """Whether another look was asked for since the facts were read."""
        return workload_id in self._again

    def forget(self, workload_id: WorkloadId) -> None:
        """There is no such workload any more."""
        self._cancel_timer(workload_id)

    def close(self) -> None:
        """Stop every timer and begin nothing any more; the tasks end with their scope."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _enqueue_some(self, workload_ids: Iterator[WorkloadId]) -> None:
        part = list(itertools.islice(workload_ids, AT_ONCE))
        for workload_id in part:
            self.enqueue(workload_id)
        if len(part) == AT_ONCE and not self._closed:
            asyncio.get_running_loop().call_soon(self._enqueue_some, workload_ids)

    async def _run(self, workload_id: WorkloadId) -> None:
        try:
            await self._look(workload_id)
        finally:
            self._running.discard(workload_id)
            if workload_id in self._again:
                self._again.discard(workload_id)
                self.enqueue(workload_id)

    def _timer_fired(self, workload_id: WorkloadId) -> None:
        self._timers.pop(workload_id, None)
        self.enqueue(workload_id)

    def _cancel_timer(self, workload_id: WorkloadId) -> None:
        timer = self._timers.pop(workload_id, None)
        if timer is not None:
            timer.cancel()

"""Queues the workloads that are due for reconciling. Filled by every module that learns something about one.

Emptied by `shoal.control.workloads.dispatch`. A workload is not given out again while it is being worked on.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Iterable

from shoal.core.ids import WorkloadId

#: Workloads that are handed out together. Others run in the event loop between two such lots.
AT_ONCE = 200
#: A timer may fire a rounding error early, and the rest of the time be too short for the clock to advance.
SHORTEST_SECONDS = 0.001


class WorkQueue:
    """Workloads that are due, each at most once, and timers for those that are due later."""

    def __init__(self) -> None:
        #: With the context of the first one that asked, so that what follows belongs to its trace.
        self._due: dict[WorkloadId, contextvars.Context] = {}
        #: Being worked on; True when it is due again after that.
        self._working: dict[WorkloadId, bool] = {}
        self._timers: dict[WorkloadId, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def enqueue(self, workload_id: WorkloadId) -> None:
        """Look at a workload soon."""
        if self._closed:
            return
        self.forget(workload_id)
        if workload_id in self._working:
            self._working[workload_id] = True
            return
        if workload_id not in self._due:
            self._due[workload_id] = contextvars.copy_context()
            self._wake.set()

    def enqueue_all(self, workload_ids: Iterable[WorkloadId]) -> None:
        """Look at many."""
        for workload_id in workload_ids:
            self.enqueue(workload_id)

    def look_again_in(self, workload_id: WorkloadId, seconds: float) -> None:
        """Look at a workload after a while, unless something asks for it sooner."""
        if self._closed or workload_id in self._due or self._working.get(workload_id):
            return
        self.forget(workload_id)
        loop = asyncio.get_running_loop()
        self._timers[workload_id] = loop.call_later(max(seconds, SHORTEST_SECONDS), self.enqueue, workload_id)

    async def take(self) -> list[tuple[WorkloadId, contextvars.Context]]:
        """Wait until something is due, and take some of it, each with the context to look at it in."""
        while not self._due:
            self._wake.clear()
            await self._wake.wait()
        taken = list(itertools.islice(self._due.items(), AT_ONCE))
        for workload_id, _context in taken:
            del self._due[workload_id]
        return taken

    def begin(self, workload_id: WorkloadId) -> None:
        """Work on a workload begins: until `end` it is not handed out."""
        self._working[workload_id] = False

    def end(self, workload_id: WorkloadId) -> None:
        """Work on a workload has ended. What was learned meanwhile is looked at now."""
        if self._working.pop(workload_id, False):
            self.enqueue(workload_id)

    def forget(self, workload_id: WorkloadId) -> None:
        """Drop the timer of a workload."""
        timer = self._timers.pop(workload_id, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Stop every timer and take nothing more."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._due.clear()

"""Queues the workloads that are due for reconciling. Filled by every module that learns something about one.

Emptied by `shoal.control.workloads.dispatch`. A workload is not given out again while it is being worked on. Jobs have
a queue of the same kind, emptied by `shoal.control.jobs.loop`.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from shoal.core.ids import WorkloadId

K = TypeVar("K", bound=Hashable)

#: Entries that are handed out together. Others run in the event loop between two such lots.
AT_ONCE = 200
#: A timer may fire a rounding error early, and the rest of the time be too short for the clock to advance.
SHORTEST_SECONDS = 0.001


class DueQueue(Generic[K]):
    """Entries that are due, each at most once, and timers for those that are due later."""

    def __init__(self) -> None:
        #: With the context of the first one that asked, so that what follows belongs to its trace.
        self._due: dict[K, contextvars.Context] = {}
        #: Being worked on; True when it is due again after that.
        self._working: dict[K, bool] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def enqueue(self, key: K) -> None:
        """Look at an entry soon."""
        if self._closed:
            return
        self.forget(key)
        if key in self._working:
            self._working[key] = True
            return
        if key not in self._due:
            self._due[key] = contextvars.copy_context()
            self._wake.set()

    def enqueue_all(self, keys: Iterable[K]) -> None:
        """Look at many."""
        for key in keys:
            self.enqueue(key)

    def look_again_in(self, key: K, seconds: float) -> None:
        """Look at an entry after a while, unless something asks for it sooner."""
        if self._closed or key in self._due or self._working.get(key):
            return
        self.forget(key)
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(seconds, SHORTEST_SECONDS), self.enqueue, key)

    async def take(self) -> list[tuple[K, contextvars.Context]]:
        """Wait until something is due, and take some of it, each with the context to look at it in."""
        while not self._due:
            self._wake.clear()
            await self._wake.wait()
        taken = list(itertools.islice(self._due.items(), AT_ONCE))
        for key, _context in taken:
            del self._due[key]
        return taken

    def begin(self, key: K) -> None:
        """Work on an entry begins: until `end` it is not handed out."""
        self._working[key] = False

    def end(self, key: K) -> None:
        """Work on an entry has ended. What was learned meanwhile is looked at now."""
        if self._working.pop(key, False):
            self.enqueue(key)

    def forget(self, key: K) -> None:
        """Drop the timer of an entry."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Stop every timer and take nothing more."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._due.clear()


WorkQueue = DueQueue[WorkloadId]
"""The workloads that are due."""

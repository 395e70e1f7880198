"""The keeper's event loop: file descriptors, timers, and nothing that can stop it.

One thread, because a child must be forked from a process without others, and because the parent-death signal of a
child goes with the thread that forked it. Called by `server` and `runs`.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
from collections.abc import Callable

from shoal.runtimes.clocks import KeeperClock
from shoal.runtimes.keeper.journal import say_exception

#: The selector's own timeout does not count while the machine is suspended, so timers are looked at this often.
LONGEST_SLEEP = 1.0
#: How long the loop tells that it was late. Longer than between two questions of an agent.
REMEMBER_LATENESS = 10.0


class Timer:
    """Something to do later, unless it is cancelled."""

    __slots__ = ("callback", "cancelled", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Do not do it."""
        self.cancelled = True


class Loop:
    """Runs callbacks until told to stop. A callback that raises is written to the log and the loop goes on."""

    def __init__(self, clock: KeeperClock) -> None:
        self.clock = clock
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._stopping = False
        #: By how much the loop was late, and when.
        self._late = (0.0, 0.0)

    @property
    def lateness(self) -> float:
        """By how much the loop was late at most within the last seconds: it was stopped, or waited for a disk."""
        late, at = self._late
        return late if self.now() - at < REMEMBER_LATENESS else 0.0

    def _note_lateness(self) -> None:
        if self._timers:
            now = self.now()
            late = now - self._timers[0][0]
            if late > self.lateness:
                self._late = (late, now)

    def now(self) -> float:
        """Seconds since boot."""
        return self.clock.boottime()

    def add_reader(self, handle: int, callback: Callable[[], None]) -> None:
        """Call when there is something to read."""
        self._selector.register(handle, selectors.EVENT_READ, (callback, None))

    def watch_writes(self, handle: int, read: Callable[[], None], write: Callable[[], None] | None) -> None:
        """Also call `write` when there is room to write; with None, only `read` from now on."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        self._selector.modify(handle, events, (read, write))

    def remove(self, handle: int) -> None:
        """Stop watching a descriptor, before it is closed."""
        self._selector.unregister(handle)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call at a time of `now()`."""
        timer = Timer(when, callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def stop(self) -> None:
        """Return from `run` after the current round."""
        self._stopping = True

    def run(self) -> None:
        """Go round until stopped."""
        while not self._stopping:
            self.run_once()
        self._selector.close()

    def run_once(self, longest: float = LONGEST_SLEEP) -> None:
        """Wait for the next thing and do it."""
        ready = self._selector.select(self._wait(longest))
        self._note_lateness()
        for key, events in ready:
            read, write = key.data
            if events & selectors.EVENT_READ and self._is_current(key):
                self._guarded(read)
            if events & selectors.EVENT_WRITE and write is not None and self._is_current(key):
                self._guarded(write)
        self._note_lateness()
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                self._guarded(timer.callback)

    def _is_current(self, key: selectors.SelectorKey) -> bool:
        """Whether a callback before it has not closed or changed this one; if so, its turn comes in the next round."""
        now = self._selector.get_map().get(key.fd)
        return now is not None and now.data is key.data

    def _wait(self, longest: float) -> float:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return max(0.0, min(longest, self._timers[0][0] - self.now())) if self._timers else longest

    @staticmethod
    def _guarded(callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # noqa: BLE001 - the parent of every workload goes on, whatever one request did to it
            say_exception()

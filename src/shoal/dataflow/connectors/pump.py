"""Reads an iterator in a thread of its own, so that its task can go on while it waits for the next item.

For endless iterables, and for files that are decoded ahead of their task.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


class Pump:
    """Items of an iterator, so many ahead of the reader that together they weigh no more than `limit`.

    One is always let in: it may be heavier than all that is allowed.
    """

    def __init__(self, items: Iterator[Any], *, limit: int, weigh: Callable[[Any], int], name: str) -> None:
        self._items = items
        self._limit = limit
        self._weigh = weigh
        self._ready: deque[tuple[Any, int]] = deque()
        self._weight = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._is_closed = False
        self._is_woken = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"pump/{name}"[:60], daemon=True)
        self._thread.start()

    def take(self, most: int, timeout: float | None) -> tuple[list[Any], bool]:
        """The items that are there, waiting for one if there is none; and whether there will be no more."""
        with self._changed:
            if not self._ready and not self._is_over and not self._is_woken:
                self._changed.wait(timeout)
            self._is_woken = False
            taken = [self._pop() for _ in range(min(most, len(self._ready)))]
            self._changed.notify_all()
            if self._error is not None and not self._ready and not taken:
                raise self._error
            return taken, self._is_over and not self._ready and self._error is None

    def __iter__(self) -> Iterator[Any]:
        """The items to their end, however long each takes."""
        while True:
            taken, is_over = self.take(1, None)
            yield from taken
            if is_over:
                return

    def _pop(self) -> Any:
        item, weight = self._ready.popleft()
        self._weight -= weight
        return item

    def wake(self) -> None:
        """End a `take` that waits, or the next one that would."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Read no further. An iterator that is waiting for something is left to it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=0.2)
        if not self._thread.is_alive() and hasattr(self._items, "close"):
            self._items.close()

    def _run(self) -> None:
        try:
            for item in self._items:
                if not self._give(item):
                    return
        except BaseException as error:  # noqa: BLE001 - it is raised to the consumer
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _give(self, item: Any) -> bool:
        weight = self._weigh(item)
        with self._changed:
            while self._ready and self._weight + weight > self._limit and not self._is_closed:
                self._changed.wait()
            self._ready.append((item, weight))
            self._weight += weight
            self._changed.notify_all()
            return not self._is_closed

"""Hearing that the journal has grown. Each thread that waits has a `Watch` of its own.

The kernel tells within microseconds (inotify). Where it has no more watches to give, the watch looks every millisecond
while there is traffic, and ever less often, down to every 20 ms, while there is none.

The caller calls `settle`, then reads the journal, and calls `wait` only if there was no news: what comes between is
not missed. Called by `shoal.topics.local.reader` and `member`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from pathlib import Path

from shoal.topics.local import kernel

log = logging.getLogger(__name__)

SHORTEST_LOOK = 0.001
LONGEST_LOOK = 0.02
_EVENTS = 65536


class Watch:
    """Waits for changes in a directory, or for a call of `wake`."""

    def __init__(self, directory: Path) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._look = SHORTEST_LOOK
        self._changes: int | None = None
        self._closed = False
        self._lock = threading.Lock()
        try:
            self._changes = kernel.watch_directory(directory)
        except OSError as error:
            log.info("no inotify for %s (%s): looking at it now and then instead", directory, error)
        else:
            self._poll.register(self._changes, select.POLLIN)

    def settle(self) -> None:
        """Forget the changes so far: they are about to be read."""
        if self._changes is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._changes, _EVENTS)

    def wait(self, seconds: float) -> None:
        """Wait for a change or a wake-up, so long at most. It may return early."""
        if self._changes is None:
            seconds = min(seconds, self._look)
            self._look = min(LONGEST_LOOK, self._look * 1.5)
        self._poll.poll(max(0, seconds * 1000))

    def found(self) -> None:
        """Say that there was news: more may follow soon."""
        self._look = SHORTEST_LOOK

    def woken(self) -> bool:
        """Whether `wake` was called since the last time this was asked."""
        try:
            return os.eventfd_read(self._wake) > 0
        except BlockingIOError:
            return False

    def wake(self) -> None:
        """End a wait. Any thread may call this, also after the end."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Let go. Safe to call twice; not while a thread waits."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake)
            if self._changes is not None:
                os.close(self._changes)

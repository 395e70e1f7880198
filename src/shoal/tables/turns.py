"""A lock whose holder cannot take it again before a thread that waits for it. Called by `table`.

Python's own locks let a thread that gives one up and wants it back at once win over those that wait: a sweep in the
background would hold up a writer for many looks in a row.
"""

from __future__ import annotations

import threading
from types import TracebackType


class TurnLock:
    """For `with` blocks, which must not be nested."""

    def __init__(self) -> None:
        #: Held by the thread that is next, while it waits.
        self._next = threading.Lock()
        self._held = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.release()

    def is_awaited(self) -> bool:
        """Whether a thread waits for it."""
        return self._next.locked()

"""An executor that runs work at once, on the event loop's own thread: virtual time does not wait for threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class InlineThreads(Executor):
    """Runs each piece of work when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it, and return its result or its error."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - it is the caller's, as with threads
            future.set_exception(error)
        return future


class WatchedThreads(InlineThreads):
    """The same, and says while its work runs, so that a test sees what runs in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it, and return its result or its error."""
        self.at_work = True
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            self.at_work = False

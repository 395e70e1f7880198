"""How threads of a run start and wait: for each other, and for time.

Code that runs in threads takes these from its clock by `threads_of`, as it takes the time. With the system's clock they
are the ones of the standard library. A clock of virtual time (`shoal.testing.virtual_time`) brings its own, so that the
same code runs without waiting. Used by `shoal.exchange` and `shoal.dataflow`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from shoal.core.clock import Clock, SystemClock

Item = TypeVar("Item")
_CLOCK = SystemClock()


class Mail(Protocol[Item]):
    """A queue without a bound, as `queue.SimpleQueue`."""

    def put(self, item: Item) -> None:
        """Append."""
        ...

    def get(self, *, timeout: float | None = None) -> Item:
        """The first item. Waits for one; raises `queue.Empty` after `timeout` seconds."""
        ...


class Threads(Protocol):
    """Makes threads, and the things that they wait for."""

    def now(self) -> float:
        """Seconds that never run backwards, as of the clock that they follow."""
        ...

    def condition(self, lock: threading.Lock | None = None) -> threading.Condition:
        """A condition variable, over a lock that others may use, too."""
        ...

    def event(self) -> threading.Event:
        """An event."""
        ...

    def mail(self) -> Mail[Any]:
        """A queue from some threads to one."""
        ...

    def thread(self, target: Callable[..., object], *args: object, name: str) -> threading.Thread:
        """A thread that was not started yet. It does not keep its process alive."""
        ...


@runtime_checkable
class SupportsThreads(Protocol):
    """A clock that moves only when the threads that it made wait."""

    @property
    def threads(self) -> Threads:
        """Those that follow this clock."""
        ...


class SystemThreads:
    """The threads of the standard library."""

    def now(self) -> float:
        """The system's steady clock."""
        return _CLOCK.monotonic()

    def condition(self, lock: threading.Lock | None = None) -> threading.Condition:
        """A condition variable."""
        return threading.Condition(lock)

    def event(self) -> threading.Event:
        """An event."""
        return threading.Event()

    def mail(self) -> Mail[Any]:
        """A queue from some threads to one."""
        return queue.SimpleQueue()

    def thread(self, target: Callable[..., object], *args: object, name: str) -> threading.Thread:
        """A thread that was not started yet."""
        return threading.Thread(target=target, args=args, name=name[:60], daemon=True)


SYSTEM: Threads = SystemThreads()


def threads_of(clock: Clock) -> Threads:
    """The threads that follow a clock."""
    return clock.threads if isinstance(clock, SupportsThreads) else SYSTEM

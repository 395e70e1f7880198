"""Virtual time for code that runs in threads: time passes only while every thread waits, and then at once.

    with VirtualTime() as clock:
        engine.run(plan, clock=clock)   # a pause of an hour takes no time

Of the threads that it made, and the one that entered it, one runs at a time. When that one waits another one is chosen
that can go on, by chance with a seed: the same seed gives the same run. When none can go on, time moves to
the next moment that one of them waits for. When there is none, or time goes past `limit`, the run stalls: the thread
that entered gets a `StalledError` that says where each one waits.

Work takes no time. With `delay` a thread that is woken goes on up to so many seconds later, by chance too, so that
things that happen at one moment come apart. A source that never waits lets no time pass. Threads of others, as those of
a database, run as always. Used by users' tests of streams and by the engine's.
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

from shoal.core.entropy import SeededEntropy

_START = datetime(2026, 1, 1, tzinfo=UTC)
#: The shortest wait, in seconds: one for less than the clock can tell must not come back at the same moment.
_SHORTEST = 1e-6
#: Lines of a stack that an error shows.
_SHOWN = 4


class StalledError(AssertionError):
    """No thread can go on, or time went past the limit."""


class _Strand:
    """A thread that follows virtual time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ident: int | None = None
        #: Held while it may not run.
        self.gate = threading.Lock()
        self.gate.acquire()
        self.was_notified = False
        #: Until when it waits; None for as long as it takes.
        self.deadline: float | None = None


class VirtualTime:
    """A clock, and the threads that follow it. It is entered once."""

    def __init__(self, *, seed: int = 0, start: datetime = _START, limit: float = 3600.0, delay: float = 0.0) -> None:
        self._start = start
        self._limit = limit
        self._delay = delay
        self._chance = SeededEntropy(seed)
        self._mutex = threading.Lock()
        self._now = 0.0
        self._strands: dict[int, _Strand] = {}
        self._runnable: list[_Strand] = []
        self._waiting: dict[_Strand, None] = {}
        self._main: _Strand | None = None
        self._others = 0
        self._end = VirtualCondition(self, threading.Lock())
        self._stall: StalledError | None = None

    # -- the clock --------------------------------------------------------------------------------------------

    @property
    def threads(self) -> VirtualTime:
        """Those that follow this clock."""
        return self

    def monotonic(self) -> float:
        """Seconds since it was made."""
        return self._now

    def wall(self) -> datetime:
        """The start, and what has passed since."""
        return self._start + timedelta(seconds=self._now)

    async def sleep(self, seconds: float) -> None:
        """Wait. It holds up its event loop: virtual time is for threads."""
        self.event().wait(seconds)

    def __enter__(self) -> VirtualTime:
        self._main = _Strand("main")
        self._enter(self._main)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                with self._end:
                    while self._others:  # threads that are about to end may do so
                        self._end.wait()
        finally:
            self._strands.pop(threading.get_ident(), None)

    # -- the threads ------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since it was made."""
        return self._now

    def condition(self, lock: threading.Lock | None = None) -> VirtualCondition:
        """A condition variable."""
        return VirtualCondition(self, lock)

    def event(self) -> VirtualEvent:
        """An event."""
        return VirtualEvent(self)

    def mail(self) -> VirtualMail:
        """A queue from some threads to one."""
        return VirtualMail(self)

    def thread(self, target: Callable[..., object], *args: object, name: str) -> VirtualThread:
        """A thread that was not started yet."""
        return VirtualThread(self, target, args, name)

    # -- who runs ---------------------------------------------------------------------------------------------

    def _enter(self, strand: _Strand) -> None:
        strand.ident = threading.get_ident()
        self._strands[strand.ident] = strand

    def _started(self, strand: _Strand) -> None:
        with self._mutex:
            self._others += 1
            self._let_run(strand)

    def _ended(self, strand: _Strand) -> None:
        with self._end:
            self._end.notify_all()
        with self._mutex:
            self._others -= 1
            self._strands.pop(strand.ident or 0, None)
            self._pass_on()

    def is_mine(self) -> bool:
        """Whether the calling thread follows this clock."""
        return threading.get_ident() in self._strands

    def wait(self, waiters: deque[_Strand], timeout: float | None) -> bool:
        """Let others run until the calling thread is notified (True), or time runs out."""
        strand = self._strands.get(threading.get_ident())
        if strand is None:
            raise RuntimeError(f"thread {threading.current_thread().name} does not follow this virtual time")
        with self._mutex:
            strand.was_notified = False
            late = self._chance.uniform(0.0, self._delay) if self._delay else 0.0
            strand.deadline = None if timeout is None else self._now + max(_SHORTEST, timeout) + late
            self._waiting[strand] = None
            waiters.append(strand)
            self._pass_on()
        strand.gate.acquire()
        if not strand.was_notified:
            waiters.remove(strand)
        if strand is self._main and self._stall is not None:
            stall, self._stall = self._stall, None
            raise stall
        return strand.was_notified

    def notify(self, waiters: deque[_Strand], number: int) -> None:
        """Let so many of those that wait go on."""
        with self._mutex:
            for _ in range(min(number, len(waiters))):
                strand = waiters.popleft()
                strand.was_notified = True
                if strand in self._waiting:
                    self._let_run(strand)

    def _let_run(self, strand: _Strand) -> None:
        """A thread can go on: now, or after a while, as if others had the processor."""
        if self._delay:
            strand.deadline = self._now + self._chance.uniform(0.0, self._delay)
            self._waiting[strand] = None
        else:
            self._waiting.pop(strand, None)
            self._runnable.append(strand)

    def _pass_on(self) -> None:
        """The calling thread stops to run: choose the next one."""
        if not self._runnable:
            self._move_time()
        if self._runnable:
            number = int(self._chance.uniform(0, len(self._runnable)))
            self._runnable.pop(min(number, len(self._runnable) - 1)).gate.release()

    def _move_time(self) -> None:
        moments = [strand.deadline for strand in self._waiting if strand.deadline is not None]
        if not moments:
            self._say_stalled("no thread can go on")
        elif min(moments) > self._limit:
            self._say_stalled(f"it has not ended after {self._limit:g} s")
            self._limit = float("inf")  # what the test does to end it may take time
        else:
            self._now = max(self._now, min(moments))
            due = [each for each in self._waiting if each.deadline is not None and each.deadline <= self._now]
            for strand in due:
                del self._waiting[strand]
            self._runnable += due

    def _say_stalled(self, why: str) -> None:
        if self._main is None or self._main not in self._waiting:
            return  # the test is over; what is left of its threads stays where it is
        where = "".join(f"\n{strand.name}:\n{_stack_of(strand)}" for strand in self._waiting)
        self._stall = StalledError(f"{why} at {self._now:g} s of virtual time{where}")
        del self._waiting[self._main]
        self._runnable.append(self._main)


def _stack_of(strand: _Strand) -> str:
    frame = sys._current_frames().get(strand.ident or 0)  # noqa: SLF001 - the documented name
    lines = [] if frame is None else traceback.format_stack(frame)
    mine = [line for line in lines if __file__ not in line and "/threading.py" not in line]
    return "".join(mine[-_SHOWN:])


class VirtualCondition(threading.Condition):
    """A condition variable in virtual time."""

    def __init__(self, time: VirtualTime, lock: threading.Lock | None = None) -> None:
        self._own = lock or threading.Lock()
        super().__init__(self._own)
        self._time = time
        self._asleep: deque[_Strand] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is notified (True), or time runs out."""
        self._own.release()
        try:
            return self._time.wait(self._asleep, timeout)
        finally:
            self._own.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Until something is true, or time runs out."""
        end = None if timeout is None else self._time.monotonic() + timeout
        while not (found := predicate()):
            left = None if end is None else end - self._time.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        """Wake some of those that wait."""
        self._time.notify(self._asleep, n)

    def notify_all(self) -> None:
        """Wake all of them."""
        self._time.notify(self._asleep, len(self._asleep))


class VirtualEvent(threading.Event):
    """An event in virtual time."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._changed = VirtualCondition(time)
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all that wait for it."""
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Take it back."""
        with self._changed:
            self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is set (True), or time runs out."""
        with self._changed:
            return bool(self._changed.wait_for(self.is_set, timeout))


class VirtualMail:
    """A queue in virtual time."""

    def __init__(self, time: VirtualTime) -> None:
        self._changed = VirtualCondition(time)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Append."""
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def get(self, *, timeout: float | None = None) -> Any:
        """The first item; `queue.Empty` when there is none in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._items, timeout):
                raise queue.Empty
            return self._items.popleft()


class VirtualThread(threading.Thread):
    """A thread that follows virtual time: it runs when it is its turn."""

    def __init__(self, time: VirtualTime, target: Callable[..., object], args: tuple[object, ...], name: str) -> None:
        super().__init__(name=name[:60], daemon=True)
        self._time = time
        self._body, self._arguments = target, args
        self._strand = _Strand(name)
        self._is_over = time.event()

    def start(self) -> None:
        """Start it."""
        self._time._started(self._strand)  # noqa: SLF001 - a part of it
        super().start()

    def run(self) -> None:
        """Its body, once it is its turn."""
        self._time._enter(self._strand)  # noqa: SLF001
        self._strand.gate.acquire()
        try:
            self._body(*self._arguments)
        finally:
            self._is_over.set()
            self._time._ended(self._strand)  # noqa: SLF001

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if not self._time.is_mine():
            super().join(timeout)
        elif self._is_over.wait(timeout):
            super().join()  # it has passed its turn on, or is about to

"""Channels between the tasks of one process: queues bounded by bytes, and the inbox that reads several of them.

A channel has one writer. All channels of a task end in its inbox, which has one reader. `put` blocks while the channel
is full; watermarks, barriers and the end keep their place behind the batches and never block, so a barrier always gets
into a full queue. The inbox aligns: of a channel that brought barrier n nothing more is read until every channel has
brought it or has ended, and only then the reader is given the barrier. A reader may prefer some inputs, but not while
a barrier is being aligned: the inputs that have not brought it are all needed then. Called by
`shoal.dataflow.execution.task`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.dataflow.language.elements import Barrier, Element, End, Watermark

#: A reader that prefers an input waits this long for it while another is full, then takes from the full one. Otherwise
#: two inputs that come from one task could wait for each other forever.
PATIENCE = 0.05


class RunCancelled(BaseException):
    """The run is over. Not an `Exception`, so that nobody takes it for a failure of a row."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is expected on this channel for now: it holds no watermark back. Whatever comes next ends that."""


@dataclass(frozen=True, slots=True)
class Received:
    """An element, and the channel that it came by. An aligned barrier comes by all of them: channel -1."""

    channel: int
    element: Element | Idle


class Channel:
    """The writing end. One thread puts."""

    __slots__ = ("_inbox", "_index")

    def __init__(self, inbox: Inbox, index: int) -> None:
        self._inbox = inbox
        self._index = index

    def put(self, element: Element | Idle) -> None:
        """Append. Waits for room with a batch. Raises `RunCancelled` when the run is over."""
        self._inbox.put(self._index, element)


class _Queue:
    """The waiting elements of one channel, under the lock of its inbox."""

    __slots__ = ("aligned", "blocks_writer", "ended", "items", "port", "used", "writable")

    def __init__(self, port: int, lock: threading.Lock) -> None:
        self.port = port
        self.items: deque[tuple[Element | Idle, int]] = deque()
        self.used = 0
        self.aligned = False
        self.ended = False
        #: Whether its writer waits for room now.
        self.blocks_writer = False
        self.writable = threading.Condition(lock)

    def is_full(self, size: int, capacity: int) -> bool:
        # One batch always fits into an empty queue, however large it is.
        return self.used > 0 and self.used + size > capacity


class Inbox:
    """All inputs of a task. `ports[i]` is the input of the operator that channel i leads to."""

    def __init__(self, ports: Sequence[int], *, capacity: int) -> None:
        lock = threading.Lock()
        self._readable = threading.Condition(lock)
        self._queues = [_Queue(port, lock) for port in ports]
        self._capacity = capacity
        self._turn = 0
        self._barrier: Barrier | None = None
        self._woken = False
        self._cancelled = False

    def channel(self, index: int) -> Channel:
        """The writing end of one channel."""
        return Channel(self, index)

    def port(self, index: int) -> int:
        """Where a channel leads to."""
        return self._queues[index].port

    @property
    def waiting_bytes(self) -> int:
        """What lies in the queues now; a figure for people, read without the lock."""
        return sum(queue.used for queue in self._queues)

    def put(self, index: int, element: Element | Idle) -> None:
        """Append to one channel."""
        size = size_of(element)
        with self._readable:
            queue = self._queues[index]
            while size and queue.is_full(size, self._capacity) and not self._cancelled:
                queue.blocks_writer = True
                self._readable.notify()
                queue.writable.wait()
            queue.blocks_writer = False
            if self._cancelled:
                raise RunCancelled
            queue.items.append((element, size))
            queue.used += size
            self._readable.notify()

    def get(self, timeout: float | None, *, preferred: frozenset[int] = frozenset()) -> Received | None:
        """The next element, fairly over the channels; None after `timeout` seconds, or when it was woken.

        It takes from the `preferred` ports first. It takes batches of the others only while a barrier is being aligned,
        or when the writer of one waits for room.
        """
        with self._readable:
            while True:
                received = self._take(preferred)
                if received is not None or self._take_wake():
                    return received
                if not self._wait(timeout, preferred):
                    return self._take_after(preferred)

    def wake(self) -> None:
        """End a `get` that waits, or the next one that would."""
        with self._readable:
            self._woken = True
            self._readable.notify()

    def cancel(self) -> None:
        """The run is over: whoever puts or gets here, now or later, hears so."""
        with self._readable:
            self._cancelled = True
            self._readable.notify_all()
            for queue in self._queues:
                queue.writable.notify_all()

    # -- under the lock ---------------------------------------------------------------------------------------

    def _wait(self, timeout: float | None, preferred: frozenset[int]) -> bool:
        """Sleep until something happens. False when nothing did in time."""
        if preferred and any(self._is_filling(queue) for queue in self._queues):
            timeout = PATIENCE if timeout is None else min(timeout, PATIENCE)
        return self._readable.wait(timeout)

    def _take_after(self, preferred: frozenset[int]) -> Received | None:
        """Time ran out. If a channel that was not preferred is filling up, its writer may be the one to wait for."""
        if preferred and any(self._is_filling(queue) for queue in self._queues):
            return self._take(frozenset())
        return self._take(preferred)

    def _take_wake(self) -> bool:
        woken, self._woken = self._woken, False
        return woken

    def _is_filling(self, queue: _Queue) -> bool:
        return (queue.blocks_writer or queue.used >= self._capacity // 2) and not queue.aligned

    def _take(self, preferred: frozenset[int]) -> Received | None:
        while not self._cancelled:
            barrier = self._aligned_barrier()
            if barrier is not None:
                return Received(-1, barrier)
            index = self._choose(preferred)
            if index is None:
                return None
            element = self._pop(self._queues[index])
            if not isinstance(element, Barrier):
                return Received(index, element)
        raise RunCancelled

    def _choose(self, preferred: frozenset[int]) -> int | None:
        preferred = self._useful(preferred)
        count = len(self._queues)
        for step in range(count):
            index = (self._turn + step) % count
            queue = self._queues[index]
            if not queue.items or queue.aligned:
                continue
            if preferred and queue.port not in preferred and not self._is_light(queue):
                continue
            self._turn = (index + 1) % count
            return index
        return None

    def _useful(self, preferred: frozenset[int]) -> frozenset[int]:
        """The preferred ports, or none.

        None while a barrier is open, because a preferred port may have brought it and wait for another one. None when
        all of them have ended, as when the job is stopped: nothing more comes by them.
        """
        if not preferred or self._barrier is not None:
            return frozenset()
        has_open = any(queue.port in preferred and not queue.ended for queue in self._queues)
        return preferred if has_open else frozenset()

    def _is_light(self, queue: _Queue) -> bool:
        """Whether its next element is no batch: those are never held back."""
        return queue.items[0][1] == 0

    def _pop(self, queue: _Queue) -> Element | Idle:
        element, size = queue.items.popleft()
        if size:
            queue.used -= size
            queue.writable.notify()
        if isinstance(element, Barrier):
            if not queue.ended:  # a task that has ended is triggered directly, and the others do not wait for it
                queue.aligned = True
                self._barrier = element
        elif isinstance(element, End):
            queue.ended = True
        return element

    def _aligned_barrier(self) -> Barrier | None:
        """The barrier that every channel has brought, once."""
        barrier = self._barrier
        if barrier is None or not all(queue.aligned or queue.ended for queue in self._queues):
            return None
        self._barrier = None
        for queue in self._queues:
            queue.aligned = False
        return barrier


def size_of(element: Element | Idle) -> int:
    """Bytes that a batch takes, at least 1; 0 for what is no batch."""
    if isinstance(element, Watermark | Barrier | End | Idle):
        return 0
    # Allocators have sizes in steps of an eighth: so much more than what is in a buffer may be taken for it.
    return 1 + int(element.nbytes) * 9 // 8

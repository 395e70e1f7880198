"""The receiving end of a task's channels: a queue for each, bounded by bytes, read by one thread.

Tasks of the same process put into it directly; connections deliver into it what came from elsewhere. A batch waits for
room (or its remote sender for credit), a control frame never does. Channels take turns: the one whose next item has
waited longest is read first. So a busy channel holds no other up, and what one task sends by several channels is read
in about the order in which it was sent. Readers with other rules, such as the alignment of barriers, override `_take`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from shoal.core.errors import ShoalError
from shoal.core.threads import SYSTEM, Threads
from shoal.exchange.base import Batch, Control, End, Item, Origin, fits
from shoal.exchange.errors import BadFrameError, Cancelled, PeerLostError, read_error, write_error

#: Control frames that may wait in one queue. An honest sender's supersede each other long before.
MOST_WAITING = 10_000

#: Bytes of a control frame's body that count as another frame.
_FRAME_BYTES = 64

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Received:
    """What came, and the channel that it came by."""

    channel: int
    item: Item


@dataclass(frozen=True, slots=True)
class _Failure:
    """The sender failed, or was lost, at this place in the order."""

    error: ShoalError


def size_of(batch: Batch) -> int:
    """Bytes that a batch takes in memory, at least 1."""
    # Allocators have sizes in steps of an eighth: so much more than what is in a buffer may be taken for it.
    return 1 + int(batch.nbytes) * 9 // 8


class Queue:
    """The waiting items of one channel, under the lock of its inbox."""

    __slots__ = (
        "blocked_seconds",
        "blocks_writer",
        "controls",
        "ended",
        "failure",
        "has_sender",
        "items",
        "origin",
        "received_bytes",
        "turn",
        "used",
        "writable",
    )

    def __init__(self, writable: threading.Condition) -> None:
        self.items: deque[tuple[Item | _Failure, int]] = deque()
        self.used = 0
        #: When its first item came to be the first, counted over all channels of the inbox.
        self.turn = 0
        #: Bytes of all batches that came, and how long its writer has waited for room.
        self.received_bytes = 0
        self.blocked_seconds = 0.0
        self.controls = 0
        self.ended = False
        self.failure: ShoalError | None = None
        self.has_sender = False
        #: Whether its writer waits for room now.
        self.blocks_writer = False
        self.writable = writable
        self.origin: Origin | None = None

    def has_room(self, size: int, capacity: int) -> bool:
        """Whether a batch fits. One always fits into an empty queue, however large it is."""
        return fits(self.used, size, capacity)

    def append(self, item: Item | _Failure, size: int) -> None:
        """Put an item at the end."""
        if isinstance(item, Control):
            self._supersede(item)
            self.controls += _weight(item)
        self.items.append((item, size))
        self.used += size
        self.received_bytes += size

    def _supersede(self, frame: Control) -> None:
        while frame.supersedes and self.items:
            last = self.items[-1][0]
            if not isinstance(last, Control) or not frame.supersedes >> last.kind & 1:
                return
            self.items.pop()
            self.controls -= _weight(last)

    def pop(self) -> tuple[Item | _Failure, int]:
        """Take the first item."""
        item, size = self.items.popleft()
        if size:
            self.used -= size
            self.writable.notify()
        elif isinstance(item, Control):
            self.controls -= _weight(item)
        return item, size


def _turn_of(queue: Queue) -> int:
    return queue.turn


def _weight(frame: Control) -> int:
    return 1 + len(frame.body) // _FRAME_BYTES


class BaseInbox(Generic[Read]):
    """Queues under one lock. What `get` returns is decided by `_take`."""

    def __init__(self, channels: int, *, capacity: int, threads: Threads = SYSTEM) -> None:
        self._threads = threads
        #: How long its reader has waited for something to come.
        self.idle_seconds = 0.0
        self._lock = threading.Lock()
        self._readable = threads.condition(self._lock)
        self._queues = [Queue(threads.condition(self._lock)) for _ in range(channels)]
        self.capacity = capacity
        self._turns = 0
        self._woken = False
        self._cancelled = False
        #: What was read of remote channels and their senders were not told yet: told outside of the lock.
        self._read: list[tuple[Origin, int]] = []

    @property
    def waiting_bytes(self) -> int:
        """What lies in the queues now; a figure for people, read without the lock."""
        return sum(queue.used for queue in self._queues)

    @property
    def received_bytes(self) -> int:
        """Bytes of all batches that came so far."""
        return sum(queue.received_bytes for queue in self._queues)

    def blocked_seconds(self, index: int) -> float:
        """How long the writer of a channel has waited for room."""
        return self._queues[index].blocked_seconds

    # -- writing ----------------------------------------------------------------------------------------------

    def sender(self, index: int, name: str) -> LocalSender:
        """The sending end of a channel for a task of this process, once it was claimed."""
        return LocalSender(self, index, name)

    def claim(self, index: int, origin: Origin | None = None) -> bool:
        """Take the sending end of a channel; False when somebody has it. `origin` is told how much was read."""
        with self._lock:
            queue = self._queues[index]
            if queue.has_sender:
                return False
            queue.has_sender, queue.origin = True, origin
            return True

    def hand_over(self, index: int, origin: Origin) -> int:
        """The sender of a channel goes on by another connection. Returns the bytes that wait."""
        with self._lock:
            self._queues[index].origin = origin
            return self._queues[index].used

    def put(self, index: int, item: Item, size: int, is_closed: Callable[[], bool]) -> None:
        """Append for a task of this process; a batch waits for room."""
        with self._lock:
            queue = self._queues[index]
            while size and not queue.has_room(size, self.capacity) and not self._cancelled and not is_closed():
                queue.blocks_writer = True
                self._readable.notify()
                began = self._threads.now()
                queue.writable.wait()
                queue.blocked_seconds += self._threads.now() - began
            queue.blocks_writer = False
            if is_closed():
                raise Cancelled
            if self._cancelled:
                raise PeerLostError(str(index), "its receiver was closed")
            self._append(queue, item, size)

    def deliver(self, index: int, item: Item, size: int) -> None:
        """Append for a connection, which has checked the credit; never waits."""
        with self._lock:
            queue = self._queues[index]
            if self._cancelled:
                raise PeerLostError(str(index), "its receiver was closed")
            if queue.ended:
                raise BadFrameError("frame", type(item).__name__, "must not come behind the end of its channel")
            self._append(queue, item, size)

    def _append(self, queue: Queue, item: Item, size: int) -> None:
        if queue.controls >= MOST_WAITING:
            raise BadFrameError("control frames", queue.controls, f"must be read before {MOST_WAITING:,} wait")
        if isinstance(item, End):
            queue.ended = True
        self._put(queue, item, size)

    def _put(self, queue: Queue, item: Item | _Failure, size: int) -> None:
        if not queue.items:
            self._give_turn(queue)
        queue.append(item, size)
        self._readable.notify()

    def _give_turn(self, queue: Queue) -> None:
        """It has a first item from now on, and is read after those that had one before."""
        self._turns += 1
        queue.turn = self._turns

    def fail(self, index: int, error: ShoalError) -> None:
        """The sender failed or was lost: reading behind what it sent raises this. Nothing after the end."""
        with self._lock:
            queue = self._queues[index]
            if queue.ended or queue.failure is not None:
                return
            queue.failure = error
            self._put(queue, _Failure(error), 0)

    def wake_writer(self, index: int) -> None:
        """Let a writer that waits look again whether it was closed."""
        with self._lock:
            self._queues[index].writable.notify_all()

    # -- reading ----------------------------------------------------------------------------------------------

    def get(self, timeout: float | None) -> Read | None:
        """The next item; None after `timeout` seconds, or when it was woken.

        Raises `PeerLostError` or what the sender failed with, where its place in the order is, and `Cancelled`.
        """
        with self._lock:
            try:
                found = self._find(timeout)
            finally:
                read, self._read = self._read, []
        for origin, size in read:
            origin.consumed(size)
        return found

    def _find(self, timeout: float | None) -> Read | None:
        while True:
            found = self._take()
            if found is not None or self._take_wake():
                return found
            began = self._threads.now()
            has_happened = self._wait(timeout)
            self.idle_seconds += self._threads.now() - began
            if not has_happened:
                return self._take_late()

    def wake(self) -> None:
        """End a `get` that waits, or the next one that would."""
        with self._lock:
            self._woken = True
            self._readable.notify()

    def cancel(self) -> None:
        """Close it: its reader is told `Cancelled`, its senders that they lost their peer."""
        with self._lock:
            self._cancelled = True
            self._readable.notify_all()
            for queue in self._queues:
                queue.writable.notify_all()
        for queue in self._queues:
            if queue.origin is not None:
                queue.origin.closed()

    def _take(self) -> Read | None:
        raise NotImplementedError

    def _wait(self, timeout: float | None) -> bool:
        """Sleep until something happens. False when nothing did in time."""
        return self._readable.wait(timeout)

    def _take_late(self) -> Read | None:
        """Time ran out."""
        return self._take()

    def _take_wake(self) -> bool:
        woken, self._woken = self._woken, False
        return woken

    def _next(self) -> Queue | None:
        """The queue whose turn it is."""
        return min((queue for queue in self._queues if queue.items), key=_turn_of, default=None)

    def _pop(self, queue: Queue) -> Item:
        item, size = queue.pop()
        if queue.items:
            self._give_turn(queue)
        if size and queue.origin is not None:
            self._read.append((queue.origin, size))
        if isinstance(item, _Failure):
            raise item.error
        return item


class Inbox(BaseInbox[Received]):
    """An inbox that is read in turn, channel by channel."""

    def _take(self) -> Received | None:
        if self._cancelled:
            raise Cancelled
        queue = self._next()
        return None if queue is None else Received(self._queues.index(queue), self._pop(queue))


class LocalSender:
    """The sending end of a channel to an inbox of the same process."""

    __slots__ = ("_inbox", "_index", "_is_closed", "_is_over", "_name")

    def __init__(self, inbox: BaseInbox[Read], index: int, name: str) -> None:
        self._inbox = inbox
        self._index = index
        self._name = name
        self._is_closed = False
        self._is_over = False

    @property
    def blocked_seconds(self) -> float:
        """How long it has waited for room."""
        return self._inbox.blocked_seconds(self._index)

    def send(self, batch: Batch) -> None:
        """Append rows; waits for room."""
        self._inbox.put(self._index, batch, size_of(batch), self._closed)

    def control(self, frame: Control) -> None:
        """Append a control frame."""
        self._inbox.put(self._index, frame, 0, self._closed)

    def end(self) -> None:
        """Nothing more comes."""
        self._is_over = True
        self._inbox.put(self._index, End(), 0, self._closed)

    def fail(self, error: BaseException) -> None:
        """This side failed."""
        self._is_over = True
        self._inbox.fail(self._index, as_failure(error))

    def close(self) -> None:
        """Let go of it."""
        self._is_closed = True
        if not self._is_over:
            self._inbox.fail(self._index, PeerLostError(self._name, "its sender was closed"))
        self._inbox.wake_writer(self._index)

    def _closed(self) -> bool:
        return self._is_closed


def as_failure(error: BaseException) -> ShoalError:
    """An error as the other side hears of it, the same on every transport."""
    return read_error(write_error(error))

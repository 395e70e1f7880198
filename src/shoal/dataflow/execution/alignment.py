"""What flows between tasks, as frames of an exchange, and the inbox of a task, which aligns barriers.

Watermarks, barriers and idleness are control frames: they need no room and keep their place behind the batches, so a
barrier always gets into a full channel. Of a channel that brought barrier n nothing more is read until every channel
has brought it or has ended, and only then the reader gets the barrier. A reader may prefer some inputs, but not
while a barrier is being aligned: the inputs that have not brought it are all needed then. Called by
`shoal.dataflow.execution.task`; channels are `shoal.exchange`'s, within the process and between processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.errors import ShoalError
from shoal.core.threads import SYSTEM, Threads
from shoal.dataflow.language.elements import Barrier, Element, End, Watermark
from shoal.exchange import base as exchange
from shoal.exchange.errors import Cancelled
from shoal.exchange.inbox import BaseInbox, Queue

#: A reader that prefers an input waits this long for it while another is full, then takes from the full one. Otherwise
#: two inputs that come from one task could wait for each other forever.
PATIENCE = 0.05

_WATERMARK, _IDLE, _BARRIER = 1, 2, 3


class ChannelLost(Cancelled):
    """The other side of a channel is gone: its task, not this one, has failed."""

    def __init__(self, error: ShoalError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is expected on this channel for now: it holds no watermark back. Whatever comes next ends that."""


@dataclass(frozen=True, slots=True)
class Received:
    """An element, and the channel that it came by. An aligned barrier comes by all of them: channel -1."""

    channel: int
    element: Element | Idle


def send(channel: exchange.Sender, element: Element | Idle) -> None:
    """Put an element into a channel. Waits for room with a batch. Raises `ChannelLost`, and `Cancelled`."""
    try:
        if isinstance(element, End):
            channel.end()
        elif isinstance(element, Watermark | Barrier | Idle):
            channel.control(_frame_of(element))
        else:
            channel.send(element)
    except ShoalError as error:
        raise ChannelLost(error) from error


def _frame_of(element: Watermark | Barrier | Idle) -> exchange.Control:
    match element:
        case Watermark(time):
            return exchange.Control(_WATERMARK, time, supersedes=1 << _WATERMARK | 1 << _IDLE)
        case Barrier(checkpoint):
            return exchange.Control(_BARRIER, checkpoint)
        case Idle():
            return exchange.Control(_IDLE, supersedes=1 << _IDLE)


def _element_of(item: exchange.Item) -> Element | Idle:
    if isinstance(item, exchange.End):
        return End()
    if not isinstance(item, exchange.Control):
        return item
    if item.kind == _WATERMARK:
        return Watermark(item.value)
    return Barrier(item.value) if item.kind == _BARRIER else Idle()


class AlignedInbox(BaseInbox[Received]):
    """All inputs of a task. `ports[i]` is the input of the operator that channel i leads to."""

    def __init__(self, ports: Sequence[int], *, capacity: int, threads: Threads = SYSTEM) -> None:
        super().__init__(len(ports), capacity=capacity, threads=threads)
        self._ports = tuple(ports)
        self._aligned = [False] * len(ports)
        self._ended = [False] * len(ports)
        self._barrier: Barrier | None = None
        self._preferred: frozenset[int] = frozenset()

    def port(self, index: int) -> int:
        """Where a channel leads to."""
        return self._ports[index]

    def receive(self, timeout: float | None, *, preferred: frozenset[int] = frozenset()) -> Received | None:
        """The next element, fairly over the channels; None after `timeout` seconds, or when it was woken.

        It takes from the `preferred` ports first. It takes batches of the others only while a barrier is being aligned,
        or when the writer of one waits for room. Raises `ChannelLost` as soon as one is lost, and `Cancelled`.
        """
        self._preferred = preferred
        try:
            return self.get(timeout)
        except ShoalError as error:
            raise ChannelLost(error) from error

    # -- under the lock ---------------------------------------------------------------------------------------

    def _wait(self, timeout: float | None) -> bool:
        if self._preferred and self._has_filling():
            timeout = PATIENCE if timeout is None else min(timeout, PATIENCE)
        return self._readable.wait(timeout)

    def _take_late(self) -> Received | None:
        """Time ran out. If a channel that was not preferred is filling up, its writer may be the one to wait for."""
        if self._preferred and self._has_filling():
            self._preferred = frozenset()
        return self._take()

    def _has_filling(self) -> bool:
        return any(
            (queue.blocks_writer or queue.used >= self.capacity // 2) and not aligned
            for queue, aligned in zip(self._queues, self._aligned, strict=True)
        )

    def _take(self) -> Received | None:
        while not self._cancelled:
            barrier = self._aligned_barrier()
            if barrier is not None:
                return Received(-1, barrier)
            index = self._choose()
            if index is None:
                return None
            element = _element_of(self._pop(self._queues[index]))
            if not isinstance(element, Barrier):
                self._ended[index] = self._ended[index] or isinstance(element, End)
                return Received(index, element)
            if not self._ended[index]:  # a task that has ended is triggered directly, and the others do not wait for it
                self._aligned[index] = True
                self._barrier = element
        raise Cancelled

    def _choose(self) -> int | None:
        preferred = self._useful()
        chosen: int | None = None
        for index, queue in enumerate(self._queues):
            if queue.failure is not None:
                raise queue.failure  # also behind a barrier: what was sent before is read again after the restart
            if not queue.items or self._aligned[index]:
                continue
            if preferred and self._ports[index] not in preferred and _holds_batch(queue):
                continue
            if chosen is None or queue.turn < self._queues[chosen].turn:
                chosen = index
        return chosen

    def _useful(self) -> frozenset[int]:
        """The preferred ports, or none.

        None while a barrier is open, because a preferred port may have brought it and wait for another one. None when
        all of them have ended, as when the job is stopped: nothing more comes by them.
        """
        preferred = self._preferred
        if not preferred or self._barrier is not None:
            return frozenset()
        has_open = any(port in preferred and not ended for port, ended in zip(self._ports, self._ended, strict=True))
        return preferred if has_open else frozenset()

    def _aligned_barrier(self) -> Barrier | None:
        """The barrier that every channel has brought, once."""
        barrier = self._barrier
        if barrier is None or not all(a or e for a, e in zip(self._aligned, self._ended, strict=True)):
            return None
        self._barrier = None
        self._aligned = [False] * len(self._ports)
        return barrier


def _holds_batch(queue: Queue) -> bool:
    """Whether its next element is a batch: others are never held back."""
    return queue.items[0][1] > 0

"""Takes from a Kafka client without an object for each message. Used by `shoal.topics.kafka.reader`.

The partitions' queues lead to a queue of our own. What is about no partition comes by the client's queue, which is
looked at beside it; nothing else may: the client's Python interface is not called for either.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError

from shoal.topics.base import FETCHED, HEADERS, TopicPartition
from shoal.topics.kafka import binding
from shoal.topics.kafka.feed import Piece, Trouble, micros
from shoal.topics.kafka.native_events import Events, Lines

#: Messages that are taken at a time.
CHUNK = 4096
#: After so many looks at our queue the client's own is looked at.
_TURNS = 32


class NativeFeed:
    """Through the client's C interface."""

    def __init__(
        self,
        columns: Container[str],
        library: binding.Binding,
        handle: int,
        *,
        on_error: Callable[[KafkaError], None],
        lines: Lines,
    ) -> None:
        self._columns = columns
        self._library = library
        self._handle = handle
        library.stop_calling_back(handle)
        self._queue: int | None = library.queue_new(handle)
        self._events = Events(library, handle, library.queue_consumer(handle), on_error=on_error, lines=lines)
        #: What came by the client's queue.
        self._stray: list[Piece | Trouble] = []
        self._attached: dict[TopicPartition, int] = {}
        self._pointers = np.zeros(CHUNK, np.int64)
        self._found = ctypes.c_void_p()
        self._turns = 0
        self._reads_times = "timestamp" in columns
        #: Whether it can be seen behind a value that a message has no headers.
        self._looks_ahead = True

    def attach(self, places: Iterable[TopicPartition]) -> None:
        """Let the queues of partitions lead to ours. A topic that was made anew has others than it had."""
        for place in places:
            queue = self._library.queue_of_partition(self._handle, place.topic.encode(), place.partition)
            former = self._attached.pop(place, None)
            if queue:  # else what comes of it comes by the client's own queue
                self._attached[place] = queue
            if former is not None:
                self._library.queue_destroy(former)
        self._forward()

    def take(self, most: int, timeout: float) -> Sequence[Piece | Trouble]:
        """What is in our queue; and from time to time, and when that is empty, what is in the client's."""
        most = 1 if timeout else min(most, CHUNK)
        address = binding.address_of(self._pointers)
        count = self._library.consume(self._queue, round(timeout * 1000), address, most)
        taken = self._take(self._pointers[:count]) if count else []
        self._turns += 1
        if not count or self._turns % _TURNS == 0:
            self._forward()
            self._events.poll(0.0, self._take_event)
            taken, self._stray = taken + self._stray, []
        return taken

    def has_complained(self) -> bool:
        """Whether the client has logged an error since, without saying whose it is."""
        complained, self._events.has_complained = self._events.has_complained, False
        return complained

    def close(self) -> None:
        """Let go of the queues: the client waits for that when it is closed."""
        attached, self._attached = self._attached, {}
        for each in attached.values():
            self._library.queue_forward(each, None)
            self._library.queue_destroy(each)
        self._events.close()
        queue, self._queue = self._queue, None
        if queue:
            self._library.queue_destroy(queue)

    # -----------------------------------------------------------------------------------------------------

    def _forward(self) -> None:
        """Let queues lead to ours; what has come into them meanwhile moves on.

        Repeated: whenever the client stops to fetch a partition, which it does some time after it was told,
        it makes the partition's queue lead nowhere.
        """
        for queue in self._attached.values():
            self._library.queue_forward(queue, self._queue)

    def _take(self, pointers: binding.Words) -> list[Piece | Trouble]:
        listed = pointers.tolist()
        try:
            return list(self._pieces(listed, binding.read_messages(pointers)))
        finally:
            deque(map(self._library.destroy, listed), maxlen=0)

    def _take_event(self, event: int) -> None:
        """Records of a partition whose queue does not lead to ours. They are the event's, and go with it."""
        pointers = np.zeros(self._library.event_count(event), np.int64)
        count = self._library.event_messages(event, binding.address_of(pointers), len(pointers))
        if count:
            self._stray += self._pieces(pointers[:count].tolist(), binding.read_messages(pointers[:count]))

    def _pieces(self, listed: list[int], messages: Any) -> Iterator[Piece | Trouble]:
        if messages["error"].any():  # each error stands for itself, and where it came
            bounds = _changes(messages, apart=messages["error"] != 0)
        else:
            bounds = _changes(messages)
            order = _order(messages, bounds)
            if order is not None:
                messages, listed = binding.in_order(messages, order), np.array(listed)[order].tolist()
                bounds = _changes(messages)
        for start, end in pairwise(bounds):
            first = messages[start]
            name = self._library.topic_name(int(first["topic"])) if first["topic"] else b""
            place = TopicPartition(name.decode(), int(first["partition"]))
            if first["error"]:
                yield Trouble(place, int(first["offset"]), self._error(first))
            else:
                yield Piece(place, self._batch(listed[start:end], messages[start:end]))

    def _error(self, message: Any) -> KafkaError:
        """What went wrong. Such a message says it in words, too."""
        code = int(message["error"])
        words = ctypes.string_at(int(message["payload"]), int(message["size"])) if message["payload"] else b""
        return KafkaError(code, (words or self._library.describe(code)).decode(errors="replace"))

    def _batch(self, listed: list[int], messages: Any) -> Any:
        count = len(listed)
        headers, stamps = pa.nulls(count, HEADERS), pa.nulls(count, pa.int64())
        if "headers" in self._columns:
            headers = self._headers(listed, messages)
            # Who has headers is read for its times, too.
            self._reads_times |= headers.null_count < count
        if self._reads_times:
            stamps = micros(np.fromiter(map(self._library.timestamp_of, listed, repeat(None)), np.int64, count))
        return pa.RecordBatch.from_arrays(
            [
                pa.array(messages["offset"]),
                binding.read_bytes(messages["key"], messages["key_size"]),
                binding.read_bytes(messages["payload"], messages["size"]),
                stamps,
                headers,
            ],
            schema=FETCHED,
        )

    def _headers(self, listed: list[int], messages: Any) -> Any:
        count = len(listed)
        asked = binding.may_have_headers(messages) if self._looks_ahead else np.ones(count, np.bool_)
        if self._looks_ahead and any(not asked[at] and self._has_headers(listed[at]) for at in (0, count - 1)):
            # This client keeps values elsewhere than we thought. Each batch is tried, so it is noticed at once.
            self._looks_ahead, asked = False, np.ones(count, np.bool_)
        rows = np.flatnonzero(asked).tolist()
        found: list[Any] = [None] * count
        for row in rows:
            if self._has_headers(listed[row]):
                found[row] = self._read_headers()
        return pa.nulls(count, HEADERS) if found.count(None) == count else pa.array(found, HEADERS)

    def _has_headers(self, pointer: int) -> bool:
        found: int = self._library.headers_of(pointer, ctypes.addressof(self._found))
        return found == binding.HAS_HEADERS

    def _read_headers(self) -> list[tuple[str, bytes | None]]:
        name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
        read: list[tuple[str, bytes | None]] = []
        while not self._library.header(
            self._found, len(read), ctypes.byref(name), ctypes.byref(value), ctypes.byref(size)
        ):
            content = None if value.value is None else ctypes.string_at(value.value, size.value)
            read.append(((name.value or b"").decode(errors="replace"), content))
        return read


def _changes(messages: Any, apart: Any = None) -> list[int]:
    """Where the partition changes, and where there is something that stands apart; with the beginning and the end."""
    topics, partitions = messages["topic"], messages["partition"]
    changes = (topics[1:] != topics[:-1]) | (partitions[1:] != partitions[:-1])
    if apart is not None:
        changes |= apart[1:] | apart[:-1]
    return [0, *(np.flatnonzero(changes) + 1).tolist(), len(messages)]


def _order(messages: Any, bounds: list[int]) -> Any:
    """The order in which all of each partition comes together, as it came; None if it does already."""
    starts = np.array(bounds[:-1])
    topics, partitions = messages["topic"][starts], messages["partition"][starts]
    if len(set(zip(topics.tolist(), partitions.tolist(), strict=True))) == len(starts):
        return None
    runs = np.lexsort((partitions, topics))  # stable: each partition keeps its order
    lengths = np.diff(bounds)[runs]
    # Within a run places follow each other; from one to the next there is a jump.
    jumps = starts[runs] - np.concatenate(([0], np.cumsum(lengths)[:-1]))
    return np.repeat(jumps, lengths) + np.arange(len(messages))

"""What a Kafka reader takes from its client: records as columns, and what went wrong, in the order in which they came.

`MessageFeed` asks the client's Python interface, which makes an object of each message; it works everywhere.
`shoal.topics.kafka.native_feed` does without. Used by `shoal.topics.kafka.reader`.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError, Message

from shoal.topics.base import FETCHED, HEADERS, TopicPartition

_error, _value, _key, _headers, _offset = (
    Message.error,
    Message.value,
    Message.key,
    Message.headers,
    Message.offset,
)
_topic, _partition, _timestamp, _second = Message.topic, Message.partition, Message.timestamp, itemgetter(1)

#: Messages that are taken at a time: more is slower.
_CHUNK = 1000
#: Kafka's mark for a record without a timestamp, which is read as 0. See `shoal.topics.kafka.writer`.
NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one partition, in the order of their offsets: a batch of schema `FETCHED`, never empty."""

    place: TopicPartition
    batch: Any


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is no record: the end of a partition, or an error."""

    place: TopicPartition
    offset: int
    error: KafkaError


class Feed(Protocol):
    """Gives what the client has fetched. Belongs to one thread."""

    def attach(self, places: Iterable[TopicPartition]) -> None:
        """These are about to be assigned."""
        ...

    def take(self, most: int, timeout: float) -> Sequence[Piece | Trouble]:
        """At most so many records. With a time-out wait so many seconds for one, and take no more than that."""
        ...

    def has_complained(self) -> bool:
        """Whether the client has reported an error of a partition since, without naming it."""
        ...

    def close(self) -> None:
        """Let go, before the client is closed."""
        ...


class MessageFeed:
    """Through the client's Python interface."""

    def __init__(self, consumer: Any, columns: Collection[str]) -> None:
        self._consumer = consumer
        self._columns = frozenset(columns)
        self._one_topic = True

    def attach(self, places: Iterable[TopicPartition]) -> None:
        """Take note of how many topics there are."""
        self._one_topic = len({each.topic for each in places}) < 2

    def take(self, most: int, timeout: float) -> Sequence[Piece | Trouble]:
        """What `consume` returns, or `poll`."""
        if timeout:
            message = self._consumer.poll(timeout)
            messages = [] if message is None else [message]
        else:
            messages = self._consumer.consume(min(most, _CHUNK), 0)
        return list(cut(messages, self._columns, one_topic=self._one_topic)) if messages else ()

    def has_complained(self) -> bool:
        """It says which."""
        return False

    def close(self) -> None:
        """There is nothing to let go of."""


def cut(messages: Sequence[Any], columns: Container[str], *, one_topic: bool) -> Iterator[Piece | Trouble]:
    """Messages by partition, with what is no record between them."""
    start = 0
    if has_errors(messages):
        for at, message in enumerate(messages):
            error = message.error()
            if error is not None:
                yield from _pieces(messages[start:at], columns, one_topic=one_topic)
                offset = message.offset()
                place = TopicPartition(message.topic() or "", message.partition() or 0)
                yield Trouble(place, -1 if offset is None else offset, error)
                start = at + 1
    yield from _pieces(messages[start:], columns, one_topic=one_topic)


def has_errors(messages: Sequence[Any]) -> bool:
    """Whether any of them is no record but says what went wrong."""
    # Errors are true, and not to be compared: the library's comparison with None fails after the fact.
    return any(map(_error, messages))


def _pieces(messages: Sequence[Any], columns: Container[str], *, one_topic: bool) -> Iterator[Piece]:
    if messages:
        for run in runs(messages, one_topic=one_topic):
            yield Piece(TopicPartition(run[0].topic(), run[0].partition()), to_batch(run, columns))


def runs(messages: Sequence[Any], *, one_topic: bool) -> Iterator[Sequence[Any]]:
    """Cut messages where the partition changes."""
    # Partitions alone are quicker to tell apart than topics and partitions.
    places: list[Any] = list(map(_partition, messages))
    if not one_topic:
        places = list(zip(map(_topic, messages), places, strict=True))
    if places.count(places[0]) == len(places):
        yield messages
        return
    start = 0
    for at in range(1, len(places)):
        if places[at] != places[start]:
            yield messages[start:at]
            start = at
    yield messages[start:]


def to_batch(messages: Sequence[Any], columns: Container[str] = FETCHED.names) -> Any:
    """A batch of schema `FETCHED`; timestamps and headers only where those columns are asked for."""
    count = len(messages)
    stamps, headers = pa.nulls(count, pa.int64()), pa.nulls(count, HEADERS)
    if "headers" in columns:
        headers = _sparse(list(map(_headers, messages)), HEADERS, count)
    if "timestamp" in columns or headers.null_count < count:
        stamps = micros(np.array(list(map(_second, map(_timestamp, messages))), np.int64))
    keys = _sparse(list(map(_key, messages)), pa.binary(), count)
    values = pa.array(list(map(_value, messages)), pa.binary())
    return pa.RecordBatch.from_arrays([pa.array(_offsets(messages)), keys, values, stamps, headers], schema=FETCHED)


def micros(stamps: npt.NDArray[np.int64]) -> Any:
    """Kafka's milliseconds as a column of microseconds."""
    stamps[stamps == NO_TIMESTAMP] = 0
    stamps *= 1000
    return pa.array(stamps)


def _offsets(messages: Sequence[Any]) -> npt.NDArray[np.int64]:
    first, last = messages[0].offset(), messages[-1].offset()
    if last - first + 1 == len(messages):  # they only grow, so there are no holes
        return np.arange(first, last + 1, dtype=np.int64)
    return np.array(list(map(_offset, messages)), np.int64)


def _sparse(values: list[Any], kind: Any, count: int) -> Any:
    """A column that often has nothing in it."""
    return pa.nulls(count, kind) if values.count(None) == count else pa.array(values, kind)

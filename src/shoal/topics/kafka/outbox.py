"""How a Kafka writer hands records to its client, and hears what became of them.

`MessageOutbox` calls the client's Python interface for each record, and is called back for each; it works everywhere.
`shoal.topics.kafka.native_outbox` does without. Used by `shoal.topics.kafka.writer`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException

from shoal.topics.kafka.feed import NO_TIMESTAMP

#: What tells the client to write the time of the append.
_NOW = 0


class Outbox(Protocol):
    """Hands records over. Belongs to one thread."""

    def send(self, topic: str, partition: int, batch: Any) -> int:
        """Hand records over, from the first on. How many it took: fewer than there are when there is no room.

        Raises the client's exception when it takes the first one not at all.
        """
        ...

    def poll(self, timeout: float) -> None:
        """Hear what became of records; if there is nothing to hear wait so many seconds."""
        ...

    def waiting(self) -> int:
        """How many records, or reports of them, are still on their way; 0 means that all was heard."""
        ...

    def take_failure(self) -> tuple[KafkaError, str] | None:
        """Why a record was not written, and its topic; each time another one, if there is one."""
        ...

    def forget(self) -> None:
        """A transaction is over: what became of its records is known."""
        ...

    def close(self) -> None:
        """Let go, before the client is closed."""
        ...


class MessageOutbox:
    """Through the client's Python interface."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._failure: tuple[KafkaError, str] | None = None

    def send(self, topic: str, partition: int, batch: Any) -> int:
        """One call for each record."""
        return produce_each(self._producer.produce, topic, partition, batch, on_delivery=self._on_delivery)

    def poll(self, timeout: float) -> None:
        """Be called back."""
        self._producer.poll(timeout)

    def waiting(self) -> int:
        """What the client has in its queues."""
        return int(self._producer.flush(0))

    def take_failure(self) -> tuple[KafkaError, str] | None:
        """The first that was heard since."""
        failure, self._failure = self._failure, None
        return failure

    def forget(self) -> None:
        """Failures in a transaction fail its commit."""
        self._failure = None

    def close(self) -> None:
        """There is nothing to let go of."""

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = (error, message.topic() or "")


def produce_each(produce: Any, topic: str, partition: int, batch: Any, *, on_delivery: Any = None) -> int:
    """Hand records over one by one; how many were taken."""
    taken = 0
    keys, values, stamps, headers = batch.columns
    try:
        if keys.null_count == stamps.null_count == headers.null_count == batch.num_rows:
            for value in _objects(values):
                produce(topic, value, None, partition, on_delivery)
                taken += 1
            return taken
        columns = (_objects(values), _objects(keys), _millis(stamps), _headers(headers))
        for value, key, stamp, names in zip(*columns, strict=True):
            produce(topic, value, key, partition, on_delivery, None, stamp, names)
            taken += 1
    except BufferError:
        return taken
    except KafkaException:
        if not taken:
            raise
    return taken


def _objects(column: Any) -> list[Any]:
    """A binary column as Python objects, for which there is no quicker way."""
    if column.null_count == len(column):
        return [None] * len(column)
    found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return found


def _headers(column: Any) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    found: list[Any] = column.to_pylist()
    return found


def _millis(column: Any) -> list[int]:
    if column.null_count == len(column):
        return [_NOW] * len(column)
    millis = pc.fill_null(column, 0).to_numpy() // 1000
    millis[millis == 0] = NO_TIMESTAMP
    if column.null_count:
        millis[np.asarray(column.is_null())] = _NOW
    written: list[int] = millis.tolist()
    return written

"""Hands records to a Kafka client many at a time, and hears of all of them. Used by `shoal.topics.kafka.writer`.

The client reports what became of every record, many in one event; a failure among them is never missed, and no Python
is called for the others. What the client's Python interface would call back for comes by the same queue as an event,
and is passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException

from shoal.topics.kafka import binding
from shoal.topics.kafka.native_events import Events, Lines
from shoal.topics.kafka.outbox import produce_each

_FULL = KafkaError._QUEUE_FULL  # noqa: SLF001 the library's own name


class NativeOutbox:
    """Through the client's C interface.

    Args:
        most_records: how many may wait.
        most_bytes: how many bytes of them. Both are the client's own bounds: within them it takes whatever it is given,
            and so keeps its order.
        on_error: hears what is about no single record.
        lines: hears what the client has to say.
    """

    def __init__(
        self,
        producer: Any,
        library: binding.Binding,
        handle: int,
        *,
        most_records: int,
        most_bytes: int,
        on_error: Callable[[KafkaError], None],
        lines: Lines,
    ) -> None:
        self._producer = producer
        self._library = library
        self._handle = handle
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._events = Events(library, handle, library.queue_main(handle), on_error=on_error, lines=lines)
        self._topics: dict[str, int] = {}
        self._records = 0
        self._bytes = 0
        self._failure: tuple[KafkaError, str] | None = None

    def send(self, topic: str, partition: int, batch: Any) -> int:
        """All that there is room for, in one call. Timestamps and headers only go record by record."""
        keys, values, stamps, headers = batch.columns
        (at, sizes), (key_at, key_sizes) = binding.addresses_of(values), binding.addresses_of(keys)
        total = np.cumsum(sizes + key_sizes)
        count = self._room(total)
        if not count:
            return 0
        if stamps.null_count == headers.null_count == batch.num_rows:
            messages = np.zeros(count, binding.MESSAGE)
            messages["payload"], messages["size"] = at[:count], sizes[:count]
            messages["key"], messages["key_size"] = key_at[:count], key_sizes[:count]
            return self._produce(topic, partition, messages)
        taken = produce_each(self._producer.produce, topic, partition, batch.slice(0, count))
        self._records += taken
        self._bytes += int(total[taken - 1]) if taken else 0
        return taken

    def poll(self, timeout: float) -> None:
        """Look at what came; wait for it only if there is nothing."""
        self._events.poll(timeout, self._hear_of_records)

    def waiting(self) -> int:
        """What the client has in its queues."""
        left = int(self._library.waiting(self._handle))
        if not left:
            self._records = self._bytes = 0
        return left

    def take_failure(self) -> tuple[KafkaError, str] | None:
        """The first that was heard since."""
        failure, self._failure = self._failure, None
        return failure

    def forget(self) -> None:
        """The client has heard of all of its records itself. Failures fail the commit."""
        self._records = self._bytes = 0
        self._failure = None

    def close(self) -> None:
        """Let go of topics and of the queue: the client waits for that when it is closed."""
        topics, self._topics = self._topics, {}
        for topic in topics.values():
            self._library.topic_destroy(topic)
        self._events.close()

    # -----------------------------------------------------------------------------------------------------

    def _room(self, total: Any) -> int:
        """How many records there is room for. When nothing waits, at least one: the client says what it thinks."""
        fitting = int(np.searchsorted(total, self._most_bytes - self._bytes, side="right"))
        return max(0 if self._records else 1, min(fitting, self._most_records - self._records))

    def _produce(self, topic: str, partition: int, messages: Any) -> int:
        count = len(messages)
        address = binding.address_of(messages)
        accepted = self._library.produce(self._topic(topic), partition, binding.COPY, address, count)
        self._records += accepted
        if accepted == count:
            self._bytes += int(messages["size"].sum() + messages["key_size"].sum())
            return count
        refused = messages["error"] != 0
        kept = messages[~refused]
        self._bytes += int(kept["size"].sum() + kept["key_size"].sum())
        first = int(np.argmax(refused))
        if first and accepted == first:  # all after it, too: what is left can be tried again in its order
            return first
        code = int(messages["error"][first])
        if code == _FULL and not accepted:
            return 0
        raise KafkaException(self._events.error(code))

    def _topic(self, name: str) -> int:
        found = self._topics.get(name)
        if found is None:
            made = self._library.topic_new(self._handle, name.encode(), None)
            if not made:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, f"topic {name}"))  # noqa: SLF001
            found = self._topics[name] = int(made)
        return found

    def _hear_of_records(self, event: int) -> None:
        if self._library.event_kind(event) != binding.DELIVERED:
            return
        pointers = np.zeros(self._library.event_count(event), np.int64)
        count = self._library.event_messages(event, binding.address_of(pointers), len(pointers))
        if not count:
            return
        messages = binding.read_messages(pointers[:count])
        self._records = max(0, self._records - count)
        self._bytes = max(0, self._bytes - int(messages["size"].sum() + messages["key_size"].sum()))
        errors = messages["error"]
        if self._failure is None and errors.any():
            failed = messages[int(np.argmax(errors != 0))]
            name = self._library.topic_name(int(failed["topic"])) if failed["topic"] else b""
            self._failure = (self._events.error(int(failed["error"])), name.decode())

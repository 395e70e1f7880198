"""Proves, once in a process, that the client library that is installed is laid out as `binding` reads it.

A producer that has no brokers is made, two messages are handed to it as structs and thrown away again: the client then
reports both, and what it reports is read as a reader would. Nothing is sent anywhere. That no byte behind a value says
whether a message has headers is tried with every batch instead, see `shoal.topics.kafka.native_feed`. Called by
`shoal.topics.kafka.interface`.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException, Producer

from shoal.topics.kafka import binding
from shoal.topics.kafka.binding import Binding

_NAME = "shoal-self-test"
_TOPIC = b"shoal-self-test"
_VALUES = pa.array([b"a value of more than twelve bytes", b"short"], pa.binary())
_KEYS = pa.array([b"key", None], pa.binary())
#: Seconds until a client reports what was thrown away; it takes less than a millisecond.
_PATIENCE_MS = 5000
#: What the client says of messages that were thrown away.
_PURGED = -152
_silent = logging.getLogger(f"{__name__}.client")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def find_fault(library: Binding) -> str:
    """Why the library cannot be used so; empty when it can."""
    try:
        producer = Producer({"client.id": _NAME, "log_level": 0}, logger=_silent)
        place = library.place_of(producer)
        if place is None or not _is_mapped(place):
            return "a client's handle is not where it is expected"
        if not (library.name(place) or b"").startswith(f"{_NAME}#producer-".encode()):
            return "a client's handle does not know the client's name"
        return _try_messages(library, producer, place)
    except (KafkaException, OSError, ValueError, AttributeError) as error:
        return f"the self-test failed: {error}"


def _is_mapped(address: int) -> bool:
    """Whether memory is there, where the system tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, _, end = line.partition(" ")[0].partition("-")
            if int(first, 16) <= address < int(end, 16):
                return True
        return False
    return True


def _try_messages(library: Binding, producer: Any, handle: int) -> str:
    (at, sizes), (key_at, key_sizes) = binding.addresses_of(_VALUES), binding.addresses_of(_KEYS)
    given = np.zeros(len(_VALUES), binding.MESSAGE)
    given["payload"], given["size"], given["key"], given["key_size"] = at, sizes, key_at, key_sizes
    topic = library.topic_new(handle, _TOPIC, None)
    queue = library.queue_main(handle)
    try:
        accepted = library.produce(topic, 0, binding.COPY, binding.address_of(given), len(given))
        if accepted != len(given):
            return f"{accepted} of {len(given)} messages were taken"
        producer.purge()
        return _compare(library, queue)
    finally:
        library.queue_destroy(queue)
        library.topic_destroy(topic)


def _compare(library: Binding, queue: int) -> str:
    """Read what the client reports, and compare it with what was given."""
    values: list[Any] = []
    keys: list[Any] = []
    while len(values) < len(_VALUES):
        event = library.queue_poll(queue, _PATIENCE_MS)
        if not event:
            return "messages that were thrown away are not reported"
        try:
            if library.event_kind(event) != binding.DELIVERED:
                continue
            pointers = np.zeros(library.event_count(event), np.int64)
            count = library.event_messages(event, binding.address_of(pointers), len(pointers))
            messages = binding.read_messages(pointers[:count])
            if set(messages["error"].tolist()) != {_PURGED} or set(messages["partition"].tolist()) != {0}:
                return "messages have other fields than expected"
            if {library.topic_name(int(each)) for each in messages["topic"]} != {_TOPIC}:
                return "messages have another topic than expected"
            values += binding.read_bytes(messages["payload"], messages["size"]).to_pylist()
            keys += binding.read_bytes(messages["key"], messages["key_size"]).to_pylist()
        finally:
            library.event_destroy(event)
    if values != _VALUES.to_pylist() or keys != _KEYS.to_pylist():
        return "messages have other values than expected"
    return ""

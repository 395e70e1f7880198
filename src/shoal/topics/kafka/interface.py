"""Chooses the interface of the client library: its C interface, or the documented Python interface.

The C interface (`shoal.topics.kafka.binding`) is used where the layout of its structs is known and
`shoal.topics.kafka.self_test` finds no fault with the library that is installed. Otherwise the Python interface does
the same, more slowly. Called by readers and writers, and by `shoal.dataflow.connectors.topics.brokers` for `--explain`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
import sys
from ctypes import c_void_p
from dataclasses import dataclass

import confluent_kafka

from shoal.topics.kafka.binding import Binding
from shoal.topics.kafka.self_test import find_fault

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Interface:
    """How this process talks to the client library."""

    #: None: by the library's documented Python interface, message by message.
    binding: Binding | None
    #: In words: which one, for which version, and why.
    text: str


@functools.cache
def interface() -> Interface:
    """Which interface is used, found out once in a process."""
    version = f"librdkafka {confluent_kafka.libversion()[0]}"
    found, fault = _load()
    if found is None:
        log.warning("Kafka is read and written message by message, by the Python interface of %s: %s", version, fault)
        return Interface(None, f"Python interface of {version}: {fault}")
    return Interface(found, f"C interface of {version}, self-test passed")


def find() -> Binding | None:
    """The binding, where there is one."""
    return interface().binding


def _load() -> tuple[Binding | None, str]:
    if sys.implementation.name != "cpython" or platform.machine() not in {"x86_64", "AMD64", "aarch64", "arm64"}:
        return None, f"{sys.implementation.name} on {platform.machine()} is not known"
    if ctypes.sizeof(c_void_p) != 8 or sys.byteorder != "little":
        return None, "this machine has words of another form"
    try:
        found = Binding(confluent_kafka.cimpl.__file__)
    except (OSError, AttributeError) as error:  # the library cannot be loaded so, or has not all of it
        return None, str(error)
    fault = find_fault(found)
    return (None, fault) if fault else (found, "")

"""Events of a Kafka client's C interface that are about no record: errors and log lines.

The client's Python interface calls back for these, which only works inside its own calls. Users of the C
interface get them here instead. Used by `shoal.topics.kafka.native_feed` and `native_outbox`.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Protocol

from confluent_kafka import KafkaError

from shoal.topics.kafka.binding import FAILED, LOGGED, Binding

#: Events that are looked at in one go.
_MOST = 1000
_WORDS = 512
_FATAL = KafkaError._FATAL  # noqa: SLF001 the library's own name
#: What the client's levels are to Python, from the most urgent on.
_LEVELS = (logging.CRITICAL,) * 3 + (logging.ERROR, logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG)
#: How the client marks log lines about errors that it reports nowhere else.
_UNTOLD = "ERROR"


class Lines(Protocol):
    """Where the client's own log goes."""

    def log(self, level: int, message: str, *args: object) -> None:
        """Take a line."""
        ...


class Events:
    """One queue of one client. Belongs to one thread.

    Args:
        queue: is this object's from now on.
        on_error: hears what is about no single record or partition.
        lines: hears what the client has to say.
    """

    def __init__(
        self,
        library: Binding,
        handle: int,
        queue: int,
        *,
        on_error: Callable[[KafkaError], None],
        lines: Lines,
    ) -> None:
        self._library = library
        self._handle = handle
        self._queue: int | None = queue
        self._on_error = on_error
        self._lines = lines
        #: Whether an error was logged that is reported nowhere else.
        self.has_complained = False

    def poll(self, timeout: float, others: Callable[[int], None]) -> None:
        """Hear what came; wait for it only if there is nothing. Events about records go to `others`."""
        wait = round(timeout * 1000)
        for _ in range(_MOST):
            event = self._library.queue_poll(self._queue, wait)
            if not event:
                return
            try:
                self._hear(event, others)
            finally:
                self._library.event_destroy(event)
            wait = 0

    def error(self, code: int, words: str = "") -> KafkaError:
        """An error of the client, with its cause where it is the end of it."""
        if code != _FATAL:
            return KafkaError(code, words or self._library.describe(code).decode())
        message = ctypes.create_string_buffer(_WORDS)
        cause = self._library.fatal_error(self._handle, message, _WORDS)
        return KafkaError(cause or code, message.value.decode(errors="replace") or words, fatal=True)

    def close(self) -> None:
        """Let go of the queue: the client waits for that when it is closed."""
        queue, self._queue = self._queue, None
        if queue:
            self._library.queue_destroy(queue)

    def _hear(self, event: int, others: Callable[[int], None]) -> None:
        kind = self._library.event_kind(event)
        if kind == FAILED:
            words = (self._library.event_words(event) or b"").decode(errors="replace")
            self._on_error(self.error(self._library.event_error(event), words))
        elif kind == LOGGED:
            self._log(event)
        else:
            others(event)

    def _log(self, event: int) -> None:
        facility, line, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        self._library.event_log(event, ctypes.byref(facility), ctypes.byref(line), ctypes.byref(level))
        name = self._library.name(self._handle).decode(errors="replace")
        about, text = [(each.value or b"").decode(errors="replace") for each in (facility, line)]
        self.has_complained |= about == _UNTOLD
        urgency = _LEVELS[min(max(level.value, 0), len(_LEVELS) - 1)]
        self._lines.log(urgency, "%s [%s] %s", about, name, text)

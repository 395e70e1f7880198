"""Appends records to topics one call at a time, for `topic.send` and `agent.send`.

To begin to write to Kafka takes a hundred times longer than to write one record. So a connection that was made for one
call stays open for the next ones, and is closed when nobody has sent for a while. Called by
`shoal.dataflow.api.apps.topic`, in threads; calls `shoal.topics`.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import Any

from shoal.core.clock import Clock, SystemClock
from shoal.dataflow.connectors.topics.brokers import is_kafka, return_topics, take_topics
from shoal.topics.base import ensure_topic

#: Seconds without a call after which a connection is closed.
IDLE_SECONDS = 5.0


class Sender:
    """A connection to one broker."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self._lock = threading.Lock()
        self._topics = take_topics(broker)
        self._writer: Any = None
        self._known: set[str] = set()
        self._is_closed = False

    def append(self, topic: str, batch: Any, *, partitions: int) -> bool:
        """Append, and come back when it is written. False when the connection was closed meanwhile."""
        with self._lock:
            if self._is_closed:
                return False
            if topic not in self._known:
                ensure_topic(self._topics, topic, partitions=partitions)
                self._known.add(topic)
            if self._writer is None:
                self._writer = self._topics.writer()
            self._writer.append(topic, batch)
            self._writer.flush()
            return True

    def close(self) -> None:
        """Let go of the connection. A call that is under way comes to its end first."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if self._writer is not None:
                    self._writer.close()
            finally:
                return_topics(self.broker)


class Senders:
    """The connections of a process, by broker."""

    def __init__(self, clock: Clock | None = None, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._clock = clock or SystemClock()
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Sender, float]] = {}
        self._timer: threading.Timer | None = None

    def append(self, broker: str, topic: str, batch: Any, *, partitions: int) -> None:
        """Append with the connection that is open, or a new one. One that fails is not used again."""
        done = False
        while not done:
            sender = self._take(broker)
            try:
                done = sender.append(topic, batch, partitions=partitions)
            except BaseException:
                self._drop(sender)
                raise
        if not is_kafka(broker):
            self._drop(sender)  # a local log is opened in no time, and its directory is somebody else's

    def close_idle(self) -> None:
        """Close what nobody has used for a while, and look again later at the rest."""
        now = self._clock.monotonic()
        with self._lock:
            self._timer = None
            idle = [each for each, used in self._open.values() if now - used >= self._idle_seconds]
            for each in idle:
                del self._open[each.broker]
            self._look_later()
        for each in idle:
            with contextlib.suppress(Exception):  # nothing waits in it: every call has flushed
                each.close()

    def close(self) -> None:
        """Close everything."""
        with self._lock:
            left = [each for each, _used in self._open.values()]
            self._open.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for each in left:
            with contextlib.suppress(Exception):  # as above
                each.close()

    def _take(self, broker: str) -> Sender:
        with self._lock:
            sender = self._open[broker][0] if broker in self._open else Sender(broker)
            self._open[broker] = (sender, self._clock.monotonic())
            self._look_later()
            return sender

    def _drop(self, sender: Sender) -> None:
        with self._lock:
            if self._open.get(sender.broker, (None, 0.0))[0] is sender:
                del self._open[sender.broker]
        with contextlib.suppress(Exception):  # what went wrong is being raised, or nothing waits in it
            sender.close()

    def _look_later(self) -> None:
        if self._timer is None and self._open:
            self._timer = threading.Timer(self._idle_seconds, self.close_idle)
            self._timer.daemon = True
            self._timer.start()


_senders = Senders()
atexit.register(_senders.close)


def append_records(broker: str, topic: str, batch: Any, *, partitions: int) -> None:
    """Append records to a topic, which is made when it is not there. Blocks until they are written."""
    _senders.append(broker, topic, batch, partitions=partitions)

"""Commits the positions of complete checkpoints to the consumer group of a source, so that lag tools see them.

A job never reads them back: its checkpoints have the positions. So a commit that fails is a warning, and only the
newest one matters. Used by `shoal.dataflow.connectors.topics.endpoints`; one thread for each reader, from its first
commit on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from shoal.core.errors import ShoalError
from shoal.topics.base import TopicPartition, Topics

log = logging.getLogger(__name__)

#: Seconds that a reader waits for the last commit when it closes.
_LAST_COMMIT = 2.0


class GroupOffsets:
    """The offsets of one group, as far as one reader knows them."""

    def __init__(self, topics: Topics, group: str) -> None:
        self._topics = topics
        self._group = group
        self._changed = threading.Condition()
        self._newest: Mapping[TopicPartition, int] | None = None
        self._is_over = False
        self._has_failed = False
        self._thread: threading.Thread | None = None

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these soon. Returns at once."""
        with self._changed:
            self._newest = offsets
            self._changed.notify()
            if self._thread is None:
                name = f"offsets of {self._group}"[:60]
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Commit what is left, if that is quick."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_LAST_COMMIT)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._newest is None and not self._is_over:
                    self._changed.wait()
                offsets, self._newest = self._newest, None
            if offsets is None:
                return
            self._try(offsets)

    def _try(self, offsets: Mapping[TopicPartition, int]) -> None:
        try:
            self._topics.store_offsets(self._group, offsets)
            self._has_failed = False
        except ShoalError as error:
            if not self._has_failed and not self._is_over:
                log.warning(
                    "offsets of group %s cannot be committed, so its lag is not visible: %s", self._group, error
                )
            self._has_failed = True

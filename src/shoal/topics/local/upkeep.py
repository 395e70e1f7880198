"""Periodic upkeep: sync records to disk, apply retention, collect garbage.

Every process that writes does all of it; that two do it at once does no harm. Retention is an entry in the journal,
after which no reader looks for the records; the files are removed afterwards. A file is garbage when no entry names it
and none ever will: its session has ended, or it is this process's own and no writer uses it.

Called by `shoal.topics.local.topics`, which runs it in a thread; calls `view`, `index` and `places`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path

from shoal.core.disk.durable import sync_path
from shoal.core.errors import ShoalError
from shoal.core.faults import reach
from shoal.topics.local.drafts import Holdings
from shoal.topics.local.history.entries import Trim
from shoal.topics.local.history.replay import PartitionState, TopicState
from shoal.topics.local.history.view import View
from shoal.topics.local.leases import HostClock
from shoal.topics.local.places import typed_errors
from shoal.topics.local.segments import segment_path, session_of
from shoal.topics.local.settings import Fsync

log = logging.getLogger(__name__)

FORGOTTEN_AFTER = 60.0
"""A file that is being made for longer than this, in seconds, was abandoned by its writer."""


class Upkeep:
    """The upkeep of one process, in a thread of its own once it is started."""

    def __init__(self, view: View, holdings: Holdings, clock: HostClock) -> None:
        self._view = view
        self._holdings = holdings
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="topics-upkeep", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop, after a last look at what is not on disk yet."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.sync()

    def _run(self) -> None:
        settings = self._view.settings
        step = min(settings.fsync_interval, settings.upkeep_interval).total_seconds()
        due = self._clock.since_boot() + settings.upkeep_interval.total_seconds()
        while not self._stop.wait(step):
            try:
                self.sync()
                if self._clock.since_boot() >= due:
                    due = self._clock.since_boot() + settings.upkeep_interval.total_seconds()
                    self.retain()
                    self.collect()
            except (ShoalError, OSError) as error:
                log.warning("upkeep of the local log %s: %s; trying again", self._view.places.root, error)

    # ------------------------------------------------------------------------------------------------
    # Durability

    def sync(self) -> None:
        """Bring to disk what was written since the last time: records first, then the entries that name them."""
        if self._view.settings.fsync is not Fsync.INTERVAL:
            return
        dirty = self._holdings.take_dirty()
        if not dirty:
            return
        for name in dirty:
            with contextlib.suppress(FileNotFoundError):  # retention was quicker
                sync_path(segment_path(self._view.places, name))
        self._view.sync()

    # ------------------------------------------------------------------------------------------------
    # Retention

    def retain(self) -> None:
        """Trim every partition to what its topic's retention allows."""
        with self._view.lock:
            state = self._view.refresh()
            trims = [
                trim
                for topic in state.topics.values()
                for number in range(len(topic.partitions))
                if (trim := self._trim(topic, number)) is not None
            ]
        for trim in trims:
            self._view.submit(trim)

    def _trim(self, topic: TopicState, number: int) -> Trim | None:
        partition = topic.partitions[number]
        before_us = -1
        if topic.retention_us is not None:
            before_us = self._clock.wall_us() - topic.retention_us
        surplus = 0
        if topic.retention_bytes is not None:
            surplus = partition.length - topic.retention_bytes
        if partition.first == partition.following or (before_us < 0 and surplus <= 0):
            return None
        first, freed = self._boundary(partition, before_us, surplus)
        return Trim(topic.number, number, partition.first, first, freed) if first > partition.first else None

    def _boundary(self, partition: PartitionState, before_us: int, surplus: int) -> tuple[int, int]:
        """The first offset that stays, and how many bytes go."""
        first, freed = partition.first, 0
        for part in partition.index:
            with contextlib.suppress(FileNotFoundError):
                cut, length = self._view.index.expired(part, first, before_us=before_us, surplus=surplus - freed)
                first, freed = max(first, cut), freed + length
                if cut < part.end:
                    return first, freed
        for chunk in partition.chunks:
            if chunk.at_us >= before_us and freed + chunk.length > surplus:
                break
            first, freed = chunk.end, freed + chunk.length
        return first, freed

    # ------------------------------------------------------------------------------------------------
    # Garbage

    def collect(self) -> None:
        """Remove files that are no longer needed."""
        places = self._view.places
        # What is listed first and looked up afterwards was not made by a session that we have not heard of. What a
        # writer has let go of before the journal is looked at, that names already if it ever will.
        segments = [path for path in _files(places.segments) if path.suffix == ".arrow"]
        indexes = _files(places.indexes)
        leases = _files(places.leases)
        busy = self._holdings.busy()
        with self._view.lock:
            state = self._view.refresh()
            number = self._view.journal_number
            named = set(state.segments)
            sessions = set(state.sessions)
            needed = {
                part.number for topic in state.topics.values() for each in topic.partitions for part in each.index
            }
        reach("topics.collect.looked")
        garbage = [path for path in segments if self._is_garbage(path.stem, named | busy, sessions)]
        garbage += [path for path in indexes if int(path.stem) < number and int(path.stem) not in needed]
        garbage += [places.journal(each) for each in places.journal_numbers() if each < number]
        garbage += [path for path in leases if path.name not in sessions and self._is_old(path)]
        garbage += [path for path in _files(places.parts) if self._is_old(path)]
        for path in garbage:
            with typed_errors(path):
                path.unlink(missing_ok=True)

    def _is_garbage(self, name: str, needed: set[str], sessions: set[str]) -> bool:
        if name in needed:
            return False
        session = session_of(name)
        return session not in sessions or session.startswith(self._view.author)

    def _is_old(self, path: Path) -> bool:
        try:
            written = os.stat(path).st_mtime  # noqa: PTH116 - one call less
        except FileNotFoundError:
            return False
        return self._clock.wall_us() / 1e6 - written > FORGOTTEN_AFTER


def _files(directory: Path) -> list[Path]:
    return [Path(entry.path) for entry in os.scandir(directory) if entry.is_file()]

"""What writers have put into segments: which files are in use, and which are not on disk yet.

`Holdings` belongs to the process, `Drafts` to one writer. Called by `writer` and `upkeep`; calls `segments`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from shoal.topics.local.history.entries import ChunkDraft
from shoal.topics.local.history.replay import TopicState
from shoal.topics.local.leases import HostClock
from shoal.topics.local.places import Places
from shoal.topics.local.segments import SegmentWriter, segment_name
from shoal.topics.local.session import Session
from shoal.topics.local.settings import Fsync, LocalLogSettings
from shoal.topics.partitioning import Share


class Holdings:
    """The segments of this process's writers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._busy: set[str] = set()
        self._dirty: set[str] = set()

    def new_name(self, session: Session) -> str:
        """A name for a segment, which is in use from now on."""
        with self._lock:
            self._count += 1
            name = segment_name(session.boot, session.name, self._count)
            self._busy.add(name)
            return name

    def mark_dirty(self, name: str) -> None:
        """Something was written to it."""
        with self._lock:
            self._dirty.add(name)

    def take_dirty(self) -> set[str]:
        """Those that were written to since the last call."""
        with self._lock:
            taken, self._dirty = self._dirty, set()
            return taken

    def release(self, names: Sequence[str]) -> None:
        """They are no longer written to; what no entry names of them is garbage."""
        with self._lock:
            self._busy.difference_update(names)

    def busy(self) -> frozenset[str]:
        """Those that a writer uses, or has in an open transaction."""
        with self._lock:
            return frozenset(self._busy)


class Drafts:
    """The segments of one writer: one for each topic, and those that an open transaction still needs."""

    def __init__(
        self, places: Places, settings: LocalLogSettings, clock: HostClock, session: Session, holdings: Holdings
    ) -> None:
        self._places = places
        self._settings = settings
        self._clock = clock
        self._session = session
        self._holdings = holdings
        self._current: dict[int, SegmentWriter] = {}
        self._full: list[SegmentWriter] = []
        self._touched: dict[str, SegmentWriter] = {}

    def write(self, topic: TopicState, shares: Sequence[Share]) -> list[ChunkDraft]:
        """Put the records of each partition into the segment of the topic."""
        segment = self._segment(topic)
        written = segment.write([share.batch for share in shares])
        self._touched[segment.name] = segment
        if self._settings.fsync is Fsync.INTERVAL:
            self._holdings.mark_dirty(segment.name)
        return [
            ChunkDraft(
                topic.number,
                share.partition,
                place.segment,
                place.position,
                place.length,
                share.batch.num_rows,
                place.checksum,
            )
            for share, place in zip(shares, written, strict=True)
        ]

    def sync_if_always(self) -> None:
        """Wait for the disk before an entry names what was written, where the settings ask for that."""
        if self._settings.fsync is Fsync.ALWAYS:
            for segment in self._touched.values():
                segment.sync()
            self._touched.clear()

    def settle(self) -> None:
        """Nothing is open: let go of full segments."""
        for segment in self._full:
            segment.close()
        self._holdings.release([segment.name for segment in self._full])
        self._full.clear()
        self._touched.clear()

    def close(self) -> None:
        """Let go of everything."""
        self._full.extend(self._current.values())
        self._current.clear()
        self.settle()

    def _segment(self, topic: TopicState) -> SegmentWriter:
        current = self._current.get(topic.number)
        now = self._clock.since_boot()
        if current is not None and current.position < self._settings.segment_bytes:
            limit = self._settings.segment_age.total_seconds()
            if topic.retention_us is not None:
                limit = min(limit, max(1.0, topic.retention_us / 1e6))
            if now - current.born < limit:
                return current
        name = self._holdings.new_name(self._session)
        try:
            segment = SegmentWriter(self._places, name, born=now, durable=self._settings.fsync is Fsync.ALWAYS)
        except BaseException:
            self._holdings.release([name])
            raise
        if current is not None:
            self._full.append(current)
        self._current[topic.number] = segment
        return segment

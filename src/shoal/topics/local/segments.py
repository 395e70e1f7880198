"""Segments: the files that hold the records. Each is an Arrow IPC stream, written by one writer for one topic.

A writer puts the records of an append behind what it has put there before; they count when an entry of the journal
names them. What no entry names is written over, or is garbage. Readers map what is large and copy what is small, and
look only at what entries name, so they never see half of something.

Called by `shoal.topics.local.writer` and `reader`; calls `places`.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from shoal.core.disk.durable import sync_path
from shoal.topics.base import RECORDS
from shoal.topics.local.history.replay import Chunk
from shoal.topics.local.places import Places, typed, typed_errors

_SCHEMA_MESSAGE = RECORDS.serialize().to_pybytes()

COPIED_BELOW = 256 * 1024
"""Smaller chunks are copied: that costs less than mapping them."""

MAX_OPEN = 64
"""Segments that a process keeps open to read."""

_WRITEV_BUFFERS = 512


@dataclass(frozen=True, slots=True)
class Written:
    """Where one batch went."""

    segment: str
    position: int
    length: int
    checksum: int


def segment_name(boot: str, session: str, number: int) -> str:
    """A name that no other segment ever has, and that tells whose it is and in which boot it was written."""
    return f"{boot[:8]}-{session}-{number}"


def session_of(name: str) -> str:
    """The session that a segment belongs to."""
    return name.split("-")[1] if name.count("-") == 2 else ""


class SegmentWriter:
    """One segment that is being written."""

    def __init__(self, places: Places, name: str, *, born: float, durable: bool) -> None:
        self.name = name
        self.born = born
        self._path = segment_path(places, name)
        with typed_errors(self._path):
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                self.position = 0
                self.position = self._put([_SCHEMA_MESSAGE])
                if durable:
                    sync_path(self._path.parent)
            except BaseException:
                os.close(self._descriptor)
                self._path.unlink(missing_ok=True)
                raise

    def write(self, batches: Sequence[Any]) -> list[Written]:
        """Put batches behind each other; all of them, or raise and leave the next ones to write over them."""
        messages = [batch.serialize() for batch in batches]
        with typed_errors(self._path):
            end = self._put(messages)
        written: list[Written] = []
        for message in messages:
            written.append(Written(self.name, self.position, len(message), zlib.crc32(message)))
            self.position += len(message)
        if self.position != end:
            raise AssertionError("a segment holds what was written to it")
        return written

    def sync(self) -> None:
        """Wait until what was written is on disk."""
        with typed_errors(self._path):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Let go."""
        os.close(self._descriptor)

    def _put(self, messages: Sequence[Any]) -> int:
        """Write at the position, which does not move; the position after it."""
        position = self.position
        views = [memoryview(message) for message in messages]
        while views:
            some = views[:_WRITEV_BUFFERS]
            count = os.pwritev(self._descriptor, some, position)
            if count <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            position += count
            while views and count >= len(views[0]):
                count -= len(views.pop(0))
            if count:
                views[0] = views[0][count:]
        return position


class Segments:
    """The segments of a log, to read. Threads may share it."""

    def __init__(self, places: Places, boot: str) -> None:
        self._places = places
        self._boot = boot[:8]
        self._open: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, chunk: Chunk) -> Any | None:
        """The records of a chunk, without copying where that pays. None when a power cut has damaged them.

        Raises `FileNotFoundError` when retention has removed them.
        """
        try:
            with self._lock:
                content = self._bytes(chunk)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise typed(error, segment_path(self._places, chunk.segment)) from error
        if len(content) != chunk.length:
            return None
        if self.may_have_lost(chunk) and zlib.crc32(content) != chunk.checksum:
            return None
        return pa.ipc.read_record_batch(pa.py_buffer(content), RECORDS)

    def may_have_lost(self, chunk: Chunk) -> bool:
        """Whether a power cut may have taken it.

        Within one boot the page cache is what was written. What is older may have lost its last seconds.
        """
        return not chunk.segment.startswith(self._boot)

    def path(self, chunk: Chunk) -> Path:
        """The file that a chunk lies in."""
        return segment_path(self._places, chunk.segment)

    def close(self) -> None:
        """Let go of the files. What was read stays readable."""
        with self._lock:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()

    def _bytes(self, chunk: Chunk) -> Any:
        descriptor = self._descriptor(chunk.segment)
        if chunk.length < COPIED_BELOW:
            return os.pread(descriptor, chunk.length, chunk.position)
        if os.fstat(descriptor).st_size < chunk.position + chunk.length:
            return b""
        skipped = chunk.position % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(descriptor, skipped + chunk.length, access=mmap.ACCESS_READ, offset=chunk.position - skipped)
        return memoryview(mapped)[skipped:]

    def _descriptor(self, name: str) -> int:
        found = self._open.get(name)
        if found is None:
            found = self._open[name] = os.open(segment_path(self._places, name), os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > MAX_OPEN:
                os.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(name)
        return found


def segment_path(places: Places, name: str) -> Path:
    """The file of a segment."""
    return places.segments / f"{name}.arrow"

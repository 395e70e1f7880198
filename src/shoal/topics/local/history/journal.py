"""The journal: the one file that every process of a log appends to, and whose order decides everything.

An entry is appended with one `O_APPEND` write, which the kernel does not interleave with others. A write that came to
less than asked for leaves a torn frame, which readers skip. Disk space for the file is set aside when it is made, so
that a full disk stops records, and not the entries by which space is freed.

Called by `shoal.topics.local.history.view`; calls `framing` and `places`.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from shoal.core.errors import InternalError
from shoal.topics.local import kernel
from shoal.topics.local.history.framing import frame, scan
from shoal.topics.local.places import Places, typed, typed_errors


class Journal:
    """One journal, open. The entries are read from its beginning on; the first payload is a snapshot."""

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._position = 0

    @property
    def position(self) -> int:
        """How many bytes have been read."""
        return self._position

    def append(self, payload: bytes) -> None:
        """Append one entry."""
        content = frame(payload)
        with typed_errors(self.path):
            written = os.write(self._descriptor, content)
        if written < len(content):
            raise typed(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), self.path)

    def read(self) -> list[bytes]:
        """The payloads that were appended since the last call."""
        with typed_errors(self.path):
            available = os.fstat(self._descriptor).st_size - self._position
            if available <= 0:
                return []
            found = scan(os.pread(self._descriptor, available, self._position))
        self._position += found.consumed
        return found.payloads

    def duplicate(self) -> int:
        """Another descriptor of the same file, for its caller to close."""
        return os.dup(self._descriptor)

    def close(self) -> None:
        """Let go."""
        os.close(self._descriptor)


def make_journal(places: Places, number: int, snapshot: bytes, *, set_aside: int, durable: bool) -> None:
    """Make a journal that begins with a snapshot. One that another process has made stays; it is equal."""
    path = places.journal(number)
    with typed_errors(path), places.making(path, durable=durable) as part:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            content = frame(snapshot)
            kernel.set_aside(descriptor, len(content) + set_aside)
            if os.write(descriptor, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def open_newest(places: Places, *, after: int = 0) -> Journal | None:
    """The journal in use, if it has a higher number than `after`.

    Always the highest there is: one that is lower has ended, even if a process that slept has just made it again.
    """
    while True:
        numbers = places.journal_numbers()
        if not numbers or numbers[-1] <= after:
            return None
        path = places.journal(numbers[-1])
        try:
            return Journal(numbers[-1], path)
        except FileNotFoundError:  # it ended between the two steps; there is a higher one now
            continue
        except OSError as error:
            raise typed(error, path) from error


def read_snapshot(journal: Journal) -> tuple[bytes, list[bytes]]:
    """The snapshot that a journal begins with, and the entries after it so far."""
    payloads = journal.read()
    if not payloads:
        raise InternalError(f"{journal.path} does not begin with a snapshot", path=journal.path)
    return payloads[0], payloads[1:]

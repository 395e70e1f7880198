"""A lock file that one process holds at a time. The kernel releases it when the process ends, however it ends.

Called by every program that owns a data directory: control plane, agent, keeper, `shoal up`, and jobs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from shoal.core.errors import PreconditionError, UnavailableError

_MAX_NOTE = 4096


class FileLock:
    """One lock file.

    Args:
        path: the file. It stays when the lock is released: others must find the same one.
        what: what it protects, for messages, such as "data directory /var/lib/shoal".
        hint: what a person can do when another process holds it.
    """

    def __init__(self, path: Path, *, what: str = "", hint: str = "") -> None:
        self._path = path
        self._what = what or str(path)
        self._hint = hint
        self._descriptor = -1

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor >= 0

    def acquire(self) -> None:
        """Take the lock. Raises `PreconditionError` that names the holder, `UnavailableError` without a file."""
        try:
            taken = self.try_acquire()
        except OSError as error:
            raise UnavailableError(
                f"{self._what} cannot be used: {(error.strerror or str(error)).lower()}",
                hint="this user must be able to read and write the directory",
                path=self._path,
            ) from error
        if not taken:
            holder = self.read_note() or "unknown"
            raise PreconditionError(f"{self._what} is in use by process {holder}", hint=self._hint, pid=holder)

    def try_acquire(self, note: str = "") -> bool:
        """Take the lock and leave a note in the file, the pid if none is given. False when another process has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        _leave_note(descriptor, note or str(os.getpid()))
        self._descriptor = descriptor
        return True

    def is_in_place(self) -> bool:
        """Whether the file that is locked is still the one at its path."""
        try:
            there, here = self._path.stat(), os.fstat(self._descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def read_note(self) -> str:
        """What the last holder left in the file; empty when there is nothing."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            return file.read(_MAX_NOTE).decode("ascii", "replace").strip()
        return ""

    def release(self) -> None:
        """Let another process have it. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _leave_note(descriptor: int, note: str) -> None:
    # Written over the old note and never truncated: on a full disk the old note's block is still there to write to.
    content = f"{note}\n".encode()
    padded = content.ljust(os.fstat(descriptor).st_size)
    with contextlib.suppress(OSError):  # the lock counts, the note only informs
        os.pwrite(descriptor, padded, 0)

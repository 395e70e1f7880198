"""A reserve file: disk space set aside at start, given back when the disk is full and something must be written.

Called by the stores of the control plane and of the agent. Errors never escape: where a reserve cannot be made at all,
there is none. Calls block.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """One file of a fixed size that holds nothing."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._reported = False

    @property
    def is_allocated(self) -> bool:
        """Whether the space is set aside."""
        try:
            found = self._path.stat()
        except OSError:
            return False
        return found.st_blocks * 512 >= self._size

    def allocate(self) -> bool:
        """Set the space aside. False when the disk is full; what was set aside before stays so."""
        if self.is_allocated:
            return True
        before = self._path.stat().st_size if self._path.exists() else 0
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size)
            finally:
                os.close(descriptor)
        except OSError as error:
            with suppress(OSError):
                if before:
                    os.truncate(self._path, before)
                else:
                    self._path.unlink(missing_ok=True)
            if error.errno in _FULL:
                return False
            if not self._reported:
                self._reported = True
                log.warning("the reserve file %s cannot be made: %s", self._path, error)
        return True

    def shrink(self, size: int) -> bool:
        """Give back a part of the space. False when nothing is left."""
        with suppress(OSError):
            left = self._path.stat().st_size
            if left > 0:
                os.truncate(self._path, max(0, left - size))
                return True
        return False

    def release(self) -> bool:
        """Give the space back. False when there was none."""
        there = self.is_allocated
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            return there
        return False

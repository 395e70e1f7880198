"""Two calls of the Linux kernel that Python has no name for.

One hears of changes in a directory, the other sets disk space aside. Where they are missing or refused, callers do
without. Called by `shoal.topics.local.history.watch` and `journal`.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

IN_MODIFY = 0x00000002
IN_MOVED_TO = 0x00000080
IN_CREATE = 0x00000100
_KEEP_SIZE = 0x01

_libc = ctypes.CDLL(None, use_errno=True)


def watch_directory(directory: Path) -> int:
    """A descriptor that becomes readable when a file in the directory is written to or appears. Raises `OSError`."""
    if not hasattr(_libc, "inotify_init1"):
        raise OSError("this system has no inotify")
    descriptor = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if descriptor < 0:
        raise _failure()
    added = _libc.inotify_add_watch(descriptor, os.fsencode(directory), IN_MODIFY | IN_MOVED_TO | IN_CREATE)
    if added < 0:
        error = _failure()
        os.close(descriptor)
        raise error
    return descriptor


def set_aside(descriptor: int, length: int) -> bool:
    """Reserve disk space for a file to grow into, without growing it. False where that cannot be done."""
    if not hasattr(_libc, "fallocate"):
        return False
    answer = _libc.fallocate(descriptor, _KEEP_SIZE, ctypes.c_longlong(0), ctypes.c_longlong(length))
    return int(answer) == 0


def _failure() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))

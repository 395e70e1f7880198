"""Local files that survive a crash: replaced in one step, on disk when the call returns.

Called by `shoal.core.disk.private_files`, `shoal.core.filesystems`, the local log of topics and the keeper.
Errors are those of the operating system. Calls block.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def sync_path(path: Path | str) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(
    path: Path, content: bytes, *, mode: int = 0o600, prepare: Callable[[int], None] | None = None
) -> None:
    """Make `content` the file at `path` in one step, durably.

    A crash leaves the old or the new content. Only one writer per path is supported.

    Args:
        path: the file.
        content: all of it.
        mode: its permissions, from its first byte on.
        prepare: called with the open file before anything is written, such as to change its owner.
    """
    part = path.with_name(f".{path.name}.part")
    # A writer that was killed may have left one behind.
    part.unlink(missing_ok=True)
    try:
        write_and_sync(part, content, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode=mode, prepare=prepare)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def write_and_sync(
    path: Path, content: bytes, flags: int = 0, *, mode: int = 0o600, prepare: Callable[[int], None] | None = None
) -> None:
    """Write over the beginning of a file, opened with these flags, and wait until it is on disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, mode)
    try:
        if flags & os.O_CREAT:
            os.fchmod(descriptor, mode)
        if prepare is not None:
            prepare(descriptor)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

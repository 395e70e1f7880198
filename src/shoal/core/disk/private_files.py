"""Files that nobody else may read: keys, and what is encrypted with them. On this machine's disk, never elsewhere.

A file is 0600 from its first byte on, appears whole or not at all, and is durable when the call returns; directories
are 0700, and those above them that had to be made can be written to by nobody else, whatever the umask is. All belong
to us, or to the user that they are given to. The owner of a directory can put anything into it, so files in a
directory of another user are read with `read_regular`. Errors are `ShoalError`s with the path in them. Called by
`shoal.wire.trust.credentials`, the control plane, the agent and its runtimes, and `shoal.cli.local.children`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.core.disk.durable import replace_file, sync_path
from shoal.core.errors import (
    DeniedError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    problem,
)

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
MAX_BYTES = 1024 * 1024

_ABOVE_MODE = 0o755
_SEARCH = stat.S_IXGRP | stat.S_IXOTH


@dataclass(frozen=True, slots=True)
class Owner:
    """The user that files are for, if not our own."""

    uid: int
    gid: int


def make_private_directory(path: Path, *, owner: Owner | None = None) -> None:
    """Make a directory for us alone, and those above it. One that is there is left as it is, but for its owner.

    With an `owner`, the directory above must be ours: else somebody could put another in its place.
    """
    with _typed(path):
        _make_above(path)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        if owner is not None:
            os.chown(path, owner.uid, owner.gid, follow_symlinks=False)


def make_data_directory(path: Path) -> None:
    """Make the directory that a server lives in, for it alone. One that is there is left as it is.

    Raises `UnavailableError` when there can be none.
    """
    try:
        _make_above(path)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = "not a directory"
        raise UnavailableError(
            f"{path} cannot be used: {reason.lower()}",
            hint="--data-dir has to be a directory that this user can write to, or a place where it can make one",
            path=path,
        ) from error


def _make_above(path: Path) -> None:
    """Make the directories above. Where others may write they could replace what is in it, so they may not."""
    missing = []
    for above in path.parents:
        if above.exists():
            break
        missing.append(above)
    for above in reversed(missing):
        above.mkdir(mode=_ABOVE_MODE, exist_ok=True)


def let_others_pass(path: Path) -> None:
    """Let others pass through a directory of ours, without seeing what is in it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _SEARCH != _SEARCH:
        path.chmod(mode | _SEARCH)


def write_private(path: Path, content: bytes, *, owner: Owner | None = None) -> None:
    """Make `content` the file at `path`, in one step."""
    with _typed(path):
        hand_over = None if owner is None else partial(os.fchown, uid=owner.uid, gid=owner.gid)
        replace_file(path, content, mode=FILE_MODE, prepare=hand_over)


def move_private(source: Path, target: Path) -> None:
    """Give a file another name, replacing what is there, in one step."""
    with _typed(source):
        source.replace(target)
        sync_path(target.parent)


def read_private(path: Path) -> bytes:
    """What is in a file. Raises `NotFoundError`, and `ExhaustedError` for one that is no file of this kind."""
    with _typed(path), path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ExhaustedError(f"{path} is larger than {MAX_BYTES:,} bytes", path=path)
    return content


FileStamp = tuple[int, int, int, int]
"""Tells one content of a file from another without reading it."""


def file_stamp(path: Path) -> FileStamp | None:
    """The stamp of a file; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def read_regular(path: Path) -> bytes:
    """As `read_private`, in a directory of somebody else's: a link is not followed, and nothing is waited for."""
    with _typed(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PreconditionError(f"{path} is not a file", path=path)
            # A file object would refuse the descriptor of a directory and leave it open: we close it ourselves.
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(MAX_BYTES)
        finally:
            os.close(descriptor)


@contextmanager
def _typed(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError("file", str(path)) from error
    except PermissionError as error:
        raise DeniedError(f"{path}: permission denied", path=path) from error
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise PreconditionError(f"{path}: {(error.strerror or str(error)).lower()}", path=path) from error
    except OSError as error:
        raise ExhaustedError(f"{path}: {(error.strerror or str(error)).lower()}", path=path) from error
    except ValueError as error:  # such as a zero byte in the name
        raise InvalidError([problem("path", str(path), "must be a path")]) from error

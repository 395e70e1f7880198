"""Directories that runs need only while they live, such as those of RocksDB or of sockets between their processes.

What killed runs leave behind goes.

Each run has a directory below a common one, and beside it a file that it holds locked for as long as it lives. The
kernel lets go of the lock when the process dies, however it dies: each run first removes the directories whose lock is
free. Called by `shoal.dataflow.execution.hosts.task_host` and `shoal.dataflow.execution.hosts.processes`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

_RUN = "run-"
_LOCK = ".lock"
#: Others sweep and leave between our steps; so often in a row they do not.
_TRIES = 100


class Scratch:
    """The directory of one run."""

    def __init__(self, path: Path, lock: Path, descriptor: int) -> None:
        self.path = str(path)
        self._lock = lock
        self._descriptor = descriptor

    def remove(self) -> None:
        """Remove it. What cannot be removed now is a leftover of a dead run from here on."""
        try:
            _remove(Path(self.path), self._lock)
        finally:
            os.close(self._descriptor)
        with contextlib.suppress(OSError):  # others are in there
            self._lock.parent.rmdir()


def make_scratch(root: str = "") -> Scratch:
    """A new directory below `root`, which is made when it is not there; below one of this user's when it is empty.

    Those that dead runs left there are removed.
    """
    for _ in range(_TRIES - 1):
        # The common directory goes with its last run: it may be there for one step and not for the next.
        with contextlib.suppress(FileNotFoundError, FileExistsError, BlockingIOError):
            return _claim(root)
    return _claim(root)


def make_short_scratch(longest: int) -> Scratch:
    """A new directory of this user's whose path has at most so many characters, as paths of sockets need.

    Where the directory of temporary files has a longer path, it is made in `/tmp`.
    """
    scratch = make_scratch()
    if len(scratch.path) <= longest:
        return scratch
    scratch.remove()
    return make_scratch(str(_of_this_user("/tmp")))  # noqa: S108 - a directory of its own in it


def _claim(root: str) -> Scratch:
    folder = Path(root).absolute() if root else _of_this_user()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep(folder)
    descriptor, name = tempfile.mkstemp(prefix=_RUN, suffix=_LOCK, dir=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(descriptor).st_nlink:  # somebody swept it before it was locked
            raise FileNotFoundError(name)
        path = Path(name.removesuffix(_LOCK))
        path.mkdir(mode=0o700)
    except BaseException:
        os.close(descriptor)
        raise
    return Scratch(path, Path(name), descriptor)


def _sweep(folder: Path) -> None:
    """Remove what dead runs left. Nobody's is touched who holds the lock."""
    for lock in sorted(folder.glob(f"{_RUN}*{_LOCK}")):
        with _locked(lock) as is_dead:
            if is_dead:
                log.info("removing %s, which a run left that is gone", lock.with_suffix(""))
                _remove(lock.with_suffix(""), lock)


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[bool]:
    """Whether the lock was free; then it is held inside."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # its run has ended just now, or it is somebody else's
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield os.fstat(descriptor).st_nlink > 0
    finally:
        os.close(descriptor)


def _remove(path: Path, lock: Path) -> None:
    """The directory first: while the lock's file is there somebody will try again."""
    try:
        while path.is_dir():
            with contextlib.suppress(FileNotFoundError):  # a process of the run removes files, too
                shutil.rmtree(path)
        lock.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s could not be removed, the next run tries again: %s", path, error)


def _of_this_user(parent: str = "") -> Path:
    """A directory among the temporary ones in which nobody else can put anything."""
    folder = Path(parent or tempfile.gettempdir()) / f"shoal-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix="shoal-", dir=parent or None))  # the name is taken by somebody else

"""Where the memory of a table comes from: the heap of this process, or files in shared memory that others map.

`Memory` is the seam; `shoal.testing.suites.memory` is its conformance suite. Called by `shards` and `shared`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal.core.disk.locks import FileLock
from shoal.core.errors import ExhaustedError, InvalidError, NotFoundError, PreconditionError, UnavailableError, problem

Bytes = npt.NDArray[np.uint8]
HUGE_PAGE = 1 << 21
LINE = 64
_MOST_ARENA = 1 << 26
_NAME = re.compile(r"[a-z0-9-]{1,64}")
#: What a writer may leave in its folder.
_LEFT = re.compile(r"[a-z0-9-]{1,64}|\.[a-z0-9-]{1,64}\.part")
_LOCK = "writer-lock"


class Memory(Protocol):
    """Gives zeroed memory by name, and takes it back."""

    def allocate(self, name: str, size: int, *, lasting: bool = False) -> Bytes:
        """Zeroed bytes. They stay valid as long as the array lives, also after `free`. Raises `ExhaustedError`.

        Args:
            name: lower-case letters, digits and dashes; used once.
            size: how many bytes.
            lasting: it will not be freed before everything is.
        """
        ...

    def free(self, name: str) -> None:
        """Nobody will ask for this name again."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class HeapMemory:
    """Memory of this process. Large pieces ask for huge pages, which spare most misses of the address cache.

    Small lasting pieces are cut from larger ones, so that they share huge pages.
    """

    def __init__(self) -> None:
        self._arena: Bytes = np.zeros(0, np.uint8)
        self._next_arena = 2 * HUGE_PAGE

    def allocate(self, name: str, size: int, *, lasting: bool = False) -> Bytes:
        """Zeroed bytes, which take room when they are first written."""
        del name
        if not lasting or size >= HUGE_PAGE:
            return _map_anonymous(size)
        rounded = -(-size // LINE) * LINE
        if rounded > self._arena.size:
            self._arena = _map_anonymous(self._next_arena)
            self._next_arena = min(self._next_arena * 2, _MOST_ARENA)
        piece, self._arena = self._arena[:size], self._arena[rounded:]
        return piece

    def free(self, name: str) -> None:
        """Nothing: the array holds the memory."""

    def close(self) -> None:
        """Nothing: the arrays hold the memory."""


def _map_anonymous(size: int) -> Bytes:
    """Zeroed bytes that begin at a cache line, or at a huge page if they fill one."""
    spare = HUGE_PAGE if size >= HUGE_PAGE else 0
    try:
        mapped = mmap.mmap(-1, size + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise ExhaustedError(f"no memory for {size:,} bytes of a table: {error}") from None
    if spare:
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(mapped, np.uint8)
    start = -found.ctypes.data % HUGE_PAGE if spare else 0
    return found[start : start + size]


class SharedMemory:
    """Files in a folder of shared memory, such as `/dev/shm/x`. One process writes, others read.

    Room is taken when a file is made: a full file system is an error here and no signal later. The writer holds a lock
    in the folder. What a killed writer left there is removed by the next one, which begins with an empty table.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        try:
            self._lock = _claim(self._folder)
            for left in self._folder.iterdir():
                if left.name != _LOCK:
                    left.unlink()
        except OSError as error:
            raise UnavailableError(f"shared memory {self._folder} cannot be made: {error.strerror}") from None
        self._names: set[str] = set()

    @property
    def folder(self) -> Path:
        """What readers open."""
        return self._folder

    def allocate(self, name: str, size: int, *, lasting: bool = False) -> Bytes:
        """Zeroed bytes in a file that did not exist."""
        del lasting
        path = self._path(name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            mapped = mmap.mmap(descriptor, size)
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
                raise ExhaustedError(f"no shared memory for {size:,} bytes in {self._folder}") from None
            raise UnavailableError(f"shared memory {path}: {error.strerror}") from None
        finally:
            os.close(descriptor)
        self._names.add(name)
        return np.frombuffer(mapped, np.uint8)

    def write(self, name: str, content: bytes) -> None:
        """Put a small file beside the memory, in one step."""
        path = self._path(name)
        part = path.with_name(f".{name}.part")
        part.write_bytes(content)
        part.replace(path)
        self._names.add(name)

    def free(self, name: str) -> None:
        """Remove a file. Processes that have mapped it keep it."""
        self._path(name).unlink(missing_ok=True)
        self._names.discard(name)

    def close(self) -> None:
        """Remove every file and the folder."""
        if not self._lock.held:
            return
        for name in tuple(self._names):
            self.free(name)
        (self._folder / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
        self._lock.release()

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InvalidError([problem("name", name, f"must match {_NAME.pattern}")])
        return self._folder / name


def _claim(folder: Path) -> FileLock:
    """Make the folder, or take over that of a writer that is gone. Returns its lock, which is held."""
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        names = {each.name for each in folder.iterdir()} if stat.S_ISDIR(found.st_mode) else set()
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        if not own or (names and _LOCK not in names) or not all(_LEFT.fullmatch(name) for name in names):
            raise PreconditionError(
                f"{folder} exists already and is no shared memory of this user",
                hint="name a folder that does not exist",
            )
        lock = FileLock(folder / _LOCK, what=f"shared memory {folder}", hint="stop the other writer first")
        try:
            lock.acquire()
        except UnavailableError:
            if folder.exists():
                raise
            continue  # its writer has closed it meanwhile
        if lock.is_in_place():
            return lock
        lock.release()


def map_shared(folder: Path, name: str) -> Bytes:
    """The memory that another process made under this name, to read. Raises `NotFoundError` when it is gone."""
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFoundError("shared memory", f"{folder / name}") from None
    except OSError as error:
        raise UnavailableError(f"shared memory {folder / name}: {error.strerror}") from None
    try:
        mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    except ValueError:
        raise NotFoundError("shared memory", f"{folder / name}") from None
    finally:
        os.close(descriptor)
    return np.frombuffer(mapped, np.uint8)

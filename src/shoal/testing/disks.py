"""A disk whose operations fail when a test says so: full, broken, read-only, away.

`faulty_disk(folder)` gives a folder behind a driver of its own. Paths below `disk.url` go through `shoal.core.files` as
those of every other file system do, so what fails is the real call, with the error number that a real disk gives. It
passes `shoal.testing.suites.files.FilesSuite` while nothing fails.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

_SCHEME = "faulty"


class DiskCall(enum.Enum):
    """What can fail."""

    WRITE = "write"
    READ = "read"
    LIST = "list"
    REMOVE = "remove"
    RENAME = "rename"


#: The error numbers of calls that fail, by the folder of the disk.
_faults: dict[str, dict[DiskCall, int]] = {}


class FaultyDisk:
    """A folder, and what fails in it. From any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        #: The path for the code that writes there.
        self.url = f"{_SCHEME}://{folder}"

    def fail(self, call: DiskCall, number: int = errno.ENOSPC) -> None:
        """Let such calls fail from now on, with an error number such as `errno.ENOSPC`."""
        _faults[self._folder] = {**_faults.get(self._folder, {}), call: number}

    def heal(self) -> None:
        """Nothing fails from now on."""
        _faults.pop(self._folder, None)


@contextlib.contextmanager
def faulty_disk(folder: Path) -> Iterator[FaultyDisk]:
    """A disk over a folder of its own."""
    fsspec.register_implementation(_SCHEME, _FaultyFileSystem, clobber=True)
    disk = FaultyDisk(folder)
    try:
        yield disk
    finally:
        disk.heal()


def _reach(call: DiskCall, path: str) -> None:
    for folder, faults in list(_faults.items()):
        if path.startswith(folder) and call in faults:
            raise OSError(faults[call], os.strerror(faults[call]), path)


class _FaultyFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The local disk under another name, with faults in front of each call."""

    protocol = _SCHEME

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix(f"{_SCHEME}://")))

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        _reach(DiskCall.READ if mode == "rb" else DiskCall.WRITE, path)
        return super()._open(path, mode=mode, block_size=block_size, **options)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not self.exists(path):
            _reach(DiskCall.WRITE, self._strip_protocol(path))
        super().makedirs(path, exist_ok=exist_ok)

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        _reach(DiskCall.LIST, self._strip_protocol(path))
        return super().ls(path, detail=detail, **options)

    def rm_file(self, path: str) -> None:
        _reach(DiskCall.REMOVE, self._strip_protocol(path))
        super().rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for each in [path] if isinstance(path, str) else path:
            _reach(DiskCall.REMOVE, self._strip_protocol(each))
        super().rm(path, recursive=recursive, maxdepth=maxdepth)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        _reach(DiskCall.RENAME, self._strip_protocol(path1))
        super().mv(path1, path2, **options)

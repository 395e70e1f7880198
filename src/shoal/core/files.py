"""Files, wherever they are: the one seam over fsspec. Every path that a user gives goes through here.

A path is text: `/var/lib/x`, `relative/x`, `file:///x`, `s3://bucket/x`, `hdfs:/x`, `memory://x` and whatever else
has an fsspec driver. What follows is true of all of them, so that no caller has to know which it holds:

- A file that is written appears whole, when it is closed, or not at all: readers see the old one or the new one. On a
  local disk it is durable by then, too.
- Directories above a file that is written are made as needed, and an empty directory may not exist at all (object
  stores know none). So a directory in which nothing is lists as empty.
- `rename` of a file replaces the target. It is one step on file systems, and a copy and a removal on object stores.
- Errors are `ShoalError`s with the path in them.

Calls block; callers on an event loop use `asyncio.to_thread`. Called by all code that touches a user's path; calls
`shoal.core.filesystems`. Every backend passes `shoal.testing.suites.files.FilesSuite`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import posixpath
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from shoal.core.disk.durable import sync_path
from shoal.core.errors import ExhaustedError, InvalidError, NotFoundError, ShoalError, problem
from shoal.core.filesystems import (
    HDFS,
    PART,
    SCHEME,
    Place,
    Reading,
    Stream,
    locate,
    make_local_directory,
    move_objects,
    normal,
    open_stream,
    read_object,
    remove_parts,
    typed_errors,
    wrong_kind,
)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One line of a listing. `path` can be given to every function here; a directory has no size."""

    path: str
    size: int
    is_directory: bool


# ---------------------------------------------------------------------------------------------------------
# Paths


def is_absolute(path: str) -> bool:
    """Whether a path stands for itself: `/…`, `hdfs:/…` or any `scheme://…`."""
    return path.startswith("/") or SCHEME.match(path) is not None or HDFS.match(path) is not None


def join(base: str, *parts: str) -> str:
    """One path from several. An absolute part forgets everything before it."""
    result = base
    for part in parts:
        if is_absolute(part) or not result:
            result = part
        elif part:
            result = f"{result}{part}" if result.endswith("/") else f"{result}/{part}"
    return result


def parent(path: str) -> str:
    """The directory that holds it. The top of a tree holds itself, and a bare name is in `.`."""
    top, below = _split(path)
    above = posixpath.dirname(below.rstrip("/"))
    return join(top, above) or "."


def name(path: str) -> str:
    """The last part of a path; empty for the top of a tree."""
    return posixpath.basename(_split(path)[1].rstrip("/"))


def _split(path: str) -> tuple[str, str]:
    """The top of the tree (`/`, `s3://bucket`, `hdfs://host:1`, `hdfs:///`, `memory://`), and what is below it."""
    path = normal(path)
    match = SCHEME.match(path)
    if match is None:
        return ("/", path.lstrip("/")) if path.startswith("/") else ("", path)
    rest = path[match.end() :]
    if match["scheme"] == "memory":  # it has one tree, and no bucket or host to name
        return match.group(), rest.lstrip("/")
    authority, _, below = rest.partition("/")
    return f"{match.group()}{authority or '/'}", below


# ---------------------------------------------------------------------------------------------------------
# Reading


def exists(path: str) -> bool:
    """Whether there is a file, or a directory with something in it; an empty one where there are such."""
    with typed_errors(path):
        return locate(path).find() is not None


def size(path: str) -> int:
    """Bytes in a file."""
    with typed_errors(path):
        return int(locate(path).find_file()["size"])


def list_files(path: str, *, recursive: bool = False) -> tuple[FileEntry, ...]:
    """What is in a directory, by name; with `recursive` every file below it, and no directories.

    A directory that does not exist is empty.
    """
    with typed_errors(path):
        place = locate(path)
        found = place.find()
        if found is None:
            return ()
        if found["type"] != "directory":
            raise wrong_kind(path, errno.ENOTDIR)
        if recursive:
            listed = place.driver.find(place.path, detail=True).values()
        else:
            listed = place.driver.ls(place.path, detail=True)
    entries = (_entry(path, place.path, each) for each in listed)
    return tuple(sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.path))


def _entry(base: str, inner: str, found: dict[str, Any]) -> FileEntry | None:
    """A driver's line as ours; None for the directory itself, which some list, and for files being written."""
    below = str(found["name"]).rstrip("/").removeprefix(inner).lstrip("/")
    if not below or PART.fullmatch(posixpath.basename(below)):
        return None
    is_directory = found["type"] == "directory"
    return FileEntry(path=join(base, below), size=0 if is_directory else int(found["size"]), is_directory=is_directory)


def read_bytes(path: str, *, limit: int | None = None) -> bytes:
    """Everything in a file. Raises `ExhaustedError` when there is more than `limit`."""
    most = None if limit is None else limit + 1
    with typed_errors(path):
        place = locate(path)
        content = read_object(place, most) if place.is_object_store else None
    if content is None:
        with open_file(path) as file:
            content = file.read(most)
    if limit is not None and len(content) > limit:
        raise ExhaustedError(f"{path} is larger than {limit:,} bytes", path=path, limit=limit)
    return content


# ---------------------------------------------------------------------------------------------------------
# Writing


def open_file(path: str, mode: str = "rb") -> File:
    """Open a file of bytes, to read (`rb`) or to write it anew (`wb`).

    What is written appears under `path` when the file is closed. Leaving the `with` block by an exception, or
    calling `discard`, throws it away and leaves the old file as it was. A file that is replaced while it is read goes
    on being the old one on a file system, and raises `ConflictError` on an object store that has let go of the old.
    """
    if mode not in ("rb", "wb"):
        raise InvalidError([problem("mode", mode, "must be rb or wb")])
    with typed_errors(path):
        return File(path, open_stream(locate(path), mode))


def write_atomic(path: str, content: bytes) -> None:
    """Make `content` the file at `path`, in one step."""
    with typed_errors(path):
        place = locate(path)
        if place.is_object_store:
            place.driver.pipe_file(place.path, content)
            return
    with open_file(path, "wb") as file:
        file.write(content)


def rename(source: str, target: str) -> None:
    """Move a file, replacing what is there; or a directory, to where nothing is. Both on one file system."""
    with typed_errors(source):
        origin = locate(source)
        found = origin.find()
        if found is None:
            raise NotFoundError("file", source)
    with typed_errors(target):
        goal = locate(target)
        if goal.driver != origin.driver:
            rule = "must be on the same file system as the source"
            raise InvalidError([problem("target", target, rule)], what=f"rename {source}")
        is_directory = found["type"] == "directory"
        _check_target(goal, is_directory=is_directory)
        if goal.is_local:
            make_local_directory(posixpath.dirname(goal.path))
            os.replace(origin.path, goal.path)  # noqa: PTH105 - drivers speak of paths as text
            sync_path(posixpath.dirname(goal.path))
            sync_path(posixpath.dirname(origin.path))
            return
        if goal.is_object_store:
            move_objects(origin, goal, is_directory=is_directory)
            return
        goal.driver.makedirs(posixpath.dirname(goal.path), exist_ok=True)
        goal.driver.mv(origin.path, goal.path, recursive=is_directory)


def _check_target(goal: Place, *, is_directory: bool) -> None:
    there = goal.find()
    if there is None:
        return
    if is_directory:
        raise wrong_kind(goal.given, errno.EEXIST)
    if there["type"] == "directory":
        raise wrong_kind(goal.given, errno.EISDIR)


def remove(path: str, *, recursive: bool = False) -> None:
    """Remove a file; with `recursive` also a directory and everything in it. Raises `NotFoundError`."""
    with typed_errors(path):
        place = locate(path)
        if place.is_local and os.path.islink(place.path):  # noqa: PTH114 - drivers speak of paths as text
            os.unlink(place.path)  # noqa: PTH108 - the link alone, wherever it leads
            return
        found = place.find()
        if found is None:
            raise NotFoundError("file", path)
        if found["type"] != "directory":
            place.driver.rm_file(place.path)
        elif recursive:
            place.driver.rm(place.path, recursive=True)
        else:
            raise wrong_kind(path, errno.EISDIR)


def remove_abandoned(path: str) -> None:
    """Remove what killed writers left in a directory of a local disk. Object stores have nothing of the kind."""
    with typed_errors(path):
        place = locate(path)
        if place.is_local:
            remove_parts(place.path)


def make_directory(path: str) -> None:
    """Make a directory and those above it. Does nothing when it is there, or where directories are only names."""
    with typed_errors(path):
        place = locate(path)
        if place.is_local:
            make_local_directory(place.path)
        elif not place.is_object_store:
            place.driver.makedirs(place.path, exist_ok=True)


class File(io.BufferedIOBase):
    """An open file of bytes, with typed errors. Made by `open_file`.

    Attributes:
        path: as it was given.
    """

    def __init__(self, path: str, stream: Stream) -> None:
        super().__init__()
        self.path = path
        self._stream = stream

    @property
    def name(self) -> str:
        """The path, as other files of Python call it."""
        return self.path

    def readable(self) -> bool:
        """Whether it was opened to be read."""
        return isinstance(self._stream, Reading)

    def writable(self) -> bool:
        """Whether it was opened to be written."""
        return not self.readable()

    def seekable(self) -> bool:
        """One can move about in a file that is read; a file is written from its beginning to its end."""
        return self.readable()

    def read(self, count: int | None = -1, /) -> bytes:
        """The next `count` bytes, or all; fewer only at the end."""
        self._require(self.readable(), "read")
        with typed_errors(self.path):
            return bytes(self._stream.raw.read(-1 if count is None else count))

    def read1(self, count: int = -1, /) -> bytes:
        """The next bytes."""
        return self.read(count)

    def readline(self, limit: int | None = -1, /) -> bytes:
        """The next line."""
        self._require(self.readable(), "read")
        raw = self._stream.raw
        with typed_errors(self.path):
            start = raw.tell()
            line = bytes(raw.readline())  # the readline of many drivers takes no limit
            if limit is not None and 0 <= limit < len(line):
                line = line[:limit]
                raw.seek(start + limit)
            return line

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a place."""
        self._require(self.readable(), "seek")
        with typed_errors(self.path):
            return int(self._stream.raw.seek(offset, whence))

    def tell(self) -> int:
        """The place."""
        self._require(True, "tell")
        with typed_errors(self.path):
            return int(self._stream.raw.tell())

    def write(self, content: Any, /) -> int:
        """Append bytes. Nobody else sees them yet."""
        self._require(self.writable(), "write")
        with typed_errors(self.path):
            return int(self._stream.raw.write(content))

    def close(self) -> None:
        """Let go; of a file that is written, after it has taken its place."""
        if self.closed:
            return
        try:
            with typed_errors(self.path):
                self._stream.commit()
        except BaseException:
            self.discard()
            raise
        super().close()

    def discard(self) -> None:
        """Let go, and throw away what was written."""
        if self.closed:
            return
        super().close()
        with contextlib.suppress(ShoalError), typed_errors(self.path):
            self._stream.discard()

    def __enter__(self) -> Self:
        self._require(True, "enter")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # A file that was forgotten half written must not appear: a reader would take it for whole.
        self.discard()

    def _require(self, able: bool, verb: str) -> None:
        if self.closed:
            raise ValueError(f"{verb} on a closed file: {self.path}")
        if not able:
            raise io.UnsupportedOperation(f"{verb}: {self.path}")

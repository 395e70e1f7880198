"""What stands behind `shoal.core.files`: drivers, how each takes a new file in, and their errors as ours.

Called by `shoal.core.files` and nobody else; calls fsspec, which is imported when first needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import io
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from shoal.core.disk.durable import sync_path
from shoal.core.errors import (
    ConflictError,
    DeniedError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
    problem,
)

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
HDFS = re.compile(r"hdfs:/(?!/)")

#: Files under these names are being written, or were when their writer died. They are never listed.
PART = re.compile(r"\..+\.[0-9]+\.part")

# There a write becomes visible in one step by itself; elsewhere it goes to another name first.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "memory", "r2", "oss"})

_MAX_WRITERS = 1000

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_UNUSABLE = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EXDEV})
_WRONG_KIND = {
    errno.EISDIR: "is a directory",
    errno.ENOTDIR: "is not a directory",
    errno.ENOTEMPTY: "is a directory with something in it",
    errno.EEXIST: "exists already",
}


# ---------------------------------------------------------------------------------------------------------
# Drivers


@dataclass(frozen=True, slots=True)
class Place:
    """A path together with the driver that knows it.

    Attributes:
        scheme: such as s3; `file` for the local disk.
        driver: of fsspec.
        path: as the driver wants it.
        given: as the caller wrote it, for errors.
    """

    scheme: str
    driver: AbstractFileSystem
    path: str
    given: str

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine."""
        return self.scheme == "file"

    @property
    def is_object_store(self) -> bool:
        """Whether a write is one step there, and directories are only parts of names."""
        return self.scheme in _OBJECT_STORES

    def find(self) -> dict[str, Any] | None:
        """What the driver knows of the path; None when there is nothing."""
        try:
            found: dict[str, Any] = self.driver.info(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found

    def find_file(self) -> dict[str, Any]:
        """The same for a path that has to be a file."""
        found = self.find()
        if found is None:
            raise NotFoundError("file", self.given)
        if found["type"] == "directory":
            raise wrong_kind(self.given, errno.EISDIR)
        return found


def locate(path: str) -> Place:
    """Find the driver for a path. Raises `UnsupportedError` when there is none, with the package that has it."""
    if not path or "\x00" in path:
        raise InvalidError([problem("path", path, "must not be empty, nor contain a NUL character")])
    url = normal(path)
    match = SCHEME.match(url)
    scheme = match["scheme"].lower() if match else "file"
    if scheme in ("file", "local"):
        local = url[match.end() :] if match else url
        return Place("file", _local_driver(), os.path.abspath(local), path)  # noqa: PTH100 - drivers take text
    driver, inner = _connect(scheme, url)
    driver.invalidate_cache()  # other processes write, too
    return Place(scheme, driver, inner, path)


@functools.cache
def _local_driver() -> AbstractFileSystem:
    """Kept: fsspec looks for it among its drivers each time, which costs more than most calls of it."""
    from fsspec.implementations.local import LocalFileSystem

    return LocalFileSystem()


def normal(path: str) -> str:
    """`hdfs:/x` is written `hdfs:///x`, as fsspec wants it; everything else stays."""
    return f"hdfs:///{path[len('hdfs:/') :]}" if HDFS.match(path) else path


def _connect(scheme: str, url: str) -> tuple[AbstractFileSystem, str]:
    import fsspec.core
    from fsspec.registry import known_implementations, registry

    if scheme not in known_implementations and scheme not in registry:
        known = ", ".join(sorted({"file", "hdfs", "memory", "s3", "gs", "abfs"} | set(registry)))
        raise UnsupportedError(f"{url}: no driver for {scheme}://", hint=f"known are {known} and more", path=url)
    try:
        driver, inner = fsspec.core.url_to_fs(url)
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or known_implementations[scheme]["class"]
        package = str(missing).partition(".")[0]
        hint = f"install the package {package}: pip install {package}"
        raise UnsupportedError(f"{url}: the driver for {scheme}:// is not installed", hint=hint, path=url) from error
    return driver, inner.rstrip("/") or inner


def read_object(place: Place, most: int | None) -> bytes:
    """The first bytes of an object, or all of them, in one request: never some of the old one and some of the new."""
    try:
        return bytes(place.driver.cat_file(place.path, start=None if most is None else 0, end=most))
    except FileNotFoundError:
        place.find_file()  # says so when it is a directory
        raise


def move_objects(origin: Place, goal: Place, *, is_directory: bool) -> None:
    """Copy everything, then remove everything: killed in between it leaves more than there was, never less."""
    sources = list(origin.driver.find(origin.path)) if is_directory else [origin.path]
    for source in sources:
        goal.driver.cp_file(source, f"{goal.path}{source.removeprefix(origin.path)}")
    for source in sources:
        origin.driver.rm_file(source)


# ---------------------------------------------------------------------------------------------------------
# Errors


@contextlib.contextmanager
def typed_errors(path: str) -> Iterator[None]:
    """Raise what a driver raises as one of ours, with the path in it."""
    try:
        yield
    except ShoalError:
        raise
    except NotImplementedError as error:
        raise UnsupportedError(f"{path}: {str(error) or 'the driver cannot do this'}", path=path) from error
    except (TypeError, AttributeError, AssertionError, KeyError, io.UnsupportedOperation):
        raise  # a bug, not a fact about files
    except OSError as error:
        raise _from_os(path, error) from error
    except ValueError as error:
        raise InvalidError([problem("path", path, str(error))]) from error
    except Exception as error:
        text = f"{path}: {str(error) or type(error).__name__}"
        if "Credential" in type(error).__name__:
            raise DeniedError(text, path=path) from error
        raise UnavailableError(text, path=path) from error


def wrong_kind(path: str, code: int) -> PreconditionError:
    """There is something else than what was expected."""
    return PreconditionError(f"{path} {_WRONG_KIND[code]}", path=path)


def _from_os(path: str, error: OSError) -> ShoalError:
    text = error.strerror or str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return NotFoundError("file", path)
    if type(error).__name__ == "FileExpired":  # s3fs: the object we began to read was replaced
        return ConflictError(f"{path} was replaced while it was read", path=path)
    if isinstance(error, PermissionError) or error.errno in _DENIED:
        return DeniedError(f"{path}: {text}", path=path)
    if error.errno in _FULL:
        return ExhaustedError(f"{path}: {text}", hint="free some space, or raise the limit", path=path)
    if isinstance(error, FileExistsError):
        return wrong_kind(path, errno.EEXIST)
    if error.errno in _WRONG_KIND:
        return wrong_kind(path, error.errno)
    if error.errno in _UNUSABLE:
        return InvalidError([problem("path", path, f"cannot be used: {text}")])
    return UnavailableError(f"{path}: {text}", path=path)


# ---------------------------------------------------------------------------------------------------------
# Streams: how a file is read, and how each kind of file system takes a new one in


class Stream(Protocol):
    """An open file of a driver, with a way to end well and a way to end badly."""

    raw: Any

    def commit(self) -> None:
        """Let what was written take its place."""
        ...

    def discard(self) -> None:
        """Leave no trace of it."""
        ...


def open_stream(place: Place, mode: str) -> Stream:
    """Open a file to read it (`rb`) or to write it anew (`wb`)."""
    if mode == "rb":
        place.find_file()  # drivers differ in when and how they say that it is missing
        if place.scheme == "memory":  # that driver has one position for all readers of a file
            return Reading(io.BytesIO(place.driver.cat_file(place.path)))
        return Reading(place.driver.open(place.path, "rb"))
    if place.is_local:
        return _LocalWriting(place.path)
    if place.scheme == "memory":
        return _BufferedWriting(place)
    return _StreamedWriting(place) if place.is_object_store else _RemoteWriting(place)


class Reading:
    """A file that is read: there is nothing to commit."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def commit(self) -> None:
        """Close it."""
        self.raw.close()

    def discard(self) -> None:
        """Close it."""
        self.raw.close()


class _LocalWriting:
    """Another name in the same directory, made durable, then renamed.

    The other name is `.<name>.<n>.part` with the smallest n that nobody holds a lock on: what a killed writer left
    behind is taken up by the next one, so that there are never more of them than there were writers at once.
    """

    def __init__(self, path: str) -> None:
        # Through a link, so that the link stays and its target is replaced.
        self._target = os.path.realpath(path)
        if os.path.isdir(self._target):  # noqa: PTH112 - drivers speak of paths as text, and so does all of this
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        self._directory = posixpath.dirname(self._target)
        make_local_directory(self._directory)
        self._part, descriptor = _take_part(self._target)
        try:
            _copy_mode(self._target, descriptor)
            self.raw: Any = os.fdopen(descriptor, "wb")
        except BaseException:
            os.close(descriptor)
            raise

    def commit(self) -> None:
        self.raw.flush()
        os.fsync(self.raw.fileno())
        os.replace(self._part, self._target)  # noqa: PTH105 - as above
        self.raw.close()
        sync_path(self._directory)

    def discard(self) -> None:
        if self.raw.closed:
            return
        # Removed before the lock goes with the descriptor: afterwards the name may be another writer's.
        if _is_same_file(self._part, self.raw.fileno()):
            os.unlink(self._part)  # noqa: PTH108 - as above
        with contextlib.suppress(OSError):  # a full disk cannot take what is still buffered, and need not
            self.raw.close()


def _take_part(target: str) -> tuple[str, int]:
    directory, base = posixpath.split(target)
    for number in range(_MAX_WRITERS):
        part = posixpath.join(directory, f".{base}.{number}.part")
        descriptor = _lock_part(part)
        if descriptor is not None:
            return part, descriptor
    raise ExhaustedError(f"{target}: {_MAX_WRITERS} others are writing it", path=target)


def _lock_part(part: str) -> int | None:
    """An empty file of that name for this writer alone; None when it is another's."""
    while True:
        try:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError:
            if os.path.lexists(part):  # somebody else's, who put it there by mistake or to mislead us
                return None
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
                os.close(descriptor)
                return None
            if _is_same_file(part, descriptor):
                os.ftruncate(descriptor, 0)
                return descriptor
            os.close(descriptor)  # its last holder renamed or removed it between our two calls: once more
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise


def remove_parts(directory: str) -> None:
    """Remove what killed writers left in a local directory. Files that are being written stay."""
    for name in os.listdir(directory) if os.path.isdir(directory) else ():  # noqa: PTH112, PTH208 - as above
        if PART.fullmatch(name):
            part = posixpath.join(directory, name)
            descriptor = _lock_part(part)
            if descriptor is not None:
                os.unlink(part)  # noqa: PTH108 - as above
                os.close(descriptor)


def _copy_mode(target: str, descriptor: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(target).st_mode)  # noqa: PTH116 - as above
        if mode != stat.S_IMODE(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, mode)


def _is_same_file(path: str, descriptor: int) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - as above
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def make_local_directory(path: str) -> None:
    """Make a directory and those above it, each durable in the one that holds it."""
    missing = []
    while path and not os.path.isdir(path):  # noqa: PTH112 - as above
        missing.append(path)
        path = posixpath.dirname(path)
    for each in reversed(missing):
        try:
            os.mkdir(each)  # noqa: PTH102 - as above
        except FileExistsError:
            if not os.path.isdir(each):  # noqa: PTH112 - as above
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", each) from None
        sync_path(posixpath.dirname(each))


class _BufferedWriting:
    """Collected in memory and put at the end."""

    def __init__(self, place: Place) -> None:
        self.raw = io.BytesIO()
        self._place = place

    def commit(self) -> None:
        self._place.driver.pipe_file(self._place.path, self.raw.getvalue())

    def discard(self) -> None:
        self.raw.close()


class _StreamedWriting:
    """Sent in parts as it grows; the object store shows it when the last part is in."""

    def __init__(self, place: Place) -> None:
        self.raw = place.driver.open(place.path, "wb")

    def commit(self) -> None:
        self.raw.close()

    def discard(self) -> None:
        try:
            self.raw.discard()
        finally:
            self.raw.closed = True  # else it would send the rest when it is collected


class _RemoteWriting:
    """Another name in the same directory of a file system elsewhere, then renamed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        directory, base = posixpath.split(place.path)
        if directory:
            place.driver.makedirs(directory, exist_ok=True)
        # One name per process and object: two writers must not write into one file.
        self._part = posixpath.join(directory, f".{base}.{os.getpid()}{id(self)}.part")
        self.raw = place.driver.open(self._part, "wb")

    def commit(self) -> None:
        self.raw.close()
        self._place.driver.mv(self._part, self._place.path)

    def discard(self) -> None:
        try:
            self.raw.close()
        finally:
            self._place.driver.rm_file(self._part)

"""Puts the files and artifacts of a spec into a directory that the workload itself may write to.

No symbolic link is followed below the directory: a workload that runs as another user than the agent cannot make the
agent write anywhere else. Each file is replaced whole. Other users may pass the directory, so a secret in it is never
open to all of them. Called by `shoal.runtimes.process`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.model.workloads import ArtifactSpec, FailureReason, FileSpec
from shoal.runtimes.base import RunError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A pipe that nobody writes to is no reason to wait.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def put_files(folder: Path, files: Iterable[tuple[FileSpec, bytes]], *, owner: tuple[int, int] | None = None) -> None:
    """Write each file below `folder`, as its owner (uid, gid) if one is given. Raises `RunError`."""
    for file, content in files:
        with _place(folder, file.path) as (directory, name):
            _replace(directory, name, content, mode=_mode_of(file), owner=owner)


def link_artifacts(folder: Path, artifacts: Iterable[tuple[ArtifactSpec, Path]]) -> None:
    """Link each artifact below `folder`; copy it where that is another file system. Raises `RunError`."""
    for artifact, source in artifacts:
        with _place(folder, artifact.path) as (directory, name):
            _link(directory, name, source)


def read_file(folder: Path, name: str, *, at_most: int) -> tuple[bytes, float] | None:
    """The content of a plain file in `folder`, and when it was written; None if it is none, or larger."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(name, _READ, dir_fd=_opened(stack, folder, None))
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as opened:
            known = os.fstat(descriptor)
            if not stat.S_ISREG(known.st_mode) or known.st_size > at_most:
                return None
            content = opened.read(at_most + 1)
            return (content, known.st_mtime) if len(content) <= at_most else None


@contextlib.contextmanager
def _place(folder: Path, path: str) -> Iterator[tuple[int, str]]:
    """The open directory of a file below `folder`, made if need be, and the name of the file in it."""
    *parents, name = [part for part in path.split("/") if part not in ("", ".")]
    try:
        with contextlib.ExitStack() as stack:
            directory = _opened(stack, folder, None)
            for parent in parents:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(parent, 0o755, dir_fd=directory)
                directory = _opened(stack, parent, directory)
            yield directory, name
    except OSError as error:
        raise RunError(
            f"the file {path!r} cannot be written: {error.strerror}",
            failure=FailureReason.STORAGE_ERROR,
            transient=True,
        ) from error


def _link(directory: int, name: str, source: Path) -> None:
    partial = f".{name[:200]}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial, dir_fd=directory)
    try:
        os.link(source, partial, dst_dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        _copy(directory, partial, source)
    os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
    with contextlib.suppress(FileNotFoundError):  # rename keeps both names of one file
        os.unlink(partial, dir_fd=directory)


def _copy(directory: int, name: str, source: Path) -> None:
    with source.open("rb") as content, os.fdopen(os.open(name, _NEW, 0o600, dir_fd=directory), "wb") as written:
        shutil.copyfileobj(content, written)
        os.fchmod(written.fileno(), 0o444)


def _mode_of(file: FileSpec) -> int:
    """The mode of a file. The value of a secret that would be open to all users is its owner's alone."""
    return file.mode & 0o700 if file.secret and file.mode & 0o007 else file.mode


def _opened(stack: contextlib.ExitStack, path: str | Path, directory: int | None) -> int:
    descriptor = os.open(path, _DIRECTORY, dir_fd=directory)
    stack.callback(os.close, descriptor)
    return descriptor


def _replace(directory: int, name: str, content: bytes, *, mode: int, owner: tuple[int, int] | None) -> None:
    partial = f".{name[:200]}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial, dir_fd=directory)
    with os.fdopen(os.open(partial, _NEW, 0o600, dir_fd=directory), "wb") as written:
        written.write(content)
        if owner is not None:
            os.fchown(written.fileno(), *owner)
        os.fchmod(written.fileno(), mode)
    os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)

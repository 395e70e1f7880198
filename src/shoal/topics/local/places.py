"""The directory of a local log: where its files lie, how they appear whole, and which file systems will do.

    format.json                  which format this is
    journal/000000000001         the entries; the highest number is the one in use
    index/000000000001.arrow     where the records of an ended journal lie
    segments/….arrow             the records: Arrow IPC streams, each written by one writer
    leases/<session>             signs of life
    parts/                       files that are being made

Called by the other modules of `shoal.topics.local`; calls the operating system.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from shoal.core.disk.durable import sync_path
from shoal.core.entropy import Entropy
from shoal.core.errors import DeniedError, InvalidError, ShoalError, UnsupportedError, problem
from shoal.topics.errors import LogFullError

log = logging.getLogger(__name__)

FORMAT = 1
"""What this program reads and writes."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_MOUNTS = Path("/proc/self/mountinfo")

#: The log relies on one kernel: on its order of appends, its page cache and its locks.
_REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "glusterfs", "fuse.glusterfs", "afs", "gpfs", "beegfs"}
)
#: Whether these are shared with another machine cannot be seen from here.
_DOUBTFUL = frozenset({"9p", "virtiofs", "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "vboxsf"})


class Places:
    """The paths of one log. Making one makes the directory, or checks the one that is there."""

    def __init__(self, root: Path, entropy: Entropy) -> None:
        self.root = root
        self.journals = root / "journal"
        self.indexes = root / "index"
        self.segments = root / "segments"
        self.leases = root / "leases"
        self.parts = root / "parts"
        self._entropy = entropy
        with typed_errors(root):
            refuse_remote(root, file_system_of(root))
            for directory in (self.journals, self.indexes, self.segments, self.leases, self.parts):
                directory.mkdir(parents=True, exist_ok=True)
            self._check_format()

    def journal(self, number: int) -> Path:
        """The file of a journal."""
        return self.journals / f"{number:012d}"

    def index(self, number: int) -> Path:
        """The index file of an ended journal."""
        return self.indexes / f"{number:012d}.arrow"

    def journal_numbers(self) -> list[int]:
        """The journals that are there, the newest last."""
        return sorted(int(name) for name in os.listdir(self.journals) if name.isdecimal())  # noqa: PTH208 - names alone

    @contextlib.contextmanager
    def making(self, path: Path, *, durable: bool) -> Iterator[Path]:
        """A place to write a file to that appears at `path`, whole, at the end. One that is there already stays."""
        part = self.parts / f"{path.name}.{self._entropy.token(12)}"
        try:
            yield part
            if durable:
                sync_path(part)
            with contextlib.suppress(FileExistsError):
                os.link(part, path)
            if durable:
                sync_path(path.parent)
        finally:
            part.unlink(missing_ok=True)

    def _check_format(self) -> None:
        path = self.root / "format.json"
        if not path.exists():
            with self.making(path, durable=True) as part:
                part.write_text(json.dumps({"format": FORMAT}) + "\n")
        try:
            found = json.loads(path.read_text())["format"]
        except (ValueError, KeyError, TypeError) as error:
            rule = "must be a local log: its format.json cannot be read"
            raise InvalidError([problem("directory", str(self.root), rule)]) from error
        if found != FORMAT:
            raise UnsupportedError(
                f"{self.root} is a local log of format {found!r}; this program knows format {FORMAT}",
                hint="use the version of shoal that wrote it, or another directory",
                path=self.root,
                found=found,
            )


@contextlib.contextmanager
def typed_errors(path: Path | str) -> Iterator[None]:
    """Errors of the operating system as ours, with the path in them."""
    try:
        yield
    except OSError as error:
        raise typed(error, path) from error


def typed(error: OSError, path: Path | str) -> ShoalError:
    """An error of the operating system as one of ours."""
    what = f"{path}: {error.strerror or error}"
    if error.errno in _FULL:
        return LogFullError(what, hint="make room, or shorten the retention of topics", path=path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DeniedError(what, hint="the log's directory must be writable", path=path)
    if error.errno == errno.ENOTDIR:
        return InvalidError([problem("directory", str(path), "must be a directory")])
    return ShoalError(what, path=path)


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """The kind of the file system that a path is on; empty when it cannot be told."""
    try:
        lines = (_MOUNTS.read_text() if mounts is None else mounts).splitlines()
    except OSError:
        return ""
    wanted = path.resolve()
    best, kind = -1, ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        parts = fields.split()
        if len(parts) < 5 or not rest:
            continue
        point = Path(parts[4].encode().decode("unicode_escape"))  # a space in a path is written \040
        if wanted.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), rest.split()[0]
    return kind


def refuse_remote(path: Path, kind: str) -> None:
    """Refuse a file system that several machines share; warn where one might be."""
    if kind in _REMOTE:
        rule = f"must be on a disk of this machine: it is on {kind}, and the local log serves one host"
        raise InvalidError([problem("directory", str(path), rule)], hint="use Kafka for topics that span hosts")
    if kind in _DOUBTFUL:
        log.warning("%s is on %s; the local log serves the processes of one host only", path, kind)

"""Blobs that are named by their SHA-256, below a path of any file system that `shoal.core.files` knows.

A blob appears whole and with the right hash, or not at all. A second upload of the same content costs nothing. The
store is bounded, and blobs that nothing refers to for a while are removed. Calls block; an event loop uses threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shoal.core import files
from shoal.core.errors import DamagedError, ExhaustedError, InvalidError, NotFoundError, problem

_DIGEST = re.compile(r"[0-9a-f]{64}")
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What a store holds at most."""

    most_blob: int = 256 << 20
    most_total: int = 10 << 30
    #: Seconds that a blob stays although nothing refers to it: who uploads refers to it a moment later.
    keep_unreferenced: float = 3600.0


class ArtifactStore:
    """A store of blobs. Every method may be called from any thread."""

    def __init__(self, root: str, limits: StoreLimits | None = None) -> None:
        """Read what is there, and remove what killed writers left."""
        files.remove_abandoned(root)
        self._root = root
        self._limits = limits or StoreLimits()
        self._lock = threading.Lock()
        self._sizes = {
            files.name(entry.path): entry.size
            for entry in files.list_files(root)
            if not entry.is_directory and _DIGEST.fullmatch(files.name(entry.path))
        }
        #: Bytes of uploads under way: they count, so that two of them cannot share the last room.
        self._promised = 0
        self._unreferenced: dict[str, float] = {}

    @property
    def total(self) -> int:
        """Bytes in it."""
        with self._lock:
            return sum(self._sizes.values())

    def __contains__(self, digest: object) -> bool:
        with self._lock:
            return digest in self._sizes

    def size(self, digest: str) -> int:
        """Bytes of a blob. Raises `InvalidError` and `NotFoundError`."""
        check_digest(digest)
        with self._lock:
            if digest not in self._sizes:
                raise NotFoundError("artifact", digest)
            return self._sizes[digest]

    def path(self, digest: str) -> str:
        """Where a blob lies. Raises `InvalidError` and `NotFoundError`."""
        self.size(digest)
        return self._path(digest)

    def upload(self, digest: str, size: int) -> Upload | None:
        """Begin an upload; None when the blob is there. Raises `InvalidError` and `ExhaustedError`."""
        check_digest(digest)
        limits = self._limits
        if not 0 <= size <= limits.most_blob:
            raise ExhaustedError(f"an artifact has at most {limits.most_blob:,} bytes, not {size:,}", size=size)
        with self._lock:
            if digest in self._sizes:
                self._unreferenced.pop(digest, None)  # its time begins anew
                return None
            used = sum(self._sizes.values()) + self._promised
            if used + size > limits.most_total:
                raise ExhaustedError(
                    f"the artifact store has {used:,} of {limits.most_total:,} bytes, no room for {size:,} more",
                    hint="cancel jobs that are no longer needed: what they refer to is removed",
                )
            self._promised += size
        try:
            return Upload(self, digest, size, files.open_file(self._path(digest), "wb"))
        except BaseException:
            self._settle(digest, size, is_there=False)
            raise

    def read(self, digest: str) -> Iterator[bytes]:
        """The content of a blob, in chunks. Raises `NotFoundError`, and `DamagedError` at the end of a damaged one.

        A damaged blob is removed, so that it can be uploaded again.
        """
        self.size(digest)
        found = hashlib.sha256()
        try:
            with files.open_file(self._path(digest)) as file:
                while chunk := file.read(CHUNK):
                    found.update(chunk)
                    yield chunk
        except NotFoundError:
            self._drop(digest)
            raise NotFoundError("artifact", digest) from None
        if found.hexdigest() != digest:
            self._drop(digest)
            raise DamagedError(f"the artifact {digest} was damaged on its disk, and is removed")

    def collect(self, referenced: Collection[str], now: float) -> tuple[str, ...]:
        """Remove blobs to which nothing has referred for a while. `now` is monotonic. Returns what was removed."""
        with self._lock:
            loose = set(self._sizes) - set(referenced)
            self._unreferenced = {digest: self._unreferenced.get(digest, now) for digest in loose}
            due = [each for each, since in self._unreferenced.items() if now - since >= self._limits.keep_unreferenced]
            self._remove(due)
        return tuple(due)

    def make_room(self, size: int, recent: Collection[str], in_use: Collection[str]) -> None:
        """Remove blobs until `size` bytes more fit, for a cache: first those not in `recent`, then its oldest first."""
        with self._lock:
            order = [each for each in self._sizes if each not in recent] + [
                each for each in recent if each in self._sizes
            ]
            free = self._limits.most_total - sum(self._sizes.values()) - self._promised
            victims: list[str] = []
            for digest in order:
                if free >= size:
                    break
                if digest not in in_use:
                    victims.append(digest)
                    free += self._sizes[digest]
            if free < size:
                raise ExhaustedError(f"no room for {size:,} bytes: what is there is in use", size=size)
            self._remove(victims)

    def _drop(self, digest: str) -> None:
        with self._lock:
            self._remove([digest])

    def _remove(self, digests: Collection[str]) -> None:
        for digest in digests:
            with contextlib.suppress(NotFoundError):
                files.remove(self._path(digest))
            self._sizes.pop(digest, None)
            self._unreferenced.pop(digest, None)

    def _settle(self, digest: str, size: int, *, is_there: bool) -> None:
        with self._lock:
            self._promised -= size
            if is_there:
                self._sizes[digest] = size

    def _path(self, digest: str) -> str:
        return files.join(self._root, digest)


class Upload:
    """A blob on its way in. Leaving the `with` block by an exception throws it away."""

    def __init__(self, store: ArtifactStore, digest: str, size: int, file: files.File) -> None:
        self._store = store
        self._digest = digest
        self._size = size
        self._file = file
        self._hash = hashlib.sha256()
        self._got = 0
        self._is_over = False

    def write(self, chunk: bytes) -> None:
        """Append bytes. Raises `InvalidError` for more than were announced."""
        self._got += len(chunk)
        if self._got > self._size:
            raise InvalidError([problem("size", self._got, f"must be {self._size:,}, as announced")], what="artifact")
        self._hash.update(chunk)
        self._file.write(chunk)

    def finish(self) -> None:
        """Make it visible. Raises `InvalidError` when size or hash are not what was announced; nothing changes then."""
        found = self._hash.hexdigest()
        problems = []
        if self._got != self._size:
            problems.append(problem("size", self._got, f"must be {self._size:,}, as announced"))
        if found != self._digest:
            problems.append(problem("sha256", found, f"must be {self._digest}, as announced"))
        if problems:
            raise InvalidError(problems, what="artifact")
        self._file.close()
        self._is_over = True
        self._store._settle(self._digest, self._size, is_there=True)  # noqa: SLF001 - one class in two parts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Throw it away unless it is finished."""
        if not self._is_over:
            self._is_over = True
            self._file.discard()
            self._store._settle(self._digest, self._size, is_there=False)  # noqa: SLF001


def check_digest(digest: str) -> None:
    """Raise `InvalidError` unless it is a SHA-256 in hexadecimal digits."""
    if not _DIGEST.fullmatch(digest):
        raise InvalidError([problem("sha256", digest, "must be 64 hexadecimal digits, in lower case")], what="artifact")

"""Base images of a node: found by path, or fetched, checked and kept under their hash. Called by `disks`.

The cache is bounded: before an image is fetched, the images that were not used for the longest time go. A guest's
disk refers to its base through a hard link of its own, so an image that leaves the cache stays for those that use it.
Each fetch has a file of its own: a canceled one ends at its next chunk, and a retry shares nothing with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from shoal.core.disk.durable import sync_path
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError

_CHUNK = 1 << 20
#: Without a byte for this long a download is over.
_STALL_SECONDS = 60.0
_NOT_FOUND = 404
_GONE = 410
_PART = ".part"


class ImageCache:
    """Base images of this node. `limit_bytes` is what the cache may hold."""

    def __init__(self, directory: Path, *, limit_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._fetching: dict[str, asyncio.Lock] = {}
        self._numbers = itertools.count(1)
        #: The files that threads are filling now.
        self._parts: set[Path] = set()

    def clear_parts(self) -> None:
        """Remove what a killed agent left half fetched. Blocks."""
        for path in self._directory.glob(f"*{_PART}"):
            if path not in self._parts:
                with contextlib.suppress(OSError):
                    path.unlink()

    async def find(self, location: str, sha256: str) -> Path:
        """The file of a base image, fetched if it has to be. Raises `RunError`."""
        path = local_path(location)
        if path is not None and not sha256:
            if not await asyncio.to_thread(path.is_file):
                raise RunError(f"there is no image {path} on this node", failure=FailureReason.IMAGE_NOT_FOUND)
            return path
        if not sha256:
            raise RunError(
                f"image {location} needs its SHA-256: what is fetched has to be checked",
                failure=FailureReason.INVALID_SPEC,
            )
        cached = self._directory / sha256
        async with self._fetching.setdefault(sha256, asyncio.Lock()):
            if not await asyncio.to_thread(_touch, cached):
                stop = threading.Event()
                try:
                    await asyncio.to_thread(self._fetch, location, sha256, cached, stop)
                finally:
                    stop.set()  # a canceled call leaves its thread behind
        return cached

    def _fetch(self, location: str, sha256: str, cached: Path, stop: threading.Event) -> None:
        part = cached.with_name(f".{cached.name}.{next(self._numbers)}{_PART}")
        self._parts.add(part)
        digest = hashlib.sha256()
        size = 0
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room()
            with part.open("wb") as target:
                for chunk in _read(location):
                    if stop.is_set():
                        raise RunError(
                            f"the fetch of image {location} was canceled",
                            failure=FailureReason.IMAGE_PULL_FAILED,
                            transient=True,
                        )
                    digest.update(chunk)
                    size += len(chunk)
                    self._check_size(location, size)
                    target.write(chunk)
                target.flush()
                os.fsync(target.fileno())
            if digest.hexdigest() != sha256:
                raise RunError(
                    f"image {location} has the SHA-256 {digest.hexdigest()}, not {sha256}",
                    failure=FailureReason.IMAGE_PULL_FAILED,
                )
            self._make_room()
            part.replace(cached)
            sync_path(self._directory)
        except OSError as error:
            raise RunError(
                f"image {location} cannot be stored: {error}", failure=FailureReason.STORAGE_ERROR, transient=True
            ) from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
            self._parts.discard(part)

    def _check_size(self, location: str, size: int) -> None:
        if size > self._limit_bytes:
            raise RunError(
                f"image {location} is larger than the image cache ({self._limit_bytes >> 20} MB)",
                failure=FailureReason.STORAGE_ERROR,
            )

    def _make_room(self) -> None:
        """Drop what was used least lately until the rest fits, and first what a killed agent left half fetched.

        Images that are being fetched count and stay.
        """
        self.clear_parts()
        kept: list[tuple[float, int, Path]] = []
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                kept.append((found.st_mtime, found.st_blocks * 512, path))
        used = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if used > self._limit_bytes and path.suffix != _PART:
                path.unlink(missing_ok=True)
                used -= size


def local_path(location: str) -> Path | None:
    """The path that an image is named by, or None for one that is fetched from elsewhere."""
    if location.startswith("/"):
        return Path(location)
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _touch(path: Path) -> bool:
    """Note that an image is used now; False when it is not there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _read(location: str) -> Iterator[bytes]:
    path = local_path(location)
    if path is not None:
        try:
            source = path.open("rb")
        except OSError as error:
            raise RunError(f"image {location}: {error.strerror}", failure=FailureReason.IMAGE_NOT_FOUND) from error
        with source:
            while chunk := source.read(_CHUNK):
                yield chunk
        return
    if urlsplit(location).scheme != "https":
        raise RunError(
            f"image {location} must be an absolute path or a URL with the scheme file or https",
            failure=FailureReason.INVALID_SPEC,
        )
    try:
        with urllib.request.urlopen(location, timeout=_STALL_SECONDS) as answer:  # noqa: S310 - the scheme was checked
            while chunk := answer.read(_CHUNK):
                yield chunk
    except urllib.error.HTTPError as error:
        missing = error.code in (_NOT_FOUND, _GONE)
        raise RunError(
            f"image {location} cannot be fetched: HTTP {error.code} {error.reason}",
            failure=FailureReason.IMAGE_NOT_FOUND if missing else FailureReason.IMAGE_PULL_FAILED,
            transient=not missing,
        ) from error
    except (OSError, ValueError) as error:
        raise RunError(
            f"image {location} cannot be fetched: {error}", failure=FailureReason.IMAGE_PULL_FAILED, transient=True
        ) from error

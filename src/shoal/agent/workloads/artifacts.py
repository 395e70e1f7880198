"""Fetches the artifacts of workloads from the control plane and keeps them, named by their hash.

    <data_dir>/artifacts/<sha256>    0444

A blob is whole or absent. It is checked each time before a workload gets it, and fetched again when it was damaged. The
cache is bounded: what was used longest ago and no workload here names is removed first. It is read from disk when the
agent starts, so workloads start again without a control plane. Made by `shoal.agent.server`, called by the actors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import Executor as Threads
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from shoal.artifacts.store import ArtifactStore, StoreLimits, Upload
from shoal.core.errors import (
    DamagedError,
    DeadlineError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    ShoalError,
    UnavailableError,
)
from shoal.core.faults import reach
from shoal.model.workloads import ArtifactSpec, FailureReason
from shoal.runtimes.base import RunError
from shoal.wire.routes import Way, ask_in_turn

log = logging.getLogger(__name__)

T = TypeVar("T")

FOLDER = "artifacts"
#: Seconds that the control plane may be silent in the middle of a blob.
SILENCE = 30.0

_UNREACHABLE = (UnavailableError, DeadlineError, NotLeaderError)


class Part(Protocol):
    """A message of a download: the size in the first one, content in the others."""

    @property
    def size(self) -> int: ...  # noqa: D102

    @property
    def data(self) -> bytes: ...  # noqa: D102


class Source(Way, Protocol):
    """A connection to the control plane, for a few calls."""

    def download_artifact(self, digest: str) -> AsyncIterator[Part]:
        """A blob in parts."""
        ...


class ArtifactCache:
    """The artifacts of one agent's workloads.

    Args:
        data_dir: the agent's.
        most_bytes: how much room they may take.
        connect: opens a connection to the control plane.
        in_use: what the workloads of this agent name: that is never removed.
        threads: read and write files; the default executor of the loop unless given.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        most_bytes: int,
        connect: Callable[[], Source],
        in_use: Callable[[], Collection[str]],
        threads: Threads | None = None,
    ) -> None:
        self._folder = data_dir.absolute() / FOLDER
        self._limits = StoreLimits(most_blob=most_bytes, most_total=most_bytes)
        self._connect = connect
        self._in_use = in_use
        self._threads = threads
        self._store: ArtifactStore | None = None
        #: What was used, longest ago first.
        self._recent: dict[str, None] = {}
        self._opening = asyncio.Lock()
        self._locks: dict[str, asyncio.Lock] = {}

    async def provide(self, artifacts: Sequence[ArtifactSpec]) -> tuple[tuple[ArtifactSpec, Path], ...]:
        """Have the artifacts of a spec at hand. Raises `RunError` when one cannot be got; then it is tried again."""
        found = []
        for each in artifacts:
            try:
                found.append((each, await self._file(each.sha256)))
            except NotFoundError as error:
                raise _failure(each, "the control plane does not have it", FailureReason.STORAGE_ERROR) from error
            except _UNREACHABLE as error:
                raise _failure(each, error.message, FailureReason.NETWORK_ERROR) from error
            except ShoalError as error:
                raise _failure(each, error.message, FailureReason.STORAGE_ERROR) from error
        return tuple(found)

    async def _file(self, digest: str) -> Path:
        """The checked file of a blob, fetched if need be."""
        async with self._locks.setdefault(digest, asyncio.Lock()):
            try:
                store = await self._opened()
                if not await self._is_whole(store, digest):
                    await self._fetch(store, digest)
                path = Path(store.path(digest))
                await self._apart(lambda: _note_use(path))
                self._recent.pop(digest, None)
                self._recent[digest] = None
                reach("artifacts.cached")
                return path
            finally:
                if digest not in self._recent:
                    self._locks.pop(digest, None)

    async def _is_whole(self, store: ArtifactStore, digest: str) -> bool:
        if digest not in store:
            return False
        try:
            await self._apart(lambda: _read_through(store, digest))
        except (NotFoundError, DamagedError) as error:
            log.warning("an artifact is fetched again: %s", error.message)
            return False
        return True

    async def _fetch(self, store: ArtifactStore, digest: str) -> None:
        await ask_in_turn(self._connect, lambda source: self._receive(store, digest, source))

    async def _receive(self, store: ArtifactStore, digest: str, source: Source) -> None:
        parts = source.download_artifact(digest)
        try:
            first = await _next(parts)
            if first is None:
                raise UnavailableError("the control plane sent nothing")
            await self._make_room(store, first.size)
            upload = await self._apart(lambda: store.upload(digest, first.size))
            if upload is not None:
                await self._write(upload, parts)
        finally:
            close = getattr(parts, "aclose", None)
            if close is not None:
                await close()

    async def _write(self, upload: Upload, parts: AsyncIterator[Part]) -> None:
        try:
            while (part := await _next(parts)) is not None:
                reach("artifacts.fetched")
                await self._apart(partial(upload.write, part.data))
            await self._apart(upload.finish)
        except InvalidError as error:  # what came is not what was asked for: perhaps it was cut off
            raise UnavailableError(f"the control plane sent something else: {error.message}") from error
        finally:
            await self._apart(upload.close)

    async def _make_room(self, store: ArtifactStore, size: int) -> None:
        recent, in_use = tuple(self._recent), frozenset(self._in_use())
        await self._apart(lambda: store.make_room(size, recent=recent, in_use=in_use))
        for digest in [each for each in self._recent if each not in store]:
            self._recent.pop(digest, None)
            self._locks.pop(digest, None)

    async def _opened(self) -> ArtifactStore:
        async with self._opening:
            if self._store is None:
                self._store = await self._apart(self._open)
            return self._store

    def _open(self) -> ArtifactStore:
        try:
            self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            store = ArtifactStore(str(self._folder), self._limits)
            by_use = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        except OSError as error:
            raise ExhaustedError(f"{self._folder} cannot be read: {error.strerror}") from error
        self._recent = {path.name: None for path in by_use if path.name in store}
        return store

    async def _apart(self, work: Callable[[], T]) -> T:
        """Run blocking work in a thread, and wait for its end also when cancelled: it works on a file."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            raise


def _failure(artifact: ArtifactSpec, why: str, reason: FailureReason) -> RunError:
    return RunError(
        f"waits for artifact {artifact.sha256[:12]}… ({artifact.path}): {why}", failure=reason, transient=True
    )


def _read_through(store: ArtifactStore, digest: str) -> None:
    for _ in store.read(digest):
        pass


def _note_use(path: Path) -> None:
    """The time of the file says when it was last used, also after a restart. Its content is for all to read."""
    with contextlib.suppress(OSError):
        path.chmod(0o444)
        os.utime(path)


async def _next(parts: AsyncIterator[Part]) -> Part | None:
    try:
        async with asyncio.timeout(SILENCE):
            return await anext(parts, None)
    except TimeoutError:
        raise DeadlineError(f"the control plane was silent for {SILENCE:g} s", seconds=SILENCE) from None

"""`shoal.v1.Artifacts`: takes blobs from operators, gives them to those whose work names them, removes the others.

Blobs lie in the data directory of the control plane, or below the root that its settings name. Only the leader serves
them. Without a root, control planes that share a database refuse uploads: a directory of one host is out of reach for
the next leader. File work runs in threads. Served by `shoal.control.server`; `run` is a task of one leadership.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TypeVar

from shoal.artifacts.store import ArtifactStore, StoreLimits, Upload
from shoal.control.artifacts.references import References
from shoal.control.settings import ControlSettings
from shoal.control.state.causes import caller_of
from shoal.control.state.fleet import Fleet
from shoal.control.state.loops import Rounds
from shoal.core import faults
from shoal.core.clock import Clock
from shoal.core.errors import DeadlineError, ExhaustedError, InvalidError, PreconditionError, problem
from shoal.wire.pb.shoal.v1 import artifacts_pb2 as pb
from shoal.wire.transport import Call

log = logging.getLogger(__name__)

T = TypeVar("T")

FOLDER = "artifacts"
"""Where blobs lie in the data directory."""
MOST_UPLOADS = 32
"""The most uploads at once."""
SILENCE = 60.0
"""Seconds that an upload may be silent."""
COLLECT_EVERY = 60.0
"""Seconds between two looks for blobs that nothing needs."""


class ArtifactService:
    """The handlers, and the removal of blobs that nothing needs."""

    def __init__(
        self,
        settings: ControlSettings,
        fleet: Fleet,
        *,
        clock: Clock,
        threads: Executor | None,
        is_confirmed: Callable[[], bool],
    ) -> None:
        self._root = settings.artifacts or str(Path(settings.data_dir) / FOLDER)
        self._is_shared = bool(settings.database) and not settings.artifacts
        self._limits = StoreLimits(most_total=settings.artifacts_gb << 30)
        self._references = References(fleet)
        self._clock = clock
        self._threads = threads
        self._is_confirmed = is_confirmed
        self._store: ArtifactStore | None = None
        self._opening = asyncio.Lock()
        self._uploads = 0

    async def upload(
        self, requests: AsyncIterator[pb.UploadArtifactRequest], call: Call
    ) -> AsyncIterator[pb.UploadArtifactResponse]:
        """Take a blob."""
        self._check_place()
        start = (await self._next(requests) or pb.UploadArtifactRequest()).start
        if self._uploads >= MOST_UPLOADS:
            raise ExhaustedError(f"{MOST_UPLOADS} uploads are under way", hint="try again in a moment")
        self._uploads += 1
        try:
            store = await self._opened()
            upload = await self._apart(lambda: store.upload(start.sha256, start.size))
            if upload is not None:
                yield pb.UploadArtifactResponse(stored=False)
                await self._take(upload, requests)
                log.info("%s has uploaded artifact %s, %d bytes", caller_of(call), start.sha256, start.size)
        finally:
            self._uploads -= 1
        yield pb.UploadArtifactResponse(stored=True)

    async def download(
        self, request: pb.DownloadArtifactRequest, call: Call
    ) -> AsyncIterator[pb.DownloadArtifactResponse]:
        """Give a blob."""
        store = await self._opened()
        # Who may not read it is not told whether it is there.
        self._references.check_reader(call.identity, request.sha256)
        yield pb.DownloadArtifactResponse(size=store.size(request.sha256))
        content = store.read(request.sha256)
        while (chunk := await self._apart(lambda: next(content, None))) is not None:
            yield pb.DownloadArtifactResponse(data=chunk)

    async def run(self) -> None:
        """Remove blobs that nothing needs, from time to time. Runs until cancelled."""
        rounds = Rounds("removal of artifacts")
        while True:
            await self._clock.sleep(COLLECT_EVERY)
            with rounds.attempt():
                await self._collect()

    async def _collect(self) -> None:
        if self._store is None and not await self._apart(self._has_place):
            return  # nobody ever uploaded anything
        store = await self._opened()
        if not self._is_confirmed():
            return  # another one may lead, with jobs that this one does not know
        needed, now = self._references.needed(), self._clock.monotonic()
        removed = await self._apart(lambda: store.collect(needed, now))
        if removed:
            log.info("removed %d artifacts that nothing needs", len(removed))

    def _has_place(self) -> bool:
        return "://" in self._root or Path(self._root).is_dir()

    def _check_place(self) -> None:
        if self._is_shared:
            raise PreconditionError(
                "this control plane shares its database with others, and keeps artifacts in a directory of its own",
                hint="start every one of them with the same --artifacts, a place that all of them reach",
            )

    async def _opened(self) -> ArtifactStore:
        async with self._opening:
            if self._store is None:
                self._store = await self._apart(lambda: ArtifactStore(self._root, self._limits))
            return self._store

    async def _take(self, upload: Upload, requests: AsyncIterator[pb.UploadArtifactRequest]) -> None:
        try:
            while (request := await self._next(requests)) is not None:
                if request.HasField("start"):
                    raise InvalidError([problem("start", request.start.sha256, "must be in the first message only")])
                faults.reach("artifacts.upload")
                await self._apart(partial(upload.write, request.data))
            await self._apart(upload.finish)
            faults.reach("artifacts.stored")
        finally:
            await self._apart(upload.close)

    async def _next(self, requests: AsyncIterator[pb.UploadArtifactRequest]) -> pb.UploadArtifactRequest | None:
        try:
            async with asyncio.timeout(SILENCE):
                return await anext(requests, None)
        except TimeoutError:
            raise DeadlineError(f"the upload was silent for {SILENCE:g} s", seconds=SILENCE) from None

    async def _apart(self, work: Callable[[], T]) -> T:
        """Run blocking work in a thread, and wait for its end also when cancelled: it works on a file."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            raise

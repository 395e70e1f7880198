"""Uploads and downloads blobs: the calls of `shoal.v1.Artifacts`. A part of `ControlPlane`.

A blob that is stored already is not sent again, so an upload that broke is simply made again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator

from shoal.client.calls import Calls
from shoal.client.reconnect import Reconnect
from shoal.core.errors import CorruptError, ExhaustedError, NotLeaderError, UnavailableError
from shoal.wire.methods import Artifacts
from shoal.wire.pb.shoal.v1 import artifacts_pb2 as pb

CHUNK = 1 << 20
"""How much of a blob one message carries."""
PATIENCE = 10.0
"""Seconds that a broken upload or download is tried again."""
MOST_BYTES = 256 << 20
"""The largest blob that a download takes by itself."""


class ArtifactCalls(Calls):
    """The calls about blobs."""

    async def upload_artifact(self, content: bytes) -> str:
        """Store a blob at the control plane and return its SHA-256. Costs little when it is there already.

        Raises `ExhaustedError` when it is too large or there is no room, `DeniedError` and `UnavailableError`.
        """
        digest = hashlib.sha256(content).hexdigest()
        start = pb.UploadArtifactRequest(start=pb.ArtifactStart(sha256=digest, size=len(content)))
        reconnect = Reconnect(self._clock, patience=PATIENCE)
        while True:
            reconnect.opening()
            try:
                answers = self._converse(Artifacts.UPLOAD, start, _chunks(content))
                async with contextlib.aclosing(answers):
                    async for answer in answers:
                        if answer.stored:
                            return digest
                raise UnavailableError("the upload ended without an answer")
            except (UnavailableError, NotLeaderError):
                if reconnect.lost():
                    raise
            await reconnect.wait()

    async def download_artifact(self, digest: str, *, most: int = MOST_BYTES) -> bytes:
        """A blob. Raises `NotFoundError`, `DeniedError`, `ExhaustedError` for one that is larger, `CorruptError`."""
        request = pb.DownloadArtifactRequest(sha256=digest)
        reconnect = Reconnect(self._clock, patience=PATIENCE)
        while True:
            reconnect.opening()
            content = bytearray()
            try:
                async with contextlib.aclosing(self._stream(Artifacts.DOWNLOAD, request)) as answers:
                    async for answer in answers:
                        if max(answer.size, len(content) + len(answer.data)) > most:
                            raise ExhaustedError(f"the artifact {digest} has more than {most:,} bytes", limit=most)
                        content += answer.data
                return _checked(bytes(content), digest)
            except (UnavailableError, NotLeaderError):
                if reconnect.lost():
                    raise
            await reconnect.wait()


def _checked(content: bytes, digest: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise CorruptError("artifact", 0, f"must have the SHA-256 {digest}", value=found)
    return content


async def _chunks(content: bytes) -> AsyncIterator[pb.UploadArtifactRequest]:
    view = memoryview(content)
    for start in range(0, len(content), CHUNK):
        yield pb.UploadArtifactRequest(data=bytes(view[start : start + CHUNK]))

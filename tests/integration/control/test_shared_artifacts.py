"""Artifacts of two control planes on one PostgreSQL, over gRPC: the next leader has what the last one took."""

from __future__ import annotations

import contextlib

import pytest

from shoal.client import ControlPlane as Client
from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.core.errors import PreconditionError
from shoal.wire.sockets.channel import GrpcTransport

pytestmark = pytest.mark.integration

CONTENT = bytes(range(256)) * 10_000


@contextlib.asynccontextmanager
async def plane(folder, database: str, artifacts: str):
    settings = ControlSettings(
        data_dir=str(folder), grpc_port=0, http_port=0, insecure=True, database=database, artifacts=artifacts
    )
    made = ControlPlaneServer(settings, transport=GrpcTransport())
    await made.start(http=False)
    try:
        yield made
    finally:
        await made.stop()


async def test_the_next_leader_has_the_blobs_of_the_last_one(tmp_path, postgres_url):
    place = str(tmp_path / "shared")
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(plane(tmp_path / "a", postgres_url, place))
        async with plane(tmp_path / "b", postgres_url, place) as second:
            assert first.leads
            assert not second.leads
            async with Client([second.address], GrpcTransport()) as client:
                digest = await client.upload_artifact(CONTENT)  # the follower names the leader
                assert await client.download_artifact(digest) == CONTENT
            await stack.aclose()
            async with Client([second.address], GrpcTransport()) as client:
                assert await client.download_artifact(digest) == CONTENT
            assert second.leads


async def test_without_a_shared_place_uploads_are_refused(tmp_path, postgres_url):
    async with plane(tmp_path, postgres_url, "") as made, Client([made.address], GrpcTransport()) as client:
        with pytest.raises(PreconditionError, match="shares its database") as caught:
            await client.upload_artifact(CONTENT)
        assert "--artifacts" in caught.value.hint
    assert not (tmp_path / "artifacts").exists()

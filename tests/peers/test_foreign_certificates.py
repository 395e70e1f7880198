"""Foreign programs with certificates of ours: the same contract over mutual TLS, and nothing beyond their role."""

from __future__ import annotations

import grpc
import pytest

from shoal.testing.certificates import Certificates
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.trust.security import MutualTls
from tests.peers.conftest import staged
from tests.peers.contract import agent, control
from tests.peers.foreign import Behavior, ForeignClient, container

pytestmark = pytest.mark.integration


def as_client(files: MutualTls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes())


def as_server(files: MutualTls) -> grpc.ServerCredentials:
    pair = (files.key.read_bytes(), files.cert.read_bytes())
    return grpc.ssl_server_credentials([pair], files.ca.read_bytes(), require_client_auth=True)


@pytest.fixture
def certificates(tmp_path):
    return Certificates(tmp_path / "certs")


@pytest.fixture
async def secure(tmp_path, certificates):
    """A control plane that asks everybody for a certificate, and a foreign operator."""
    files = certificates.control()
    access = {"ca": str(files.ca), "cert": str(files.cert), "key": str(files.key)}
    operator = as_client(certificates.operator())
    transport = GrpcTransport(security=files)
    async with staged(tmp_path / "data", transport, insecure=False, access=access, client=operator) as stage:
        yield stage


async def test_a_foreign_agent_and_client_live_with_certificates_of_ours(secure, certificates):
    files = certificates.agent("n1")
    foreign = await secure.agent("n1", client=as_client(files), server=as_server(files), behavior=Behavior(ghosts=True))
    assert (await secure.client.apply("web", container(), revision="r1")).success
    view = await secure.client.wait_status("web", "Running")
    assert view.assigned_node_id == "n1"
    assert foreign.state_of("web") == agent.ACTUAL_STATE_RUNNING
    assert (await secure.client.delete("web")).success
    assert "not found" in await secure.client.wait_gone("web")


async def test_an_agents_certificate_does_not_make_an_operator(secure, certificates):
    client = ForeignClient(secure.plane.address, as_client(certificates.agent("n1")))
    try:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.apply("web", container())
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "operator" in caught.value.details()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.call("Heartbeat", node_id="n2", usage=control.NodeUsage())
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    finally:
        await client.close()


async def test_nobody_without_a_certificate_is_let_in(secure):
    client = ForeignClient(secure.plane.address)
    try:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.call("ListNodes")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await client.close()

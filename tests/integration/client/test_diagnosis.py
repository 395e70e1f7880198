"""Why a control plane cannot be reached, in one sentence: every way to fail, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shoal.client import ControlPlane
from shoal.core.errors import UnavailableError
from shoal.testing.certificates import Certificates
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.sockets import diagnosis
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Service
from shoal.wire.trust.security import INSECURE, MutualTls

pytestmark = pytest.mark.integration


class LateClock:
    """A clock that stands at one moment."""

    def __init__(self, at: datetime) -> None:
        self._at = at

    def wall(self) -> datetime:
        return self._at

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Summaries:
    """A control plane that answers one call."""

    async def get_cluster_summary(self, _request, _call) -> pb.ClusterSummary:
        return pb.ClusterSummary(total_nodes=1)


SERVICES = [Service({AgentControl.GET_CLUSTER_SUMMARY}, Summaries())]


@contextlib.asynccontextmanager
async def serving(security) -> AsyncIterator[str]:
    server = await GrpcTransport(security=security).serve("127.0.0.1:0", SERVICES)
    try:
        yield server.address
    finally:
        await server.stop(grace=0)


@contextlib.contextmanager
def answering(answer: bytes, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that says something else, to anyone; nothing at all when that is empty."""

    class Talk(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                connection = self.request
                if context is not None:
                    connection = context.wrap_socket(connection, server_side=True)
                with connection:
                    if answer:
                        connection.recv(1)
                        connection.sendall(answer)
                    else:
                        while connection.recv(4096):
                            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Talk) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()


async def failure(address: str, security, *, timeout: float = 5.0) -> UnavailableError:
    transport = GrpcTransport(security=security)
    async with ControlPlane([address], transport, timeout=timeout) as control:
        with pytest.raises(UnavailableError) as caught:
            await control.summary()
    assert caught.value.message.startswith(f"the control plane at {address} cannot be reached: ")
    assert caught.value.hint
    assert not caught.value.message.endswith("OK")
    return caught.value


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "ours", cluster="blue")


@pytest.fixture
def theirs(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "theirs", cluster="blue")


async def test_nothing_is_wrong(ours):
    async with serving(ours.control()) as address:
        async with ControlPlane([address], GrpcTransport(security=ours.operator())) as control:
            assert (await control.summary()).total_nodes == 1
        assert await GrpcTransport(security=ours.operator()).diagnose(address) is None
    async with serving(INSECURE) as address:
        assert await GrpcTransport().diagnose(address) is None


async def test_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        error = await failure(f"127.0.0.1:{taken.getsockname()[1]}", INSECURE)
    assert error.message.endswith("nothing listens there (connection refused)")
    assert "shoal up" in error.hint


async def test_a_name_that_does_not_exist():
    error = await failure("no-such-host.invalid:8085", INSECURE)
    assert error.message.endswith("the name no-such-host.invalid cannot be resolved")


async def test_no_answer_to_a_connection(monkeypatch):
    """A listener whose queue is full answers nothing, as a firewall that drops packets does."""
    monkeypatch.setattr(diagnosis, "PATIENCE", 0.2)
    with socket.socket() as full, contextlib.ExitStack() as queued:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(2):
            waiting = queued.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        error = await failure(f"127.0.0.1:{full.getsockname()[1]}", INSECURE, timeout=0.5)
    assert "no answer within 0.2 s; the host is down, or a firewall drops the packets" in error.message


async def test_a_certificate_of_another_authority(ours, theirs):
    async with serving(theirs.control()) as address:
        error = await failure(address, ours.operator())
    assert f"its certificate was not signed by the authority in {ours.operator().ca}" in error.message
    assert "--ca" in error.hint


async def test_our_certificate_is_of_another_authority(ours, theirs):
    """Both trust the server's authority; only ours is unknown there."""
    mixed = MutualTls(ours.control().ca, theirs.operator().cert, theirs.operator().key)
    async with serving(ours.control()) as address:
        known = diagnosis.diagnose
        found = await asyncio.to_thread(known, address, mixed, None, now=datetime.now(UTC))
    assert found is not None
    assert found.reason == f"it does not trust the authority that signed our certificate {mixed.cert}"


async def test_an_expired_certificate_of_the_server(tmp_path, ours):
    past = Certificates(tmp_path / "past", cluster="blue", clock=LateClock(datetime.now(UTC) - timedelta(days=4000)))
    files = past.control()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    mixed = MutualTls(files.ca, ours.operator().cert, ours.operator().key)
    with answering(b"", context) as address:
        found = await asyncio.to_thread(diagnosis.diagnose, address, mixed, None, now=datetime.now(UTC))
    assert found is not None
    assert found.reason.startswith("its certificate expired on 2")


async def test_an_agent_where_the_control_plane_should_be(ours):
    async with serving(ours.agent("n1")) as address:
        error = await failure(address, ours.operator())
    assert error.message.endswith("its certificate is that of agent n1, not of the control plane of cluster blue")


async def test_tls_to_a_port_without(ours):
    async with serving(INSECURE) as address:
        error = await failure(address, ours.operator())
    assert error.message.endswith("it does not speak TLS")
    assert "--insecure" in error.hint


async def test_plain_text_to_a_port_with_tls(ours):
    async with serving(ours.control()) as address:
        error = await failure(address, INSECURE)
    assert error.message.endswith("it speaks TLS, and we do not (--insecure)")
    assert "--cert" in error.hint


async def test_an_http_server_is_no_control_plane():
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        error = await failure(address, INSECURE)
    assert error.message.endswith("it is an HTTP server, not gRPC")


@pytest.mark.parametrize("secure", [False, True])
async def test_a_server_that_says_nothing(ours, monkeypatch, secure):
    monkeypatch.setattr(diagnosis, "PATIENCE", 0.3)
    with answering(b"") as address:
        security = ours.operator() if secure else INSECURE
        error = await failure(address, security, timeout=0.5)
    assert "does not answer" in error.message or "does not speak TLS" in error.message


async def test_every_address_has_its_reason(ours, theirs):
    async with (
        serving(theirs.control()) as one,
        serving(INSECURE) as two,
        ControlPlane([one, two], GrpcTransport(security=ours.operator())) as control,
    ):
        with pytest.raises(UnavailableError) as caught:
            await control.summary()
    assert caught.value.message.startswith(f"the control plane at {one}, {two} cannot be reached: ")
    assert "its certificate was not signed by" in caught.value.message
    assert caught.value.message.endswith("; it does not speak TLS")

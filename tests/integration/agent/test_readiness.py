"""Readiness probes and free ports, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from datetime import timedelta
from types import SimpleNamespace

import pytest

from shoal.agent.workloads import readiness
from shoal.agent.workloads.ports import PortBook, is_free
from shoal.core.entropy import SystemEntropy
from shoal.core.ids import WorkloadId
from shoal.model.workloads import CommandProbe, HttpProbe, NamedPort, Readiness
from shoal.runtimes.base import RunError

pytestmark = pytest.mark.integration


async def ready(probe: Readiness, **ports: int) -> bool:
    return await readiness.try_once(probe, runtime=object(), run_id="r", ports=ports)


@pytest.fixture
async def listener():
    """A server that answers every request with what the test puts here."""

    made = SimpleNamespace(answer=b"HTTP/1.1 200 OK\r\n\r\n", silent=False, requests=[], port=0)

    async def serve(reader, writer):
        with contextlib.suppress(OSError):
            made.requests.append(await reader.readline())
            if made.silent:
                await reader.read()  # until the caller gives up
            else:
                writer.write(made.answer)
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    await asyncio.sleep(0)


async def test_a_port_is_ready_when_it_accepts(listener):
    assert await ready(Readiness(tcp_port="http"), http=listener.port)
    assert await ready(Readiness(tcp_port=str(listener.port)))


async def test_a_port_that_nobody_listens_on_is_not_ready():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        assert not await ready(Readiness(tcp_port=str(held.getsockname()[1])))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.0 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 302 Found\r\n\r\n", True),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False),
        (b"HTTP/1.1 503 Busy\r\n\r\n", False),
        (b"SSH-2.0-OpenSSH\r\n", False),
        (b"HTTP/1.1 abc\r\n", False),
        (b"", False),
        (b"x" * 100_000, False),
    ],
)
async def test_an_answer_decides(listener, answer, expected):
    listener.answer = answer
    assert await ready(Readiness(http=HttpProbe("http", "/up")), http=listener.port) is expected


async def test_nothing_in_a_path_ends_the_request_line(listener):
    await ready(Readiness(http=HttpProbe("http", "up and\r\nX-Evil: yes?a=b&c=%20")), http=listener.port)
    assert listener.requests == [b"GET /up%20and%0D%0AX-Evil:%20yes?a=b&c=%20 HTTP/1.1\r\n"]


async def test_a_server_that_does_not_answer_costs_no_more_than_the_timeout(listener):
    listener.silent = True
    probe = Readiness(http=HttpProbe("http"), timeout=timedelta(milliseconds=100))
    async with asyncio.timeout(30):
        assert not await ready(probe, http=listener.port)


async def test_a_command_needs_a_runtime_that_can_run_it():
    assert not await ready(Readiness(command=CommandProbe(("true",))))


async def test_ipv6_counts_too():
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    assert await ready(Readiness(tcp_port=str(server.sockets[0].getsockname()[1])))
    server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_is_free_until_somebody_listens(host):
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        held.listen()
        port = held.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(RunError, match="is in use on this machine"):
            PortBook(SystemEntropy()).choose(WorkloadId("w"), (NamedPort("http", port),), before={})
    assert is_free(port)


def test_a_chosen_port_can_be_bound():
    port = PortBook(SystemEntropy()).choose(WorkloadId("w"), (NamedPort("http"),), before={})["http"]
    with socket.socket() as held:
        held.bind(("127.0.0.1", port))

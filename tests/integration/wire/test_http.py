"""Metrics and health over HTTP."""

from __future__ import annotations

import asyncio
import signal

import httpx
import pytest

from shoal.core.errors import InvalidError, UnavailableError
from shoal.wire.sockets.http import serve_http

pytestmark = pytest.mark.integration


class Facts:
    """What the server shows."""

    ready = True
    status = 200
    broken = False

    def metrics(self):
        if self.broken:
            raise ZeroDivisionError("secret")
        return b"shoal_up 1\n"

    def health(self):
        return self.status, {"status": "ok" if self.status == 200 else "degraded", "reason": ""}


@pytest.fixture
def facts():
    return Facts()


async def _serve(facts, address="127.0.0.1:0"):
    return await serve_http(address, metrics=facts.metrics, health=facts.health, ready=lambda: facts.ready)


@pytest.fixture
async def server(facts):
    server = await _serve(facts)
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=30) as client:
        yield client


async def test_metrics_are_prometheus_text(client):
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert answer.content == b"shoal_up 1\n"


async def test_health_tells_the_truth(client, facts):
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "reason": ""})
    facts.status = 503
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "degraded")


async def test_life_and_readiness_are_different_questions(client, facts):
    facts.ready = False
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 503
    facts.ready = True
    assert (await client.get("/readyz")).status_code == 200


async def test_nothing_else_is_served(client):
    assert (await client.get("/")).status_code == 404
    assert (await client.get("/metrics/../etc/passwd")).status_code == 404
    assert (await client.post("/metrics")).status_code == 405


async def test_a_question_that_fails_does_not_end_the_server(client, facts):
    facts.broken = True
    answer = await client.get("/metrics")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    facts.broken = False
    assert (await client.get("/metrics")).status_code == 200


async def test_a_taken_port_is_named(server, facts):
    with pytest.raises(UnavailableError, match=server.address):
        await _serve(facts, server.address)


async def test_what_is_no_address_is_refused(facts):
    with pytest.raises(InvalidError):
        await _serve(facts, "nowhere")


async def test_signals_are_left_alone_and_stopping_frees_the_port(facts):
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    server = await _serve(facts)
    async with httpx.AsyncClient(timeout=30) as client:
        assert (await client.get(f"http://{server.address}/healthz")).status_code == 200
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
        await server.stop()
        await server.stop()
        with pytest.raises(httpx.TransportError):
            await client.get(f"http://{server.address}/healthz")
    again = await _serve(facts, server.address)
    assert again.address == server.address
    await again.stop()


async def test_a_request_that_hangs_does_not_hold_up_the_end(facts):
    server = await _serve(facts)
    host, port = server.address.split(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")  # and never the empty line
    await writer.drain()
    async with asyncio.timeout(20):
        await server.stop()
    writer.close()


@pytest.mark.parametrize("address", [":0", "0.0.0.0:0", "[::1]:0", "localhost:0"])
async def test_every_address_can_be_listened_on(facts, address):
    server = await _serve(facts, address)
    async with httpx.AsyncClient(timeout=30) as client:
        assert (await client.get(f"http://{server.address}/healthz")).text == "ok"
    await server.stop()

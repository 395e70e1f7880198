"""Each role × each RPC × good, wrong and missing certificates, over real gRPC.

The methods come from `shoal.wire.methods`; who may call them is written down once more in `roles.py` beside this file.
So neither the table in the product nor a new RPC can go unnoticed: a method that is not there fails these tests.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import pytest

from shoal.core.errors import DeniedError, ShoalError, UnauthenticatedError, UnavailableError
from shoal.model.identity import Role
from shoal.testing.certificates import Certificates
from shoal.wire import methods as table
from shoal.wire.grpcio import aio, grpc
from shoal.wire.health import CHECK, WATCH
from shoal.wire.methods import AgentControl, AgentService, Jobs, methods_of
from shoal.wire.reflection import SERVER_REFLECTION_INFO
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Cardinality, Service
from shoal.wire.trust.security import MutualTls
from tests.integration.wire.roles import (
    AGENT,
    CONTROL,
    FIELDS,
    FOR_OTHERS,
    OK,
    OPERATOR,
    Everything,
    expected_for,
    identity_of,
)

pytestmark = pytest.mark.integration

SERVICES = [value for value in vars(table).values() if isinstance(value, type) and methods_of(value)]

UNAUTHENTICATED = "unauthenticated"
UNREACHABLE = "unreachable"


@dataclass
class Issued:
    """Certificates of every kind for every role."""

    server: dict[type, MutualTls]
    clients: dict[tuple[str, Role], MutualTls]


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    base = tmp_path_factory.mktemp("certificates")
    ours = Certificates(base / "ours", cluster="blue")
    other = Certificates(base / "other", cluster="blue")
    expired = Certificates(base / "expired", cluster="blue")
    expired.authority, expired.trusted = ours.authority, ours.trusted
    # The servers trust the authorities of both clusters: TLS lets both in, and what is refused is the cluster.
    red = Certificates(base / "red", cluster="red")
    clients = {}
    for role in Role:
        identity = identity_of(role)
        clients["good", role] = ours.issue(identity)
        clients["wrong authority", role] = other.issue(identity, trusted=ours.trusted)
        clients["expired", role] = expired.issue(identity, lifetime=timedelta(hours=1), age=timedelta(hours=2))
        clients["wrong cluster", role] = red.issue(identity_of(role, "red"), trusted=ours.trusted)
    both = ours.trusted + red.trusted
    servers = Certificates(base / "servers", cluster="blue")
    servers.authority = ours.authority
    server = {AgentService: servers.issue(identity_of(AGENT), trusted=both)}
    for service in SERVICES:
        server.setdefault(service, servers.issue(identity_of(CONTROL), trusted=both))
    return Issued(server, clients)


async def outcome(channel, method):
    """One call as a foreign client makes it: with bytes, over plain gRPC."""
    request = method.request(**FIELDS.get(method.name, {})).SerializeToString()
    try:
        if method.cardinality is Cardinality.UNARY:
            await channel.unary_unary(method.path)(request, timeout=30)
        elif method.cardinality is Cardinality.SERVER_STREAM:
            await channel.unary_stream(method.path)(request, timeout=30).read()
        else:
            call = channel.stream_stream(method.path)(timeout=30)
            await call.read()
            call.cancel()
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            return error.details()
        return {
            grpc.StatusCode.UNAUTHENTICATED: UNAUTHENTICATED,
            grpc.StatusCode.UNAVAILABLE: UNREACHABLE,
        }.get(error.code(), f"{error.code()}: {error.details()}")
    return OK


def client_channel(server, files, trusted):
    """A channel of grpc itself: files that our own transport would not even load are shown as they are."""
    key, cert = (None, None) if files is None else (files.key.read_bytes(), files.cert.read_bytes())
    return aio.secure_channel(server.address, grpc.ssl_channel_credentials(trusted.read_bytes(), key, cert))


async def outcomes(issued, service, files):
    handlers = Everything(methods_of(service))
    transport = GrpcTransport(security=issued.server[service])
    server = await transport.serve("127.0.0.1:0", [Service(methods_of(service), handlers)])
    try:
        async with client_channel(server, files, issued.server[service].ca) as channel:
            found = {method.name: await outcome(channel, method) for method in methods_of(service)}
    finally:
        await server.stop(grace=0)
    return found, handlers.served


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.__name__)
async def test_a_good_certificate_may_call_what_its_role_may(issued, service, role):
    found, served = await outcomes(issued, service, issued.clients["good", role])
    expected = expected_for(service, role)
    assert found == expected
    assert served == [(name, identity_of(role)) for name, result in expected.items() if result == OK]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("kind", ["wrong authority", "expired", "wrong cluster"])
@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.__name__)
async def test_any_other_certificate_may_call_nothing(issued, service, kind, role):
    found, served = await outcomes(issued, service, issued.clients[kind, role])
    refused = UNAUTHENTICATED if kind == "wrong cluster" else UNREACHABLE
    assert found == dict.fromkeys((method.name for method in methods_of(service)), refused)
    assert not served


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.__name__)
async def test_without_a_certificate_nothing_may_be_called(issued, service):
    found, served = await outcomes(issued, service, None)
    assert found == dict.fromkeys((method.name for method in methods_of(service)), UNREACHABLE)
    assert not served


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.__name__)
async def test_without_tls_nothing_may_be_called(issued, service):
    handlers = Everything(methods_of(service))
    transport = GrpcTransport(security=issued.server[service])
    server = await transport.serve("127.0.0.1:0", [Service(methods_of(service), handlers)])
    async with aio.insecure_channel(server.address) as channel:
        found = {await outcome(channel, method) for method in methods_of(service)}
    assert found == {UNREACHABLE}
    assert not handlers.served
    await server.stop(grace=0)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("kind", ["good", "wrong cluster"])
async def test_health_and_reflection_are_for_everyone_of_the_cluster(issued, kind, role):
    transport = GrpcTransport(security=issued.server[AgentControl])
    server = await transport.serve("127.0.0.1:0", [Service(methods_of(AgentControl), object())])
    async with client_channel(server, issued.clients[kind, role], issued.server[AgentControl].ca) as channel:
        found = {await outcome(channel, CHECK), await outcome(channel, WATCH)}
        reflect = channel.stream_stream(SERVER_REFLECTION_INFO.path)()
        try:
            await reflect.write(SERVER_REFLECTION_INFO.request(list_services="").SerializeToString())
            await reflect.read()
            found.add(OK)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            found.add({grpc.StatusCode.UNAUTHENTICATED: UNAUTHENTICATED}[await reflect.code()])
        reflect.cancel()
    assert found == {OK if kind == "good" else UNAUTHENTICATED}
    await server.stop(grace=0)


# ---------------------------------------------------------------------------------------------------------
# Conditions, and the same through our own client


@pytest.mark.parametrize(
    ("role", "method", "fields"),
    FOR_OTHERS,
    ids=lambda value: getattr(value, "name", ""),
)
async def test_nobody_speaks_for_another(issued, role, method, fields):
    methods = (*methods_of(AgentControl), *methods_of(Jobs))
    handlers = Everything(methods)
    server = await GrpcTransport(security=issued.server[AgentControl]).serve(
        "127.0.0.1:0", [Service(methods, handlers)]
    )
    channel = GrpcTransport(security=issued.clients["good", role]).connect(server.address)
    with pytest.raises(DeniedError, match=r"own (node|group|job) only|on node") as caught:
        await channel.call(method, method.request(**fields))
    assert caught.value.facts["role"] == role
    assert not handlers.served
    await channel.close()
    await server.stop(grace=0)


async def test_our_own_client_gets_typed_errors(issued):
    server = await GrpcTransport(security=issued.server[AgentControl]).serve(
        "127.0.0.1:0", [Service(methods_of(AgentControl), Everything(methods_of(AgentControl)))]
    )
    method = AgentControl.DELETE_WORKLOAD

    async def refusal(files):
        channel = GrpcTransport(security=files).connect(server.address)
        with pytest.raises(ShoalError) as caught:
            await channel.call(method, method.request())
        await channel.close()
        return caught.value

    denied = await refusal(issued.clients["good", AGENT])
    assert type(denied) is DeniedError
    assert "--role operator" in denied.hint
    assert type(await refusal(issued.clients["wrong cluster", OPERATOR])) is UnauthenticatedError
    unreachable = await refusal(issued.clients["wrong authority", OPERATOR])
    assert type(unreachable) is UnavailableError
    assert "certificates of one authority" in unreachable.hint
    await server.stop(grace=0)


async def test_bytes_that_are_no_message_do_not_go_around_the_roles(issued):
    server = await GrpcTransport(security=issued.server[AgentControl]).serve(
        "127.0.0.1:0", [Service(methods_of(AgentControl), Everything(methods_of(AgentControl)))]
    )
    files = issued.clients["good", AGENT]
    async with client_channel(server, files, files.ca) as channel:
        for method, code in [
            (AgentControl.DELETE_WORKLOAD, grpc.StatusCode.PERMISSION_DENIED),
            (AgentControl.HEARTBEAT, grpc.StatusCode.INVALID_ARGUMENT),
        ]:
            with pytest.raises(aio.AioRpcError) as caught:
                await channel.unary_unary(method.path)(b"\xff\xff\xff")
            assert caught.value.code() is code
    await server.stop(grace=0)

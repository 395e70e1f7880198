"""What foreign programs see of our gRPC servers, and we of theirs. Here grpc is used directly, as they would."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from grpc_reflection.v1alpha import reflection_pb2

from shoal.core.errors import (
    ConflictError,
    DeadlineError,
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    problem,
)
from shoal.testing.suites.parrot import CHAT, COUNT, GROW, SAY, WAIT, Parrot
from shoal.wire.grpcio import aio, grpc
from shoal.wire.methods import AgentControl, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import run_pb2 as run
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import MAX_MESSAGE_BYTES, Service

pytestmark = pytest.mark.integration


class Control:
    """A control plane that answers with errors alone."""

    async def get_workload(self, request, _call):
        raise NotFoundError("workload", request.workload_id)

    async def apply_workload(self, request, _call):
        raise InvalidError([problem("spec.type", request.spec.type, "must be something else")], hint="read on")


@pytest.fixture
async def server():
    services = [
        Service(methods_of(AgentControl), Control()),
        Service((SAY, GROW, COUNT, CHAT), Parrot()),
    ]
    server = await GrpcTransport().serve("127.0.0.1:0", services)
    yield server
    await server.stop(grace=0)


@pytest.fixture
async def foreign_client(server):
    async with aio.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield channel


async def _refused(call):
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_a_foreign_client_sees_code_and_sentence(foreign_client):
    get = foreign_client.unary_unary(
        AgentControl.GET_WORKLOAD.path,
        request_serializer=control.GetWorkloadRequest.SerializeToString,
        response_deserializer=control.GetWorkloadResponse.FromString,
    )
    error = await _refused(get(control.GetWorkloadRequest(workload_id="web")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "workload 'web' not found"


async def test_the_details_are_in_trailers_of_our_own(foreign_client):
    apply = foreign_client.unary_unary(AgentControl.APPLY_WORKLOAD.path)
    request = control.ApplyWorkloadRequest(spec=control.WorkloadSpec(type="wat"))
    error = await _refused(apply(request.SerializeToString()))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    trailers = dict(error.trailing_metadata())
    assert run.ErrorDetail.FromString(trailers["x-shoal-error-bin"]) == run.ErrorDetail(
        type="InvalidError", hint="read on"
    )
    (found,) = run.InvalidRequest.FromString(trailers["x-shoal-invalid-bin"]).problems
    assert (found.field, found.value, found.rule) == ("spec.type", "'wat'", "must be something else")


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe", b"\x80" * 1000, bytes(range(256))])
async def test_bytes_that_are_no_message_end_one_call_and_no_other(foreign_client, data):
    say = foreign_client.unary_unary(SAY.path)
    count = foreign_client.unary_stream(COUNT.path)
    chat = foreign_client.stream_stream(CHAT.path)

    async def send():
        yield data

    for _ in range(3):
        error = await _refused(say(data))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "StringValue" in error.details()
        assert (await _refused(count(data).read())).code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await _refused(chat(send()).read())).code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await say(b"\x0a\x02hi") == b"\x0a\x02hi"


async def test_a_message_larger_than_the_limit_ends_one_call_and_no_other(foreign_client):
    grow = foreign_client.unary_unary(GROW.path)
    error = await _refused(grow(BytesValue(value=bytes(MAX_MESSAGE_BYTES + 1)).SerializeToString()))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await grow(BytesValue(value=b"1").SerializeToString()) == BytesValue(value=b"\0").SerializeToString()


async def test_reflection_lists_every_service_and_describes_it(foreign_client):
    reflect = foreign_client.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )

    async def ask(**question):
        call = reflect()
        await call.write(reflection_pb2.ServerReflectionRequest(**question))
        await call.done_writing()
        return await call.read()

    listed = {each.name for each in (await ask(list_services="")).list_services_response.service}
    assert listed == {
        "persys.control.v1.AgentControl",
        "shoal.testing.Parrot",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    for name in ("persys.control.v1.AgentControl", "grpc.health.v1.Health"):
        answer = await ask(file_containing_symbol=name)
        assert answer.file_descriptor_response.file_descriptor_proto


async def test_a_connection_that_breaks_cancels_what_it_carried():
    parrot = Parrot()
    server = await GrpcTransport().serve("127.0.0.1:0", [Service((WAIT,), parrot)])
    host, port = server.address.split(":")
    wires = []

    async def carry(reader, writer):
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        wires.extend((writer, there_writer))

        async def pump(source, target):
            while data := await source.read(4096):
                target.write(data)

        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer), return_exceptions=True)

    proxy = await asyncio.start_server(carry, "127.0.0.1", 0)
    channel = GrpcTransport().connect(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}")

    async def cut():
        async with asyncio.timeout(30):
            while not parrot.waiting:
                await asyncio.sleep(0.01)
        for wire in wires:
            wire.transport.abort()

    async with asyncio.TaskGroup() as group:
        group.create_task(cut())
        with pytest.raises(UnavailableError):
            await channel.call(WAIT, StringValue(), timeout=30)
    async with asyncio.timeout(30):
        await parrot.cancelled.wait()
    await channel.close()
    proxy.close()
    await server.stop(grace=0)


async def test_pings_of_an_idle_client_are_welcome(server):
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with aio.insecure_channel(server.address, options=options) as channel:
        say = channel.unary_unary(SAY.path)
        await say(b"")
        state = channel.get_state()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.wait_for_state_change(state), 3.5)
        assert channel.get_state() is grpc.ChannelConnectivity.READY


# ---------------------------------------------------------------------------------------------------------
# Foreign servers


class ForeignHandlers(grpc.GenericRpcHandler):
    """Answers every call with one status, without details, or with bytes that are no message."""

    def __init__(self, code, details):
        self.code, self.details = code, details

    def service(self, details):
        if details.method == COUNT.path:
            return grpc.unary_stream_rpc_method_handler(self._stream)
        if details.method == CHAT.path:
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.unary_unary_rpc_method_handler(self._unary)

    async def _unary(self, _request, context):
        if self.code is not None:
            await context.abort(self.code, self.details)
        return b"\xff\xff"

    async def _stream(self, _request, context):
        yield b"\x0a\x011"
        yield await self._unary(_request, context)


async def _foreign(code, details):
    server = aio.server()
    server.add_generic_rpc_handlers((ForeignHandlers(code, details),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (grpc.StatusCode.NOT_FOUND, "no such workload", NotFoundError),
        (grpc.StatusCode.UNKNOWN, "status not found", NotFoundError),
        (grpc.StatusCode.UNKNOWN, "boom", InternalError),
        (grpc.StatusCode.ALREADY_EXISTS, "twice", ConflictError),
        (grpc.StatusCode.UNIMPLEMENTED, "no", UnsupportedError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "full", ExhaustedError),
        (grpc.StatusCode.UNAVAILABLE, "starting", UnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "slow", DeadlineError),
        (None, "", InternalError),
    ],
)
async def test_a_foreign_status_is_read_by_its_code(code, details, expected):
    server, address = await _foreign(code, details)
    channel = GrpcTransport().connect(address)
    with pytest.raises(expected):
        await channel.call(SAY, StringValue())
    stream = channel.stream(COUNT, StringValue())
    assert (await anext(stream)).value == "1"
    with pytest.raises(expected):
        await anext(stream)
    await channel.close()
    await server.stop(None)


async def test_what_grpc_says_of_its_own_failed_write_is_never_the_answer(monkeypatch):
    # The words and the code that gRPC gives a call when a write fails. Here they come from afar, without the status
    # that would follow.
    monkeypatch.setattr("shoal.wire.sockets.channel._STATUS_LAG", 0.05)
    server, address = await _foreign(grpc.StatusCode.INTERNAL, "Internal error from Core")

    async def words():
        yield StringValue(value="a")

    channel = GrpcTransport().connect(address)
    answers = channel.converse(CHAT, words())
    assert (await anext(answers)).value == "1"
    with pytest.raises(UnavailableError, match=r"while a request was being sent") as caught:
        await anext(answers)
    assert address in caught.value.message
    await channel.close()
    await server.stop(None)


async def test_a_peer_that_accepts_and_says_nothing_is_a_matter_of_the_deadline():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        channel = GrpcTransport().connect(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises((DeadlineError, UnavailableError)):
            await channel.call(SAY, StringValue(), timeout=0.5)
        await channel.close()


async def test_a_peer_that_speaks_something_else_is_unavailable():
    async def greet(_reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    channel = GrpcTransport().connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(UnavailableError):
        await channel.call(SAY, StringValue(), timeout=10)
    await channel.close()
    server.close()
    await server.wait_closed()


async def test_a_name_that_nobody_has_is_unavailable():
    channel = GrpcTransport().connect("nobody.invalid:50051")
    with pytest.raises(UnavailableError, match=r"nobody\.invalid:50051"):
        await channel.call(SAY, StringValue(), timeout=20)
    await channel.close()


async def test_an_address_that_is_not_ours_cannot_be_listened_on():
    with pytest.raises(UnavailableError, match=r"192\.0\.2\.1:50051"):
        await GrpcTransport().serve("192.0.2.1:50051", [])


async def test_a_port_that_another_program_has_is_named(server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=f"{address}: address already in use"):
            await GrpcTransport().serve(address, [])


_NOISY = """
import asyncio, os, subprocess
before = dict(os.environ)
from google.protobuf.wrappers_pb2 import StringValue
from shoal.core.errors import UnavailableError
from shoal.testing.suites.parrot import SAY, Parrot
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.transport import Service

async def main():
    transport = GrpcTransport()
    server = await transport.serve("127.0.0.1:0", [Service((SAY,), Parrot())])
    channel = transport.connect(server.address)
    await channel.call(SAY, StringValue())
    try:
        await transport.serve(server.address, [])
    except UnavailableError:
        print("taken")
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    subprocess.run(["true"], check=True)
    await channel.call(SAY, StringValue())
    await server.stop(0)
    try:
        await channel.call(SAY, StringValue())
    except UnavailableError:
        print("gone")

asyncio.run(main())
print(dict(os.environ) == before)
"""


def test_nothing_is_printed_and_nothing_is_left_in_the_environment():
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", _NOISY],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "taken\ngone\nTrue\n"

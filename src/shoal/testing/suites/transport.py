"""What every transport behind `shoal.wire.transport` promises.

A test module makes a subclass per transport and overrides the fixture `transport`:

    class TestGrpc(TransportSuite):
        __test__ = True

        @pytest.fixture
        def transport(self) -> Transport:
            return GrpcTransport()

Waiting is done with the event loop's time, so the suite runs in real and in virtual time alike.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from grpc_health.v1 import health_pb2

from shoal.core.errors import (
    DeadlineError,
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
    problem,
)
from shoal.testing.suites.parrot import (
    ASK,
    CHAT,
    COUNT,
    FAIL,
    FLOOD,
    GROW,
    LARGE,
    MANGLED,
    NAME,
    SAY,
    SERVED,
    UNHEARD_OF,
    UNSERVED,
    WAIT,
    Parrot,
    Tally,
    raisable_errors,
)
from shoal.wire.health import CHECK, WATCH
from shoal.wire.serving import RpcObserver, close_stream
from shoal.wire.transport import MAX_MESSAGE_BYTES, Call, Cardinality, Channel, Method, Server, Service, Transport

_PATIENCE = 30.0


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for is another task's plain attribute
            await asyncio.sleep(0.01)


def _words(*words: str) -> AsyncIterator[StringValue]:
    async def say() -> AsyncIterator[StringValue]:
        for word in words:
            yield StringValue(value=word)

    return say()


async def _overdue(channel: Channel, parrot: Parrot) -> DeadlineError:
    """The error of a call whose deadline passes while the server serves it."""
    # On a busy machine a short deadline passes before the server has received the call. Then there is nothing to end.
    for timeout in (0.3, 3.0, _PATIENCE):
        with pytest.raises(DeadlineError) as caught:
            await channel.call(WAIT, StringValue(), timeout=timeout)
        if parrot.waiting:
            return caught.value
    raise AssertionError(f"the server has not begun a call within {_PATIENCE:g} s")


async def _words_without_end(*words: str) -> AsyncIterator[StringValue]:
    """These words, and then more until somebody stops listening."""
    for word in words:
        yield StringValue(value=word)
    while True:
        yield StringValue(value="more" * 200)
        await asyncio.sleep(0)


class TransportSuite:
    """Conformance of a transport."""

    __test__ = False

    @pytest.fixture
    def tally(self) -> Tally:
        """What `make_transport` is given to report to."""
        return Tally()

    @pytest.fixture
    def transport(self, tally: RpcObserver) -> Transport:
        """A transport that reports to `tally`."""
        raise NotImplementedError

    @pytest.fixture
    def parrot(self) -> Parrot:
        """What is served."""
        return Parrot()

    @pytest.fixture
    async def server(self, transport: Transport, parrot: Parrot) -> AsyncIterator[Server]:
        """A server on a free port."""
        server = await transport.serve("127.0.0.1:0", [Service(SERVED, parrot)])
        yield server
        await server.stop(grace=0)

    @pytest.fixture
    async def channel(self, transport: Transport, server: Server) -> AsyncIterator[Channel]:
        """A channel to that server."""
        channel = transport.connect(server.address)
        yield channel
        await channel.close()

    # -----------------------------------------------------------------------------------------------------
    # Unary calls

    async def test_a_call_is_answered(self, channel: Channel, server: Server) -> None:
        assert not server.address.endswith(":0")
        assert channel.address == server.address
        for text in ("", "hello", "schön", "x" * 100_000):
            assert (await channel.call(SAY, StringValue(value=text))).value == text

    async def test_many_calls_share_a_channel(self, channel: Channel) -> None:
        answers = await asyncio.gather(*(channel.call(SAY, StringValue(value=str(n))) for n in range(50)))
        assert [answer.value for answer in answers] == [str(n) for n in range(50)]

    @pytest.mark.parametrize("name", sorted(raisable_errors()))
    async def test_an_error_arrives_as_itself(self, channel: Channel, name: str) -> None:
        expected = raisable_errors()[name]
        with pytest.raises(ShoalError) as caught:
            await channel.call(FAIL, StringValue(value=name))
        error = caught.value
        assert type(error) is type(expected)
        assert (error.message, error.hint, error.facts) == (expected.message, expected.hint, expected.facts)
        assert str(error) == str(expected)
        assert getattr(error, "problems", None) == getattr(expected, "problems", None)

    async def test_a_bug_is_told_without_its_secrets_and_logged_once(
        self, channel: Channel, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(InternalError) as caught:
            await channel.call(FAIL, StringValue(value="a bug"))
        assert "1234" not in f"{caught.value.message} {caught.value.hint} {caught.value.facts}"
        records = [record for record in caplog.records if record.exc_info]
        assert len(records) == 1
        assert isinstance((records[0].exc_info or (None, None))[1], ZeroDivisionError)
        assert (await channel.call(SAY, StringValue(value="still here"))).value == "still here"

    async def test_a_call_knows_its_surroundings(self, channel: Channel) -> None:
        async def ask(what: str, **headers: str) -> str:
            answer = await channel.call(ASK, StringValue(value=what), timeout=20, metadata=headers)
            return answer.value

        assert await ask("method") == ASK.path
        assert await ask("peer")
        assert 10 < float(await ask("time left")) < 21
        assert await ask("x-shoal-node", **{"X-Shoal-Node": "n1"}) == "n1"
        assert await ask("x-other") == ""

    async def test_headers_that_cannot_travel_are_refused(self, channel: Channel) -> None:
        for name, value in (("bad name", "v"), ("", "v"), ("x-a", "line\nbreak"), ("x-a", "schön"), ("grpc-x", "v")):
            with pytest.raises(InvalidError):
                await channel.call(SAY, StringValue(), metadata={name: value})

    async def test_a_deadline_ends_the_call_on_both_sides(self, channel: Channel, parrot: Parrot) -> None:
        assert channel.address in (await _overdue(channel, parrot)).message
        await _until(parrot.cancelled.is_set)
        assert (await channel.call(SAY, StringValue(value="on"))).value == "on"

    async def test_cancelling_the_caller_cancels_the_handler(self, channel: Channel, parrot: Parrot) -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(channel.call(WAIT, StringValue(), timeout=_PATIENCE))
            await _until(lambda: parrot.waiting == 1)
            task.cancel()
        assert task.cancelled()
        await _until(parrot.cancelled.is_set)

    async def test_a_message_that_cannot_be_parsed_harms_nobody_else(self, channel: Channel) -> None:
        for data in (b"\xff\xff\xff", b"\x80" * 100):
            with pytest.raises(InvalidError, match=r"StringValue"):
                await channel.call(MANGLED, BytesValue(value=data))
            assert (await channel.call(SAY, StringValue(value="well"))).value == "well"

    async def test_an_oversized_request_is_refused_and_the_channel_goes_on(self, channel: Channel) -> None:
        with pytest.raises(ExhaustedError):
            await channel.call(GROW, BytesValue(value=bytes(MAX_MESSAGE_BYTES + 1)))
        assert (await channel.call(GROW, BytesValue(value=b"3"))).value == bytes(3)

    async def test_an_oversized_answer_is_refused_and_the_channel_goes_on(self, channel: Channel) -> None:
        with pytest.raises(ExhaustedError):
            await channel.call(GROW, BytesValue(value=str(MAX_MESSAGE_BYTES + 1).encode()))
        large = await channel.call(GROW, BytesValue(value=str(MAX_MESSAGE_BYTES - 100).encode()))
        assert len(large.value) == MAX_MESSAGE_BYTES - 100

    async def test_what_nobody_serves_is_unsupported(self, channel: Channel) -> None:
        for method in (UNSERVED, UNHEARD_OF):
            with pytest.raises(UnsupportedError):
                await channel.call(method, StringValue())

    async def test_an_error_with_too_much_to_say_still_arrives(self, transport: Transport) -> None:
        class Verbose:
            async def say(self, _request: StringValue, _call: Call) -> StringValue:
                raise InvalidError(problem(f"spec.env.ÄÖÜ-{n}" * 5, "✂" * 60, "must be short") for n in range(2000))

        async with _served(transport, Verbose()) as channel:
            with pytest.raises(InvalidError) as caught:
                await channel.call(SAY, StringValue())
        assert caught.value.problems[0].rule == "must be short"
        assert "more problems" in caught.value.problems[-1].rule
        assert caught.value.message.startswith("spec.env.ÄÖÜ-0")

    async def test_a_handler_that_is_cancelled_from_inside_still_answers(
        self, transport: Transport, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Confused:
            async def say(self, _request: StringValue, _call: Call) -> StringValue:
                inner = asyncio.get_running_loop().create_future()
                inner.cancel()
                await inner
                return StringValue()

        async with _served(transport, Confused()) as channel:
            with pytest.raises(InternalError):
                await channel.call(SAY, StringValue(), timeout=_PATIENCE)
        assert any(record.exc_info for record in caplog.records)

    async def test_the_observer_hears_of_every_call(self, channel: Channel, tally: Tally, parrot: Parrot) -> None:
        await channel.call(SAY, StringValue())
        with pytest.raises(NotFoundError):
            await channel.call(FAIL, StringValue(value="NotFoundError"))
        await _overdue(channel, parrot)
        assert [each.value async for each in channel.stream(COUNT, StringValue(value="2"))] == ["1", "2"]
        expected = [(SAY.path, "OK"), (FAIL.path, "NOT_FOUND"), (COUNT.path, "OK")]
        overdue = (WAIT.path, "CANCELLED")
        await _until(lambda: sorted(tally.seen) == sorted([*expected, *[overdue] * parrot.waiting]))

    # -----------------------------------------------------------------------------------------------------
    # Streams

    async def test_a_stream_comes_in_order_and_ends(self, channel: Channel) -> None:
        got = [each.value async for each in channel.stream(COUNT, StringValue(value="200"))]
        assert got == [str(n) for n in range(1, 201)]
        assert [each async for each in channel.stream(COUNT, StringValue(value="0"))] == []

    async def test_an_error_comes_after_what_was_streamed(self, channel: Channel) -> None:
        got = []
        with pytest.raises(NotFoundError, match="not found"):
            async for each in channel.stream(COUNT, StringValue(value="3 fail")):
                got.append(each.value)  # noqa: PERF401 - what came before the error counts
        assert got == ["1", "2", "3"]

    async def test_closing_a_stream_early_ends_it_on_both_sides(self, channel: Channel, parrot: Parrot) -> None:
        stream = channel.stream(COUNT, StringValue())
        async for each in stream:
            if each.value == "5":
                break
        await close_stream(stream)
        await _until(parrot.cancelled.is_set)
        sent = parrot.sent
        assert (await channel.call(SAY, StringValue(value="on"))).value == "on"
        assert parrot.sent == sent

    async def test_a_slow_reader_slows_the_writer_down(self, channel: Channel, parrot: Parrot) -> None:
        stream = channel.stream(FLOOD, StringValue())
        assert len((await anext(stream)).value) == LARGE
        before = 0
        async with asyncio.timeout(_PATIENCE):
            while parrot.sent > before:
                before = parrot.sent
                await asyncio.sleep(0.3)
        assert parrot.sent * LARGE < 4 * MAX_MESSAGE_BYTES
        await close_stream(stream)
        assert (await channel.call(SAY, StringValue(value="on"))).value == "on"

    async def test_a_stream_can_have_a_deadline(self, channel: Channel) -> None:
        with pytest.raises(DeadlineError):
            async for _ in channel.stream(WATCH, health_pb2.HealthCheckRequest(), timeout=0.3):
                pass

    async def test_both_sides_stream(self, channel: Channel, parrot: Parrot) -> None:
        got = [each.value async for each in channel.converse(CHAT, _words("a", "b", "c"))]
        assert got == ["a a", "b b", "c c"]
        assert parrot.heard == ["a", "b", "c"]

    async def test_an_answer_comes_before_the_next_request(self, channel: Channel) -> None:
        turn: asyncio.Queue[str] = asyncio.Queue()

        async def requests() -> AsyncIterator[StringValue]:
            while (word := await turn.get()) != "":
                yield StringValue(value=word)

        answers = channel.converse(CHAT, requests())
        for word in ("one", "two", "three"):
            turn.put_nowait(word)
            assert (await anext(answers)).value == f"{word} {word}"
        turn.put_nowait("")
        assert [each async for each in answers] == []

    async def test_the_server_can_end_a_conversation(self, channel: Channel) -> None:
        async def endless() -> AsyncIterator[StringValue]:
            yield StringValue(value="a")
            yield StringValue(value="stop")
            await asyncio.Event().wait()

        got = [each.value async for each in channel.converse(CHAT, endless())]
        assert got == ["a a"]

    async def test_an_error_ends_a_conversation(self, channel: Channel) -> None:
        got = []
        with pytest.raises(NotFoundError):
            async for each in channel.converse(CHAT, _words("a", "fail", "b")):
                got.append(each.value)  # noqa: PERF401 - what came before the error counts
        assert got == ["a a"]

    @pytest.mark.parametrize("last", ["fail", "stop"])
    async def test_the_end_that_the_server_gave_counts_while_requests_go_on(self, channel: Channel, last: str) -> None:
        # Which comes first at the caller, the status or a request that finds the call over, changes from one
        # conversation to the next: a hundred have both.
        for _ in range(100):
            got = []
            ended = "stop"
            try:
                async for each in channel.converse(CHAT, _words_without_end("a", last)):
                    got.append(each.value)  # noqa: PERF401 - what came before the error counts
            except NotFoundError:
                ended = "fail"
            assert (got, ended) == (["a a"], last)

    async def test_an_error_in_the_requests_reaches_the_reader(self, channel: Channel, parrot: Parrot) -> None:
        async def broken() -> AsyncIterator[StringValue]:
            yield StringValue(value="a")
            await _until(lambda: parrot.heard == ["a"])
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            async for _ in channel.converse(CHAT, broken()):
                pass
        await _until(parrot.cancelled.is_set)

    async def test_leaving_a_conversation_ends_it_on_both_sides(self, channel: Channel, parrot: Parrot) -> None:
        async def endless() -> AsyncIterator[StringValue]:
            yield StringValue(value="a")
            await asyncio.Event().wait()

        answers = channel.converse(CHAT, endless())
        assert (await anext(answers)).value == "a a"
        await close_stream(answers)
        await _until(parrot.cancelled.is_set)

    async def test_a_stream_nobody_serves_is_unsupported(self, channel: Channel) -> None:
        for cardinality in (Cardinality.SERVER_STREAM, Cardinality.BOTH_STREAM):
            method = Method(NAME, "Nothing", StringValue, StringValue, cardinality)
            with pytest.raises(UnsupportedError):
                if cardinality is Cardinality.SERVER_STREAM:
                    await anext(channel.stream(method, StringValue()))
                else:
                    await anext(channel.converse(method, _words("a")))

    # -----------------------------------------------------------------------------------------------------
    # Servers and channels come and go

    async def test_nobody_there_is_unavailable(self, transport: Transport, server: Server) -> None:
        address = server.address
        await server.stop(grace=0)
        channel = transport.connect(address)
        with pytest.raises(UnavailableError) as caught:
            await channel.call(SAY, StringValue())
        assert address in caught.value.message
        with pytest.raises(UnavailableError):
            await anext(channel.stream(COUNT, StringValue()))
        with pytest.raises(UnavailableError):
            await anext(channel.converse(CHAT, _words("a")))
        await channel.close()

    async def test_a_stopped_server_is_unavailable_and_its_successor_is_found(
        self, transport: Transport, server: Server, channel: Channel
    ) -> None:
        assert (await channel.call(SAY, StringValue(value="first"))).value == "first"
        await server.stop(grace=0)
        with pytest.raises(UnavailableError):
            await channel.call(SAY, StringValue())
        successor = await transport.serve(server.address, [Service(SERVED, Parrot())])
        assert successor.address == server.address

        answer = ""
        async with asyncio.timeout(_PATIENCE):
            while not answer:
                with contextlib.suppress(UnavailableError):
                    answer = (await channel.call(SAY, StringValue(value="second"))).value
                await asyncio.sleep(0.05)
        assert answer == "second"
        await successor.stop(grace=0)

    async def test_stopping_waits_for_calls_under_way(self, transport: Transport) -> None:
        begun = asyncio.Event()

        class Slow:
            async def say(self, request: StringValue, _call: Call) -> StringValue:
                begun.set()
                await asyncio.sleep(0.3)
                return request

        server = await transport.serve("127.0.0.1:0", [Service((SAY,), Slow())])
        channel = transport.connect(server.address)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(channel.call(SAY, StringValue(value="done"), timeout=_PATIENCE))
            await begun.wait()
            await server.stop(grace=_PATIENCE)
        assert call.result().value == "done"
        await channel.close()

    async def test_stopping_ends_what_does_not_end(self, server: Server, channel: Channel, parrot: Parrot) -> None:
        async def wait() -> str:
            try:
                await channel.call(WAIT, StringValue(), timeout=_PATIENCE)
            except UnavailableError:
                return "unavailable"
            return "answered"

        async with asyncio.TaskGroup() as group:
            call = group.create_task(wait())
            await _until(lambda: parrot.waiting == 1)
            await server.stop(grace=0.1)
            await server.stop(grace=0.1)
        assert call.result() == "unavailable"
        await _until(parrot.cancelled.is_set)

    async def test_a_server_that_goes_away_amid_requests_is_unavailable(self, transport: Transport) -> None:
        for most in range(1, 11):
            server = await transport.serve("127.0.0.1:0", [Service(SERVED, Parrot())])
            channel = transport.connect(server.address)
            heard = 0
            async with asyncio.timeout(_PATIENCE), asyncio.TaskGroup() as group:
                with pytest.raises(UnavailableError):
                    async for _ in channel.converse(CHAT, _words_without_end()):
                        heard += 1
                        if heard == most:
                            group.create_task(server.stop(grace=0))
            await channel.close()

    async def test_closing_a_channel_ends_its_calls(self, channel: Channel, parrot: Parrot) -> None:
        async def wait() -> str:
            try:
                await channel.call(WAIT, StringValue(), timeout=_PATIENCE)
            except UnavailableError:
                return "unavailable"
            return "answered"

        async def watch() -> str:
            try:
                async for _ in channel.stream(WATCH, health_pb2.HealthCheckRequest()):
                    pass
            except UnavailableError:
                return "unavailable"
            return "ended"

        async with asyncio.TaskGroup() as group:
            call, stream = group.create_task(wait()), group.create_task(watch())
            await _until(lambda: parrot.waiting == 1)
            await channel.close()
        assert (call.result(), stream.result()) == ("unavailable", "unavailable")
        with pytest.raises(UnavailableError):
            await channel.call(SAY, StringValue())
        await channel.close()

    async def test_a_taken_port_is_named(self, transport: Transport, server: Server) -> None:
        with pytest.raises(UnavailableError, match=server.address):
            await transport.serve(server.address, [Service(SERVED, Parrot())])

    async def test_every_address_can_be_listened_on(self, transport: Transport) -> None:
        for host in ("", "0.0.0.0", "localhost", "[::1]", "[::]"):  # noqa: S104 - what is tested
            server = await transport.serve(f"{host}:0", [Service(SERVED, Parrot())])
            channel = transport.connect(server.address)
            assert (await channel.call(SAY, StringValue(value=host))).value == host
            await channel.close()
            await server.stop(grace=0)

    async def test_what_is_no_address_is_refused(self, transport: Transport) -> None:
        for address in ("", "host", "host:", "host:x", "host:65536", "host:0", ":50051", "::1:80", "a b:1", "[x]:1"):
            with pytest.raises(InvalidError, match="host:port"):
                transport.connect(address)

    # -----------------------------------------------------------------------------------------------------
    # Health

    async def test_health_is_served(self, server: Server, channel: Channel) -> None:
        response = health_pb2.HealthCheckResponse
        for name in ("", NAME, "grpc.health.v1.Health"):
            request = health_pb2.HealthCheckRequest(service=name)
            server.set_serving(True)
            assert (await channel.call(CHECK, request)).status == response.SERVING
            server.set_serving(False)
            assert (await channel.call(CHECK, request)).status == response.NOT_SERVING
        with pytest.raises(NotFoundError):
            await channel.call(CHECK, health_pb2.HealthCheckRequest(service="what"))

    async def test_health_can_be_watched(self, server: Server, channel: Channel) -> None:
        response = health_pb2.HealthCheckResponse
        watching = channel.stream(WATCH, health_pb2.HealthCheckRequest(service=NAME))
        assert (await anext(watching)).status == response.SERVING
        server.set_serving(True)
        server.set_serving(False)
        assert (await anext(watching)).status == response.NOT_SERVING
        await close_stream(watching)


@contextlib.asynccontextmanager
async def _served(transport: Transport, handlers: Any) -> AsyncIterator[Channel]:
    server = await transport.serve("127.0.0.1:0", [Service((SAY,), handlers)])
    channel = transport.connect(server.address)
    try:
        yield channel
    finally:
        await channel.close()
        await server.stop(grace=0)

"""Each member of ControlMessage × each role, both ways through a stream, over real gRPC.

What a message may do follows from the table of the unary calls, `tests.integration.wire.roles`: a member stands for one
of them, or is good for nobody. A member that is in no list fails these tests, and so does a method of an agent that its
control plane may not call. A stream is good for no longer than the certificates at its two ends.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from shoal.agent.contact.control_client import ControlClient
from shoal.agent.contact.link import ControlLink
from shoal.agent.contact.stream import ControlStream
from shoal.control.agents.streams import Streams
from shoal.control.state.fleet import Fleet
from shoal.core.clock import SystemClock
from shoal.core.errors import DeniedError, UnauthenticatedError, UnavailableError
from shoal.core.tasks import TaskScope
from shoal.model.identity import CONTROL_PLANE, Role
from shoal.model.nodes import Feature
from shoal.testing.certificates import Certificates
from shoal.testing.suites.store_records import node
from shoal.wire import methods as table
from shoal.wire import serving
from shoal.wire.calls import status_from_proto
from shoal.wire.methods import AgentControl, AgentService, methods_of
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.status import Code
from shoal.wire.transport import Cardinality, Method, Service
from shoal.wire.trust import security
from shoal.wire.trust.authorization import RULES
from tests.integration.wire.roles import (
    AGENT,
    ALLOWED,
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

#: What may come in, and the unary call that it stands for.
STANDS_FOR = {
    "register": AgentControl.REGISTER_NODE,
    "heartbeat": AgentControl.HEARTBEAT,
    "apply": AgentControl.APPLY_WORKLOAD,
    "delete": AgentControl.DELETE_WORKLOAD,
}
#: What the control plane says. From anybody else it is refused.
ONLY_TOLD = {"register_reply", "heartbeat_reply", "apply_reply", "delete_reply", "call"}
#: Answers to calls of the control plane. To a call that it has not made they say nothing, and nothing is answered.
ANSWERS = {"call_reply", "error"}

IGNORED = "ignored"
INVALID = "invalid"
UNSUPPORTED = "unsupported"

METHODS = [
    method
    for value in vars(table).values()
    if isinstance(value, type)
    for method in methods_of(value)
    if isinstance(method, Method)
]
#: Each name that a call could have: those of every service, alone and in full, and some that are nothing.
NAMES = [*sorted({method.name for method in METHODS} | {method.path for method in METHODS}), "", "Nothing", "__init__"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A good certificate for each role."""
    ours = Certificates(tmp_path_factory.mktemp("certificates"), cluster="blue")
    return {role: ours.issue(identity_of(role)) for role in Role}


class Plane(Everything):
    """The control plane's real streams, with handlers that only remember."""

    def __init__(self) -> None:
        super().__init__([method for method in methods_of(AgentControl) if method is not AgentControl.CONTROL_STREAM])
        self._scope = TaskScope("streams")
        self.fleet = Fleet()
        self.streams = Streams(self.fleet, scope=self._scope)
        #: Nodes whose streams broke: the control plane makes them Suspect.
        self.lost: asyncio.Queue[str] = asyncio.Queue()

    def control_stream(self, requests, call):
        return self.streams.serve(requests, call, self)

    async def stream_broke(self, node_id) -> None:
        self.lost.put_nowait(node_id)

    async def close(self) -> None:
        self.streams.close()
        await self._scope.close()


@asynccontextmanager
async def planes(files, role, clock=None):
    """A control plane and a channel of a caller of this role."""
    plane = Plane()
    transport = GrpcTransport(security=files[CONTROL], clock=clock)
    server = await transport.serve("127.0.0.1:0", [Service(methods_of(AgentControl), plane)])
    channel = GrpcTransport(security=files[role]).connect(server.address)
    try:
        yield plane, channel
    finally:
        await channel.close()
        await plane.close()
        await server.stop(grace=0)


async def outcome(channel, message):
    """What one message through a stream of its own comes to."""
    message.message_id = 1

    async def sent():
        yield message
        yield pb.ControlMessage(message_id=2)  # refused, and answered in its turn: nothing comes for the first by then

    try:
        async with asyncio.timeout(60):
            replies = [reply async for reply in channel.converse(AgentControl.CONTROL_STREAM, sent())]
    except DeniedError as error:
        return error.message
    assert replies[-1].in_reply_to == 2
    if len(replies) == 1:
        return IGNORED
    [reply] = replies[:-1]
    assert reply.in_reply_to == 1
    if reply.WhichOneof("message") != "error":
        assert reply.WhichOneof("message") == f"{message.WhichOneof('message')}_reply"
        return OK
    status = status_from_proto(reply.error)
    return {Code.PERMISSION_DENIED: status.message, Code.INVALID_ARGUMENT: INVALID}.get(status.code, str(status))


def members():
    return {each.name: each for each in pb.ControlMessage.DESCRIPTOR.oneofs_by_name["message"].fields}


def filled(kind, fields=None):
    """A message of a kind, with what a caller that is allowed to would send."""
    message = pb.ControlMessage()
    part = getattr(message, kind)
    part.SetInParent()
    if kind in STANDS_FOR:
        wanted = FIELDS.get(STANDS_FOR[kind].name, {}) if fields is None else fields
        part.MergeFrom(STANDS_FOR[kind].request(**wanted))
    if kind in ANSWERS:
        message.in_reply_to = 1
    return message


def expected_of(kind, role):
    unary = expected_for(AgentControl, role)
    if unary["ControlStream"] != OK:
        return unary["ControlStream"]
    if kind in ANSWERS:
        return IGNORED
    return INVALID if kind in ONLY_TOLD else unary[STANDS_FOR[kind].name]


def test_every_member_is_in_the_table():
    assert set(members()) == {*STANDS_FOR, *ONLY_TOLD, *ANSWERS}
    assert len(members()) == len(STANDS_FOR) + len(ONLY_TOLD) + len(ANSWERS)


@pytest.mark.parametrize("kind", STANDS_FOR)
def test_a_member_is_the_request_of_the_call_that_it_stands_for(kind):
    assert members()[kind].message_type is STANDS_FOR[kind].request.DESCRIPTOR
    assert members()[f"{kind}_reply"].message_type is STANDS_FOR[kind].response.DESCRIPTOR


@pytest.mark.parametrize("role", Role)
async def test_a_message_may_do_what_the_call_may_that_it_stands_for(files, role):
    async with planes(files, role) as (plane, channel):
        found = {kind: await outcome(channel, filled(kind)) for kind in members()}
    expected = {kind: expected_of(kind, role) for kind in members()}
    assert found == expected
    served = [STANDS_FOR[kind].name for kind, result in expected.items() if result == OK]
    assert plane.served == [(name, identity_of(role)) for name in served]


@pytest.mark.parametrize("role", Role)
async def test_nobody_calls_the_control_plane_by_the_name_of_a_method(files, role):
    async with planes(files, role) as (plane, channel):
        found = {}
        for name in NAMES:
            found[name] = await outcome(channel, pb.ControlMessage(call=pb.CallRequest(method=name)))
    assert found == dict.fromkeys(NAMES, expected_of("call", role))
    assert not plane.served


IN_STREAMS = [
    (role, kind, fields)
    for role, method, fields in FOR_OTHERS
    for kind, stands_for in STANDS_FOR.items()
    if stands_for is method
]


@pytest.mark.parametrize(("role", "kind", "fields"), IN_STREAMS)
async def test_nobody_speaks_for_another_in_a_stream(files, role, kind, fields):
    async with planes(files, role) as (plane, channel):
        through_stream = await outcome(channel, filled(kind, fields))
        with pytest.raises(DeniedError) as caught:
            await channel.call(STANDS_FOR[kind], STANDS_FOR[kind].request(**fields))
    assert "own node only" in through_stream
    assert through_stream == caught.value.message
    assert not plane.served


def test_each_condition_on_a_call_that_a_message_stands_for_is_among_those():
    conditions = {(role, kind) for kind, each in STANDS_FOR.items() for role in RULES[each.path].conditions}
    assert {(role, kind) for role, kind, _fields in IN_STREAMS} == conditions


# ---------------------------------------------------------------------------------------------------------
# The other way: calls that come down the stream which an agent has opened


class Caller:
    """Serves ControlStream, and calls the agent that opens it by each name there is."""

    def __init__(self) -> None:
        self.found = {}
        self.done = asyncio.Event()

    async def control_stream(self, requests, _call):
        await anext(requests)
        for number, name in enumerate(NAMES, start=1):
            yield pb.ControlMessage(message_id=number, call=pb.CallRequest(method=name, credit=8))
            async for message in requests:
                if message.in_reply_to == number and not message.call_reply.more:
                    status = status_from_proto(message.call_reply.status)
                    self.found[name] = {Code.OK: OK, Code.UNIMPLEMENTED: UNSUPPORTED}.get(status.code, str(status))
                    break
        self.done.set()
        async for _message in requests:
            pass


@pytest.mark.parametrize("role", Role)
async def test_only_a_control_plane_calls_an_agent_through_the_agents_stream(files, role):
    caller = Caller()
    server = await GrpcTransport(security=files[role]).serve(
        "127.0.0.1:0", [Service([AgentControl.CONTROL_STREAM], caller)]
    )
    channel = GrpcTransport(security=files[AGENT]).connect(server.address, peer=CONTROL_PLANE)
    handlers = Everything(methods_of(AgentService))
    stream = ControlStream(channel, [Service(methods_of(AgentService), handlers)], on_end=lambda: None)
    speaking = asyncio.ensure_future(stream.register(pb.RegisterNodeRequest(node_id="n1"), timeout=60))
    try:
        done = asyncio.ensure_future(caller.done.wait())
        await asyncio.wait({speaking, done}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        if role is not CONTROL:
            with pytest.raises(UnavailableError):
                await speaking
    finally:
        speaking.cancel()
        done.cancel()
        await asyncio.gather(speaking, done, return_exceptions=True)
        await stream.close()
        await channel.close()
        await server.stop(grace=0)
    allowed = [name for name in NAMES if CONTROL in ALLOWED[AgentService].get(name, ())]
    expected = {name: OK if name in allowed else UNSUPPORTED for name in NAMES}
    assert caller.found == (expected if role is CONTROL else {})
    assert [name for name, _identity in handlers.served] == (allowed if role is CONTROL else [])


# ---------------------------------------------------------------------------------------------------------
# Dates: TLS looks at them once, and a stream may last for months

HOUR = timedelta(hours=1)


class LaterClock(SystemClock):
    """The system's, some time from now."""

    ahead = timedelta(0)

    def wall(self):
        return super().wall() + self.ahead


@pytest.fixture
def short(tmp_path):
    """Certificates that are good for an hour, but for the control plane's; and who makes them."""
    ours = Certificates(tmp_path, cluster="blue")
    files = {role: ours.issue(identity_of(role), lifetime=HOUR) for role in Role if role is not CONTROL}
    return {**files, CONTROL: ours.issue(identity_of(CONTROL))}, ours


class Talk:
    """One stream, message by message."""

    def __init__(self, channel) -> None:
        self._up = asyncio.Queue()
        self._replies = channel.converse(AgentControl.CONTROL_STREAM, self._messages())

    async def _messages(self):
        while True:
            yield await self._up.get()

    def say(self, message) -> None:
        self._up.put_nowait(message)

    async def hear(self):
        async with asyncio.timeout(60):
            return await anext(self._replies)

    async def close(self) -> None:
        await self._replies.aclose()


def heartbeat():
    return pb.ControlMessage(heartbeat=pb.HeartbeatRequest(node_id="n1", session="s1", sequence=1))


def has_stream(plane):
    """The plane knows a node n1 whose agent opens streams."""
    record = node("n1")
    plane.fleet.nodes[record.node_id] = replace(record, spec=replace(record.spec, features=(Feature.STREAM,)))
    return plane.fleet.nodes[record.node_id]


ALLOWED_IN = [(role, kind) for role in (AGENT, OPERATOR) for kind in STANDS_FOR if expected_of(kind, role) == OK]


@pytest.mark.parametrize(("role", "kind"), ALLOWED_IN)
async def test_a_message_is_refused_as_the_call_is_once_the_certificate_is_over(short, role, kind):
    files, clock = short[0], LaterClock()
    async with planes(files, role, clock) as (plane, channel):
        talk = Talk(channel)
        talk.say(filled(kind))
        assert (await talk.hear()).WhichOneof("message") == f"{kind}_reply"
        clock.ahead = 2 * HOUR
        talk.say(filled(kind))
        with pytest.raises(UnauthenticatedError) as in_stream:
            await talk.hear()
        with pytest.raises(UnauthenticatedError) as unary:
            await channel.call(STANDS_FOR[kind], filled_request(kind), timeout=60)
        await talk.close()
    assert "expired on" in in_stream.value.message
    assert in_stream.value.message == unary.value.message
    assert plane.served == [(STANDS_FOR[kind].name, identity_of(role))], "the second one was not served"


def filled_request(kind):
    return getattr(filled(kind), kind)


async def test_nothing_is_sent_to_an_agent_whose_certificate_is_over_and_its_node_is_lost_at_once(short):
    files, clock = short[0], LaterClock()
    async with planes(files, AGENT, clock) as (plane, channel):
        record = has_stream(plane)
        talk = Talk(channel)
        talk.say(heartbeat())
        assert (await talk.hear()).HasField("heartbeat_reply")
        way = plane.streams.channel(record)
        clock.ahead = 2 * HOUR
        order = agent_pb2.ApplyWorkloadRequest(id="holds-a-secret")
        with pytest.raises(UnavailableError):
            await way.call(AgentService.APPLY_WORKLOAD, order, timeout=60)
        with pytest.raises(UnauthenticatedError):
            await talk.hear()  # and no order before that
        assert await asyncio.wait_for(plane.lost.get(), 60) == "n1"
        assert plane.streams.channel(record) is None
        await talk.close()


async def test_a_silent_stream_ends_with_its_certificate(short, monkeypatch):
    monkeypatch.setattr(serving, "CHECK_EVERY", 0.05)
    files, clock = short[0], LaterClock()
    async with planes(files, AGENT, clock) as (plane, channel):
        has_stream(plane)
        talk = Talk(channel)
        talk.say(heartbeat())
        await talk.hear()
        clock.ahead = 2 * HOUR
        with pytest.raises(UnauthenticatedError):
            await talk.hear()
        assert await asyncio.wait_for(plane.lost.get(), 60) == "n1"
        await talk.close()


async def test_a_stream_ends_when_its_certificate_does_without_anybody_looking(tmp_path):
    ours = Certificates(tmp_path, cluster="blue")
    # Long enough for a slow machine to connect; the stream itself waits for no other clock than the date.
    files = {CONTROL: ours.issue(identity_of(CONTROL)), AGENT: ours.issue(identity_of(AGENT), lifetime=HOUR)}
    clock = LaterClock()
    clock.ahead = HOUR - timedelta(seconds=2)
    async with planes(files, AGENT, clock) as (_plane, channel):
        talk = Talk(channel)
        with pytest.raises(UnauthenticatedError, match="expired on"):
            await talk.hear()
        await talk.close()


class Endless:
    """Serves every stream of answers by one answer and silence."""

    def __init__(self, methods):
        self.ended = asyncio.Queue()
        for method in methods:
            setattr(self, method.attribute, self._make(method))

    def _make(self, method):
        async def stream(_request, _call):
            try:
                yield method.response()
                await asyncio.Event().wait()
            finally:
                self.ended.put_nowait(method.path)

        return stream


WATCHED = [(each, OPERATOR) for each in METHODS if each.cardinality is Cardinality.SERVER_STREAM]


@pytest.mark.parametrize(("method", "role"), WATCHED, ids=lambda value: getattr(value, "path", str(value)))
async def test_a_watcher_sees_no_more_once_its_certificate_has_expired(short, monkeypatch, method, role):
    monkeypatch.setattr(serving, "CHECK_EVERY", 0.05)
    files, clock = short[0], LaterClock()
    handlers = Endless([method])
    server = await GrpcTransport(security=files[CONTROL], clock=clock).serve(
        "127.0.0.1:0", [Service([method], handlers)]
    )
    channel = GrpcTransport(security=files[role]).connect(server.address)
    try:
        async with asyncio.timeout(60), aclosing(channel.stream(method, method.request())) as answers:
            await anext(answers)
            clock.ahead = 2 * HOUR
            with pytest.raises(UnauthenticatedError, match="expired on"):
                await anext(answers)
            assert await handlers.ended.get() == method.path
    finally:
        await channel.close()
        await server.stop(grace=0)


def test_logs_and_events_are_among_what_is_watched():
    assert {AgentControl.WATCH_EVENTS, AgentControl.READ_LOGS, AgentService.READ_LOGS} <= {each for each, _ in WATCHED}


async def test_a_control_plane_whose_own_certificate_is_over_says_nothing_more_to_its_agents(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "CHECK_EVERY", 0.05)
    ours, clock = Certificates(tmp_path, cluster="blue"), LaterClock()
    files = {CONTROL: ours.issue(identity_of(CONTROL), lifetime=HOUR), AGENT: ours.issue(identity_of(AGENT))}
    async with planes(files, AGENT, clock) as (plane, channel):
        has_stream(plane)
        talk = Talk(channel)
        talk.say(heartbeat())
        await talk.hear()
        clock.ahead = 2 * HOUR
        with pytest.raises(UnavailableError, match="own certificate expired on"):
            await talk.hear()
        assert await asyncio.wait_for(plane.lost.get(), 60) == "n1"
        with pytest.raises(UnavailableError, match="own certificate expired on"):
            await channel.call(AgentControl.HEARTBEAT, heartbeat().heartbeat, timeout=60)
        await talk.close()
        ours.issue(identity_of(CONTROL), lifetime=9 * HOUR)
        await channel.call(AgentControl.HEARTBEAT, heartbeat().heartbeat, timeout=60)


async def test_an_agent_with_a_new_certificate_goes_on_in_a_new_stream_and_is_never_lost(short, monkeypatch):
    monkeypatch.setattr(security, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(serving, "CHECK_EVERY", 0.05)
    (files, ours), clock = short, LaterClock()
    broken = []
    async with planes(files, AGENT, clock) as (plane, channel):
        record = has_stream(plane)
        service = Service(methods_of(AgentService), Everything(methods_of(AgentService)))
        client = ControlLink(
            ControlClient(GrpcTransport(security=files[AGENT]), [channel.address]),
            [service],
            on_broken=lambda: broken.append(1),
        )
        await client.heartbeat(pb.HeartbeatRequest(node_id="n1", session="s1", sequence=1), timeout=60)
        before = plane.streams.channel(record)
        ours.issue(identity_of(AGENT), lifetime=9 * HOUR)
        await client.heartbeat(pb.HeartbeatRequest(node_id="n1", session="s1", sequence=2), timeout=60)
        clock.ahead = 2 * HOUR  # the first certificate is over by now
        await client.heartbeat(pb.HeartbeatRequest(node_id="n1", session="s1", sequence=3), timeout=60)
        after = plane.streams.channel(record)
        assert after is not None
        assert after is not before
        async with asyncio.timeout(60):
            while len(plane.streams) > 1:
                await asyncio.sleep(0.01)
        assert plane.lost.empty()
        await client.close()
    assert not broken

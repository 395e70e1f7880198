"""Each member of ControlMessage × each role, both ways through a stream, over real gRPC.

What a message may do follows from the table of the unary calls, `tests.integration.wire.roles`: a member stands for one
of them, or is good for nobody. A member that is in no list fails these tests, and so does a method of an agent that its
control plane may not call.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from shoal.agent.stream import ControlStream
from shoal.control.fleet import Fleet
from shoal.control.streams import Streams
from shoal.core.errors import DeniedError, UnavailableError
from shoal.core.tasks import TaskScope
from shoal.model.identity import CONTROL_PLANE, Role
from shoal.testing.certificates import Certificates
from shoal.wire import methods as table
from shoal.wire.authorization import RULES
from shoal.wire.calls import status_from_proto
from shoal.wire.channel import GrpcTransport
from shoal.wire.methods import AgentControl, AgentService, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.status import Code
from shoal.wire.transport import Method, Service
from tests.integration.wire.roles import (
    AGENT,
    ALLOWED,
    CONTROL,
    FIELDS,
    FOR_OTHERS,
    OK,
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
        self._streams = Streams(Fleet(), scope=self._scope)

    def control_stream(self, requests, call):
        return self._streams.serve(requests, call, self)

    async def close(self) -> None:
        self._streams.close()
        await self._scope.close()


@asynccontextmanager
async def planes(files, role):
    """A control plane and a channel of a caller of this role."""
    plane = Plane()
    transport = GrpcTransport(security=files[CONTROL])
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
    """Serves ControlStream, and calls whoever opens it by each name there is."""

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
    stream = ControlStream(channel, Service(methods_of(AgentService), handlers), on_end=lambda: None)
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

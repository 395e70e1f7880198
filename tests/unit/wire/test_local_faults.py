"""The local network does wrong what it is told to do wrong, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from shoal.core.errors import DeadlineError, DeniedError, InvalidError, UnavailableError
from shoal.testing.suites.parrot import CHAT, COUNT, FAIL, SAY, WAIT, Parrot
from shoal.wire.health import WATCH
from shoal.wire.local import LocalNetwork
from shoal.wire.local_faults import Outage
from shoal.wire.serving import close_stream
from shoal.wire.transport import Service

pytestmark = pytest.mark.looptime

METHODS = (SAY, FAIL, WAIT, COUNT, CHAT)


class Counter(Parrot):
    """Counts what reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.said = 0
        self.seconds = 0

    async def say(self, request, call):
        self.said += 1
        await asyncio.sleep(self.seconds)
        return await super().say(request, call)


@pytest.fixture
def network():
    return LocalNetwork()


@pytest.fixture
def parrot():
    return Counter()


@pytest.fixture
async def server(network, parrot):
    server = await network.transport("control").serve("127.0.0.1:8085", [Service(METHODS, parrot)])
    yield server
    await server.stop(grace=0)


@pytest.fixture
def channel(network, server):
    return network.transport("agent-1").connect(server.address)


async def say(channel, **arguments):
    return (await channel.call(SAY, StringValue(value="hello"), **arguments)).value


def now():
    return asyncio.get_running_loop().time()


async def test_an_address_can_fail_and_be_well_again(network, server, channel, parrot):
    network.fail("localhost:8085", DeniedError("not you", role="agent"))
    with pytest.raises(DeniedError) as caught:
        await say(channel)
    assert caught.value.facts == {"role": "agent"}
    assert parrot.said == 0
    network.fail("localhost:8085", None)
    assert await say(channel) == "hello"


async def test_a_delay_is_exact_and_counts_against_the_deadline(network, server, channel, parrot):
    network.delay(server.address, 3.5)
    before = now()
    assert await say(channel, timeout=5) == "hello"
    assert now() - before == 3.5
    before = now()
    with pytest.raises(DeadlineError):
        await say(channel, timeout=3)
    assert now() - before == 3
    assert parrot.said == 1
    network.delay(server.address, 0)
    before = now()
    await say(channel)
    assert now() == before


async def test_lost_requests_never_reach_the_handler(network, server, channel, parrot):
    network.drop_requests(server.address, 2)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await say(channel)
    assert parrot.said == 0
    assert await say(channel) == "hello"


async def test_lost_replies_come_after_the_handler_ran(network, server, channel, parrot):
    network.drop_replies(server.address, 2)
    with pytest.raises(UnavailableError):
        await say(channel)
    assert parrot.said == 1
    with pytest.raises(UnavailableError):
        await channel.call(FAIL, StringValue(value="NotFoundError"))
    assert await say(channel) == "hello"


async def test_a_silent_partition_makes_calls_wait_for_their_deadline(network, server, channel, parrot):
    network.partition("agent-1", "control")
    before = now()
    with pytest.raises(DeadlineError):
        await say(channel, timeout=7)
    assert now() - before == 7
    assert parrot.said == 0
    other = network.transport("agent-2").connect(server.address)
    assert await say(other) == "hello"
    network.heal("agent-1", "control")
    assert await say(channel) == "hello"


async def test_a_call_goes_on_when_the_network_heals_in_time(network, server, channel):
    network.partition("agent-1", server.address)
    asyncio.get_running_loop().call_later(4, network.heal)
    before = now()
    assert await say(channel, timeout=10) == "hello"
    assert now() - before == 4


async def test_an_answer_cannot_cross_a_partition(network, server, channel, parrot):
    parrot.seconds = 2
    loop = asyncio.get_running_loop()
    loop.call_later(1, network.partition, "agent-1", "control")
    before = now()
    with pytest.raises(DeadlineError):
        await say(channel, timeout=10)
    assert parrot.said == 1
    assert now() - before == 10
    loop.call_later(5, network.heal)
    before = now()
    assert await say(channel, timeout=10) == "hello"
    assert now() - before == 7


async def test_a_stream_across_a_silent_partition_stalls_and_goes_on(network, server, channel):
    stream = channel.stream(COUNT, StringValue(value="100"))
    assert (await anext(stream)).value == "1"
    network.partition("agent-1", "control")
    asyncio.get_running_loop().call_later(5, network.heal)
    before = now()
    assert [each.value async for each in stream] == [str(n) for n in range(2, 101)]
    assert now() - before == 5


async def test_a_connection_that_stays_silent_is_dropped(network, server, channel, parrot):
    from grpc_health.v1 import health_pb2

    idle = channel.stream(WATCH, health_pb2.HealthCheckRequest())
    await anext(idle)
    network.partition("agent-1", "control")
    before = now()
    with pytest.raises(UnavailableError, match="silent"):
        await anext(idle)
    assert now() - before == 30
    with pytest.raises(UnavailableError, match="silent"):
        await anext(channel.stream(COUNT, StringValue()))
    assert now() - before == 60


async def test_a_refusing_partition_ends_calls_at_once(network, server, channel, parrot):
    async with asyncio.TaskGroup() as group:
        call = group.create_task(_outcome(channel.call(WAIT, StringValue(), timeout=20)))
        await asyncio.sleep(1)
        before = now()
        network.partition("agent-1", "control", outage=Outage.REFUSED)
        assert await call == "UnavailableError"
        with pytest.raises(UnavailableError):
            await say(channel)
    assert now() == before
    await parrot.cancelled.wait()
    network.heal()
    assert await say(channel) == "hello"


async def test_requests_of_a_conversation_cannot_cross_a_refusing_partition(network, server, channel, parrot):
    go = asyncio.Event()

    async def requests():
        yield StringValue(value="a")
        await go.wait()
        yield StringValue(value="b")

    answers = channel.converse(CHAT, requests())
    assert (await anext(answers)).value == "a a"
    network.partition("agent-1", "control", outage=Outage.REFUSED)
    go.set()
    with pytest.raises(UnavailableError):
        await anext(answers)
    await close_stream(answers)
    assert parrot.heard == ["a"]


async def test_buffers_between_writer_and_reader_are_bounded(channel, parrot):
    stream = channel.stream(COUNT, StringValue())
    await anext(stream)
    await asyncio.sleep(100)
    assert parrot.sent < 25
    await close_stream(stream)


async def test_ports_are_chosen_once_and_may_be_taken_again(network):
    transport = network.transport()
    servers = [await transport.serve("127.0.0.1:0", []) for _ in range(3)]
    assert len({server.address for server in servers}) == 3
    await servers[0].stop()
    again = await transport.serve(servers[0].address, [])
    assert again.address == servers[0].address
    with pytest.raises(UnavailableError, match="in use"):
        await transport.serve(servers[1].address.replace("127.0.0.1", "localhost"), [])


async def test_nothing_is_left_behind(network, server, channel):
    await say(channel)
    stream = channel.stream(COUNT, StringValue())
    await anext(stream)
    await close_stream(stream)
    await _outcome(channel.call(WAIT, StringValue(), timeout=1))
    await asyncio.sleep(1)
    assert not network.calls
    assert len(asyncio.all_tasks()) == 1


def test_faults_need_an_address(network):
    with pytest.raises(InvalidError):
        network.delay("agent-1", 3)


async def _outcome(call):
    try:
        await call
    except Exception as error:
        return type(error).__name__
    return "answered"

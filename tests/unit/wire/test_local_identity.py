"""Identities on the transport without sockets: the same rules as over gRPC."""

from __future__ import annotations

import pytest

from shoal.core.errors import DeniedError, UnauthenticatedError, UnavailableError
from shoal.model.identity import CONTROL_PLANE, Identity, Peer, Role
from shoal.wire.local import LocalNetwork
from shoal.wire.methods import AgentControl, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import Service

CONTROL = Identity(Role.CONTROL, "blue", "c1")
AGENT = Identity(Role.AGENT, "blue", "n1")
OPERATOR = Identity(Role.OPERATOR, "blue", "ada")

pytestmark = pytest.mark.looptime


class Handlers:
    def __init__(self):
        self.callers = []

    async def list_nodes(self, _request, call):
        self.callers.append(call.identity)
        return pb.ListNodesResponse()

    async def register_node(self, _request, call):
        self.callers.append(call.identity)
        return pb.RegisterNodeResponse()


@pytest.fixture
def network():
    return LocalNetwork()


@pytest.fixture
def handlers():
    return Handlers()


async def start(network, handlers, identity):
    transport = network.transport("control", identity=identity)
    return await transport.serve("127.0.0.1:8085", [Service(methods_of(AgentControl), handlers)])


async def list_nodes(network, identity, peer=None):
    channel = network.transport("client", identity=identity).connect("127.0.0.1:8085", peer=peer)
    return await channel.call(AgentControl.LIST_NODES, pb.ListNodesRequest())


async def test_a_handler_knows_who_calls(network, handlers):
    server = await start(network, handlers, CONTROL)
    await list_nodes(network, OPERATOR)
    await list_nodes(network, OPERATOR, CONTROL_PLANE)
    assert handlers.callers == [OPERATOR, OPERATOR]
    await server.stop(grace=0)


async def test_the_rules_apply(network, handlers):
    server = await start(network, handlers, CONTROL)
    with pytest.raises(DeniedError, match="needs the role operator; the caller is agent n1"):
        await list_nodes(network, AGENT)
    with pytest.raises(UnauthenticatedError, match="'red'"):
        await list_nodes(network, Identity(Role.OPERATOR, "red", "ada"))
    channel = network.transport("n1", identity=AGENT).connect("127.0.0.1:8085")
    await channel.call(AgentControl.REGISTER_NODE, pb.RegisterNodeRequest(node_id="n1"))
    with pytest.raises(DeniedError, match="own node only"):
        await channel.call(AgentControl.REGISTER_NODE, pb.RegisterNodeRequest(node_id="n2"))
    assert handlers.callers == [AGENT]
    await server.stop(grace=0)


async def test_without_identities_everything_is_allowed(network, handlers):
    server = await start(network, handlers, None)
    await list_nodes(network, None, CONTROL_PLANE)
    assert handlers.callers == [None]
    await server.stop(grace=0)


@pytest.mark.parametrize(("server_is", "caller_is"), [(CONTROL, None), (None, OPERATOR)])
async def test_both_sides_have_identities_or_neither(network, handlers, server_is, caller_is):
    server = await start(network, handlers, server_is)
    with pytest.raises(UnavailableError, match="only one side"):
        await list_nodes(network, caller_is)
    assert not handlers.callers
    await server.stop(grace=0)


@pytest.mark.parametrize(
    ("server_is", "peer"),
    [
        (AGENT, CONTROL_PLANE),
        (Identity(Role.CONTROL, "red", "c1"), CONTROL_PLANE),
        (AGENT, Peer(Role.AGENT, "n2")),
        (CONTROL, Peer(Role.AGENT, "c1")),
    ],
)
async def test_a_channel_leads_to_its_peer_and_to_nobody_else(network, handlers, server_is, peer):
    server = await start(network, handlers, server_is)
    with pytest.raises(UnavailableError, match=str(peer)):
        await list_nodes(network, OPERATOR, peer)
    assert not handlers.callers
    await server.stop(grace=0)

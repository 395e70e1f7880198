"""A control plane, agents and people with certificates, over real gRPC: the way of a command, and who is refused."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from shoal.agent.server import Agent, AgentSettings
from shoal.client import ControlPlane as Client
from shoal.control.agents.calls import Agents
from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.core.clock import SystemClock
from shoal.core.errors import DeniedError, InvalidError, NotFoundError, UnavailableError
from shoal.model.nodes import NodeRecord, NodeSpec, NodeState
from shoal.model.resources import Resources
from shoal.testing.certificates import Certificates
from shoal.testing.control import process_spec
from shoal.testing.hollow import HollowFleet, HollowNode
from shoal.wire.methods import NODE_HEADER, AgentControl, AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent_pb
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.sockets.channel import GrpcTransport

pytestmark = pytest.mark.integration


@pytest.fixture
def certificates(tmp_path):
    return Certificates(tmp_path / "certificates")


def paths(files):
    return {"ca": str(files.ca), "cert": str(files.cert), "key": str(files.key)}


def make_plane(tmp_path, files, **settings):
    given = ControlSettings(data_dir=str(tmp_path / "control"), grpc_port=0, **paths(files), **settings)
    return ControlPlaneServer(given, transport=GrpcTransport(security=given.access.security()))


def make_agent(tmp_path, files, **settings):
    given = AgentSettings(
        data_dir=str(tmp_path / "agent"),
        control=("127.0.0.1:1",),
        grpc_port=0,
        runtimes=("process",),
        **paths(files),
        **settings,
    )
    return Agent(given, transport=GrpcTransport(security=given.access.security()))


@pytest.fixture
async def plane(tmp_path, certificates):
    plane = make_plane(tmp_path, certificates.control(), grpc_host="127.0.0.1")
    await plane.start(http=False)
    yield plane
    await plane.stop()


@pytest.fixture
async def operator(plane, certificates):
    async with Client([plane.address], GrpcTransport(security=certificates.operator())) as client:
        yield client


@contextlib.asynccontextmanager
async def hollow(plane, files, node_id, **fields):
    fleet = HollowFleet(GrpcTransport(security=files), plane.address)
    await fleet.start()
    try:
        yield fleet.add(HollowNode(node_id, **fields))
    finally:
        await fleet.stop()


async def apply(files, address, workload_id):
    channel = GrpcTransport(security=files).connect(address)
    try:
        request = pb.ApplyWorkloadRequest(workload_id=workload_id, spec=process_spec())
        return await channel.call(AgentControl.APPLY_WORKLOAD, request)
    finally:
        await channel.close()


async def until(condition):
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.05)


async def is_running(operator, workload_id):
    return (await operator.get_workload(workload_id)).status == "Running"


@pytest.mark.parametrize("foreign", [False, True], ids=["ours", "foreign"])
async def test_a_request_of_an_operator_reaches_an_agent(plane, operator, certificates, foreign):
    fields = {"features": ()} if foreign else {}
    async with hollow(plane, certificates.agent("n1"), "n1", **fields) as node:
        answer = await apply(certificates.operator(), plane.address, "web")
        assert answer.success, answer
        await until(lambda: is_running(operator, "web"))
        assert "web" in node.runs


def record(node_id, endpoint, *, features):
    now = SystemClock().wall()
    spec = NodeSpec(node_id, endpoint, Resources(1000, 1000, 1, 1), features=frozenset(features))
    return NodeRecord(spec, "", NodeState.READY, "", "register", now, now, now, 30.0)


@pytest.mark.parametrize(("node_id", "reached"), [("n1", False), ("n2", True)])
async def test_a_node_is_told_nothing_that_its_certificate_is_not_for(plane, operator, certificates, node_id, reached):
    """The process at that address has a certificate of n2, and for the host: commands for n1 do not reach it."""
    async with hollow(plane, certificates.agent("n2"), "n2"):
        endpoint = await endpoint_of(operator, "n2")
        agents = Agents(GrpcTransport(security=certificates.control()), streams=plane.leadership.streams, term=1)
        expected = NotFoundError if reached else UnavailableError
        with pytest.raises(expected, match="not found" if reached else "no certificate of the agent of node 'n1'"):
            await agents.status(record(node_id, endpoint, features={"sessions"}), "web")
        await agents.close()


async def test_an_agent_may_not_request_nor_speak_for_another(plane, operator, certificates):
    files = certificates.agent("n1")
    with pytest.raises(DeniedError, match="needs the role operator"):
        await apply(files, plane.address, "web")
    channel = GrpcTransport(security=files).connect(plane.address)
    with pytest.raises(DeniedError, match="own node only"):
        await channel.call(AgentControl.REGISTER_NODE, pb.RegisterNodeRequest(node_id="n2"))
    await channel.close()
    assert await operator.list_nodes() == ()
    assert await operator.list_workloads() == ()


async def test_an_operator_may_look_at_an_agent_and_not_command_it(plane, operator, certificates):
    async with hollow(plane, certificates.agent("n1"), "n1") as node:
        channel = GrpcTransport(security=certificates.operator()).connect(await endpoint_of(operator, "n1"))
        header = {NODE_HEADER: "n1"}
        await channel.call(AgentService.LIST_ACTIONS, agent_pb.ListActionsRequest(), metadata=header)
        with pytest.raises(DeniedError, match="needs the role control"):
            await channel.call(AgentService.DELETE_WORKLOAD, agent_pb.DeleteWorkloadRequest(id="w"), metadata=header)
        assert not node.history
        await channel.close()


async def endpoint_of(operator, node_id):
    async def is_there():
        return node_id in {node.node_id for node in await operator.list_nodes()}

    await until(is_there)
    return (await operator.get_node(node_id)).grpc_endpoint


# ---------------------------------------------------------------------------------------------------------
# Whose certificate a server may have


def test_what_is_left_out_comes_from_the_certificate(tmp_path):
    certificates = Certificates(tmp_path / "other", cluster="lab")
    plane = make_plane(tmp_path, certificates.control())
    assert plane.settings.cluster_id == "lab"
    assert plane.settings.grpc_address == "0.0.0.0:0"
    agent = make_agent(tmp_path, certificates.agent("n7"))
    assert (agent.settings.node_id, agent.settings.cluster_id) == ("n7", "lab")
    assert agent.settings.grpc_address == "0.0.0.0:0"


def test_a_certificate_of_another_is_refused_with_everything_that_is_wrong(tmp_path, certificates):
    with pytest.raises(InvalidError, match="must be of role control; this one is agent n1's") as caught:
        make_plane(tmp_path, certificates.agent("n1"), cluster_id="lab")
    assert [each.field for each in caught.value.problems] == ["--cert", "--cluster-id"]
    with pytest.raises(InvalidError, match="must be of role agent"):
        make_agent(tmp_path, certificates.operator())
    with pytest.raises(InvalidError, match="must be 'n1', for which the certificate is") as caught:
        make_agent(tmp_path, certificates.agent("n1"), node_id="n2", cluster_id="lab")
    assert [each.field for each in caught.value.problems] == ["--node-id", "--cluster-id"]


OWNERSHIP = {"workload_id", "desired_state", "assigned_node_id", "generation"}


@pytest.mark.parametrize(("node_id", "is_owner"), [("n1", True), ("n2", False)])
async def test_an_agent_reads_its_own_workloads_and_who_owns_the_others(
    plane, operator, certificates, node_id, is_owner
):
    async with hollow(plane, certificates.agent("n1"), "n1"):
        await apply(certificates.operator(), plane.address, "web")
        await until(lambda: is_running(operator, "web"))
        channel = GrpcTransport(security=certificates.agent(node_id)).connect(plane.address)
        answer = await channel.call(AgentControl.GET_WORKLOAD, pb.GetWorkloadRequest(workload_id="web"))
        await channel.close()
        seen = {field.name for field, _ in answer.workload.ListFields()}
        assert answer.workload.assigned_node_id == "n1"
        assert seen > OWNERSHIP | {"spec", "run"} if is_owner else seen == OWNERSHIP

"""ControlStream over real sockets, with and without certificates: a control plane, a fake machine's agent, people."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import pytest

from shoal.agent.server import Agent, AgentSettings
from shoal.client import ControlPlane as Client
from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.core.clock import SystemClock
from shoal.core.errors import DeniedError, NotFoundError
from shoal.model.documents import read_document
from shoal.model.logs import LogPiece
from shoal.model.workloads import WorkloadType
from shoal.testing.certificates import Certificates
from shoal.testing.runtimes import FakeMachine, FakeRuntime
from shoal.wire.calls import status_from_proto
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.status import error_of

pytestmark = pytest.mark.integration

PIECE = 200_000


class Talkative(FakeRuntime):
    """Prints for ever, as fast as somebody reads."""

    printed = 0

    async def read_logs(self, workload_id, query):
        while True:
            Talkative.printed += 1
            yield LogPiece(b"x" * PIECE)


class World:
    """Everything, in this process."""

    def __init__(self, folder, certificates) -> None:
        self.folder = folder
        self.certificates = certificates
        self.machine = FakeMachine(SystemClock())
        self.plane: ControlPlaneServer
        self.agents: dict[str, Agent] = {}
        self.port = 0

    def files(self, made) -> dict:
        if self.certificates is None:
            return {"insecure": True}
        return {"ca": str(made.ca), "cert": str(made.cert), "key": str(made.key)}

    def transport(self, make) -> GrpcTransport:
        return GrpcTransport() if self.certificates is None else GrpcTransport(security=make(self.certificates))

    async def start_plane(self) -> None:
        settings = ControlSettings(
            data_dir=str(self.folder / "control"),
            grpc_host="127.0.0.1",
            grpc_port=self.port,
            lease=timedelta(seconds=20),
            heartbeat_interval=timedelta(seconds=5),
            **self.files(self.certificates and self.certificates.control()),
        )
        self.plane = ControlPlaneServer(settings, transport=self.transport(lambda made: made.control()))
        await self.plane.start(http=False)
        self.port = int(self.plane.address.rpartition(":")[2])

    async def start_agent(self, name: str, **fields) -> Agent:
        settings = AgentSettings(
            data_dir=str(self.folder / name),
            control=(self.plane.address,),
            node_id=name,
            cpu=4.0,
            memory="4GB",
            **{"no_listen": True, **fields},
            **self.files(self.certificates and self.certificates.agent(name)),
        )
        agent = self.agents[name] = Agent(
            settings,
            transport=self.transport(lambda made: made.agent(name)),
            runtimes=lambda _settings, _node_id: {WorkloadType.PROCESS: Talkative(self.machine)},
        )
        await agent.start()
        return agent

    def client(self) -> Client:
        return Client([self.plane.address], self.transport(lambda made: made.operator()))

    async def close(self) -> None:
        for agent in self.agents.values():
            await agent.stop()
        await self.plane.stop()


@pytest.fixture(params=["insecure", "certificates"])
async def world(tmp_path, request):
    made = World(tmp_path, Certificates(tmp_path / "certs") if request.param == "certificates" else None)
    await made.start_plane()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def control(world):
    async with world.client() as client:
        yield client


async def until(holds, *, what, seconds=30):
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not await holds():
                await asyncio.sleep(0.02)
            return
    raise AssertionError(f"it did not come true within {seconds} s that {what}")


async def has_status(control, name, status):
    async def holds():
        return (await control.get_workload(name)).status == status

    await until(holds, what=f"{name} is {status}")


async def node_is(control, name, status):
    async def holds():
        with contextlib.suppress(NotFoundError):
            return (await control.get_node(name)).status == status
        return False

    await until(holds, what=f"{name} is {status}")


def process(name, command="sleep", **fields):
    return read_document(
        {
            "id": name,
            "type": "process",
            "resources": {"cpu_millicores": 50, "memory_mb": 32},
            "process": {"command": [command]},
            **fields,
        }
    )


async def test_an_agent_that_listens_nowhere_lives_a_whole_life(world, control):
    agent = await world.start_agent("n1")
    assert agent.address == ""
    await node_is(control, "n1", "Ready")
    assert (await control.get_node("n1")).grpc_endpoint == ""
    await control.apply(process("web", revision="v1"))
    await has_status(control, "web", "Running")
    async with contextlib.aclosing(control.logs("web", follow=True)) as pieces:
        assert len((await anext(pieces)).data) == PIECE
        await control.apply(process("web", "other", revision="v2"))

        async def updated():
            return (await control.get_workload("web")).observed_revision_id == "v2"

        await until(updated, what="the update arrived although somebody follows the log and does not read")
    await control.delete("web")

    async def gone():
        try:
            await control.get_workload("web")
        except NotFoundError:
            return True
        return False

    await until(gone, what="it is gone")


async def test_a_follower_that_does_not_read_stops_the_printing(world, control):
    await world.start_agent("n1")
    await node_is(control, "n1", "Ready")
    await control.apply(process("web"))
    await has_status(control, "web", "Running")
    followers = [control.logs("web", follow=True) for _ in range(4)]
    for follower in followers:
        await anext(follower)
    seen = -1

    async def rests():
        nonlocal seen
        before, seen = seen, Talkative.printed
        await asyncio.sleep(0.5)
        return before == Talkative.printed

    await until(rests, what="nothing more is printed")
    assert (await control.get_node("n1")).status == "Ready"
    for follower in followers:
        await follower.aclose()


async def test_a_stream_that_ends_makes_its_node_suspect_at_once(world, control):
    await world.start_agent("n1")
    await node_is(control, "n1", "Ready")
    await world.agents.pop("n1").stop()
    await node_is(control, "n1", "Suspect")
    node = await control.get_node("n1")
    assert node.status_reason == "its stream broke"
    await world.start_agent("n1")
    await node_is(control, "n1", "Ready")


async def test_a_control_plane_that_comes_back_is_found_with_nothing_to_tell(world, control):
    await world.start_agent("n1")
    await node_is(control, "n1", "Ready")
    await control.apply(process("web"))
    await has_status(control, "web", "Running")
    await world.plane.stop()
    await world.start_plane()

    async def streams():
        return len(world.plane.leadership.streams) == 1

    await until(streams, what="the agent has opened another stream")
    assert (await control.get_node("n1")).status == "Ready"
    kinds = [event.kind for event in (await control.list_events(limit=1000)).events]
    assert kinds.count("NodeRegistered") == 1
    assert "NodeSuspect" not in kinds
    assert world.machine.count("started", "web") == 1


async def test_a_foreign_client_gets_its_replies_in_order(world, control):
    async def messages():
        for _ in range(20):
            yield pb.ControlMessage(delete=pb.DeleteWorkloadRequest(workload_id="nobody"))
            yield pb.ControlMessage(heartbeat=pb.HeartbeatRequest(node_id="ghost"))

    channel = world.transport(lambda made: made.operator()).connect(world.plane.address)
    try:
        replies = [reply async for reply in channel.converse(AgentControl.CONTROL_STREAM, messages())]
    finally:
        await channel.close()
    assert [reply.WhichOneof("message") for reply in replies] == ["delete_reply", "error"] * 20
    error = error_of(status_from_proto(replies[1].error))
    assert isinstance(error, NotFoundError if world.certificates is None else DeniedError)


async def test_an_agent_may_not_speak_for_another_node(world, control):
    if world.certificates is None:
        pytest.skip("nobody is known without certificates")

    async def messages():
        yield pb.ControlMessage(register=pb.RegisterNodeRequest(node_id="n2"))
        yield pb.ControlMessage(apply=pb.ApplyWorkloadRequest(workload_id="w"))

    channel = world.transport(lambda made: made.agent("n1")).connect(world.plane.address)
    try:
        replies = [reply async for reply in channel.converse(AgentControl.CONTROL_STREAM, messages())]
    finally:
        await channel.close()
    errors = [error_of(status_from_proto(reply.error)) for reply in replies]
    assert [type(error) for error in errors] == [DeniedError, DeniedError]
    assert "operator" in errors[1].message

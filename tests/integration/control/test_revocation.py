"""Removing a node or declaring it dead revokes its certificates on every control plane: real TLS, real PostgreSQL."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from grpc_health.v1 import health_pb2 as health

from shoal.agent.contact.joining import join
from shoal.agent.settings import AgentSettings
from shoal.client import ControlPlane as Client
from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.core.errors import InvalidError, NotLeaderError, UnauthenticatedError
from shoal.model.identity import Identity, Role
from shoal.testing.certificates import Certificates
from shoal.wire.health import WATCH
from shoal.wire.methods import AgentControl, Credentials
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import enrollment_pb2
from shoal.wire.sockets.channel import GrpcTransport
from shoal.wire.trust.authority import make_signing_request
from shoal.wire.trust.credentials import CA_FILE, CA_KEY_FILE, write_authority

pytestmark = pytest.mark.integration

WITHIN = 30.0
CAPACITY = pb.NodeCapabilities(cpu_total_millicores=1000, memory_total_mb=1000, supported_workload_types=["process"])
REGISTER = pb.RegisterNodeRequest(node_id="n1", capabilities=CAPACITY, grpc_endpoint="127.0.0.1:1")


class Scene:
    """Two control planes on one database; the first one leads."""

    def __init__(self, folder, database) -> None:
        self.folder = folder
        self.certificates = Certificates(folder / "files")
        write_authority(folder / "authority", self.certificates.authority)
        self.planes = [self._plane(f"c{index}", database) for index in range(2)]

    def _plane(self, name, database):
        files = self.certificates.control(name)
        settings = ControlSettings(
            data_dir=str(self.folder / name),
            database=database,
            grpc_host="127.0.0.1",
            grpc_port=0,
            join_port=0,
            ca=str(self.folder / "authority" / CA_FILE),
            ca_key=str(self.folder / "authority" / CA_KEY_FILE),
            cert=str(files.cert),
            key=str(files.key),
        )
        access = settings.access
        return ControlPlaneServer(
            settings,
            transport=GrpcTransport(security=access.security()),
            join_transport=GrpcTransport(security=access.server_security()),
        )

    @property
    def leader(self):
        return next(plane for plane in self.planes if plane.leads)

    def operator(self):
        return Client([self.leader.address], GrpcTransport(security=self.certificates.operator()))

    @asynccontextmanager
    async def channels(self, files):
        """A channel to each control plane, the leader's first."""
        transport = GrpcTransport(security=files)
        planes = sorted(self.planes, key=lambda plane: not plane.leads)
        channels = [transport.connect(plane.address) for plane in planes]
        try:
            yield channels
        finally:
            for channel in channels:
                await channel.close()

    async def end(self, operation):
        async with self.operator() as operator:
            await operator.mark_node_dead("n1", force=True)
            if operation == "remove":
                await operator.remove_node("n1")


@pytest.fixture
async def scene(tmp_path, postgres_url):
    scene = Scene(tmp_path, postgres_url)
    for plane in scene.planes:
        await plane.start(http=False)
    yield scene
    for plane in scene.planes:
        await plane.stop()


async def watch(channel, begun):
    """Keep a stream open in which nothing is said, until the server ends it."""
    async for _answer in channel.stream(WATCH, health.HealthCheckRequest()):
        begun.set()


async def control_stream(channel, begun):
    """Keep an agent's stream open, silent after its registration, until the server ends it."""

    async def messages():
        yield pb.ControlMessage(message_id=1, register=REGISTER)
        await asyncio.Event().wait()

    async for answer in channel.converse(AgentControl.CONTROL_STREAM, messages()):
        assert answer.register_reply.accepted, answer
        begun.set()


@pytest.mark.parametrize("operation", ["dead", "remove"])
async def test_open_streams_end_and_new_calls_are_refused_by_every_control_plane(scene, operation):
    async with scene.channels(scene.certificates.agent("n1")) as (leader, follower), asyncio.timeout(WITHIN):
        begun = [asyncio.Event() for _ in range(3)]
        streams = [
            asyncio.ensure_future(each)
            for each in (
                control_stream(leader, begun[0]),
                watch(leader, begun[1]),
                watch(follower, begun[2]),
            )
        ]
        for each in begun:
            await each.wait()
        await scene.end(operation)
        for stream in streams:
            with pytest.raises(UnauthenticatedError, match="the certificate of agent n1 was revoked"):
                await stream
        calls = {
            AgentControl.HEARTBEAT: pb.HeartbeatRequest(node_id="n1"),
            AgentControl.REGISTER_NODE: REGISTER,
            Credentials.RENEW_CERTIFICATE: enrollment_pb2.RenewCertificateRequest(
                csr=make_signing_request(Identity(Role.AGENT, "default", "n1")).csr
            ),
        }
        for channel in (leader, follower):
            for method, request in calls.items():
                with pytest.raises(UnauthenticatedError, match="was revoked"):
                    await channel.call(method, request)


@pytest.mark.parametrize("operation", ["dead", "remove"])
async def test_certificates_of_workloads_on_the_node_are_revoked_with_it(scene, operation):
    files = scene.certificates.workload("clicks", "n1")
    async with scene.channels(scene.certificates.agent("n1")) as (agent, _):
        await agent.call(AgentControl.REGISTER_NODE, REGISTER)
    request = pb.ApplyGroupRequest(group_id="clicks")
    async with scene.channels(files) as (leader, _):
        with pytest.raises(InvalidError, match="members"):
            await leader.call(AgentControl.APPLY_GROUP, request)
        await scene.end(operation)
        with pytest.raises(UnauthenticatedError, match="was revoked"):
            await leader.call(AgentControl.APPLY_GROUP, request)


@pytest.mark.parametrize("operation", ["dead", "remove"])
async def test_a_node_that_joins_again_with_a_new_token_works(scene, tmp_path, operation):
    async def settings(**given):
        async with scene.operator() as operator:
            token = (await operator.create_join_token(**given)).text
        return AgentSettings(
            data_dir=str(tmp_path / "agent"),
            control=(scene.leader.address,),
            join=token,
            join_address=(scene.leader.join_address,),
            node_id="n1",
            grpc_host="127.0.0.1",
            grpc_port=0,
            runtimes=("process",),
        )

    first = await settings()
    await join(first, node_id=lambda: "n1")
    old = (first.credentials_dir / "cert.pem").read_bytes()
    async with scene.channels(first.access.security()) as (leader, _):
        assert (await leader.call(AgentControl.REGISTER_NODE, REGISTER)).accepted
    await scene.end(operation)
    async with scene.channels(first.access.security()) as (leader, _):
        with pytest.raises(UnauthenticatedError, match="was revoked"):
            await leader.call(AgentControl.REGISTER_NODE, REGISTER)

    await join(first, node_id=lambda: "n1")
    assert (first.credentials_dir / "cert.pem").read_bytes() == old, "the same token is not used twice"

    again = await settings(node_id="n1")
    await join(again, node_id=lambda: "n1")
    assert (again.credentials_dir / "cert.pem").read_bytes() != old
    async with scene.channels(again.access.security()) as (leader, follower), asyncio.timeout(WITHIN):
        assert (await leader.call(AgentControl.REGISTER_NODE, REGISTER)).accepted
        with pytest.raises(NotLeaderError):
            await follower.call(AgentControl.REGISTER_NODE, REGISTER)


async def test_a_revocation_outlives_the_leader(scene):
    async with scene.channels(scene.certificates.agent("n1")) as (leader, _):
        await leader.call(AgentControl.REGISTER_NODE, REGISTER)
    await scene.end("remove")
    old, [next_one] = scene.leader, [plane for plane in scene.planes if not plane.leads]
    async with asyncio.timeout(WITHIN):
        await old.stop()
        scene.planes.remove(old)
        while not next_one.leads:
            await asyncio.sleep(0.05)
        files = scene.certificates.issue(Identity(Role.AGENT, "default", "n1"), age=timedelta(hours=1))
        async with scene.channels(files) as [channel]:
            with pytest.raises(UnauthenticatedError, match="was revoked"):
                await channel.call(AgentControl.REGISTER_NODE, REGISTER)

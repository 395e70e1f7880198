"""Whole servers to send rubbish to, in virtual time: a control plane with a node, and an agent on a fake machine."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import looptime

from shoal.agent.store import action_log, intents
from shoal.agent.store.action_log import ActionQuery
from shoal.control.leadership.routing import READS
from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.control.store.base import EventQuery
from shoal.control.store.sqlite import SqliteStore
from shoal.core.entropy import SeededEntropy
from shoal.discovery.client import ServingAgentClient
from shoal.discovery.embedded import EmbeddedTree
from shoal.discovery.mirror.records import AgentResource
from shoal.discovery.models.bindings import registrations
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.records import Container, ContainerService, SavedModel
from shoal.discovery.models.service_map import ServiceMap
from shoal.discovery.replicas.records import ServerType
from shoal.discovery.service import ServingAgentHandlers
from shoal.discovery.views import ModelAddresses
from shoal.jobs.engine import Engines
from shoal.model.identity import Identity, Role, workload_identity
from shoal.services import ServiceEngine
from shoal.testing.clock import LoopClock
from shoal.testing.control import START, ControlKit, process_spec
from shoal.testing.fuzz import CallOutcome, census, send
from shoal.testing.hollow import HollowFleet, HollowNode, HollowRun
from shoal.testing.stores import KeptStore
from shoal.wire.convert import decode_spec_bytes
from shoal.wire.local import LocalNetwork
from shoal.wire.methods import (
    AgentControl,
    AgentService,
    Artifacts,
    Coordination,
    Credentials,
    Enrollment,
    Jobs,
    Secrets,
)
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2
from shoal.wire.pb.shoal.v1 import artifacts_pb2, enrollment_pb2, jobs_pb2, secrets_pb2
from shoal.wire.transport import Channel, Method
from shoal.wire.trust.authority import OwnRequest, issue, make_authority, make_signing_request
from shoal.wire.trust.credentials import CA_KEY_FILE, write_authority, write_credentials
from tests.unit.agent.making import workload
from tests.unit.agent.scene import Scene, scene

#: A fuzzed request never names it, so it is free for the good call at the end.
UNTOUCHED = "untouched-by-chance"

#: What grows and shrinks by itself, belongs to the test, or remembers what was computed once per node: not counted.
#: Revocations outlive their nodes on purpose, and have a bound of their own (`MOST_REVOCATIONS`).
IGNORED = ("revocations", "_facts", "clock", "_clock", "_transport", "store", "_store", "_entropy", "settings")


#: Long enough for a call's consequences, and no multiple of the time after which anything else happens.
SETTLE = 1.234567


def in_virtual_time(work: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine that takes a folder, on a loop of its own in which waiting takes no time."""
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(start=1000.0, idle_timeout=10.0)) as runner,
    ):
        runner.run(work(Path(folder)))


#: The blob of no bytes, by its hash.
EMPTY = hashlib.sha256().hexdigest()
SERVICE = json.dumps(
    {"count": 1, "workload": {"type": "process", "process": {"command": ["sleep", "9"]}}, "update": {"settle": "1s"}}
).encode()


class ControlWorld:
    """A control plane with a living node, a lost one, a running workload, a group and two jobs."""

    def __init__(self, kit: ControlKit) -> None:
        self.kit = kit
        #: Whether anything was accepted that may go on to change things by itself.
        self.moved = False
        self.channel = kit.channel
        self.metadata: dict[str, str] = {}
        self.failure = asyncio.ensure_future(kit.plane.failed())

    async def prepare(self) -> None:
        kit = self.kit
        self.node = kit.node("n1")
        kit.node("lost", workload_types=("vm",))
        await asyncio.sleep(1)
        kit.agents.kill("lost")
        await kit.apply("web", revision="v1")
        await kit.apply_group("crew", {"crew-0": {}, "crew-1": {}})
        for job_id in ("shop", "resting"):
            submitted = jobs_pb2.SubmitJobRequest(job_id=job_id, engine="service", spec=SERVICE)
            await self.channel.call(Jobs.SUBMIT, submitted)
        empty = artifacts_pb2.UploadArtifactRequest(start=artifacts_pb2.ArtifactStart(sha256=EMPTY, size=0))
        await send(self.channel, Artifacts.UPLOAD, [empty.SerializeToString()])
        self.node.runs["stray"] = HollowRun(_stray())
        self.node.changed.set()
        await asyncio.sleep(3)
        await self.channel.call(Jobs.SAVEPOINT, jobs_pb2.SavepointJobRequest(job_id="resting", stop=True))
        await asyncio.sleep(6)  # together a whole lease, in one go: asking again and again would cost real time
        assert (await kit.node_view("lost")).status == "NotReady"
        assert (await kit.workload("crew-1")).status == "Running"
        listed = await self.channel.call(Jobs.LIST, jobs_pb2.ListJobsRequest())
        assert [each.state for each in listed.jobs] == ["Stopped", "Running"]

    async def settle(self) -> None:
        await asyncio.sleep(SETTLE)

    async def state(self) -> object:
        """Everything that is stored, and what memory has of it."""
        fleet = self.kit.plane.leadership.fleet
        stored = await self.kit.store.load()
        # When nodes were last heard of is written down now and then, whatever is asked meanwhile.
        stored = replace(stored, nodes=tuple(replace(node, last_heartbeat=START) for node in stored.nodes))
        page = await self.kit.store.events(EventQuery(limit=1, newest=True))
        return stored, page.next, dict(fleet.nodes), dict(fleet.workloads), dict(fleet.groups), set(fleet.observations)

    def census(self) -> Counter[str]:
        return census(self.kit.plane, ignored=IGNORED)

    async def check_alive(self) -> None:
        """It runs, and the next good call works."""
        assert not self.failure.done(), self.failure
        kit = self.kit
        kit.node(UNTOUCHED, workload_types=("process",))
        await asyncio.sleep(1)
        answer = await kit.apply(UNTOUCHED, only_on=UNTOUCHED, cpu=0, memory=0)
        assert answer.success, answer
        await asyncio.sleep(5)
        view = await kit.workload(UNTOUCHED)
        assert view.status == "Running", view
        summary = await self.channel.call(AgentControl.GET_CLUSTER_SUMMARY, control_pb2.GetClusterSummaryRequest())
        assert summary.total_nodes >= 2
        assert not self.failure.done(), self.failure

    async def come_and_go(self, prefix: str, *, count: int) -> None:
        """Workloads and nodes that live for a while, each under a name of its own."""
        kit = self.kit
        for number in range(count):
            name = f"{prefix}-{number}"
            kit.node(name)
            await kit.apply(name)
            await kit.apply(f"{name}-stuck", only_on="nowhere")
            await asyncio.sleep(1)
            await kit.delete(name)
            await kit.delete(f"{name}-stuck")
            kit.agents.kill(name)
            await asyncio.sleep(9)
            assert (await kit.node_view(name)).status == "NotReady"
            await kit.channel.call(AgentControl.REMOVE_NODE, control_pb2.RemoveNodeRequest(node_id=name))
            await self.settle()

    def channel_for(self, _method: Method[Any, Any]) -> Channel:
        return self.channel


class AgentWorld:
    """An agent with a running workload."""

    def __init__(self, stage: Scene) -> None:
        self.stage = stage
        self.moved = False
        self.metadata: dict[str, str] = {}

    async def prepare(self) -> None:
        self.agent = await self.stage.start("n1", control=(), standalone=True)
        self.failure = asyncio.ensure_future(self.agent.failed())
        self.channel = self.stage.network.transport("control").connect(self.agent.address)
        await self.stage.apply(self.agent, "web")
        await asyncio.sleep(10)

    async def settle(self) -> None:
        await asyncio.sleep(SETTLE)

    async def state(self) -> object:
        database = self.agent._database
        stored = await database.read(intents.load_workloads)
        actions = await database.read(lambda connection: action_log.list_actions(connection, ActionQuery()))
        roster = self.agent.executor.roster
        states = {name: actor.state for name, actor in roster.actors.items()}
        return stored, actions, states, list(self.stage.machine.history)

    def census(self) -> Counter[str]:
        return census(self.agent, ignored=(*IGNORED, "machine", "_machine"))

    async def check_alive(self) -> None:
        assert not self.failure.done(), self.failure
        answer = await self.stage.apply(self.agent, UNTOUCHED)
        assert answer.applied, answer
        await asyncio.sleep(5)
        request = agent_pb2.GetWorkloadStatusRequest(id=UNTOUCHED)
        found = await self.channel.call(AgentService.GET_WORKLOAD_STATUS, request)
        assert found.status.actual_state == agent_pb2.ACTUAL_STATE_RUNNING, found
        assert not self.failure.done(), self.failure

    async def come_and_go(self, prefix: str, *, count: int) -> None:
        """Workloads that live for a while, each under a name of its own."""
        for number in range(count):
            name = f"{prefix}-{number}"
            await self.stage.apply(self.agent, name)
            await asyncio.sleep(1)
            request = agent_pb2.DeleteWorkloadRequest(id=name)
            await self.channel.call(AgentService.DELETE_WORKLOAD, request)
            await self.settle()

    def channel_for(self, _method: Method[Any, Any]) -> Channel:
        return self.channel


@functools.cache
def _signing_request(identity: Identity) -> OwnRequest:
    """One for all worlds: signatures differ in length, and what is drawn for a test must not depend on the world."""
    return make_signing_request(identity)


class TrustWorld:
    """A control plane that knows its callers and has the authority's key, a node that joined, and a token."""

    def __init__(self, folder: Path) -> None:
        self.moved = False
        self.metadata: dict[str, str] = {}
        self.clock = LoopClock(START)
        made = make_authority("default", now=START)
        write_authority(folder / "ca", made)
        pair = issue(made, Identity(Role.CONTROL, "default", "control"), now=START)
        paths = write_credentials(folder / "control", ca=made.pem, pair=pair)
        network = LocalNetwork()
        self.store = KeptStore(SqliteStore(":memory:", decode_spec=decode_spec_bytes))
        self.plane = ControlPlaneServer(
            ControlSettings(
                data_dir=str(folder / "data"),
                grpc_host="control",
                ca=str(paths.ca),
                cert=str(paths.cert),
                key=str(paths.key),
                ca_key=str(folder / "ca" / CA_KEY_FILE),
            ),
            transport=network.transport("control", identity=Identity(Role.CONTROL, "default", "control")),
            join_transport=network.transport("door"),
            store=self.store,
            clock=self.clock,
            entropy=SeededEntropy(1),
        )
        self.network = network
        self.request = _signing_request(Identity(Role.AGENT, "default", "n1"))
        self.new_request = _signing_request(Identity(Role.AGENT, "default", "n2"))
        self.workload_request = _signing_request(workload_identity("default", job="crew", node="n1"))
        self.token = ""

    async def prepare(self) -> None:
        await self.plane.start(http=False)
        self.failure = asyncio.ensure_future(self.plane.failed())
        operator = self.network.transport("operator", identity=Identity(Role.OPERATOR, "default", "ada"))
        agent = self.network.transport("agent", identity=Identity(Role.AGENT, "default", "n1"))
        self._operator, self._agent = operator.connect("control:8085"), agent.connect("control:8085")
        self._stranger = self.network.transport("stranger").connect(self.plane.join_address)
        self._nodes = HollowFleet(agent, "control:8085", listen="agents:50051", clock=self.clock)
        await self._nodes.start()
        self._nodes.add(HollowNode("n1"))
        await asyncio.sleep(1)
        member = control_pb2.GroupMember(workload_id="web", spec=process_spec())
        member.spec.process.identity = True
        group = control_pb2.ApplyGroupRequest(group_id="crew", members=[member])
        await self._operator.call(AgentControl.APPLY_GROUP, group)
        await asyncio.sleep(5)
        made = await self._operator.call(Credentials.CREATE_JOIN_TOKEN, enrollment_pb2.CreateJoinTokenRequest(uses=50))
        await self._operator.call(Secrets.SET_SECRET, secrets_pb2.SetSecretRequest(name="password", value=b"hidden"))
        self.token, self.token_id = made.token, made.view.token_id

    def channel_for(self, method: Method[Any, Any]) -> Channel:
        """The callers that may make this call."""
        if method.service == Enrollment.NAME:
            return self._stranger
        by_agents = (Credentials.RENEW_CERTIFICATE, Credentials.ISSUE_WORKLOAD_CERTIFICATE)
        return self._agent if method in by_agents else self._operator

    async def settle(self) -> None:
        await asyncio.sleep(SETTLE)

    async def state(self) -> object:
        page = await self.store.events(EventQuery(limit=1, newest=True))
        return await self.store.tokens(), await self.store.secrets(), page.next

    def census(self) -> Counter[str]:
        return census(self.plane, ignored=IGNORED)

    async def check_alive(self) -> None:
        assert not self.failure.done(), self.failure
        listed = await self._operator.call(Credentials.LIST_JOIN_TOKENS, enrollment_pb2.ListJoinTokensRequest())
        assert len(listed.tokens) >= 0
        made = await self._operator.call(Credentials.CREATE_JOIN_TOKEN, enrollment_pb2.CreateJoinTokenRequest())
        request = make_signing_request(Identity(Role.AGENT, "default", UNTOUCHED))
        joined = await self._stranger.call(
            Enrollment.JOIN, enrollment_pb2.JoinRequest(token=made.token, csr=request.csr)
        )
        assert joined.certificate

    async def stop(self) -> None:
        self.failure.cancel()
        for channel in (self._operator, self._agent, self._stranger):
            await channel.close()
        await self._nodes.stop()
        await self.plane.stop()
        await self.store.dispose()


class DiscoveryWorld:
    """A serving agent of version 3 with one container in its tree."""

    def __init__(self) -> None:
        self.moved = False
        self.metadata: dict[str, str] = {}
        self.tree = EmbeddedTree(LoopClock(START))
        self.network = LocalNetwork()

    async def prepare(self) -> None:
        self.store = self.tree.session()
        await self.store.open()
        paths, container = ModelPaths("b"), Container("c", "i")
        nodes = registrations(paths, container, ContainerService("h:1"), [SavedModel("m", "ps_0")])
        for path, data in nodes.items():
            await self.store.create(path, data, ephemeral=True, makepath=True)
        self.services = ServiceMap(self.store, paths)
        self.services.start()
        await self.services.wait_loaded()
        self.handlers = ServingAgentHandlers(
            ModelAddresses(self.services), resource=lambda: AgentResource("h:1", 0, 2**40, 5)
        )
        self.server = await self.network.transport("agent").serve("agent:0", [self.handlers.service()])
        self.channel = self.network.transport("client").connect(self.server.address)
        for server_type in ServerType:  # an answer is kept for each of them
            await ServingAgentClient(self.channel).heart_beat(server_type)

    async def settle(self) -> None:
        await asyncio.sleep(SETTLE)

    async def state(self) -> object:
        return self.services.addresses(), self.services.version

    def census(self) -> Counter[str]:
        return census(self.handlers, ignored=IGNORED)

    async def check_alive(self) -> None:
        client = ServingAgentClient(self.channel)
        assert await client.heart_beat(ServerType.PS) == {"m:ps_0": ["h:1"]}

    async def stop(self) -> None:
        self.services.close()
        await self.channel.close()
        await self.server.stop()
        await self.store.close()
        await self.tree.close()

    def channel_for(self, _method: Method[Any, Any]) -> Channel:
        return self.channel


World = ControlWorld | AgentWorld | TrustWorld | DiscoveryWorld


def _stray() -> agent_pb2.ApplyWorkloadRequest:
    """What an agent runs that the control plane knows nothing of."""
    return agent_pb2.ApplyWorkloadRequest(
        id="stray", type=agent_pb2.WORKLOAD_TYPE_PROCESS, revision_id="r1", generation=1, spec=workload()
    )


async def _print_something(_request, _call):
    """Hollow nodes keep no logs: this one has a line."""
    yield agent_pb2.LogChunk(data=b"hello\n", stream="stdout")


@asynccontextmanager
async def control_world(folder: Path) -> AsyncIterator[ControlWorld]:
    engines = Engines({"service": ServiceEngine()})
    made = ControlKit(folder, lease=timedelta(seconds=6), heartbeat_interval=timedelta(seconds=2), engines=engines)
    made.agents.read_logs = _print_something
    async with made as kit:
        world = ControlWorld(kit)
        await world.prepare()
        try:
            yield world
        finally:
            world.failure.cancel()


@asynccontextmanager
async def agent_world(folder: Path) -> AsyncIterator[AgentWorld]:
    async with scene(folder, serve=False) as stage:
        world = AgentWorld(stage)
        await world.prepare()
        try:
            yield world
        finally:
            world.failure.cancel()
            await world.channel.close()


@asynccontextmanager
async def trust_world(folder: Path) -> AsyncIterator[TrustWorld]:
    world = TrustWorld(folder)
    await world.prepare()
    try:
        yield world
    finally:
        await world.stop()


@asynccontextmanager
async def discovery_world(_folder: Path) -> AsyncIterator[DiscoveryWorld]:
    world = DiscoveryWorld()
    await world.prepare()
    try:
        yield world
    finally:
        await world.stop()


_OTHER_READS = (
    *("get_workload_status", "get_workload_spec", "list_workloads", "health_check", "list_actions", "read_logs"),
    *("get_authority", "list_join_tokens", "list_secrets"),
    *("get_replicas", "get_resource", "heart_beat", "download"),
)


def changed_nothing(method: Method[Any, Any], outcome: CallOutcome) -> bool:
    """Whether a call is sure to have left everything as it was. A session lives on when its stream is refused."""
    if method == Coordination.SESSION and outcome.replies:
        return False
    return method.attribute in (*READS, *_OTHER_READS) or outcome.error is not None or outcome.invalid

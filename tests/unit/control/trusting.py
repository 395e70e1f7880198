"""A control plane that issues certificates, with real agents on fake machines; everybody has an identity."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from shoal.agent.server import Agent, AgentSettings
from shoal.agent.workloads.ports import PortBook
from shoal.control.server import ControlPlaneServer
from shoal.core.entropy import SeededEntropy
from shoal.model.identity import Identity, Role
from shoal.model.workloads import WorkloadType
from shoal.testing.control import CONTROL_ADDRESS, START, process_spec
from shoal.testing.runtimes import FakeRuntime
from shoal.testing.threads import InlineThreads
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.trust.authority import make_authority
from shoal.wire.trust.credentials import CA_FILE, CA_KEY_FILE, write_authority
from tests.unit.control.real_agents import FakeMachine, RealFleet

CLUSTER = "blue"


class TrustingFleet(RealFleet):
    """A `RealFleet` in which every program has an identity, in place of a certificate of its own."""

    def __init__(self, folder: Path, **settings) -> None:
        super().__init__(folder, cluster_id=CLUSTER, **settings)
        self.authority = make_authority(CLUSTER, now=START)
        write_authority(folder / "ca", self.authority)
        files = {"ca": str(folder / "ca" / CA_FILE), "cert": "unused", "key": "unused"}
        self.settings = replace(
            self.settings, insecure=False, ca_key=str(folder / "ca" / CA_KEY_FILE), join_port=0, **files
        )
        self.access = files
        self.channel = self.as_one(Identity(Role.OPERATOR, CLUSTER, "ada"))

    def as_one(self, identity: Identity):
        """A channel of this identity."""
        return self.network.transport(f"{identity.role}", identity=identity).connect(CONTROL_ADDRESS)

    async def start_control(self) -> None:
        self.plane = ControlPlaneServer(
            self.settings,
            transport=self.network.transport("control", identity=Identity(Role.CONTROL, CLUSTER, "control")),
            join_transport=self.network.transport("joining"),
            store=self.store,
            clock=self.clock,
            entropy=SeededEntropy(1),
            threads=InlineThreads(),
        )
        await self.plane.start(http=False)

    async def start(self, name: str, **settings) -> Agent:
        self._starts += 1
        machine = self.machines.setdefault(name, FakeMachine(self.clock))
        agent = Agent(
            AgentSettings(
                data_dir=str(self.folder / name),
                control=(CONTROL_ADDRESS,),
                grpc_port=0,
                cpu=4.0,
                memory="4GB",
                slots=4,
                **self.access,
                **settings,
            ),
            transport=self.network.transport(f"agent {name}", identity=Identity(Role.AGENT, CLUSTER, name)),
            clock=self.clock,
            entropy=SeededEntropy(self._starts),
            runtimes=lambda _settings, _node_id: {WorkloadType.PROCESS: FakeRuntime(machine)},
            ports=PortBook(SeededEntropy(1), free=lambda _port: True),
            database_threads=InlineThreads(),
        )
        await agent.start()
        self.running[name] = agent
        await self.wait_node(name, "Ready")
        return agent

    async def apply_trusted(
        self, group_id: str = "clicks", *, members=("a",), channel=None, expected=None, bounds=None, **process
    ):
        """Apply a group whose members have certificates of their own."""
        request = pb.ApplyGroupRequest(group_id=group_id, expected_generation=expected, member_changes=bounds)
        for name in members:
            spec = process_spec()
            spec.process.MergeFrom(type(spec.process)(**{"identity": True, **process}))
            request.members.add(workload_id=name, spec=spec)
        return await (channel or self.channel).call(AgentControl.APPLY_GROUP, request)

    def started(self, node: str, workload_id: str = "a"):
        """What the runs of a workload were started with."""
        requests = self.machines[node].started_with.values()
        return [request for request in requests if request.workload_id == workload_id]


@asynccontextmanager
async def trusting_fleet(folder: Path, **settings):
    async with TrustingFleet(folder, **settings) as fleet:
        yield fleet

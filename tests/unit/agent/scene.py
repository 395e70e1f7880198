"""A network without sockets, with a control plane by script and agents on a fake machine."""

from __future__ import annotations

from contextlib import asynccontextmanager

from shoal.agent.metrics import AgentMetrics
from shoal.agent.server import Agent, AgentSettings
from shoal.agent.workloads.ports import PortBook
from shoal.core.entropy import SeededEntropy
from shoal.model.workloads import WorkloadType
from shoal.testing.clock import LoopClock
from shoal.testing.runtimes import FakeMachine, FakeRuntime
from shoal.testing.threads import InlineThreads
from shoal.wire.local import LocalNetwork
from shoal.wire.methods import NODE_HEADER, AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from tests.unit.agent.making import START, workload
from tests.unit.agent.scripted_control import ScriptedControl

CONTROL = "127.0.0.1:8085"

#: Whether scripted control planes take streams, unless a test says so itself. Set by tests that run both ways.
STREAMS = False


class Scene:
    """A network with a scripted control plane, and agents."""

    def __init__(self, tmp_path, **control) -> None:
        self.tmp_path = tmp_path
        self.network = LocalNetwork()
        self.control = ScriptedControl(**{"streams": STREAMS, **control})
        self.clock = LoopClock(START)
        self.machine = FakeMachine(self.clock)
        self.agents: list[Agent] = []
        self.server = None
        #: For the next agent; without, none are counted.
        self.metrics: AgentMetrics | None = None

    async def serve(self, address: str = CONTROL) -> None:
        self.server = await self.network.transport("control").serve(address, [self.control.service()])

    async def start(self, name: str = "n1", *, seed: int = 1, **settings) -> Agent:
        agent = Agent(
            AgentSettings(
                **{
                    "data_dir": str(self.tmp_path / name),
                    "control": (CONTROL,),
                    "node_id": name,
                    "insecure": True,
                    "grpc_port": 0,
                    "cpu": 4.0,
                    "memory": "4GB",
                    "slots": 4,
                    **settings,
                }
            ),
            transport=self.network.transport(f"agent {name}"),
            clock=self.clock,
            entropy=SeededEntropy(seed),
            runtimes=lambda _settings, _node_id: {WorkloadType.PROCESS: FakeRuntime(self.machine)},
            ports=PortBook(SeededEntropy(1), free=lambda _port: True),
            database_threads=InlineThreads(),
            metrics=self.metrics,
        )
        await agent.start()
        self.agents.append(agent)
        return agent

    async def apply(self, agent: Agent, workload_id: str = "w", spec=None, *, generation: int = 0, **fields):
        channel = self.network.transport("control").connect(agent.address)
        try:
            request = agent_pb2.ApplyWorkloadRequest(
                id=workload_id,
                type=agent_pb2.WORKLOAD_TYPE_PROCESS,
                spec=workload(spec, **fields),
                generation=generation,
            )
            return await channel.call(AgentService.APPLY_WORKLOAD, request, metadata={NODE_HEADER: agent.node_id})
        finally:
            await channel.close()

    def own(self, workload_id: str, node_id: str, generation: int = 1, desired: str = "Running") -> None:
        self.control.views[workload_id] = pb.WorkloadView(
            workload_id=workload_id, assigned_node_id=node_id, generation=generation, desired_state=desired
        )


@asynccontextmanager
async def scene(tmp_path, *, serve: bool = True, **control):
    made = Scene(tmp_path, **control)
    if serve:
        await made.serve()
    try:
        yield made
    finally:
        for agent in made.agents:
            await agent.stop()

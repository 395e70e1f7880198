"""A control plane with real agents on fake machines, in one event loop and virtual time."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta

from shoal.agent.server import Agent, AgentSettings
from shoal.agent.workloads.ports import PortBook
from shoal.core.entropy import SeededEntropy
from shoal.model.workloads import WorkloadType
from shoal.testing.control import CONTROL_ADDRESS, ControlKit
from shoal.testing.runtimes import FakeMachine, FakeRuntime
from shoal.testing.threads import InlineThreads
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb


class RealFleet(ControlKit):
    """A `ControlKit` whose nodes are real agents. Each has a machine, which goes on when its agent is killed."""

    def __init__(self, folder, **settings) -> None:
        super().__init__(folder / "control", **settings)
        self.folder = folder
        self.machines: dict[str, FakeMachine] = {}
        self.running: dict[str, Agent] = {}
        self._starts = 0

    async def __aexit__(self, *error) -> None:
        for name in list(self.running):
            await self.kill(name)
        await super().__aexit__(*error)

    async def start(self, name: str, *, directory: str = "", **settings) -> Agent:
        """Start an agent; once more with the same name, on the same disk and the same machine."""
        directory = directory or name
        self._starts += 1
        machine = self.machines.setdefault(directory, FakeMachine(self.clock))
        agent = Agent(
            AgentSettings(
                **{
                    "data_dir": str(self.folder / directory),
                    "control": (CONTROL_ADDRESS,),
                    "node_id": name,
                    "insecure": True,
                    "grpc_port": 0,
                    "cpu": 4.0,
                    "memory": "4GB",
                    "slots": 4,
                    **settings,
                }
            ),
            transport=self.network.transport(f"agent {directory}"),
            clock=self.clock,
            entropy=SeededEntropy(self._starts),
            runtimes=lambda _settings, _node_id: {WorkloadType.PROCESS: FakeRuntime(machine)},
            ports=PortBook(SeededEntropy(1), free=lambda _port: True),
            database_threads=InlineThreads(),
        )
        await agent.start()
        self.running[directory] = agent
        return agent

    async def kill(self, directory: str) -> None:
        """End an agent; its machine goes on."""
        await self.running.pop(directory).stop()

    async def logs(self, workload_id: str) -> bytes:
        """Everything that a workload printed."""
        request = pb.ReadLogsRequest(workload_id=workload_id)
        return b"".join([chunk.data async for chunk in self.channel.stream(AgentControl.READ_LOGS, request)])


@asynccontextmanager
async def real_fleet(folder, *, lease: float = 30, interval: float = 10):
    made = RealFleet(folder, lease=timedelta(seconds=lease), heartbeat_interval=timedelta(seconds=interval))
    async with made:
        yield made

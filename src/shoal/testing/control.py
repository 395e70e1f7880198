"""A control plane and hollow agents in one event loop: for tests in virtual time.

async with ControlKit(tmp_path) as kit:
kit.node("n1")
await kit.apply("web", cpu=500)
await kit.wait_status("web", "Running")
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.control.state.facts import Strategy
from shoal.control.store.sqlite import SqliteStore
from shoal.core.clock import Clock
from shoal.core.entropy import SeededEntropy
from shoal.jobs.engine import Engines
from shoal.testing.clock import LoopClock
from shoal.testing.hollow import HollowFleet, HollowNode
from shoal.testing.stores import KeptStore
from shoal.testing.threads import InlineThreads
from shoal.testing.workflows import MemoryWorkflows, WorkflowMemory
from shoal.wire.convert import decode_spec_bytes
from shoal.wire.local import LocalNetwork
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import Channel

CONTROL_ADDRESS = "control:8085"
AGENTS_ADDRESS = "agents:50051"
START = datetime(2026, 1, 1, tzinfo=UTC)


class ControlKit:
    """Everything a test of the control plane needs."""

    def __init__(
        self,
        folder: Path,
        *,
        lease: timedelta = timedelta(seconds=30),
        heartbeat_interval: timedelta = timedelta(seconds=10),
        strategy: Strategy = Strategy.SPREAD,
        cluster_id: str = "default",
        streams: bool = False,
        engines: Engines | None = None,
    ) -> None:
        self.settings = ControlSettings(
            data_dir=str(folder),
            grpc_host="control",
            insecure=True,
            lease=lease,
            heartbeat_interval=heartbeat_interval,
            strategy=strategy,
            cluster_id=cluster_id,
        )
        self.clock: Clock = LoopClock(START)
        self.network = LocalNetwork()
        self.engines = engines
        self.workflows = WorkflowMemory()
        self.store = KeptStore(SqliteStore(":memory:", decode_spec=decode_spec_bytes))
        self.plane: ControlPlaneServer
        self.agents = HollowFleet(
            self.network.transport("agents"),
            CONTROL_ADDRESS,
            listen=AGENTS_ADDRESS,
            clock=self.clock,
            streams=streams,
        )
        self.channel: Channel = self.network.transport("client").connect(CONTROL_ADDRESS)

    async def __aenter__(self) -> Self:
        await self.start_control()
        await self.agents.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.agents.stop()
        await self.channel.close()
        await self.stop_control()
        await self.store.dispose()

    async def start_control(self) -> None:
        """Start, or start again on what is stored."""
        self.plane = ControlPlaneServer(
            self.settings,
            transport=self.network.transport("control"),
            store=self.store,
            clock=self.clock,
            entropy=SeededEntropy(1),
            threads=InlineThreads(),
            engines=self.engines,
            workflows=lambda: MemoryWorkflows(self.workflows),
        )
        await self.plane.start(http=False)

    async def stop_control(self) -> None:
        """Stop it; what is stored stays."""
        await self.plane.stop()

    def node(self, node_id: str, **settings: Any) -> HollowNode:
        """Bring a hollow node to life."""
        return self.agents.add(HollowNode(node_id, **settings))

    # -----------------------------------------------------------------------------------------------------
    # Calls

    async def apply(self, workload_id: str, **spec: Any) -> pb.ApplyWorkloadResponse:
        """Apply a process workload; see `spec` for the arguments."""
        revision = spec.pop("revision", "")
        desired = spec.pop("desired", "")
        expected = spec.pop("expected_revision", "")
        request = pb.ApplyWorkloadRequest(
            workload_id=workload_id,
            spec=process_spec(**spec),
            revision_id=revision,
            desired_state=desired,
            expected_revision=expected,
        )
        return await self.channel.call(AgentControl.APPLY_WORKLOAD, request)

    async def delete(self, workload_id: str) -> pb.DeleteWorkloadResponse:
        """Delete a workload."""
        return await self.channel.call(AgentControl.DELETE_WORKLOAD, pb.DeleteWorkloadRequest(workload_id=workload_id))

    async def apply_group(
        self, group_id: str, members: dict[str, dict[str, Any]], expected_generation: int | None = None
    ) -> pb.ApplyGroupResponse:
        """Apply a group of process workloads."""
        request = pb.ApplyGroupRequest(
            group_id=group_id,
            members=[
                pb.GroupMember(workload_id=name, revision_id=spec.pop("revision", ""), spec=process_spec(**spec))
                for name, spec in ((name, dict(spec)) for name, spec in members.items())
            ],
            expected_generation=expected_generation,
        )
        return await self.channel.call(AgentControl.APPLY_GROUP, request)

    async def workload(self, workload_id: str) -> pb.WorkloadView:
        """One workload."""
        request = pb.GetWorkloadRequest(workload_id=workload_id)
        return (await self.channel.call(AgentControl.GET_WORKLOAD, request)).workload

    async def node_view(self, node_id: str) -> pb.NodeView:
        """One node."""
        return (await self.channel.call(AgentControl.GET_NODE, pb.GetNodeRequest(node_id=node_id))).node

    async def event_kinds(self, subject_id: str = "") -> list[str]:
        """The kinds of the events so far, in order."""
        request = pb.ListEventsRequest(limit=1000, subject_id=subject_id)
        answer = await self.channel.call(AgentControl.LIST_EVENTS, request)
        return [event.kind for event in answer.events]

    # -----------------------------------------------------------------------------------------------------
    # Waiting

    async def wait(self, condition: Callable[[], bool], *, seconds: float = 60.0, what: str = "condition") -> None:
        """Wait until it holds."""
        began = self.clock.monotonic()
        while not condition():
            if self.clock.monotonic() > began + seconds:
                raise AssertionError(f"{what} did not hold within {seconds} s")
            await self._pause(began)

    async def wait_status(self, workload_id: str, status: str, *, seconds: float = 60.0) -> pb.WorkloadView:
        """Wait for a workload's status."""
        began = self.clock.monotonic()
        while True:
            view = await self.workload(workload_id)
            if view.status == status:
                return view
            if self.clock.monotonic() > began + seconds:
                raise AssertionError(f"{workload_id} is {view.status}, not {status}: {view.reason.message}")
            await self._pause(began)

    async def _pause(self, began: float) -> None:
        """Long waits are looked at less often: within a tenth of what they took."""
        await self.clock.sleep(min(0.25, max(0.01, 0.1 * (self.clock.monotonic() - began))))

    async def wait_gone(self, workload_id: str, *, seconds: float = 60.0) -> None:
        """Wait until a workload's record is gone."""
        await self.wait(
            lambda: workload_id not in self.plane.leadership.fleet.workloads,
            seconds=seconds,
            what=f"{workload_id} gone",
        )

    async def wait_node(self, node_id: str, status: str, *, seconds: float = 60.0) -> None:
        """Wait for a node's status."""

        def holds() -> bool:
            node = self.plane.leadership.fleet.nodes.get(node_id)  # type: ignore[call-overload]
            return node is not None and node.state.value == status

        await self.wait(holds, seconds=seconds, what=f"{node_id} {status}")


def process_spec(
    *,
    cpu: int = 100,
    memory: int = 64,
    slots: int = 0,
    command: tuple[str, ...] = ("sleep", "1000"),
    restart: str = "",
    labels: dict[str, str] | None = None,
    at_most_one: bool = False,
    port: int = 0,
    only_on: str = "",
    failover: str = "",
    after: float = 0.0,
    migrate: str = "",
) -> pb.WorkloadSpec:
    """A process spec for tests."""
    spec = pb.WorkloadSpec(
        type="process",
        resources=pb.ResourceRequirements(cpu_millicores=cpu, memory_mb=memory),
        slots=slots,
        labels=labels or {},
        at_most_one=at_most_one,
    )
    spec.process.command.extend(command)
    spec.process.restart.policy = restart
    if port:
        spec.process.ports.add(name="main", port=port)
    if only_on:
        spec.placement.constraints.add(key="node_id", operator="in", values=[only_on])
    if failover or after or migrate:
        spec.failover.policy = failover
        spec.failover.after_ms = round(after * 1000)
        spec.failover.migrate = migrate
    return spec

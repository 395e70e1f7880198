"""Hollow nodes: simulated agents that speak the real protocol and run nothing.

One `HollowFleet` holds many nodes behind one server; a header of each call names the node. A hollow node keeps
generations like a real agent, reports full snapshots with a sequence, and sends a heartbeat at once after a change. It
can be scripted: it may refuse work, answer slowly, fall silent, forget everything, or have no features at all, as an
agent of the published contract. With `streams`, each node that has the feature opens one and gets its commands there.

Used by tests in virtual time over `shoal.wire.local`, and by the benchmarks over gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.agent.contact.stream import ControlStream
from shoal.core.clock import Clock, SystemClock, epoch_ms
from shoal.core.errors import NotFoundError, PreconditionError, ShoalError, StaleGenerationError, UnsupportedError
from shoal.core.ids import NO_SESSION, SessionId
from shoal.core.tasks import Signal, TaskScope
from shoal.model.nodes import LEASE_MARGIN, Feature
from shoal.wire.methods import NODE_HEADER, AgentControl, AgentService, methods_of
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control
from shoal.wire.pb.shoal.v1 import run_pb2
from shoal.wire.transport import DEFAULT_TIMEOUT, Call, Channel, Server, Service, Transport

ALL_FEATURES = tuple(feature.value for feature in Feature)
COALESCE_SECONDS = 0.05


@dataclass(slots=True)
class HollowRun:
    """What a hollow node believes about one workload."""

    request: agent.ApplyWorkloadRequest
    state: str = "Running"
    completed: bool = False
    failure: str = ""
    exit_code: int = 0
    restarts: int = 0
    #: The last status, and the values it was made of: most heartbeats repeat the previous one.
    shown: tuple[tuple[object, ...], control.WorkloadStatus] | None = None


@dataclass(slots=True)
class HollowNode:
    """One simulated agent."""

    node_id: str
    cpu_millicores: int = 4000
    memory_mb: int = 8192
    slots: int = 0
    features: tuple[str, ...] = ALL_FEATURES
    labels: dict[str, str] = field(default_factory=dict)
    workload_types: tuple[str, ...] = ("process", "container")
    cluster_id: str = ""
    host_id: str = ""
    #: Its storage pools, with their sizes in GB.
    storage_pools: dict[str, int] = field(default_factory=dict)
    #: Raise this on the next applies, by workload id ("*" for any).
    refuse: dict[str, ShoalError] = field(default_factory=dict)
    #: Seconds before each command is answered.
    slow: float = 0.0
    #: Send no heartbeats and answer no commands.
    silent: bool = False
    #: Send heartbeats, but answer no command.
    deaf: bool = False
    #: Workloads that start here stay Pending.
    never_ready: bool = False
    #: Answer commands, but send no heartbeats.
    mute: bool = False
    #: Report the usage of each run with each heartbeat, as an agent does.
    measures: bool = False
    #: The reason of each condition.
    conditions: dict[str, str] = field(default_factory=dict)
    runs: dict[str, HollowRun] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    actions: list[agent.AgentAction] = field(default_factory=list)
    session: SessionId = SessionId("")
    sequence: int = 0
    registrations: int = 0
    #: When the last heartbeat was sent that a confirmed leader acknowledged, and its lease. At-most-one work depends on
    #: them.
    last_ack: float = -1e9
    lease: float = 0.0
    superseded: bool = False
    #: From the last answer to a heartbeat: take no new work.
    draining: bool = False
    #: (verb, workload id, generation) of every command that was carried out, in order.
    history: list[tuple[str, str, int]] = field(default_factory=list)
    #: Workloads that were removed from here and left their data behind.
    kept_data: list[str] = field(default_factory=list)
    changed: Signal = field(default_factory=Signal)
    on_heartbeat: Callable[[float], None] | None = None

    @property
    def knows_generations(self) -> bool:
        """Whether it is one of ours."""
        return Feature.GENERATIONS.value in self.features

    def forget_everything(self) -> None:
        """As if its disk was replaced."""
        self.runs.clear()
        self.generations.clear()

    def complete(self, workload_id: str, exit_code: int = 0) -> None:
        """Let a run end well."""
        run = self.runs[workload_id]
        run.state, run.completed, run.exit_code = "Stopped", True, exit_code
        self.changed.set()

    def fail(self, workload_id: str, failure: str = "RUNTIME_ERROR") -> None:
        """Let a run fail for good: its agent does not restart it."""
        self.runs[workload_id].state = "Failed"
        self.runs[workload_id].failure = failure
        self.changed.set()

    def start_again(self, workload_id: str) -> None:
        """Let a run that was not ready be ready."""
        self.runs[workload_id].state = "Running"
        self.changed.set()


class HollowFleet:
    """Many hollow nodes, one server, one channel to the control plane.

    With `transport_of` each node has a connection of its own instead, as machines have, made by the transport that is
    returned for its id: so it can show its own certificate.
    """

    def __init__(
        self,
        transport: Transport,
        control_address: str,
        *,
        listen: str = "127.0.0.1:0",
        clock: Clock | None = None,
        on_command: Callable[[str, str, int], None] | None = None,
        streams: bool = False,
        transport_of: Callable[[str], Transport] | None = None,
    ) -> None:
        self._transport_of = transport_of
        self._use_streams = streams
        self._streams: dict[str, ControlStream] = {}
        #: Called with (apply or delete, workload id, generation) when a command arrives, before anything is decided.
        self._on_command = on_command or (lambda _verb, _workload_id, _generation: None)
        self._transport = transport
        self._control_address = control_address
        self._listen = listen
        self._clock: Clock = clock or SystemClock()
        self._scope = TaskScope("hollow")
        self.nodes: dict[str, HollowNode] = {}
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._server: Server | None = None
        self._channel: Channel | None = None
        self._channels: dict[str, Channel] = {}

    async def start(self) -> None:
        """Serve, without any node yet."""
        self._server = await self._transport.serve(self._listen, [Service(methods_of(AgentService), self)])
        self._channel = self._transport.connect(self._control_address)

    async def stop(self) -> None:
        """Let every node fall silent and stop serving."""
        await self._scope.close()
        for stream in self._streams.values():
            await stream.close()
        for channel in (self._channel, *self._channels.values()):
            if channel is not None:
                await channel.close()
        if self._server is not None:
            await self._server.stop(0.0)

    def add(self, node: HollowNode) -> HollowNode:
        """Start a node: it registers and sends heartbeats from now on."""
        self.nodes[node.node_id] = node
        self._loops[node.node_id] = self._scope.start(self._live(node), name=node.node_id)
        return node

    def kill(self, node_id: str) -> HollowNode:
        """Lose the whole machine: it sends nothing, answers nothing, and is forgotten here."""
        self._loops.pop(node_id).cancel()
        self.break_stream(node_id)
        channel = self._channels.pop(node_id, None)
        if channel is not None:
            self._scope.start(channel.close(), name=f"hang up {node_id}")
        return self.nodes.pop(node_id)

    def break_stream(self, node_id: str) -> None:
        """Cut the stream of a node, if it has one; it opens another with its next heartbeat."""
        stream = self._streams.pop(node_id, None)
        if stream is not None:
            self._scope.start(stream.close(), name=f"close {node_id}")

    # -----------------------------------------------------------------------------------------------------
    # Towards the control plane

    async def _live(self, node: HollowNode) -> None:
        interval = 1.0
        while True:
            try:
                if not node.silent and not node.superseded:
                    interval = await self._register_or_heartbeat(node)
            except NotFoundError:
                node.session = NO_SESSION
                node.sequence = -1
                continue
            except ShoalError as error:
                if "superseded" in error.message:
                    node.superseded = True
                await self._clock.sleep(min(interval, 0.5))
                continue
            if await node.changed.wait(timeout=interval):
                await self._clock.sleep(COALESCE_SECONDS)

    def _end_at_most_one_work(self, node: HollowNode) -> None:
        """As a watchdog does: end at-most-one work a little before its lease, if no heartbeat was acknowledged."""
        silence = self._clock.monotonic() - node.last_ack
        for workload_id, run in list(node.runs.items()):
            spec = run.request.spec
            allowed = max(node.lease, spec.stop_after_ms / 1000) * (1 - LEASE_MARGIN)
            if (spec.at_most_one or spec.stop_after_ms) and silence >= allowed:
                del node.runs[workload_id]

    async def _register_or_heartbeat(self, node: HollowNode) -> float:
        self._end_at_most_one_work(node)
        if node.sequence <= 0:
            interval = await self._register(node)
            if interval:
                node.sequence = 1
                await self.heartbeat(node)
            return interval or 1.0
        if node.mute:
            return 1.0
        return await self.heartbeat(node)

    async def _register(self, node: HollowNode) -> float:
        assert self._server is not None
        request = control.RegisterNodeRequest(
            node_id=node.node_id,
            capabilities=control.NodeCapabilities(
                cpu_total_millicores=node.cpu_millicores,
                memory_total_mb=node.memory_mb,
                supported_workload_types=node.workload_types,
                storage_pools=[
                    control.StoragePool(name=name, type="local", total_gb=size)
                    for name, size in node.storage_pools.items()
                ],
            ),
            labels=node.labels,
            agent_version="hollow",
            grpc_endpoint=self._server.address,
            cluster_id=node.cluster_id,
            host_id=node.host_id,
            slots=node.slots,
            features=node.features,
        )
        stream = self._stream(node)
        if stream is not None:
            answer = await stream.register(request, timeout=DEFAULT_TIMEOUT)
        else:
            answer = await self._channel_of(node).call(AgentControl.REGISTER_NODE, request)
        if not answer.accepted:
            return 0.0
        node.registrations += 1
        node.session = SessionId(answer.session)
        return answer.heartbeat_interval_ms / 1000

    async def heartbeat(self, node: HollowNode) -> float:
        """Send one heartbeat of a registered node. Returns the seconds until the next one is due."""
        request = control.HeartbeatRequest(
            node_id=node.node_id,
            session=node.session,
            sequence=node.sequence if node.session else 0,
            usage=control.NodeUsage(cpu_used_millicores=10, memory_used_mb=64),
            workload_statuses=[self._status(node, workload_id, run) for workload_id, run in node.runs.items()],
            workload_usage=[_usage(workload_id, node.sequence) for workload_id in node.runs] if node.measures else (),
            conditions=[run_pb2.NodeCondition(type=kind, message=text) for kind, text in node.conditions.items()],
        )
        node.sequence += 1
        began = self._clock.monotonic()
        stream = self._stream(node)
        if stream is not None:
            answer = await stream.heartbeat(request, timeout=DEFAULT_TIMEOUT)
        else:
            answer = await self._channel_of(node).call(AgentControl.HEARTBEAT, request)
        if not answer.unconfirmed:
            node.last_ack, node.lease = began, answer.lease_ms / 1000
            node.draining = answer.drain_node
        if node.on_heartbeat is not None:
            node.on_heartbeat(self._clock.monotonic() - began)
        return answer.heartbeat_interval_ms / 1000

    def _channel_of(self, node: HollowNode) -> Channel:
        if self._transport_of is None:
            assert self._channel is not None
            return self._channel
        channel = self._channels.get(node.node_id)
        if channel is None:
            channel = self._transport_of(node.node_id).connect(self._control_address)
            self._channels[node.node_id] = channel
        return channel

    def _stream(self, node: HollowNode) -> ControlStream | None:
        if not self._use_streams or Feature.STREAM.value not in node.features:
            return None
        stream = self._streams.get(node.node_id)
        if stream is None or stream.is_over:
            services = (Service(methods_of(AgentService), self),)
            stream = ControlStream(self._channel_of(node), services, on_end=node.changed.set)
            self._streams[node.node_id] = stream
        return stream

    def _status(self, node: HollowNode, workload_id: str, run: HollowRun) -> control.WorkloadStatus:
        made_of = (
            workload_id,
            run.request.generation,
            run.state,
            run.completed,
            run.failure,
            run.exit_code,
            run.restarts,
        )
        if run.shown is None or run.shown[0] != made_of:
            run.shown = made_of, self._make_status(node, workload_id, run)
        return run.shown[1]

    def _make_status(self, node: HollowNode, workload_id: str, run: HollowRun) -> control.WorkloadStatus:
        status = control.WorkloadStatus(workload_id=workload_id, state=run.state)
        if run.state == "Failed":
            status.failure_reason = control.FailureReason.Value(run.failure)
        if node.knows_generations:
            status.run.generation = run.request.generation
            status.run.revision_id = run.request.revision_id
            status.run.completed = run.completed
            status.run.ready = run.state == "Running"
            if status.run.ready:
                status.run.ports.update({each.name: each.port for each in run.request.spec.process.ports if each.port})
            status.run.restarts = run.restarts
            if run.completed:
                status.run.exit.code = run.exit_code
        return status

    # -----------------------------------------------------------------------------------------------------
    # persys.agent.v1.AgentService

    async def _node(self, call: Call) -> HollowNode:
        node = self.nodes.get(call.metadata.get(NODE_HEADER, ""))
        if node is None or node.silent or node.deaf:
            await asyncio.sleep(3600)  # a machine that is gone does not answer at all
            raise NotFoundError("node", call.metadata.get(NODE_HEADER, ""))
        if node.slow:
            await self._clock.sleep(node.slow)
        return node

    async def apply_workload(self, request: agent.ApplyWorkloadRequest, call: Call) -> agent.ApplyWorkloadResponse:
        """Accept a command, by the rules of generations."""
        node = await self._node(call)
        self._on_command("apply", request.id, request.generation)
        refusal = node.refuse.get(request.id) or node.refuse.get("*")
        if refusal is not None:
            raise refusal
        wanted = "Stopped" if request.desired_state == agent.DESIRED_STATE_STOPPED else "Running"
        if node.draining and wanted == "Running" and request.id not in node.runs:
            raise PreconditionError("the node is being drained and takes no new work", reason="draining")
        highest = node.generations.get(request.id, 0)
        if node.knows_generations and request.generation < highest:
            raise StaleGenerationError(request.id, offered=request.generation, highest=highest)
        node.generations[request.id] = max(highest, request.generation)
        known = node.runs.get(request.id)
        if known is not None and known.completed and known.request.attempt == request.attempt:
            same = known.request.spec == request.spec and wanted == "Running"
            run = HollowRun(request, "Stopped", completed=True) if same else HollowRun(request, wanted)
        else:
            run = HollowRun(request, "Pending" if wanted == "Running" and node.never_ready else wanted)
            if known is not None and known.state == "Running" and same_spec(known.request, request):
                run.state = wanted  # it goes on
        node.runs[request.id] = run
        node.history.append((f"apply {wanted}", request.id, request.generation))
        node.changed.set()
        return agent.ApplyWorkloadResponse(applied=True, status=self._agent_status(request.id, run))

    async def delete_workload(self, request: agent.DeleteWorkloadRequest, call: Call) -> agent.DeleteWorkloadResponse:
        """Remove a copy, unless it is of a newer generation."""
        node = await self._node(call)
        self._on_command("delete", request.id, request.generation)
        highest = node.generations.get(request.id, 0)
        if node.knows_generations and request.generation and request.generation < highest:
            raise StaleGenerationError(request.id, offered=request.generation, highest=highest)
        node.generations[request.id] = max(highest, request.generation)
        node.runs.pop(request.id, None)
        if request.keep_data:
            node.kept_data.append(request.id)
        node.history.append(("delete", request.id, request.generation))
        now = epoch_ms(self._clock.wall()) // 1000
        node.actions.append(
            agent.AgentAction(workload_id=request.id, action_type="delete_workload", status="completed", created_at=now)
        )
        node.changed.set()
        if not node.knows_generations:
            return agent.DeleteWorkloadResponse(success=True)
        return agent.DeleteWorkloadResponse(success=True, session=node.session, next_beat=node.sequence)

    async def get_workload_status(
        self, request: agent.GetWorkloadStatusRequest, call: Call
    ) -> agent.GetWorkloadStatusResponse:
        """One status."""
        node = await self._node(call)
        if request.id not in node.runs:
            raise NotFoundError("workload", request.id)
        return agent.GetWorkloadStatusResponse(status=self._agent_status(request.id, node.runs[request.id]))

    async def get_workload_spec(
        self, request: agent.GetWorkloadSpecRequest, call: Call
    ) -> agent.GetWorkloadSpecResponse:
        """The spec of one run, as it was received."""
        node = await self._node(call)
        if not node.knows_generations:
            raise UnsupportedError("an agent of the published contract does not hand out specs")
        if request.id not in node.runs:
            raise NotFoundError("workload", request.id)
        command = node.runs[request.id].request
        return agent.GetWorkloadSpecResponse(
            id=command.id,
            type=command.type,
            revision_id=command.revision_id,
            desired_state=command.desired_state,
            spec=command.spec.SerializeToString(deterministic=True),
            generation=command.generation,
        )

    async def list_actions(self, request: agent.ListActionsRequest, call: Call) -> agent.ListActionsResponse:
        """What was done."""
        node = await self._node(call)
        found = [
            action
            for action in node.actions
            if action.workload_id == request.workload_id and action.action_type == request.action_type
        ]
        return agent.ListActionsResponse(actions=reversed(found))

    def _agent_status(self, workload_id: str, run: HollowRun) -> agent.WorkloadStatus:
        states = {
            "Running": agent.ACTUAL_STATE_RUNNING,
            "Stopped": agent.ACTUAL_STATE_STOPPED,
            "Failed": agent.ACTUAL_STATE_FAILED,
            "Pending": agent.ACTUAL_STATE_PENDING,
        }
        status = agent.WorkloadStatus(
            id=workload_id,
            type=run.request.type,
            revision_id=run.request.revision_id,
            desired_state=run.request.desired_state,
            actual_state=states[run.state],
        )
        status.run.generation = run.request.generation
        status.run.revision_id = run.request.revision_id
        status.run.completed = run.completed
        status.run.ready = run.state == "Running"
        return status


def _usage(workload_id: str, sequence: int) -> control.WorkloadUsageSnapshot:
    """A measurement that is a little different each time, as real ones are."""
    return control.WorkloadUsageSnapshot(
        workload_id=workload_id,
        type="process",
        cpu_percent=sequence % 100,
        memory_bytes=2**20 * (1 + sequence % 64),
        net_rx_bytes=1000 * sequence,
        source="hollow",
    )


def same_spec(one: agent.ApplyWorkloadRequest, other: agent.ApplyWorkloadRequest) -> bool:
    """Whether two commands ask for the same run."""
    return one.spec == other.spec and one.desired_state == other.desired_state

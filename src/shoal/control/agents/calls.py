"""Calls from the control plane to agents: through the stream that an agent opened, else to the address it listens on.

One channel per node. How many commands go to a node at once is decided in `shoal.control.agents.pump`. Called by
`shoal.control.workloads.sender` and `shoal.control.workloads.copies` (commands) and `shoal.control.api.service` (logs).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from shoal.control.agents.streams import Streams
from shoal.control.state.facts import Removal
from shoal.core import tracing
from shoal.core.errors import (
    InvalidError,
    NotFoundError,
    NotLeaderError,
    PreconditionError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
    problem,
)
from shoal.core.ids import NodeId, SessionId, WorkloadId
from shoal.model.actions import OPEN, ActionStatus, ActionType
from shoal.model.identity import Peer, Role
from shoal.model.nodes import Feature, HeartbeatMark, NodeRecord
from shoal.model.workloads import DesiredState, RunStatus, WorkloadRecord
from shoal.wire import convert
from shoal.wire.methods import NODE_HEADER, TERM_HEADER, AgentExec, AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as pb
from shoal.wire.pb.shoal.v1 import exec_pb2 as execution
from shoal.wire.serving import close_stream
from shoal.wire.status import Code, status_of
from shoal.wire.transport import Channel, Method, Request, Response, Transport

#: So many of the newest actions about a workload are looked at.
RECENT_ACTIONS = 20
#: How foreign agents say that a command waits, and that a spec is wrong.
_QUEUED = re.compile(r"submitted|queued|pending|accepted", re.IGNORECASE)
_INVALID = re.compile(r"\binvalid (request|spec|specification|configuration)\b", re.IGNORECASE)
COMMAND_TIMEOUT = 5.0
FOREIGN_COMMAND_TIMEOUT = 45.0

#: Told of each call to an agent: the RPC's name, the code it ended with, seconds.
OnCall = Callable[[str, str, float], None]


@dataclass(frozen=True, slots=True)
class _Line:
    """A channel and the verified identity of its peer."""

    channel: Channel
    peer: Peer | None


class Agents:
    """The control plane's side of `persys.agent.v1`."""

    def __init__(self, transport: Transport, *, streams: Streams, term: int, on_call: OnCall | None = None) -> None:
        self._transport = transport
        self._on_call = on_call or (lambda _rpc, _code, _seconds: None)
        self._streams = streams
        self._term = term
        self._lines: dict[NodeId, _Line] = {}

    async def apply(
        self, node: NodeRecord, record: WorkloadRecord, secrets: Mapping[str, bytes] | None = None
    ) -> RunStatus | None:
        """Tell an agent about the newest generation. Returns its status, or raises what it refused with."""
        stopped = record.desired is DesiredState.STOPPED
        request = pb.ApplyWorkloadRequest(
            id=record.workload_id,
            type=convert.workload_type_to_agent(record.spec.type),
            revision_id=record.revision_id,
            desired_state=pb.DESIRED_STATE_STOPPED if stopped else pb.DESIRED_STATE_RUNNING,
            spec=convert.agent_spec_from_control(record.spec, record.workload_id),
            generation=record.generation,
            attempt=record.attempt,
            secrets=secrets,
        )
        with tracing.span("command.apply", node_id=node.node_id, workload_id=record.workload_id):
            answer = await self._call(node, AgentService.APPLY_WORKLOAD, request, timeout=_timeout(node))
        if not answer.applied and not answer.skipped:
            raise _refusal(node, answer.message or "the agent refused it without a reason")
        return convert.run_status_from_agent(answer.status) if answer.HasField("status") else None

    async def delete(
        self, node: NodeRecord, workload_id: WorkloadId, generation: int, *, keep_data: bool
    ) -> HeartbeatMark | None:
        """Tell an agent to remove its copy, if it is of this generation or an older one.

        With `keep_data` its disks and volumes stay: the workload is not deleted, it leaves the node.
        Returns the first heartbeat that it makes after its answer, if it says so: earlier ones prove nothing. Raises
        NotFoundError when a foreign agent does not have the workload, or has removed it inside the call.
        """
        request = pb.DeleteWorkloadRequest(id=workload_id, generation=generation, keep_data=keep_data)
        with tracing.span("command.delete", node_id=node.node_id, workload_id=workload_id):
            answer = await self._call(node, AgentService.DELETE_WORKLOAD, request, timeout=_timeout(node))
        if is_foreign(node) and _says_gone(answer):
            # An apply that came first may still wait in its queue: then it is not gone for good.
            if await self.removal(node, workload_id) is Removal.BUSY:
                return None
            raise NotFoundError("workload", workload_id)
        if not answer.success and "not found" not in answer.message:
            raise PreconditionError(answer.message or "the agent refused to delete it", node_id=node.node_id)
        return HeartbeatMark(SessionId(answer.session), answer.next_beat) if answer.session else None

    async def status(self, node: NodeRecord, workload_id: WorkloadId) -> RunStatus:
        """Ask an agent that does not push for one status. Raises NotFoundError when it has none.

        A foreign agent may forget what it could not start: then only its list of actions says why.
        """
        request = pb.GetWorkloadStatusRequest(id=workload_id)
        try:
            answer = await self._call(node, AgentService.GET_WORKLOAD_STATUS, request)
        except ShoalError as error:
            if "not found" not in error.message:
                raise
            newest = next(iter(await self._actions(node, workload_id)), None)
            if newest is None or (newest.action_type, newest.status) != ("apply_workload", "failed"):
                raise
            return convert.failed_status(workload_id, newest.error)
        return convert.run_status_from_agent(answer.status)

    async def spec(self, node: NodeRecord, workload_id: WorkloadId) -> pb.GetWorkloadSpecResponse:
        """The exact spec that an agent runs a workload from. Raises UnsupportedError when it does not hand it out."""
        request = pb.GetWorkloadSpecRequest(id=workload_id)
        return await self._call(node, AgentService.GET_WORKLOAD_SPEC, request)

    async def removal(self, node: NodeRecord, workload_id: WorkloadId) -> Removal:
        """What became of a delete that a foreign agent accepted, by its list of actions.

        Its status is no proof: a status poll that overlaps a removal may bring the record back.
        """
        actions = await self._actions(node, workload_id)
        if any(action.status in OPEN for action in actions):
            return Removal.BUSY
        newest = next((each for each in actions if each.action_type == ActionType.DELETE), None)
        if newest is None:
            return Removal.UNLISTED
        done = newest.status == ActionStatus.COMPLETED or "not found" in newest.error
        return Removal.DONE if done else Removal.FAILED

    async def _actions(self, node: NodeRecord, workload_id: WorkloadId) -> Sequence[pb.AgentAction]:
        """The newest actions about a workload; none from an agent that keeps no list."""
        request = pb.ListActionsRequest(workload_id=workload_id, limit=RECENT_ACTIONS, newest_first=True)
        try:
            answer = await self._call(node, AgentService.LIST_ACTIONS, request)
        except UnsupportedError:
            return ()
        return answer.actions

    async def read_logs(self, node: NodeRecord, request: pb.ReadLogsRequest) -> AsyncIterator[pb.LogChunk]:
        """The output of a workload."""
        channel = await self._channel(node)
        chunks = channel.stream(AgentService.READ_LOGS, request, metadata=self._header(node))
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await close_stream(chunks)

    async def exec(
        self, node: NodeRecord, requests: AsyncIterator[execution.ExecRequest]
    ) -> AsyncIterator[execution.ExecResponse]:
        """A command inside a workload."""
        channel = await self._channel(node)
        answers = channel.converse(AgentExec.EXEC, requests, metadata=self._header(node))
        try:
            async for answer in answers:
                yield answer
        finally:
            await close_stream(answers)

    def _header(self, node: NodeRecord) -> dict[str, str]:
        """The node that a call is meant for, and the term: an agent refuses what a leader of an older term says."""
        return {NODE_HEADER: node.node_id, TERM_HEADER: str(self._term), **tracing.headers()}

    async def forget(self, node_id: NodeId) -> None:
        """Let go of a node that was removed."""
        self._streams.forget(node_id)
        line = self._lines.pop(node_id, None)
        if line is not None:
            await line.channel.close()

    async def close(self) -> None:
        """Let go of every channel."""
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            await line.channel.close()

    async def _call(
        self,
        node: NodeRecord,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout: float = COMMAND_TIMEOUT,
    ) -> Response:
        """One call, counted by name, outcome and duration."""
        channel = await self._channel(node)
        loop = asyncio.get_running_loop()
        began, code = loop.time(), Code.CANCELLED
        try:
            answer = await channel.call(method, request, timeout=timeout, metadata=self._header(node))
            code = Code.OK
        except ShoalError as error:
            code = status_of(error).code
            raise
        finally:
            self._on_call(method.name, code.name, loop.time() - began)
        return answer

    async def _channel(self, node: NodeRecord) -> Channel:
        """The agent's own stream if it has one open, else a connection to the address it listens on."""
        through_stream = self._streams.channel(node)
        if through_stream is not None:
            return through_stream
        if not node.spec.endpoint:
            if not self._streams.opened:
                raise NotLeaderError("")  # the leader has its stream
            raise UnavailableError(
                f"node {node.node_id!r} can be reached only through a stream that its agent opens, and none is open",
                node_id=node.node_id,
            )
        peer = _peer(node)
        line = self._lines.get(node.node_id)
        if line is not None and line.channel.address == node.spec.endpoint and line.peer == peer:
            return line.channel
        fresh = self._transport.connect(node.spec.endpoint, peer=peer)
        self._lines[node.node_id] = _Line(fresh, peer)
        if line is not None:  # the agent came back at another address; nothing more is expected from the old one
            await line.channel.close()
        return fresh


def _peer(node: NodeRecord) -> Peer | None:
    """The peer to verify: our own agents by their node id; a foreign one by the host in its certificate."""
    return Peer(Role.AGENT, node.node_id) if node.spec.has(Feature.SESSIONS) else None


def _timeout(node: NodeRecord) -> float:
    """Our agents answer once a command is on disk; a foreign one may act first when its queue is full."""
    return COMMAND_TIMEOUT if node.spec.features else FOREIGN_COMMAND_TIMEOUT


def is_foreign(node: NodeRecord) -> bool:
    """Whether its agent knows only the published contract."""
    return not node.spec.features


def is_unsupported(text: str) -> bool:
    """Whether an agent's words say that it has no runtime for the type of a workload."""
    return "runtime not available" in text


def _says_gone(answer: pb.DeleteWorkloadResponse) -> bool:
    """Whether the answer to a delete says that nothing is left. One that was only queued says so in other words."""
    if not answer.success:
        return "not found" in answer.message
    return "deleted" in answer.message and not _QUEUED.search(answer.message)


def _refusal(node: NodeRecord, message: str) -> ShoalError:
    """The error that an answer stands for in which a workload was not applied."""
    if is_foreign(node) and _INVALID.search(message):
        return InvalidError([problem("spec", None, f"is refused by node {node.node_id}: {message}")])
    return PreconditionError(message, node_id=node.node_id)

"""A control plane by script: it takes registrations and heartbeats, and does with them what a test says.

They come as unary calls, or with `streams` through a stream, and are taken the same way.
"""

from __future__ import annotations

import asyncio

from shoal.core.errors import NotFoundError, SessionSupersededError, ShoalError
from shoal.wire.calls import Outbox, StreamCalls, refusal
from shoal.wire.methods import AgentControl, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.transport import Service


class ScriptedControl:
    """Serves the part of AgentControl that agents call."""

    def __init__(self, *, interval: float = 10.0, lease: float = 30.0, streams: bool = False) -> None:
        #: Whether it takes streams; else they are not implemented here.
        self.streams = streams
        self.opened = 0
        self.stream: StreamCalls | None = None
        self.term = 0
        #: It cannot tell whether it still leads.
        self.unconfirmed = False
        self.interval = interval
        self.lease = lease
        #: Answer in whole seconds, with dates and without sessions, as a foreign control plane does.
        self.foreign = False
        self.refusal = ""
        self.acknowledges = True
        self.drain = False
        self.error: ShoalError | None = None
        self.sessions = 0
        self.session = ""
        self.registrations: list[tuple[float, pb.RegisterNodeRequest]] = []
        self.heartbeats: list[tuple[float, pb.HeartbeatRequest]] = []
        self.views: dict[str, pb.WorkloadView] = {}
        self.commands: list[str] = []

    def service(self) -> Service:
        if not self.streams:
            unary = [method for method in methods_of(AgentControl) if method is not AgentControl.CONTROL_STREAM]
            return Service(unary, self)
        return Service(methods_of(AgentControl), self)

    async def control_stream(self, requests, call):
        self.opened += 1
        outbox = Outbox()
        self.stream = StreamCalls(outbox, address="the agent")

        async def read():
            async for message in requests:
                kind = message.WhichOneof("message")
                if kind == "call_reply":
                    self.stream.take(message)
                    continue
                handle = {"register": self.register_node, "heartbeat": self.heartbeat}[kind]
                try:
                    answer = await handle(getattr(message, kind), call)
                    reply = pb.ControlMessage(in_reply_to=message.message_id, **{f"{kind}_reply": answer})
                except ShoalError as error:
                    reply = refusal(error, message.message_id)
                await outbox.put(reply)
            outbox.close()

        reading = asyncio.ensure_future(read())
        try:
            async for message in outbox.messages():
                yield message
        finally:
            reading.cancel()

    def forget_node(self) -> None:
        self.session = ""

    @property
    def times(self) -> list[float]:
        """When heartbeats arrived."""
        return [round(at, 3) for at, _ in self.heartbeats]

    @property
    def last(self) -> pb.HeartbeatRequest:
        return self.heartbeats[-1][1]

    async def register_node(self, request, call):
        self.registrations.append((asyncio.get_running_loop().time(), request))
        if self.refusal:
            return pb.RegisterNodeResponse(accepted=False, reason=self.refusal)
        self.sessions += 1
        self.session = f"session-{self.sessions}"
        if self.foreign:
            return pb.RegisterNodeResponse(accepted=True, heartbeat_interval_seconds=int(self.interval))
        return pb.RegisterNodeResponse(
            accepted=True,
            heartbeat_interval_seconds=60,
            session=self.session,
            heartbeat_interval_ms=round(self.interval * 1000),
            lease_ms=round(self.lease * 1000),
        )

    async def heartbeat(self, request, call):
        self.heartbeats.append((asyncio.get_running_loop().time(), request))
        if self.error is not None:
            raise self.error
        if not self.session:
            raise NotFoundError("node", request.node_id)
        if not self.foreign and request.session != self.session:
            raise SessionSupersededError(request.node_id)
        lease = 0 if self.foreign else round(self.lease * 1000)
        return pb.HeartbeatResponse(
            acknowledged=self.acknowledges,
            drain_node=self.drain,
            lease_ms=lease,
            term=self.term,
            unconfirmed=self.unconfirmed,
        )

    async def get_workload(self, request, call):
        if request.workload_id not in self.views:
            raise NotFoundError("workload", request.workload_id)
        return pb.GetWorkloadResponse(workload=self.views[request.workload_id])

    async def apply_workload(self, request, call):
        self.commands.append(f"apply {request.workload_id}")
        return pb.ApplyWorkloadResponse(success=True)

    async def delete_workload(self, request, call):
        self.commands.append(f"delete {request.workload_id}")
        return pb.DeleteWorkloadResponse(success=True)

    async def retry_workload(self, request, call):
        self.commands.append(f"retry {request.workload_id}")
        return pb.RetryWorkloadResponse(accepted=True)

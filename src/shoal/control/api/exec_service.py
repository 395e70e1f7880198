"""`shoal.v1.WorkloadExec`: finds the node of a workload, records who runs what, and passes the stream on to its agent.

The event is stored before the command starts: no command runs that is not in the list of events. What is typed and
printed is never stored. Served by `shoal.control.server`.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator

from shoal.control.agents.calls import Agents
from shoal.control.api.parsing import check_id
from shoal.control.state.causes import caller_of, cause_of_call
from shoal.control.state.events import Origin, workload_event
from shoal.control.state.ledger import Ledger
from shoal.control.store.base import Batch
from shoal.core.clock import Clock
from shoal.core.errors import PreconditionError, UnsupportedError
from shoal.model.events import EventKind, EventSource
from shoal.model.nodes import Feature
from shoal.wire import convert
from shoal.wire.pb.shoal.v1 import exec_pb2 as pb
from shoal.wire.serving import close_stream
from shoal.wire.transport import Call

_MAX_SHOWN = 500


class ExecService:
    """The handler of the one RPC."""

    def __init__(self, ledger: Ledger, agents: Agents, *, clock: Clock) -> None:
        self._ledger = ledger
        self._agents = agents
        self._clock = clock

    async def exec(self, requests: AsyncIterator[pb.ExecRequest], call: Call) -> AsyncIterator[pb.ExecResponse]:
        """Run the command that the first message names."""
        first = await anext(requests, pb.ExecRequest())
        wanted = convert.exec_command_from_proto(first)
        check_id("workload_id", first.start.workload_id)
        record = self._ledger.fleet.workload(first.start.workload_id)
        if record.node_id is None:
            raise PreconditionError(f"workload {record.workload_id!r} has no node yet, so it does not run")
        node = self._ledger.fleet.node(record.node_id)
        if not node.spec.has(Feature.EXEC):
            raise UnsupportedError(
                f"the agent of node {node.node_id!r} runs no commands inside workloads", node_id=node.node_id
            )
        words = shlex.join(wanted.command)
        shown = words if len(words) <= _MAX_SHOWN else f"{words[:_MAX_SHOWN]}…"
        place = f" in service {wanted.service}" if wanted.service else ""
        origin = Origin(self._clock.wall(), EventSource.API, cause_of_call(call))
        message = f"{caller_of(call)} runs{place}: {shown}"
        event = workload_event(record, EventKind.WORKLOAD_EXEC, message, origin)
        await self._ledger.commit(Batch(events=(event,)))
        answers = self._agents.exec(node, _joined(first, requests))
        try:
            async for answer in answers:
                yield answer
        finally:
            await close_stream(answers)


async def _joined(first: pb.ExecRequest, rest: AsyncIterator[pb.ExecRequest]) -> AsyncIterator[pb.ExecRequest]:
    yield first
    async for request in rest:
        yield request

"""`shoal.v1.AgentExec`: a command inside a running workload, as a stream both ways.

Output is read as fast as the caller takes it, and input is handed on as fast as the command reads it. When the caller
goes away, the command is killed. Served by `shoal.agent.server`; calls `shoal.agent.workloads.executor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from shoal.agent.workloads.executor import Executor
from shoal.core.errors import ExhaustedError, InvalidError, ShoalError, problem
from shoal.core.ids import IDENTIFIER_RULE, WorkloadId, is_identifier
from shoal.core.tasks import running
from shoal.runtimes.base import ExecSession
from shoal.wire import convert
from shoal.wire.pb.shoal.v1 import exec_pb2 as pb
from shoal.wire.transport import Call

MAX_CHUNK = 64 * 1024
#: Commands that may run at the same time on one agent.
MAX_SESSIONS = 64


class ExecHandlers:
    """The handler of the one RPC."""

    def __init__(self, executor: Executor, *, check_call: Callable[[Call], Awaitable[None]]) -> None:
        """`check_call` raises for a call that is meant for another node, or of an older term."""
        self._executor = executor
        self._check_call = check_call
        self._sessions = 0

    async def exec(self, requests: AsyncIterator[pb.ExecRequest], call: Call) -> AsyncIterator[pb.ExecResponse]:
        """Start the command that the first message names, and pass on what it prints until it ends."""
        await self._check_call(call)
        first = await anext(requests, pb.ExecRequest())
        wanted = convert.exec_command_from_proto(first)
        if not is_identifier(first.start.workload_id):
            raise InvalidError([problem("workload_id", first.start.workload_id, IDENTIFIER_RULE)])
        if self._sessions >= MAX_SESSIONS:
            raise ExhaustedError(f"{MAX_SESSIONS} commands run on this node already", limit=MAX_SESSIONS)
        self._sessions += 1
        try:
            session = await self._executor.exec(WorkloadId(first.start.workload_id), wanted)
        except BaseException:
            self._sessions -= 1
            raise
        try:
            yield pb.ExecResponse(started=pb.ExecStarted(node_id=self._executor.node.node_id))
            async with running(_feed(session, requests), name="input") as feeding:
                try:
                    async for stream, data in session.output():
                        for start in range(0, len(data), MAX_CHUNK):
                            piece = data[start : start + MAX_CHUNK]
                            is_error = stream == "stderr"
                            yield pb.ExecResponse(stderr=piece) if is_error else pb.ExecResponse(stdout=piece)
                    end = await session.wait()
                finally:
                    _raise_if_failed(feeding)
            yield pb.ExecResponse(ended=pb.ExecEnded(exit_code=end.code, signal=end.signal))
        finally:
            self._sessions -= 1
            await session.close()


def _raise_if_failed(feeding: asyncio.Task[None]) -> None:
    """What went wrong with the input says more than how the output ended."""
    if feeding.done() and not feeding.cancelled() and (error := feeding.exception()) is not None:
        raise error


async def _feed(session: ExecSession, requests: AsyncIterator[pb.ExecRequest]) -> None:
    """Pass on input and sizes; what is wrong with them ends the command."""
    try:
        await _pass_on(session, requests)
    except ShoalError:
        await session.close()
        raise


async def _pass_on(session: ExecSession, requests: AsyncIterator[pb.ExecRequest]) -> None:
    """The end of the requests is the end of the input."""
    async for request in requests:
        match request.WhichOneof("message"):
            case "input":
                await session.write(request.input)
            case "resize":
                window = convert.window_from_proto(request.resize)
                await session.resize(window.rows, window.columns)
            case "end_of_input":
                await session.end_input()
                return
            case _:
                raise InvalidError([problem("start", None, "must be in the first message alone")])
    await session.end_input()

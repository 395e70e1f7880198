"""Log queries and pieces from and to the wire. Called by the agent's service and the client."""

from __future__ import annotations

from shoal.core.clock import from_epoch_ms
from shoal.core.errors import Problem, problem
from shoal.model.logs import LogPiece, LogQuery
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control

_MAX_MS = 253_402_300_799_999


def log_query_from_proto(request: agent.ReadLogsRequest, problems: list[Problem]) -> LogQuery:
    """What an agent is asked for. A moment that no calendar has is added to the problems."""
    in_range = 0 <= request.since_ms <= _MAX_MS
    if not in_range:
        problems.append(problem("since_ms", request.since_ms, f"must be between 0 and {_MAX_MS:,}"))
    return LogQuery(
        tail_lines=request.tail_lines,
        follow=request.follow,
        since=from_epoch_ms(request.since_ms) if request.since_ms and in_range else None,
        previous=request.previous,
        times=request.times,
        after=request.after,
    )


def log_piece_from_proto(chunk: control.LogChunk) -> LogPiece:
    """What a client gets."""
    time = from_epoch_ms(chunk.time_ms) if 0 < chunk.time_ms <= _MAX_MS else None
    return LogPiece(chunk.data, chunk.stream or "stdout", time, chunk.position)

"""Converts ReadLogs between the control plane's contract and the agent's. Called by `service`.

Positions that clients get name the node: a position of one node means nothing on another, to which the workload may
have moved since. There the log is read from its beginning.
"""

from __future__ import annotations

from shoal.core.errors import InvalidError, UnsupportedError, problem
from shoal.model.nodes import Feature, NodeSpec
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb

MAX_SINCE_MS = 253_402_300_799_999
MAX_POSITION = 512


def check_log_request(request: pb.ReadLogsRequest) -> None:
    """Raise `InvalidError` with everything that is wrong with a request."""
    problems = []
    if request.tail_lines < 0:
        problems.append(problem("tail_lines", request.tail_lines, "must be 0 or more"))
    if not 0 <= request.since_ms <= MAX_SINCE_MS:
        problems.append(problem("since_ms", request.since_ms, f"must be between 0 and {MAX_SINCE_MS:,}"))
    if request.after and ("/" not in request.after or len(request.after) > MAX_POSITION):
        problems.append(problem("after", request.after[:MAX_POSITION], "must be the position of an earlier chunk"))
    if problems:
        raise InvalidError(problems)


def request_to_agent(request: pb.ReadLogsRequest, node: NodeSpec) -> agent.ReadLogsRequest:
    """The same for the agent of a node. Raises `UnsupportedError` when that agent cannot answer it."""
    asked = {"--since": request.since_ms, "--previous": request.previous, "--timestamps": request.times}
    if any(asked.values()) and not node.has(Feature.LOG_QUERIES):
        flags = " and ".join(flag for flag, value in asked.items() if value)
        raise UnsupportedError(
            f"the agent of node {node.node_id!r} is of an older version and cannot read logs with {flags}",
            hint="upgrade that agent, or read the log without it",
            node_id=node.node_id,
        )
    if not request.after:
        return agent.ReadLogsRequest(
            workload_id=request.workload_id,
            tail_lines=request.tail_lines,
            follow=request.follow,
            since_ms=request.since_ms,
            previous=request.previous,
            times=request.times,
        )
    owner, _, position = request.after.rpartition("/")
    return agent.ReadLogsRequest(
        workload_id=request.workload_id,
        follow=request.follow,
        times=request.times,
        after=position if owner == node.node_id else "",
    )


def chunk_for_clients(chunk: agent.LogChunk, node: NodeSpec) -> pb.LogChunk:
    """A chunk for clients."""
    position = f"{node.node_id}/{chunk.position}" if chunk.position else ""
    return pb.LogChunk(data=chunk.data, stream=chunk.stream, time_ms=chunk.time_ms, position=position)

"""ReadLogs between clients and agents: positions name their node; an older agent is not asked for what it ignores."""

from __future__ import annotations

import pytest

from shoal.control.api.log_reading import check_log_request, chunk_for_clients, request_to_agent
from shoal.core.errors import InvalidError, UnsupportedError
from shoal.core.ids import NodeId
from shoal.model.nodes import Feature, NodeSpec
from shoal.model.resources import Resources
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb


def node(name: str, *features: Feature) -> NodeSpec:
    return NodeSpec(NodeId(name), endpoint="", capacity=Resources(1000, 1000), features=frozenset(features))


NEW = node("node-1", Feature.LOGS, Feature.LOG_QUERIES)
OLD = node("node-1", Feature.LOGS)
MOVED = node("node-2", Feature.LOGS, Feature.LOG_QUERIES)


def test_a_position_leads_back_to_where_it_was():
    chunk = chunk_for_clients(agent.LogChunk(data=b"x", stream="stderr", time_ms=5, position="3:40"), NEW)
    assert (chunk.data, chunk.stream, chunk.time_ms, chunk.position) == (b"x", "stderr", 5, "node-1/3:40")
    request = pb.ReadLogsRequest(workload_id="web", follow=True, tail_lines=5, since_ms=7, after=chunk.position)
    assert request_to_agent(request, NEW) == agent.ReadLogsRequest(workload_id="web", follow=True, after="3:40")


def test_a_position_of_another_node_leads_to_the_beginning():
    request = pb.ReadLogsRequest(workload_id="web", follow=True, tail_lines=5, after="node-1/3:40")
    assert request_to_agent(request, MOVED) == agent.ReadLogsRequest(workload_id="web", follow=True)


def test_everything_else_goes_on_as_it_came():
    fields = {"workload_id": "web", "tail_lines": 5, "since_ms": 7, "previous": True, "times": True}
    assert request_to_agent(pb.ReadLogsRequest(**fields), NEW) == agent.ReadLogsRequest(**fields)
    assert request_to_agent(pb.ReadLogsRequest(workload_id="web", tail_lines=5), OLD).tail_lines == 5


@pytest.mark.parametrize(
    ("fields", "flag"),
    [({"since_ms": 1}, "--since"), ({"previous": True}, "--previous"), ({"times": True}, "--timestamps")],
)
def test_an_older_agent_is_not_asked_for_what_it_would_ignore(fields, flag):
    with pytest.raises(UnsupportedError, match=flag):
        request_to_agent(pb.ReadLogsRequest(workload_id="web", **fields), OLD)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tail_lines": -1}, "tail_lines"),
        ({"since_ms": -1}, "since_ms"),
        ({"since_ms": 2**62}, "since_ms"),
        ({"after": "3:40"}, "after"),
        ({"after": "n/" + "9" * 600}, "after"),
    ],
)
def test_bad_requests_are_refused_with_the_field(fields, field):
    with pytest.raises(InvalidError) as caught:
        check_log_request(pb.ReadLogsRequest(workload_id="web", **fields))
    assert [each.field for each in caught.value.problems] == [field]

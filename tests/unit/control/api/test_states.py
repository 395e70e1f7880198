"""Lists that are asked for one state: every state there is, and no other."""

import pytest

from shoal.control.api.service import WORKLOAD_STATES
from shoal.control.api.views import NODE_STATES
from shoal.core.errors import InvalidError
from shoal.testing.control import ControlKit
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb

pytestmark = pytest.mark.looptime


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as kit:
        yield kit


async def test_a_state_that_there_is_not_is_no_empty_list(kit):
    with pytest.raises(InvalidError) as caught:
        await kit.channel.call(AgentControl.LIST_WORKLOADS, pb.ListWorkloadsRequest(status="Flying"))
    [problem] = caught.value.problems
    assert (problem.field, problem.value) == ("status", "'Flying'")
    assert problem.rule == f"must be one of {', '.join(WORKLOAD_STATES)}"
    with pytest.raises(InvalidError, match="must be one of Ready, Suspect, NotReady, Draining, Drained"):
        await kit.channel.call(AgentControl.LIST_NODES, pb.ListNodesRequest(status="Flying"))


async def test_every_state_can_be_asked_for_however_it_is_written(kit):
    kit.node("n1")
    await kit.apply("web")
    await kit.wait_status("web", "Running")
    found = {}
    for state in WORKLOAD_STATES:
        for word in (state, state.upper()):
            answer = await kit.channel.call(AgentControl.LIST_WORKLOADS, pb.ListWorkloadsRequest(status=word))
            found[word] = [view.workload_id for view in answer.workloads]
    assert {word for word, ids in found.items() if ids} == {"Running", "RUNNING"}
    for state in NODE_STATES:
        answer = await kit.channel.call(AgentControl.LIST_NODES, pb.ListNodesRequest(status=state.lower()))
        assert [view.node_id for view in answer.nodes] == (["n1"] if state == "Ready" else [])


async def test_a_node_or_group_that_nobody_knows_has_no_workloads(kit):
    """Foreign clients ask for nodes that have gone; only the command line knows that a name was mistyped."""
    request = pb.ListWorkloadsRequest(node_id="nope", group_id="nope")
    assert not (await kit.channel.call(AgentControl.LIST_WORKLOADS, request)).workloads


async def test_the_summary_counts_each_node_as_ready_or_not(kit):
    """The contract has no third number: a node that is Suspect, Draining or Drained is not ready."""
    for name in ("n1", "n2", "n3"):
        kit.node(name)
        await kit.wait_node(name, "Ready")
    await kit.channel.call(AgentControl.DRAIN_NODE, pb.DrainNodeRequest(node_id="n1"))
    await kit.wait_node("n1", "Drained")
    kit.agents.kill("n2")
    await kit.wait_node("n2", "Suspect")
    summary = await kit.channel.call(AgentControl.GET_CLUSTER_SUMMARY, pb.GetClusterSummaryRequest())
    assert (summary.total_nodes, summary.ready_nodes, summary.not_ready_nodes) == (3, 1, 2)
    assert summary.suspect_nodes == 1

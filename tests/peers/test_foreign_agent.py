"""Our control plane with an agent that knows only the published contract."""

from __future__ import annotations

import asyncio

import pytest

from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2
from shoal.wire.sockets.channel import GrpcTransport
from tests.peers.contract import agent, control
from tests.peers.foreign import Behavior, ForeignRun, container, until

pytestmark = pytest.mark.integration


async def test_it_registers_and_sends_heartbeats_without_our_extensions(stage):
    foreign = await stage.agent("n1")
    first = foreign.registrations[0]
    assert (first.accepted, first.heartbeat_interval_seconds) == (True, 1)
    assert first.HasField("lease_expires_at")
    assert foreign.heartbeats[0].acknowledged
    assert not foreign.heartbeats[0].drain_node
    await until(lambda: len(foreign.heartbeats) >= 3, "heartbeats at the requested interval")
    assert len(foreign.registrations) == 1
    node = (await stage.client.call("GetNode", node_id="n1")).node
    assert (node.status, node.total_cpu_cores, node.total_memory_mb) == ("Ready", 4.0, 8192)
    assert dict(node.labels) == {"os": "linux", "arch": "amd64"}


async def test_an_apply_that_is_answered_before_it_is_done_comes_to_run(stage):
    foreign = await stage.agent("n1")
    assert (await stage.client.apply("web", container(), revision="r1")).success
    view = await stage.client.wait_status("web", "Running")
    assert (view.assigned_node_id, view.revision_id, view.type) == ("n1", "r1", "container")
    (command,) = foreign.calls_of("ApplyWorkload", "web")
    assert command.type == agent.WORKLOAD_TYPE_CONTAINER
    assert command.revision_id == "r1"
    assert command.desired_state == agent.DESIRED_STATE_RUNNING
    assert command.spec.container.image == "nginx:latest"
    # It reports no revision and no generation: that is no reason to tell it again.
    await until(lambda: len(foreign.heartbeats) >= 4, "more heartbeats")
    assert len(foreign.calls_of("ApplyWorkload", "web")) == 1


async def test_an_update_reaches_it_with_the_users_revision(stage):
    foreign = await stage.agent("n1")
    await stage.client.apply("web", container(), revision="r1")
    await stage.client.wait_status("web", "Running")
    await stage.client.apply("web", container("nginx:2"), revision="r2")
    await until(lambda: foreign.calls_of("ApplyWorkload", "web")[-1].revision_id == "r2", "the update")
    await until(lambda: foreign.state_of("web") == agent.ACTUAL_STATE_RUNNING, "the new one running")
    view = await stage.client.wait_status("web", "Running")
    assert view.revision_id == "r2"
    assert foreign.runs["web"].request.spec.container.image == "nginx:2"
    assert (await stage.client.apply("web", container("nginx:2"), revision="r2")).success
    await until(lambda: len(foreign.heartbeats) >= 4, "more heartbeats")
    assert [each.revision_id for each in foreign.calls_of("ApplyWorkload", "web")] == ["r1", "r2"]


async def test_stopping_and_starting(stage):
    foreign = await stage.agent("n1")
    await stage.client.apply("web", container(), revision="r1")
    await stage.client.wait_status("web", "Running")
    await stage.client.apply("web", container(), revision="r1", desired="Stopped")
    await stage.client.wait_status("web", "Stopped")
    assert foreign.state_of("web") == agent.ACTUAL_STATE_STOPPED
    await stage.client.apply("web", container(), revision="r1", desired="Running")
    await stage.client.wait_status("web", "Running")


@pytest.mark.parametrize("ghosts", [False, True], ids=["gone", "ghost"])
async def test_a_completed_action_is_proof_of_a_delete(stage, ghosts):
    foreign = await stage.agent("n1", behavior=Behavior(ghosts=ghosts))
    await stage.client.apply("web", container())
    await stage.client.wait_status("web", "Running")
    assert (await stage.client.delete("web")).success
    words = await stage.client.wait_gone("web")
    assert "not found" in words
    assert [task.status for task in foreign.tasks if task.kind == "delete_workload"][:1] == ["completed"]
    assert any(name == "ListActions" for name, _request in foreign.calls)
    if ghosts:
        # The ghost is an orphan now: the workload stays deleted, and the ghost is left alone.
        heartbeats = len(foreign.heartbeats)
        await until(lambda: len(foreign.heartbeats) >= heartbeats + 3, "heartbeats with the ghost")
        assert "not found" in await stage.client.wait_gone("web")
        assert len(foreign.calls_of("DeleteWorkload", "web")) <= 2


async def test_a_name_can_be_used_again_while_a_ghost_of_it_is_reported(stage):
    foreign = await stage.agent("n1", behavior=Behavior(ghosts=True))
    await stage.client.apply("web", container(), revision="r1")
    await stage.client.wait_status("web", "Running")
    await stage.client.delete("web")
    await stage.client.wait_gone("web")
    await stage.client.apply("web", container("nginx:2"), revision="r2")
    view = await stage.client.wait_status("web", "Running")
    assert view.revision_id == "r2"
    assert foreign.runs["web"].request.spec.container.image == "nginx:2"


async def test_an_agent_that_fails_what_it_accepted_is_shown_as_failed(stage):
    await stage.agent(
        "n1",
        behavior=Behavior(failure=("INSUFFICIENT_RESOURCES", "insufficient resources: cpu utilization 91.0% > 80.0%")),
    )
    await stage.client.apply("web", container())

    async def told():
        view = await stage.client.view("web")
        return view if "cpu utilization" in view.reason.message or view.status == "Failed" else None

    view = await until(told, "the agent's reason")
    assert "cpu utilization" in view.reason.message


async def test_it_registers_again_at_once_when_it_is_not_known(stage):
    foreign = await stage.agent("n1")
    await stage.replace_plane()
    await until(lambda: len(foreign.registrations) == 2, "another registration")
    assert await stage.node_status("n1") == "Ready"


async def test_a_lost_node_is_replaced_and_its_copy_is_deleted_when_it_returns(stage):
    first = await stage.agent("n1")
    await stage.client.apply("web", container(), revision="r1")
    await stage.client.wait_status("web", "Running")
    second = await stage.agent("n2")
    first.cut_off = True

    async def lost():
        return await stage.node_status("n1") == "NotReady"

    await until(lost, "n1 NotReady")
    await until(lambda: second.state_of("web") == agent.ACTUAL_STATE_RUNNING, "the replacement")
    view = await stage.client.wait_status("web", "Running")
    assert view.assigned_node_id == "n2"
    assert first.state_of("web") == agent.ACTUAL_STATE_RUNNING
    first.cut_off = False
    await until(lambda: "web" not in first.runs, "the superseded copy removed by DeleteWorkload")
    assert second.state_of("web") == agent.ACTUAL_STATE_RUNNING
    assert not second.calls_of("DeleteWorkload", "web")


async def test_a_workload_that_was_deleted_while_its_node_was_lost_is_removed_when_it_returns(stage):
    foreign = await stage.agent("n1")
    await stage.client.apply("web", container())
    await stage.client.wait_status("web", "Running")
    foreign.cut_off = True

    async def lost():
        return await stage.node_status("n1") == "NotReady"

    await until(lost, "n1 NotReady")
    assert (await stage.client.delete("web")).success
    await stage.client.wait_gone("web")
    foreign.cut_off = False
    await until(lambda: "web" not in foreign.runs, "the copy removed")


async def test_an_orphan_is_left_alone(stage):
    foreign = await stage.agent("n1")
    request = agent.ApplyWorkloadRequest(id="theirs", type=agent.WORKLOAD_TYPE_CONTAINER, revision_id="x")
    foreign.runs["theirs"] = ForeignRun(request, agent.ACTUAL_STATE_RUNNING, "running")
    heartbeats = len(foreign.heartbeats)
    await until(lambda: len(foreign.heartbeats) >= heartbeats + 3, "heartbeats with it")
    assert not foreign.calls_of("DeleteWorkload", "theirs")
    assert foreign.state_of("theirs") == agent.ACTUAL_STATE_RUNNING


async def test_many_workloads_of_one_agent_are_deleted_together(stage):
    foreign = await stage.agent("n1", behavior=Behavior(ghosts=True, takes=0.5))
    names = [f"w{number}" for number in range(8)]
    await asyncio.gather(*(stage.client.apply(name, container()) for name in names))
    await asyncio.gather(*(stage.client.wait_status(name, "Running") for name in names))
    await asyncio.gather(*(stage.client.delete(name) for name in names))
    await asyncio.gather(*(stage.client.wait_gone(name) for name in names))
    summary = await stage.client.call("GetClusterSummary")
    assert summary.total_workloads == 0
    assert isinstance(summary, control.ClusterSummary)
    assert foreign.heartbeats[-1].acknowledged


async def test_draining_it_ends_although_it_reports_ghosts(stage):
    first = await stage.agent("n1", behavior=Behavior(ghosts=True))
    await stage.client.apply("web", container())
    await stage.client.wait_status("web", "Running")
    second = await stage.agent("n2")
    channel = GrpcTransport().connect(stage.plane.address)
    try:
        await channel.call(AgentControl.DRAIN_NODE, control_pb2.DrainNodeRequest(node_id="n1"))
    finally:
        await channel.close()
    await until(lambda: second.state_of("web") == agent.ACTUAL_STATE_RUNNING, "the replacement")

    async def drained():
        return await stage.node_status("n1") == "Drained"

    await until(drained, "n1 Drained")
    assert first.calls_of("DeleteWorkload", "web")
    assert (await stage.client.wait_status("web", "Running")).assigned_node_id == "n2"

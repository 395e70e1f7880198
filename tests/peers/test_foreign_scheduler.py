"""An agent process of ours with a scheduler that knows only the published contract.

Its commands contain nothing of ours but the spec: the published contract has no type for a process, which needs no
engine. `test_foreign_scheduler_kinds` has the published types.
"""

from __future__ import annotations

import grpc
import pytest

from shoal.wire.pb.persys.agent.v1 import agent_pb2
from tests.peers.agents import delete, expect_not_found, scheduled_agent, wait_state
from tests.peers.contract import agent

pytestmark = pytest.mark.e2e


@pytest.fixture
async def scheduler(tmp_path):
    async with scheduled_agent(tmp_path) as made:
        yield made


async def apply(scheduler, revision="r1", *, seconds="600", desired=agent.DESIRED_STATE_RUNNING):
    request = agent_pb2.ApplyWorkloadRequest(id="web", type=agent_pb2.WORKLOAD_TYPE_PROCESS, revision_id=revision)
    request.desired_state = desired
    request.spec.process.command.extend(("sleep", seconds))
    return await scheduler.send("ApplyWorkload", request.SerializeToString())


async def actions(scheduler, **query):
    listed = await scheduler.call("ListActions", workload_id="web", newest_first=True, **query)
    return [(each.action_type, each.status) for each in listed.actions]


async def test_a_whole_life_without_generations(scheduler):
    await expect_not_found(scheduler)
    first = await apply(scheduler)
    assert (first.applied, first.skipped) == (True, False)
    assert first.status.actual_state == agent.ACTUAL_STATE_PENDING
    assert first.status.metadata["task_id"]
    assert first.status.metadata["task_status"] == "pending"
    status = await wait_state(scheduler, agent.ACTUAL_STATE_RUNNING)
    assert (status.id, status.desired_state) == ("web", agent.DESIRED_STATE_RUNNING)
    assert status.created_at > 0
    again = await apply(scheduler)
    assert (again.applied, again.skipped) == (True, True)
    assert again.status.actual_state == agent.ACTUAL_STATE_RUNNING
    changed = await apply(scheduler, "r2", seconds="601")
    assert changed.applied
    await wait_state(scheduler, agent.ACTUAL_STATE_RUNNING, "r2")
    stopped = await apply(scheduler, "r2", seconds="601", desired=agent.DESIRED_STATE_STOPPED)
    assert stopped.applied
    await wait_state(scheduler, agent.ACTUAL_STATE_STOPPED, "r2")
    assert [each.id for each in (await scheduler.call("ListWorkloads")).workloads] == ["web"]
    await delete(scheduler)
    assert {kind for kind, _status in await actions(scheduler)} == {"apply_workload", "delete_workload"}
    assert await actions(scheduler, limit=1) == [("delete_workload", "completed")]
    assert (await scheduler.call("DeleteWorkload", id="web")).success, "a scheduler may delete twice"
    reborn = await apply(scheduler)
    assert reborn.applied, "an id can be used again, without a generation too"
    await wait_state(scheduler, agent.ACTUAL_STATE_RUNNING)


async def test_no_moment_is_before_the_beginning_of_time(scheduler):
    """Moments that have not come are 0: a program that writes the year 1 instead has clients that show it."""
    await apply(scheduler)
    await wait_state(scheduler, agent.ACTUAL_STATE_RUNNING)
    listed = await scheduler.call("ListActions")
    assert listed.actions
    for action in listed.actions:
        assert action.created_at > 0
        assert min(action.started_at, action.ended_at) >= 0


async def test_kinds_that_it_cannot_run_are_refused_in_words_a_scheduler_knows(scheduler):
    """By these words a scheduler takes the kind off the node's list, and places the workload elsewhere."""
    spec = agent.WorkloadSpec(container=agent.ContainerSpec(image="nginx:latest"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.call("ApplyWorkload", id="web", type=agent.WORKLOAD_TYPE_CONTAINER, revision_id="r1", spec=spec)
    assert "runtime not available" in caught.value.details()
    await expect_not_found(scheduler)
    assert (await scheduler.call("ListWorkloads")).workloads == []


async def test_it_says_how_it_is(scheduler):
    health = await scheduler.call("HealthCheck")
    assert health.healthy
    assert dict(health.runtime_status) == {"process": "healthy"}
    assert health.version
    assert 0 <= health.memory_utilization <= 100
    assert 0 <= health.disk_utilization <= 100

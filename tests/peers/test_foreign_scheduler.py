"""An agent process of ours with a scheduler that knows only the published contract.

Its commands contain nothing of ours but the spec: this agent runs processes and no containers yet, and the published
contract has no type for a process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress

import grpc
import pytest

from shoal.runtimes.process import find_run_pids, read_keeper_pid
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from tests.peers.contract import agent
from tests.peers.foreign import ForeignScheduler, until

pytestmark = pytest.mark.e2e


@pytest.fixture
async def scheduler(tmp_path):
    """A foreign scheduler, connected to an agent process that no control plane of ours knows."""
    ready, data = tmp_path / "ready.json", tmp_path / "data"
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal", "agent", "--insecure", "--standalone", "--node-id", "n1"),
            *("--data-dir", str(data), "--grpc-port", "0", "--cpu", "2", "--memory", "1024MB"),
            *("--ready-file", str(ready)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=log,
        )
    made = None
    try:
        await until(lambda: process.returncode is not None or ready.exists(), "the agent")
        assert ready.exists(), (tmp_path / "log").read_text()
        made = ForeignScheduler(json.loads(ready.read_text())["grpc"])
        yield made
    finally:
        if made is not None:
            await made.close()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        keeper = read_keeper_pid(data)
        for pid in (*([keeper] if keeper is not None else []), *find_run_pids(data)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def apply(scheduler, revision="r1", *, seconds="600", desired=agent.DESIRED_STATE_RUNNING):
    request = agent_pb2.ApplyWorkloadRequest(id="web", type=agent_pb2.WORKLOAD_TYPE_PROCESS, revision_id=revision)
    request.desired_state = desired
    request.spec.process.command.extend(("sleep", seconds))
    return await scheduler.send("ApplyWorkload", request.SerializeToString())


async def expect_not_found(scheduler, workload_id="web"):
    """A scheduler asks for the status first, and applies only when the words are these."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.call("GetWorkloadStatus", id=workload_id)
    assert "not found" in caught.value.details()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def wait_state(scheduler, state, revision="r1"):
    async def reached():
        status = (await scheduler.call("GetWorkloadStatus", id="web")).status
        return status if (status.actual_state, status.revision_id) == (state, revision) else None

    return await until(reached, f"state {state} of {revision}")


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
    assert (await scheduler.call("DeleteWorkload", id="web")).success

    async def deleted():
        return await actions(scheduler, action_type="delete_workload") == [("delete_workload", "completed")]

    await until(deleted, "the action completed")
    await expect_not_found(scheduler)
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

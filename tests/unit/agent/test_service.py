"""The agent's RPCs, called as a control plane calls them, over the transport without sockets."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from shoal.core.errors import (
    ExhaustedError,
    InvalidError,
    MisroutedError,
    NotFoundError,
    PreconditionError,
    StaleGenerationError,
    UnavailableError,
    UnsupportedError,
)
from shoal.model.resources import Resources
from shoal.model.workloads import RestartPolicy
from shoal.runtimes.base import RunRequest
from shoal.testing.runtimes import FakeScript
from shoal.wire.methods import NODE_HEADER, AgentService
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as pb
from shoal.wire.pb.shoal.v1 import run_pb2
from tests.unit.agent.making import process, workload
from tests.unit.agent.scene import Scene

pytestmark = pytest.mark.looptime

PROCESS = pb.WORKLOAD_TYPE_PROCESS


class Client:
    """A control plane's side."""

    def __init__(self, channel, machine, agent) -> None:
        self.channel = channel
        self.machine = machine
        self.agent = agent

    async def apply(self, workload_id="w", spec=None, *, kind=PROCESS, revision="", desired=0, generation=0, **fields):
        request = pb.ApplyWorkloadRequest(
            id=workload_id,
            type=kind,
            revision_id=revision,
            desired_state=desired,
            spec=spec or workload(),
            generation=generation,
            **fields,
        )
        return await self.channel.call(AgentService.APPLY_WORKLOAD, request)

    async def delete(self, workload_id="w", **fields):
        return await self.channel.call(AgentService.DELETE_WORKLOAD, pb.DeleteWorkloadRequest(id=workload_id, **fields))

    async def status(self, workload_id="w"):
        request = pb.GetWorkloadStatusRequest(id=workload_id)
        return (await self.channel.call(AgentService.GET_WORKLOAD_STATUS, request)).status

    async def workloads(self, **fields):
        answer = await self.channel.call(AgentService.LIST_WORKLOADS, pb.ListWorkloadsRequest(**fields))
        return [status.id for status in answer.workloads]

    async def actions(self, **fields):
        answer = await self.channel.call(AgentService.LIST_ACTIONS, pb.ListActionsRequest(**fields))
        return list(answer.actions)

    async def health(self):
        return await self.channel.call(AgentService.HEALTH_CHECK, pb.HealthCheckRequest())

    async def logs(self, workload_id="w", **fields):
        request = pb.ReadLogsRequest(workload_id=workload_id, **fields)
        return [chunk async for chunk in self.channel.stream(AgentService.READ_LOGS, request)]


@asynccontextmanager
async def client(tmp_path):
    it = Scene(tmp_path)
    agent = await it.start(control=(), standalone=True, version="1.2.3")
    channel = it.network.transport("control").connect(agent.address)
    try:
        yield Client(channel, it.machine, agent)
    finally:
        await channel.close()
        await agent.stop()


async def test_apply_is_answered_with_a_task_and_followed_in_the_log(tmp_path):
    async with client(tmp_path) as it:
        it.machine.script = FakeScript(start_takes=2)
        answer = await it.apply(revision="r1", generation=3)
        assert (answer.applied, answer.skipped) == (True, False)
        status = answer.status
        assert (status.id, status.revision_id, status.type) == ("w", "r1", PROCESS)
        assert (status.actual_state, status.desired_state) == (pb.ACTUAL_STATE_PENDING, pb.DESIRED_STATE_RUNNING)
        assert status.run.generation == 3
        (action,) = await it.actions()
        assert action.task_id == status.metadata["task_id"]
        assert (action.workload_id, action.action_type) == ("w", "apply_workload")
        assert action.status in ("pending", "running")
        assert action.ended_at == 0
        await asyncio.sleep(3)
        (action,) = await it.actions(status="completed")
        assert 0 < action.created_at <= action.started_at <= action.ended_at
        status = await it.status()
        assert (status.actual_state, status.run.ready) == (pb.ACTUAL_STATE_RUNNING, True)
        assert status.run.spec_sha256


async def test_what_is_absent_has_its_meaning(tmp_path):
    async with client(tmp_path) as it:
        answer = await it.apply(revision="", desired=pb.DESIRED_STATE_UNSPECIFIED)
        assert answer.status.revision_id == answer.status.run.spec_sha256.hex()
        assert answer.status.desired_state == pb.DESIRED_STATE_RUNNING
        assert answer.status.run.generation == 1


async def test_apply_is_idempotent(tmp_path):
    async with client(tmp_path) as it:
        await it.apply(revision="r1", generation=3)
        await asyncio.sleep(1)
        again = await it.apply(revision="r1", generation=3)
        assert (again.applied, again.skipped) == (True, True)
        assert again.status.actual_state == pb.ACTUAL_STATE_RUNNING
        higher = await it.apply(revision="r1", generation=9)
        assert (higher.skipped, higher.status.run.generation) == (True, 9)
        with pytest.raises(StaleGenerationError) as caught:
            await it.apply(revision="r2", generation=8)
        assert caught.value.facts["highest"] == "9"
        with pytest.raises(PreconditionError):
            await it.apply(revision="r2", generation=9)
        assert len(it.machine.history) == 1


async def test_stopping_and_starting(tmp_path):
    async with client(tmp_path) as it:
        await it.apply(generation=1)
        await asyncio.sleep(1)
        assert (await it.apply(desired=pb.DESIRED_STATE_STOPPED, generation=2)).applied
        await asyncio.sleep(1)
        status = await it.status()
        assert (status.actual_state, status.desired_state) == (pb.ACTUAL_STATE_STOPPED, pb.DESIRED_STATE_STOPPED)
        assert (await it.apply(generation=3)).applied
        await asyncio.sleep(1)
        assert (await it.status()).actual_state == pb.ACTUAL_STATE_RUNNING


async def test_an_attempt_runs_a_completed_one_again(tmp_path):
    async with client(tmp_path) as it:
        it.machine.script = FakeScript(run_for=1)
        spec = workload(process(restart=RestartPolicy(policy="no")))
        await it.apply(spec=spec, generation=1)
        await asyncio.sleep(2)
        status = await it.status()
        assert (status.actual_state, status.run.completed) == (pb.ACTUAL_STATE_STOPPED, True)
        assert status.run.HasField("exit")
        assert (await it.apply(spec=spec, generation=2)).skipped
        assert (await it.apply(spec=spec, generation=3, attempt=1)).applied
        await asyncio.sleep(2)
        assert it.machine.count("started", "w") == 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"workload_id": ""}, "id"),
        ({"workload_id": "../etc"}, "id"),
        ({"workload_id": "a/b"}, "id"),
        ({"workload_id": "x" * 129}, "id"),
        ({"kind": 0}, "type"),
        ({"kind": 77}, "type"),
        ({"kind": pb.WORKLOAD_TYPE_CONTAINER}, "spec.container"),
        ({"spec": pb.WorkloadSpec()}, "spec.process"),
        ({"desired": 9}, "desired_state"),
        ({"generation": -1}, "generation"),
        ({"attempt": -1}, "attempt"),
        ({"revision": "r" * 300}, "revision_id"),
        ({"spec": pb.WorkloadSpec(process=run_pb2.ProcessSpec())}, "spec.process.command"),
        (
            {
                "spec": pb.WorkloadSpec(
                    process=run_pb2.ProcessSpec(command=["x"]), reservation=pb.Reservation(memory_mb=-5)
                )
            },
            "spec.reservation.memory_mb",
        ),
    ],
)
async def test_a_bad_apply_is_refused_by_the_name_of_its_field_and_leaves_no_trace(tmp_path, fields, named):
    async with client(tmp_path) as it:
        with pytest.raises(InvalidError) as caught:
            await it.apply(**fields)
        assert named in [found.field for found in caught.value.problems]
        assert await it.workloads() == []
        assert await it.actions() == []


async def test_everything_wrong_is_named_at_once(tmp_path):
    async with client(tmp_path) as it:
        spec = pb.WorkloadSpec(process=run_pb2.ProcessSpec())
        with pytest.raises(InvalidError) as caught:
            await it.apply("..", spec, desired=9, generation=-4)
        assert {found.field for found in caught.value.problems} >= {
            "id",
            "desired_state",
            "generation",
            "spec.process.command",
        }


async def test_a_kind_that_cannot_run_here_is_said_in_the_words_that_schedulers_look_for(tmp_path):
    async with client(tmp_path) as it:
        spec = pb.WorkloadSpec(container=pb.ContainerSpec(image="nginx"))
        with pytest.raises(UnsupportedError, match="runtime not available"):
            await it.apply(spec=spec, kind=pb.WORKLOAD_TYPE_CONTAINER)


async def test_what_does_not_fit_is_refused_with_the_reason(tmp_path):
    async with client(tmp_path) as it:
        with pytest.raises(ExhaustedError, match="2000 MB in 1 of 4 slots, which have 1024 MB") as caught:
            await it.apply(spec=workload(request=Resources(memory_mb=2000, slots=1)))
        assert caught.value.facts["failure"] == "INSUFFICIENT_RESOURCES"


async def test_delete_can_be_repeated_and_needs_nothing_to_delete(tmp_path):
    async with client(tmp_path) as it:
        it.machine.script = FakeScript(stop_takes=2, output="hello\n")
        await it.apply(generation=1)
        await asyncio.sleep(1)
        assert (await it.delete(generation=2)).success
        assert (await it.delete(generation=2)).success
        assert (await it.status()).run.deleting
        await asyncio.sleep(3)
        with pytest.raises(NotFoundError, match="not found"):
            await it.status()
        answer = await it.delete()
        assert (answer.success, answer.message) == (True, "not found, nothing to delete")
        done = await it.actions(workload_id="w", action_type="delete_workload", newest_first=True)
        assert [action.status for action in done] == ["completed", "completed"]
        await it.apply(generation=9)
        with pytest.raises(StaleGenerationError):
            await it.delete(generation=8)


async def test_listing_by_kind(tmp_path):
    async with client(tmp_path) as it:
        for name in ("b", "a", "c"):
            await it.apply(name)
        assert await it.workloads() == ["a", "b", "c"]
        assert await it.workloads(type=PROCESS) == ["a", "b", "c"]
        assert await it.workloads(type=pb.WORKLOAD_TYPE_VM) == []
        with pytest.raises(InvalidError):
            await it.workloads(type=55)


async def test_listing_actions_with_every_filter(tmp_path):
    async with client(tmp_path) as it:
        it.machine.scripts["bad"] = FakeScript(start_error="no such program")
        await it.apply("good")
        await it.apply("bad")
        await asyncio.sleep(1)
        await it.delete("good")
        await asyncio.sleep(1)
        everything = [(each.workload_id, each.action_type, each.status) for each in await it.actions()]
        assert everything == [
            ("good", "apply_workload", "completed"),
            ("bad", "apply_workload", "failed"),
            ("good", "delete_workload", "completed"),
        ]
        assert [each.workload_id for each in await it.actions(newest_first=True)] == ["good", "bad", "good"]
        assert [each.action_type for each in await it.actions(workload_id="good", limit=1)] == ["apply_workload"]
        (failed,) = await it.actions(status="failed")
        assert failed.error == "no such program"
        (deleted,) = await it.actions(action_type="delete_workload")
        assert deleted.workload_id == "good"
        assert await it.actions(action_type="reconcile") == []
        with pytest.raises(InvalidError) as caught:
            await it.actions(limit=-1, status="done", action_type="explode", workload_id="a/b")
        assert {found.field for found in caught.value.problems} == {"limit", "status", "action_type", "workload_id"}


async def test_health_is_true(tmp_path):
    async with client(tmp_path) as it:
        answer = await it.health()
        assert (answer.healthy, answer.version, dict(answer.runtime_status)) == (True, "1.2.3", {"process": "healthy"})
        assert 0 < answer.memory_utilization <= 100
        assert 0 < answer.disk_utilization <= 100
        assert 0 <= answer.cpu_utilization <= 100
        it.machine.outage = UnavailableError("the keeper does not answer")
        await asyncio.sleep(10)
        answer = await it.health()
        assert not answer.healthy
        assert answer.runtime_status["process"] == "unhealthy: the keeper does not answer"


async def test_orphans_are_shown_in_health_and_are_no_illness(tmp_path):
    it = Scene(tmp_path)
    it.machine.begin(RunRequest("x.1", "x", process()), FakeScript())
    agent = await it.start(control=(), standalone=True)
    code, body = agent.health()
    assert (code, body["orphans"]) == (200, ["x.1"])
    keys = ("agent_id", "running", "active_tasks", "available_slots", "total_slots")
    assert [body[key] for key in keys] == [body["node_id"], True, 0, body["total_slots"], body["total_slots"]]
    await agent.stop()
    assert it.machine.alive("x")


async def test_logs_are_streamed(tmp_path):
    async with client(tmp_path) as it:
        it.machine.script = FakeScript(output="".join(f"line {number}\n" for number in range(100)))
        await it.apply()
        await asyncio.sleep(1)
        whole = b"".join(chunk.data for chunk in await it.logs())
        assert whole.count(b"\n") == 100
        assert b"".join(chunk.data for chunk in await it.logs(tail_lines=2)) == b"line 98\nline 99\n"
        with pytest.raises(NotFoundError):
            await it.logs("nobody")
        with pytest.raises(InvalidError):
            await it.logs(tail_lines=-1)


async def test_large_pieces_are_cut(tmp_path):
    async with client(tmp_path) as it:
        it.machine.script = FakeScript(output="x" * 600_000)
        await it.apply()
        await asyncio.sleep(1)
        assert [len(chunk.data) for chunk in await it.logs()] == [262_144, 262_144, 75_712]


async def test_a_call_meant_for_another_node_is_refused(tmp_path):
    async with client(tmp_path) as it:
        request = pb.DeleteWorkloadRequest(id="w")
        with pytest.raises(MisroutedError, match="meant for 'n2'"):
            await it.channel.call(AgentService.DELETE_WORKLOAD, request, metadata={NODE_HEADER: "n2"})
        assert await it.actions() == []
        await it.channel.call(AgentService.DELETE_WORKLOAD, request, metadata={NODE_HEADER: "n1"})


async def test_a_disk_that_takes_no_writes_is_an_illness_until_it_takes_them_again(tmp_path):
    async with client(tmp_path) as it:
        it.agent._database.trouble = "no room left"
        answer = await it.health()
        assert (answer.healthy, answer.runtime_status["store"]) == (False, "unhealthy: no room left")
        assert it.agent.health()[0] == 503
        await asyncio.sleep(10)
        assert (await it.health()).healthy


async def test_dates_are_those_of_the_orders(tmp_path):
    async with client(tmp_path) as it:
        await it.apply(generation=1)
        await asyncio.sleep(100)
        first = await it.status()
        assert first.updated_at == first.created_at > 0
        await it.apply(generation=2, revision="r2")
        await asyncio.sleep(1)
        second = await it.status()
        assert (second.created_at, second.updated_at) == (first.created_at, first.created_at + 100)


async def test_the_exact_spec_can_be_had_back(tmp_path):
    async with client(tmp_path) as it:
        spec = workload(process("sleep", "7"))
        await it.apply(spec=spec, revision="r1", generation=3, desired=pb.DESIRED_STATE_STOPPED)
        request = pb.GetWorkloadSpecRequest(id="w")
        answer = await it.channel.call(AgentService.GET_WORKLOAD_SPEC, request)
        assert pb.WorkloadSpec.FromString(answer.spec) == spec
        assert (answer.id, answer.type, answer.revision_id, answer.generation) == ("w", PROCESS, "r1", 3)
        assert (answer.desired_state, answer.deleting) == (pb.DESIRED_STATE_STOPPED, False)
        it.machine.outage = OSError("the runtime hangs")
        await it.delete()
        assert (await it.channel.call(AgentService.GET_WORKLOAD_SPEC, request)).deleting
        it.machine.outage = None
        with pytest.raises(NotFoundError):
            await it.channel.call(AgentService.GET_WORKLOAD_SPEC, pb.GetWorkloadSpecRequest(id="nobody"))

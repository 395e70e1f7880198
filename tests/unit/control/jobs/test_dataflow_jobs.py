"""Dataflow jobs in a whole control plane with hollow agents, in virtual time: groups, room, reports of processes."""

import contextlib
import json
import time
from datetime import timedelta

import pytest

from shoal.core import faults
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, ShoalError
from shoal.core.tasks import task_scope
from shoal.dataflow.fleet import DataflowEngine
from shoal.dataflow.fleet.reports import CoordinatorReport, HostReport, Phase, encode
from shoal.jobs.engine import Engines
from shoal.model.identity import Identity, Role, workload_identity
from shoal.testing.control import ControlKit
from shoal.wire.methods import AgentControl, Jobs
from shoal.wire.pb.persys.control.v1.control_pb2 import ListEventsRequest
from shoal.wire.pb.shoal.v1 import jobs_pb2 as pb
from shoal.wire.transport import Call

pytestmark = pytest.mark.looptime(start=time.monotonic)


@pytest.fixture(autouse=True)
def disarmed():
    yield
    faults.disarm_all()


@pytest.fixture
async def kit(tmp_path):
    engines = Engines({"dataflow": DataflowEngine()})
    async with ControlKit(
        tmp_path, lease=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=10), engines=engines, streams=True
    ) as made:
        for number in range(3):
            made.node(f"n{number}", slots=2)
            await made.wait_node(f"n{number}", "Ready")
        yield made


def spec(**changes):
    plain = {"name": "a.b", "plan": "a" * 64, "bundle": "b" * 64, "parallelism": 2, "insecure": True}
    return json.dumps(plain | {"checkpoint": {"directory": "/c"}} | changes).encode()


async def submit(kit, job_id="j", **changes):
    request = pb.SubmitJobRequest(job_id=job_id, engine="dataflow", spec=spec(**changes))
    return await kit.channel.call(Jobs.SUBMIT, request)


async def wait_state(kit, state, job_id="j"):
    jobs = kit.plane.leadership.fleet.jobs
    await kit.wait(lambda: jobs[job_id].state == state, seconds=120.0, what=f"{job_id} {state}")
    return jobs[job_id]


def workload(kit, workload_id):
    return kit.plane.leadership.fleet.workloads[workload_id]


async def say(kit, workload_id, report=None, *, read=(), job_id="j", **changes):
    record = workload(kit, workload_id)
    request = pb.ReportJobRequest(
        job_id=job_id,
        workload_id=workload_id,
        node_id=record.node_id,
        revision_id=record.revision_id,
        report=report if isinstance(report, bytes) else encode(report) if report is not None else b"",
        read=read,
    )
    request.MergeFrom(pb.ReportJobRequest(**changes))
    return await kit.channel.call(Jobs.REPORT, request)


async def test_its_processes_are_one_group_apart_and_it_runs_when_its_coordinator_says_so(kit):
    await submit(kit)
    await wait_state(kit, "Deploying")
    fleet = kit.plane.leadership.fleet
    events = (await kit.channel.call(AgentControl.LIST_EVENTS, ListEventsRequest(subject_id="j-host-0"))).events
    assert any("job j: place" in event.cause for event in events)
    assert fleet.groups["j"].members == ("j-coordinator", "j-host-0", "j-host-1")
    assert workload(kit, "j-host-0").node_id != workload(kit, "j-host-1").node_id
    answer = await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING, address="1.2.3.4:5"))
    assert (answer.state, answer.action, answer.request_number) == ("Deploying", "submit", 1)
    await wait_state(kit, "Running")
    heard = await say(kit, "j-host-0", read=["j-coordinator", "j-host-1"])
    assert list(heard.reports) == ["j-coordinator"]
    shown = await kit.channel.call(Jobs.GET, pb.GetJobRequest(job_id="j"))
    assert b"1.2.3.4:5" in shown.reports["j-coordinator"]
    await say(kit, "j-coordinator", CoordinatorReport(Phase.FINISHED))
    await wait_state(kit, "Finished")
    await kit.wait(lambda: not fleet.workloads and "j" not in fleet.groups, seconds=60.0)


async def test_too_few_slots_leave_it_pending_with_a_reason_for_each_node(kit):
    await submit(kit, parallelism=7)
    job = await wait_state(kit, "Pending")
    await kit.wait(lambda: "n2" in kit.plane.leadership.fleet.jobs["j"].message, seconds=30.0)
    job = kit.plane.leadership.fleet.jobs["j"]
    assert all(f"n{number}" in job.message for number in range(3))
    assert "slot" in job.message
    assert kit.plane.leadership.fleet.workloads == {}
    told = [each async for each in _events(kit)]
    await kit.clock.sleep(60)
    assert [each async for each in _events(kit)] == told  # it waits, and does not repeat itself
    kit.node("n3", slots=2)
    await wait_state(kit, "Deploying")
    assert len(kit.plane.leadership.fleet.workloads) == 8


async def _events(kit):
    for kind in await kit.event_kinds("j"):
        yield kind


async def test_a_process_that_was_replaced_is_not_heard(kit):
    await submit(kit)
    await wait_state(kit, "Deploying")
    first = workload(kit, "j-coordinator")
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING, term=first.generation))
    await wait_state(kit, "Running")
    await say(kit, "j-host-0", HostReport(0, first.generation, first.node_id, 3.5))
    await kit.wait(lambda: workload(kit, "j-coordinator").revision_id != first.revision_id, seconds=30.0)
    second = workload(kit, "j-coordinator")
    assert second.node_id != first.node_id
    assert second.generation > first.generation
    with pytest.raises(PreconditionError, match="was replaced"):
        await say(kit, "j-coordinator", None, revision_id=first.revision_id)
    assert not (await say(kit, "j-host-0", read=["j-coordinator"])).reports
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING, term=second.generation))
    await wait_state(kit, "Running")


async def test_a_job_that_is_submitted_again_does_not_hear_the_processes_of_its_earlier_life(kit):
    """They may be there for a while: the job has failed before they have ended."""
    await submit(kit)
    await wait_state(kit, "Deploying")
    failed = CoordinatorReport(Phase.FAILED, message="boom")
    old = workload(kit, "j-coordinator")
    words = {"node_id": old.node_id, "revision_id": old.revision_id, "report": encode(failed)}
    await say(kit, "j-coordinator", failed)
    await wait_state(kit, "Failed")
    await submit(kit)
    await kit.wait(lambda: workload(kit, "j-coordinator").generation > old.generation, what="the new one is there")
    with pytest.raises(PreconditionError, match="was replaced"):
        await say(kit, "j-coordinator", **words)
    await wait_state(kit, "Deploying")
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING))
    await wait_state(kit, "Running")


async def test_bad_reports_are_refused(kit):
    await submit(kit)
    await submit(kit, "other")
    await wait_state(kit, "Deploying")
    await wait_state(kit, "Deploying", "other")
    with pytest.raises(NotFoundError):
        await kit.channel.call(Jobs.REPORT, pb.ReportJobRequest(job_id="j", workload_id="none"))
    with pytest.raises(InvalidError, match="workload of job"):
        await say(kit, "other-coordinator")
    with pytest.raises(InvalidError, match="at most"):
        await say(kit, "j-coordinator", b"x" * 70_000)
    with pytest.raises(InvalidError, match="at most"):
        await say(kit, "j-coordinator", read=["x"] * 300)
    await say(kit, "j-coordinator", b"\x00 no report of an engine")
    assert not (await say(kit, "j-host-0", read=["other-coordinator"])).reports
    await wait_state(kit, "Deploying")


async def test_a_rescale_that_finds_no_room_keeps_the_old_width(kit):
    await submit(kit)
    await wait_state(kit, "Deploying")
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING))
    await wait_state(kit, "Running")
    await kit.channel.call(Jobs.RESCALE, pb.RescaleJobRequest(job_id="j", width=7))
    await wait_state(kit, "Rescaling")
    await say(kit, "j-coordinator", CoordinatorReport(Phase.STOPPED, request=2))
    job = await wait_state(kit, "Recovering")
    assert "stays as it was" in job.message
    assert "slot" in job.message
    assert len(kit.plane.leadership.fleet.workloads) == 3
    assert workload(kit, "j-coordinator").revision_id == "d2"
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING))
    await wait_state(kit, "Running")


async def test_a_silent_task_host_of_a_full_fleet_begins_again_where_it_is(kit):
    await submit(kit, parallelism=6)
    await wait_state(kit, "Deploying")
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING))
    await wait_state(kit, "Running")
    before = workload(kit, "j-host-3")
    for _ in range(6):  # it is not just starting
        await kit.clock.sleep(2)
        await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING))
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RECOVERING, missing={"3": 3.5}))
    await kit.wait(lambda: workload(kit, "j-host-3").revision_id == "d1.1", seconds=4.0)
    after = workload(kit, "j-host-3")
    assert after.node_id == before.node_id
    assert after.generation > before.generation
    job = kit.plane.leadership.fleet.jobs["j"]
    assert "no room" in job.message
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING))
    await wait_state(kit, "Running")


async def test_a_savepoint_is_answered_with_what_was_taken_in(kit):
    await submit(kit)
    await wait_state(kit, "Deploying")
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING))
    await wait_state(kit, "Running")
    await kit.channel.call(Jobs.SAVEPOINT, pb.SavepointJobRequest(job_id="j"))
    answer = await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING))
    assert (answer.action, answer.request_number, answer.taken_request) == ("savepoint", 2, 1)
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING, request=2, savepoint="/c/a.b/4"))
    await kit.wait(lambda: kit.plane.leadership.fleet.jobs["j"].taken == 2, seconds=10.0)
    # One that begins after that does not make it again.
    answer = await say(kit, "j-coordinator", CoordinatorReport(Phase.STARTING))
    assert answer.taken_request == 2


async def ask_key(kit, part, who, **changes):
    """What a process hears that asks for the coordinator's key, with this identity."""
    record = workload(kit, part)
    given = {"node_id": record.node_id, "revision_id": record.revision_id, "key_of": "j-coordinator"} | changes
    request = pb.ReportJobRequest(job_id="j", workload_id=part, **given)
    answer = await kit.plane.leadership.jobs.report(request, Call("Report", "test", identity=who))
    return answer.job_key, answer.key_generation


async def test_the_key_of_a_term_is_given_to_processes_of_the_job_alone(kit):
    await submit(kit)
    await submit(kit, "other")
    await wait_state(kit, "Deploying")
    await wait_state(kit, "Deploying", "other")

    def identity(job, node):
        return workload_identity("default", job=job, node=node)

    coordinator, host = workload(kit, "j-coordinator"), workload(kit, "j-host-0")
    key, term = await ask_key(kit, "j-coordinator", identity("j", coordinator.node_id))
    assert (len(key), term) == (32, coordinator.generation)
    assert await ask_key(kit, "j-host-0", identity("j", host.node_id)) == (key, term)
    nothing = (b"", 0)
    assert await ask_key(kit, "j-host-0", identity("other", host.node_id)) == nothing
    assert await ask_key(kit, "j-host-0", identity("j", "n9")) == nothing
    assert await ask_key(kit, "j-host-0", Identity(Role.OPERATOR, "default", "o")) == nothing
    assert await ask_key(kit, "j-host-0", None) == nothing
    assert await ask_key(kit, "j-host-0", identity("j", host.node_id), key_of="other-coordinator") == nothing
    assert await ask_key(kit, "j-host-0", identity("j", host.node_id), key_of="") == nothing
    # A coordinator that was replaced gets none, and the next one another.
    await say(kit, "j-coordinator", CoordinatorReport(Phase.RUNNING, term=term))
    await wait_state(kit, "Running")
    await say(kit, "j-host-0", HostReport(0, term, coordinator.node_id, 3.5))
    await say(kit, "j-host-1", HostReport(1, term, coordinator.node_id, 3.5))
    await kit.wait(lambda: workload(kit, "j-coordinator").generation > term, seconds=30.0)
    old = {"node_id": coordinator.node_id, "revision_id": coordinator.revision_id}
    with pytest.raises(PreconditionError, match="was replaced"):
        await ask_key(kit, "j-coordinator", identity("j", coordinator.node_id), **old)
    newer, newest = await ask_key(kit, "j-host-0", identity("j", host.node_id))
    assert newer != key
    assert newest > term


# ---------------------------------------------------------------------------------------------------------
# The control plane ends in the middle


class Processes:
    """The coordinator of the job and what it says, wherever it is placed and whichever control plane leads."""

    def __init__(self, kit):
        self._kit = kit
        self._number = 0
        #: The host that nobody reaches, in its first place.
        self.lost = ""

    async def run(self):
        while True:
            await self._kit.clock.sleep(0.5)
            with contextlib.suppress(ShoalError, KeyError, AttributeError):  # there is no control plane, or no job
                await self._speak()

    async def _speak(self):
        record = workload(self._kit, "j-coordinator")
        heard = await say(self._kit, "j-coordinator")
        deployed_for = int(record.spec.process.args[record.spec.process.args.index("--deployed-for") + 1])
        stops = heard.action in ("rescale", "upgrade") or (heard.action == "savepoint" and heard.stop)
        phase, missing = Phase.RUNNING, {}
        if stops and heard.request_number > deployed_for:
            phase = Phase.STOPPED
        elif self.lost and workload(self._kit, f"j-host-{self.lost}").revision_id == "d1":
            phase, missing = Phase.RECOVERING, {self.lost: 30.0}
        self._number += 1
        report = CoordinatorReport(
            phase,
            term=record.generation,
            request=max(deployed_for, heard.request_number),
            savepoint="/c/a.b/4",
            checkpoint=self._number,
            missing=missing,
        )
        await say(self._kit, "j-coordinator", report)


CHANGES = {
    "rescale": (Jobs.RESCALE, {"width": 3}),
    "upgrade": (Jobs.UPGRADE, {"spec": spec(bundle="c" * 64)}),
    "stop": (Jobs.SAVEPOINT, {"stop": True}),
}


EXPECTED = {
    "place": {"j-coordinator": "d1", "j-host-0": "d1", "j-host-1": "d1"},
    "recover": {"j-coordinator": "d1", "j-host-0": "d1", "j-host-1": "d1.1"},
    "rescale": dict.fromkeys(("j-coordinator", "j-host-0", "j-host-1", "j-host-2"), "d2"),
    "upgrade": dict.fromkeys(("j-coordinator", "j-host-0", "j-host-1"), "d2"),
    "stop": {},
}
#: A fault point and the transition in which it ends; there is one request, and none for what is lost.
ENDS = [(point, times) for point in faults.POINTS if point.startswith("jobs.") for times in (1, 2)]


def revisions(fleet):
    return {str(name): each.revision_id for name, each in fleet.workloads.items()}


@pytest.mark.parametrize(
    ("change", "point", "times"),
    [
        (change, point, times)
        for change in EXPECTED
        for point, times in ENDS
        if point != "jobs.requested" or (times == 1 and change != "recover")
    ],
)
async def test_another_leader_carries_on_from_every_point(kit, change, point, times):
    """The control plane ends at a fault point of the n-th transition of a change; the next one finishes it."""
    processes = Processes(kit)
    reached = 0

    def end(_name):
        nonlocal reached
        reached += 1
        if reached == times:
            raise _EndedError(point)

    async with task_scope("processes") as scope:
        speaking = scope.start(processes.run(), name="processes")
        if change != "place":
            await submit(kit)
            await wait_state(kit, "Running")
            await kit.clock.sleep(15)  # nothing is just starting
        faults.arm(point, end)
        try:
            if change == "place":
                await submit(kit)
            elif change == "recover":
                processes.lost = "1"
            else:
                method, more = CHANGES[change]
                await kit.channel.call(method, method.request(job_id="j", **more))
        except Exception:
            assert point == "jobs.requested"
        if point != "jobs.requested":
            await kit.wait(lambda: reached >= times, what=f"{point} was reached {times} times")
        faults.disarm_all()
        await kit.stop_control()
        await kit.start_control()
        for number in range(3):
            await kit.wait_node(f"n{number}", "Ready")
        fleet = kit.plane.leadership.fleet
        await kit.wait(lambda: revisions(fleet) == EXPECTED[change], what=f"{EXPECTED[change]}", seconds=120)
        await wait_state(kit, "Stopped" if change == "stop" else "Running")
        assert revisions(fleet) == EXPECTED[change]
        assert fleet.jobs["j"].taken == fleet.jobs["j"].request.number
        await kit.wait(lambda: kit.workflows.unfinished == {}, what="no workflow is left")
        speaking.cancel()


class _EndedError(Exception):
    """Stands for the end of the process at a fault point."""

"""Jobs in a whole control plane with hollow agents, in virtual time: requests, transitions, faults, another leader."""

import dataclasses
import json
import time
from datetime import timedelta

import pytest

from shoal.control.store.base import EventQuery
from shoal.core import faults
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, UnsupportedError
from shoal.jobs.engine import Engines, Plan
from shoal.services import ServiceEngine
from shoal.testing.control import ControlKit
from shoal.wire.methods import AgentControl, Jobs
from shoal.wire.pb.persys.control.v1 import control_pb2
from shoal.wire.pb.shoal.v1 import jobs_pb2 as pb

pytestmark = pytest.mark.looptime(start=time.monotonic)

POINTS = [each for each in faults.POINTS if each.startswith("jobs.")]


@pytest.fixture(autouse=True)
def disarmed():
    yield
    faults.disarm_all()


@pytest.fixture
async def kit(tmp_path):
    engines = Engines({"service": ServiceEngine()})
    async with ControlKit(
        tmp_path, lease=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=10), engines=engines, streams=True
    ) as made:
        for number in range(3):
            made.node(f"n{number}")
        for number in range(3):
            await made.wait_node(f"n{number}", "Ready")
        yield made


def service(count=3, command="one", **update):
    update = {"settle": "1s", **update}
    workload = {"type": "process", "process": {"command": [command]}, "resources": {"cpu_millicores": 10}}
    return json.dumps({"count": count, "update": update, "workload": workload}).encode()


async def submit(kit, job_id="web", spec=None, **more):
    request = pb.SubmitJobRequest(job_id=job_id, engine="service", spec=spec or service(), **more)
    return await kit.channel.call(Jobs.SUBMIT, request)


async def get(kit, job_id="web"):
    return (await kit.channel.call(Jobs.GET, pb.GetJobRequest(job_id=job_id))).job


async def wait_state(kit, state, job_id="web", seconds=120.0):
    await kit.wait(
        lambda: (found := kit.plane.leadership.fleet.jobs.get(job_id)) is not None and found.state == state,
        seconds=seconds,
        what=f"{job_id} {state}: {kit.plane.leadership.fleet.jobs.get(job_id)}",
    )
    return await get(kit, job_id)


def revisions(kit):
    return sorted(each.revision_id for each in kit.plane.leadership.fleet.workloads.values())


async def test_a_service_is_deployed_spread_and_canceled(kit):
    answer = await submit(kit)
    assert (answer.created, answer.job.state) == (True, "Submitted")
    job = await wait_state(kit, "Running")
    assert list(job.workload_ids) == ["web-0", "web-1", "web-2"]
    fleet = kit.plane.leadership.fleet
    assert {each.node_id for each in fleet.workloads.values()} == {"n0", "n1", "n2"}
    assert {each.spec.labels["shoal.job"] for each in fleet.workloads.values()} == {"web"}
    await kit.channel.call(Jobs.CANCEL, pb.CancelJobRequest(job_id="web"))
    await wait_state(kit, "Canceled")
    assert fleet.workloads == {}
    assert "JobChanged" in await kit.event_kinds("web")
    again = await submit(kit)
    assert again.job.transition == (await get(kit)).transition
    assert (await wait_state(kit, "Running")).transition > again.job.transition


async def test_a_submit_is_idempotent_by_its_key(kit):
    first = await submit(kit, client_key="k")
    second = await submit(kit, client_key="k")
    assert (first.created, second.created, second.job.job_id) == (True, False, "web")
    with pytest.raises(InvalidError, match="another submit"):
        await submit(kit, spec=service(count=9), client_key="k")
    with pytest.raises(PreconditionError, match="cannot take the request submit"):
        await submit(kit, client_key="other")
    chosen = await submit(kit, "", client_key="k2")
    assert (await submit(kit, "", client_key="k2")).job.job_id == chosen.job.job_id
    assert len(kit.plane.leadership.fleet.jobs) == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"job_id": "../x"}, "job_id"),
        ({"job_id": "x" * 101}, "job_id"),
        ({"engine": "none"}, "engine"),
        ({"spec": b"\x00"}, "spec"),
        ({"spec": b"{}"}, "workload"),
        ({"spec": service(count=-1)}, "count"),
        ({"spec": service(parallel=0)}, "update.parallel"),
        ({"spec": b"x" * (1024 * 1024 + 1)}, "spec"),
        ({"client_key": "k" * 200}, "client_key"),
    ],
)
async def test_a_bad_submit_names_the_field_and_stores_nothing(kit, changes, field):
    good = {"job_id": "web", "engine": "service", "spec": service()}
    with pytest.raises(InvalidError) as caught:
        await kit.channel.call(Jobs.SUBMIT, pb.SubmitJobRequest(**{**good, **changes}))
    assert field in {each.field for each in caught.value.problems}
    assert kit.plane.leadership.fleet.jobs == {}


async def test_requests_that_cannot_be(kit):
    for method, request in (
        (Jobs.GET, pb.GetJobRequest(job_id="web")),
        (Jobs.CANCEL, pb.CancelJobRequest(job_id="web")),
        (Jobs.RESCALE, pb.RescaleJobRequest(job_id="web", width=2)),
    ):
        with pytest.raises(NotFoundError):
            await kit.channel.call(method, request)
    await submit(kit)
    await wait_state(kit, "Running")
    with pytest.raises(UnsupportedError, match="no state to save"):
        await kit.channel.call(Jobs.SAVEPOINT, pb.SavepointJobRequest(job_id="web"))
    with pytest.raises(PreconditionError, match="is Running"):
        await kit.channel.call(Jobs.RESUME, pb.ResumeJobRequest(job_id="web"))
    for width in (-1, 1001):
        with pytest.raises(InvalidError, match="width"):
            await kit.channel.call(Jobs.RESCALE, pb.RescaleJobRequest(job_id="web", width=width))
    assert (await get(kit)).state == "Running"


async def test_a_service_is_stopped_and_resumed(kit):
    """It has no state, so that a stop with a savepoint removes its replicas and keeps its row."""
    await submit(kit)
    await wait_state(kit, "Running")
    await kit.channel.call(Jobs.SAVEPOINT, pb.SavepointJobRequest(job_id="web", stop=True))
    await wait_state(kit, "Stopped")
    assert kit.plane.leadership.fleet.workloads == {}
    await kit.channel.call(Jobs.RESUME, pb.ResumeJobRequest(job_id="web"))
    await wait_state(kit, "Running")
    assert revisions(kit) == ["r1"] * 3


async def test_a_scale_and_an_update(kit):
    await submit(kit)
    await wait_state(kit, "Running")
    await kit.channel.call(Jobs.RESCALE, pb.RescaleJobRequest(job_id="web", width=5))
    await kit.wait(lambda: len(kit.plane.leadership.fleet.workloads) == 5, what="five replicas")
    await wait_state(kit, "Running")
    await kit.channel.call(Jobs.UPGRADE, pb.UpgradeJobRequest(job_id="web", spec=service(count=5, command="two")))
    await kit.wait(lambda: revisions(kit) == ["r2"] * 5, what="every replica has r2")
    await wait_state(kit, "Running")
    await kit.channel.call(Jobs.RESCALE, pb.RescaleJobRequest(job_id="web", width=1))
    await kit.wait(lambda: list(kit.plane.leadership.fleet.workloads) == ["web-0"], what="one replica")


async def test_a_bad_revision_is_reverted_after_the_first_replica(kit):
    await submit(kit)
    await wait_state(kit, "Running")
    touched = set()

    def fail_new_ones():
        for node in kit.agents.nodes.values():
            for name in node.runs:
                record = kit.plane.leadership.fleet.workloads.get(name)
                if record is not None and record.revision_id == "r2":
                    touched.add(name)
                    node.fail(name)
        return b'"failed"' in kit.plane.leadership.fleet.jobs["web"].progress

    await kit.channel.call(Jobs.UPGRADE, pb.UpgradeJobRequest(job_id="web", spec=service(command="two")))
    await kit.wait(fail_new_ones, what="r2 has failed", seconds=300)
    job = await wait_state(kit, "Running")
    assert touched == {"web-0"}
    assert revisions(kit) == ["r1"] * 3
    assert json.loads(job.progress)["revisions"][1]["state"] == "failed"


async def test_a_workload_of_somebody_else_is_not_taken_over(kit):
    await kit.apply("web-1", revision="mine")
    await kit.wait_status("web-1", "Running")
    await submit(kit)
    job = await wait_state(kit, "Failed")
    assert "'web-1' exists and is not part of job 'web'" in job.message
    assert kit.plane.leadership.fleet.workloads["web-1"].revision_id == "mine"
    await kit.channel.call(Jobs.CANCEL, pb.CancelJobRequest(job_id="web"))
    await wait_state(kit, "Canceled")
    assert "web-1" in kit.plane.leadership.fleet.workloads


async def test_a_service_that_is_submitted_again_gets_its_new_spec_although_replicas_were_left(kit):
    await submit(kit, spec=service(count=2))
    await wait_state(kit, "Running")
    await kit.apply("web-2", revision="mine")
    await kit.channel.call(Jobs.RESCALE, pb.RescaleJobRequest(job_id="web", width=3))
    await wait_state(kit, "Failed")
    await submit(kit, spec=service(count=2, command="two"))
    await wait_state(kit, "Running")
    workloads = kit.plane.leadership.fleet.workloads
    assert [workloads[f"web-{index}"].spec.process.command for index in (0, 1)] == [("two",)] * 2


async def test_a_replica_that_a_person_deletes_comes_back(kit):
    await submit(kit)
    await wait_state(kit, "Running")
    before = kit.plane.leadership.fleet.workloads["web-1"].generation
    await kit.delete("web-1")
    await kit.wait(
        lambda: (
            (found := kit.plane.leadership.fleet.workloads.get("web-1")) is not None
            and found.generation > before
            and found.desired == "Running"
        ),
        what="another web-1",
    )
    await wait_state(kit, "Running")


async def test_a_lost_node_moves_its_replica(kit):
    await submit(kit)
    await wait_state(kit, "Running")
    kit.agents.kill("n1")
    await kit.wait(
        lambda: "n1" not in {each.node_id for each in kit.plane.leadership.fleet.workloads.values()},
        what="no replica on n1",
        seconds=300,
    )
    await wait_state(kit, "Running", seconds=300)


async def test_a_drained_node_gives_its_replicas_away_within_an_update(kit):
    """The number of replicas stays, and at most one of them is down because of the update."""
    await submit(kit, spec=service(count=4))
    await wait_state(kit, "Running")
    await kit.channel.call(Jobs.UPGRADE, pb.UpgradeJobRequest(job_id="web", spec=service(count=4, command="two")))
    await kit.wait(lambda: "r2" in revisions(kit), what="the update has begun")
    await kit.channel.call(AgentControl.DRAIN_NODE, control_pb2.DrainNodeRequest(node_id="n1"))
    fleet = kit.plane.leadership.fleet
    await kit.wait(
        lambda: {each.node_id for each in fleet.workloads.values()} == {"n0", "n2"}, what="n1 is empty", seconds=600
    )
    await kit.wait(lambda: revisions(kit) == ["r2"] * 4, what="every replica has r2", seconds=600)
    await wait_state(kit, "Running", seconds=600)
    nodes = [each.node_id for each in fleet.workloads.values()]
    assert sorted(nodes.count(each) for each in ("n0", "n2")) == [2, 2]


async def test_more_replicas_than_nodes_wait_for_none_and_spread_evenly(kit):
    await submit(kit, spec=service(count=7))
    await wait_state(kit, "Running")
    nodes = [each.node_id for each in kit.plane.leadership.fleet.workloads.values()]
    assert sorted(nodes.count(each) for each in ("n0", "n1", "n2")) == [2, 2, 3]


async def test_two_services_are_updated_side_by_side(kit):
    for name in ("web", "api"):
        await submit(kit, name)
    for name in ("web", "api"):
        await wait_state(kit, "Running", name)
    for name in ("web", "api"):
        request = pb.UpgradeJobRequest(job_id=name, spec=service(command="two"))
        await kit.channel.call(Jobs.UPGRADE, request)
    fleet = kit.plane.leadership.fleet
    await kit.wait(
        lambda: {fleet.jobs[name].state.value for name in ("web", "api")} == {"Upgrading"}, what="both are under way"
    )
    # One of them changes its mind in the middle, and one gets more replicas.
    await kit.channel.call(Jobs.UPGRADE, pb.UpgradeJobRequest(job_id="web", spec=service(command="three")))
    await kit.channel.call(Jobs.RESCALE, pb.RescaleJobRequest(job_id="api", width=5))
    await kit.wait(lambda: revisions(kit) == ["r2"] * 5 + ["r3"] * 3, what="each has its own revision", seconds=600)
    for name in ("web", "api"):
        await wait_state(kit, "Running", name, seconds=600)
    assert [each["state"] for each in json.loads((await get(kit)).progress)["revisions"]] == [
        "healthy",
        "replaced",
        "healthy",
    ]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_another_leader_carries_on_from_every_point(kit, point, times):
    """The control plane ends at a fault point of the n-th transition; the next one finishes the job."""
    reached = 0

    def end(_name):
        nonlocal reached
        reached += 1
        if reached == times:
            raise _EndedError(point)

    faults.arm(point, end)
    try:
        await submit(kit)
    except Exception:
        assert point == "jobs.requested"
    if point != "jobs.requested":
        await kit.wait(lambda: reached >= times, what=f"{point} was reached {times} times")
    faults.disarm_all()
    await kit.stop_control()
    await kit.start_control()
    for number in range(3):
        await kit.wait_node(f"n{number}", "Ready")
    await wait_state(kit, "Running")
    assert sorted(kit.plane.leadership.fleet.workloads) == ["web-0", "web-1", "web-2"]
    await kit.wait(lambda: kit.workflows.unfinished == {}, what="no workflow is left")


class _EndedError(Exception):
    """Stands for the end of the process at a fault point."""


class _NextFormat(ServiceEngine):
    """The engine of a later program, which reads what format 1 wrote."""

    format = 2

    def migrate(self, spec, progress, version):
        assert version == 1
        return spec.replace(b'"one"', b'"migrated"'), progress


async def test_a_later_program_goes_on_with_jobs_of_an_older_format(kit):
    await submit(kit)
    await wait_state(kit, "Running")
    await submit(kit, "half", service(count=2))  # on its way when the program is replaced
    await kit.stop_control()
    kit.engines = Engines({"service": _NextFormat()})
    await kit.start_control()
    for job_id in ("web", "half"):
        job = await wait_state(kit, "Running", job_id)
        assert job.format == 2
        assert json.loads(job.spec)["workload"]["process"]["command"] == ["migrated"]


class _OtherWords(ServiceEngine):
    """The engine of a later program, which writes the workloads of the same revision in another way."""

    def plan(self, job, fleet):
        planned = super().plan(job, fleet).workloads
        return Plan(
            tuple(
                dataclasses.replace(each, spec=dataclasses.replace(each.spec, labels={**each.spec.labels, "new": "x"}))
                for each in planned
            )
        )


async def test_a_later_program_leaves_workloads_of_a_stored_revision_as_they_are(kit):
    await submit(kit)
    await wait_state(kit, "Running")
    await kit.stop_control()
    kit.engines = Engines({"service": _OtherWords()})
    await kit.start_control()
    await kit.channel.call(Jobs.RESCALE, pb.RescaleJobRequest(job_id="web", width=4))
    fleet = kit.plane.leadership.fleet
    await kit.wait(lambda: fleet.jobs["web"].taken == 2, what="the request is taken in")
    await wait_state(kit, "Running")
    marked = {str(each.workload_id): "new" in each.spec.labels for each in fleet.workloads.values()}
    assert marked == {"web-0": False, "web-1": False, "web-2": False, "web-3": True}
    assert {each.generation for each in fleet.workloads.values()} == {1}, "nothing was begun again"


async def test_a_job_of_a_newer_format_waits_and_says_so(kit, caplog):
    kit.engines = Engines({"service": _NextFormat()})
    await kit.stop_control()
    await kit.start_control()
    await submit(kit)
    await wait_state(kit, "Running")
    kit.engines = Engines({"service": ServiceEngine()})
    await kit.stop_control()
    await kit.start_control()
    await kit.wait(lambda: "this program knows 1" in caplog.text, what="the log says it")
    assert kit.plane.leadership.fleet.jobs["web"].format == 2
    assert len(kit.plane.leadership.fleet.workloads) == 3


async def test_a_job_whose_engine_is_not_installed_waits(kit, caplog):
    await submit(kit)
    await wait_state(kit, "Running")
    kit.engines = Engines()
    await kit.stop_control()
    await kit.start_control()
    await kit.wait(lambda: "'service' is not installed" in caplog.text, what="the log says it")
    assert len(kit.plane.leadership.fleet.workloads) == 3
    kit.engines = Engines({"service": ServiceEngine()})
    await kit.stop_control()
    await kit.start_control()
    await kit.channel.call(Jobs.RESCALE, pb.RescaleJobRequest(job_id="web", width=2))
    await kit.wait(lambda: len(kit.plane.leadership.fleet.workloads) == 2, what="two replicas")


async def test_every_event_of_a_job_and_its_workloads_has_its_cause(kit):
    await submit(kit)
    await wait_state(kit, "Running")
    await kit.channel.call(Jobs.UPGRADE, pb.UpgradeJobRequest(job_id="web", spec=service(command="two")))
    await kit.wait(lambda: revisions(kit) == ["r2"] * 3, what="every replica has r2")
    await wait_state(kit, "Running")
    await kit.channel.call(Jobs.CANCEL, pb.CancelJobRequest(job_id="web"))
    await wait_state(kit, "Canceled")
    page = await kit.store.events(EventQuery(limit=1000))
    of_job = [event for event in page.events if event.subject_id == "web"]
    requested = [
        event
        for event in page.events
        if event.subject_id.startswith("web-")
        and event.kind in ("WorkloadCreated", "WorkloadUpdated", "WorkloadDeleteRequested")
    ]
    assert len(of_job) >= 8
    assert requested
    assert all(event.cause for event in (*of_job, *requested))
    assert {event.cause.partition(":")[0] for event in requested} == {"job web"}


async def test_a_watch_shows_every_state_until_the_end(kit):
    await submit(kit)
    states = []
    async for view in kit.channel.stream(Jobs.WATCH, pb.WatchJobRequest(job_id="web")):
        if not states or states[-1] != view.state:
            states.append(view.state)
        if view.state == "Running":
            break
    assert states[0] in ("Submitted", "Pending")
    assert states[-1] == "Running"


async def test_lists_are_in_pages_without_the_engines_bytes(kit):
    for number in range(3):
        await submit(kit, f"job-{number}", service(count=0))
    first = await kit.channel.call(Jobs.LIST, pb.ListJobsRequest(page_size=2))
    rest = await kit.channel.call(Jobs.LIST, pb.ListJobsRequest(page_size=2, page_token=first.next_page_token))
    assert [each.job_id for each in (*first.jobs, *rest.jobs)] == ["job-0", "job-1", "job-2"]
    assert {each.spec for each in first.jobs} == {b""}
    assert not (await kit.channel.call(Jobs.LIST, pb.ListJobsRequest(engine="dataflow"))).jobs

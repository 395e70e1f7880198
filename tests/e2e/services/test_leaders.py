"""The job manager on real processes: the control plane killed within each step of a transition, and lost leases.

A transition that was begun is finished by the next leader, on SQLite and on PostgreSQL with two control planes.
"""

import signal
from pathlib import Path

import pytest

from shoal.core.faults import POINTS
from shoal.model.events import EventKind
from shoal.model.jobs import JOB_LABEL, JobState
from shoal.services.spec import decode
from tests.e2e.fleet.drill import insist, nurse, processes_of, until
from tests.e2e.ha.planes import Planes
from tests.e2e.services.sleepers import sleepers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

JOB_POINTS = [name for name in POINTS if name.startswith("jobs.")]
PATIENCE = 60.0


async def until_running(where, control, word, *, count):
    """Wait until the service runs with so many replicas, each once, and with this word."""

    async def holds():
        view = await control.get_job("web")
        # A follower answers with a copy that is half a second old: it may not have the last request yet.
        has_request = decode(view.spec) == decode(sleepers(count, word=word))
        return has_request and view.state is JobState.RUNNING and view.taken == view.request.number

    await until(holds, what="the service runs", patience=PATIENCE)
    wanted = {f"web-{index}" for index in range(count)}

    async def are_there():
        """A replica that is being removed is listed until it is gone."""
        views = await control.list_workloads()
        return {each.workload_id for each in views if each.labels.get(JOB_LABEL) == "web"} == wanted

    await until(are_there, what=f"there are {count} replicas", patience=PATIENCE)
    for name in wanted:
        (pid,) = processes_of(where, name)
        assert f"WORD={word}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def next_life(number):
    """Another word and another number of replicas each time, so that every step has something to do."""
    return f"word-{number}", 1 + (number + 1) % 2


async def request(control, number):
    """Submit the service, or give it its next revision; made again when the answer was lost."""
    word, count = next_life(number)
    if number == 0:
        await insist(lambda: control.submit_job("service", sleepers(count, word=word), job_id="web", client_key="k"))
    else:
        await insist(lambda: control.upgrade_job("web", sleepers(count, word=word)))
    return word, count


async def test_every_step_survives_the_end_of_the_control_plane(fleet, control):
    """Killed at each named point in turn: of a submit, then of updates with more and fewer replicas."""
    for number, point in enumerate(JOB_POINTS):
        await fleet.kill_control()
        await fleet.start_control(env={"SHOAL_FAULTS": f"{point}=kill"})
        async with nurse(fleet) as deaths:
            word, count = await request(control, number)
            await until_running(fleet, control, word, count=count)
            assert [death.name for death in deaths] == ["control"], f"{point} was not reached"


@pytest.fixture
async def planes(tmp_path, postgres_url):
    planes = Planes(tmp_path, postgres_url)
    try:
        await planes.start_plane("one")
        await planes.start_plane("two")
        await planes.start_agent("node-1")
        yield planes
    finally:
        await planes.close()


#: The others are in `make test-long`.
FEW = {"jobs.applied"}


@pytest.mark.parametrize(
    "point",
    [pytest.param(name, marks=() if name in FEW else pytest.mark.long) for name in JOB_POINTS],
)
async def test_another_control_plane_finishes_what_the_leader_began(planes, point):
    """The leader is killed at a point; the other one finishes the transition, and the next update begins there."""
    leader = await planes.leader()
    other = "two" if leader == "one" else "one"
    async with planes.client() as control:
        word, count = await request(control, 0)
        await until_running(planes, control, word, count=count)
        # The leader has no fault armed: the one that leads next has it, and loses the leadership to a fresh one.
        await planes.kill(other)
        await planes.start_plane(other, env={"SHOAL_FAULTS": f"{point}=kill"})
        await planes.kill(leader)
        assert await planes.leader(among=[other]) == other
        await planes.start_plane(leader)
        word, count = await request(control, 1)
        await until_running(planes, control, word, count=count)
        assert planes.processes[other].returncode is not None, f"{point} was not reached"
        assert await planes.leader(among=[leader]) == leader


async def test_a_leader_that_lost_its_lease_within_a_step_changes_nothing_and_follows(planes):
    """Another one finishes the transition meanwhile. Later the first leads again in the same process, and works."""
    helper = await planes.leader()
    victim = "two" if helper == "one" else "one"
    await planes.kill(victim)
    await planes.start_plane(victim, env={"SHOAL_FAULTS": "jobs.planned=stop"})
    await planes.kill(helper)
    assert await planes.leader(among=[victim]) == victim
    await planes.start_plane(helper)
    async with planes.client() as control:
        word, count = await request(control, 0)
        # The victim has stopped itself after it planned the first transition.
        assert await planes.leader(among=[helper]) == helper
        async with planes.client(helper) as there:
            await until_running(planes, there, word, count=count)
        planes.signal(victim, signal.SIGCONT)

        async def follows():
            return (await planes.health(victim))["role"] == "follower"

        await until(follows, what="the old leader follows")
        word, count = await request(control, 1)
        await until_running(planes, control, word, count=count)
        await planes.kill(helper)
        assert await planes.leader(among=[victim]) == victim
        word, count = await request(control, 2)
        await until_running(planes, control, word, count=count)
        page = await control.list_events(subject_kind="job", subject_id="web", limit=100)
        changes = [event for event in page.events if event.kind == EventKind.JOB_CHANGED]
        assert len(changes) == (await control.get_job("web")).transition, changes  # each was made once
        assert all(event.cause for event in page.events)

"""Services on real processes: updates under load lose no request, bad revisions are reverted, kills in the middle."""

import asyncio

import pytest

from shoal.model.jobs import JobState
from tests.e2e.fleet.drill import insist, until
from tests.e2e.services.serving import Load, progress_of, revisions_of, service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

PATIENCE = 90.0


async def until_job(control, state, *, job_id="web", taken=0):
    """Wait until a job has a state and has taken in its last request."""

    async def holds():
        view = await control.get_job(job_id)
        return view if view.state == state and view.taken >= max(taken, view.request.number) else None

    return await until(holds, what=f"{job_id} is {state}", patience=PATIENCE)


async def until_updated(control, revision, *, at_least):
    """Wait until so many replicas are to have a revision."""

    async def holds():
        return (await progress_of(control, "web"))["replicas"].count(revision) >= at_least

    await until(holds, what=f"{at_least} replicas have r{revision}", patience=PATIENCE)


async def test_a_rolling_update_loses_no_request_and_a_bad_revision_is_reverted(fleet, control):
    """The control plane and one agent are killed in the middle of the update."""
    await control.submit_job("service", service("one"), job_id="web")
    await until_job(control, JobState.RUNNING)
    async with Load(control, "web") as load:
        await load.answered("one", 20)
        await control.upgrade_job("web", service("two"))
        await until_updated(control, 2, at_least=3)
        await fleet.kill_control()
        await load.answered("one", 20)  # nothing stops without a control plane
        await fleet.start_control()
        await until_updated(control, 2, at_least=6)
        await fleet.kill_agent("node-2")
        await fleet.start_agent("node-2")
        await until_job(control, JobState.RUNNING)
        assert await revisions_of(control, "web") == ["r2"] * 10
        await load.answered("two", 20)
        assert load.lost == []

        asked = await control.upgrade_job("web", service("bad", parallel=1))
        reverted = await until_job(control, JobState.RUNNING, taken=asked.request.number)
        await load.answered("two", 20)
        assert load.lost == []
    assert await revisions_of(control, "web") == ["r2"] * 10
    failed = (await progress_of(control, "web"))["revisions"][-1]
    assert (failed["number"], failed["state"]) == (3, "failed")
    assert "no such model" in failed["message"]
    page = await control.list_events(subject_kind="job", subject_id="web", limit=100)
    told = [event.message for event in page.events]
    assert any("to r3: 1 of 10 replicas have it" in each for each in told)
    assert not any("to r3: 2 of 10 replicas have it" in each for each in told)
    assert all(event.cause for event in page.events), page.events
    assert reverted.workloads


async def test_a_node_that_dies_in_the_middle_of_an_update(fleet, control):
    """With the control plane at the same time. Its replicas move, the update ends, and only it loses requests."""
    await control.submit_job("service", service("one", count=6, parallel=2), job_id="web")
    await until_job(control, JobState.RUNNING)
    async with Load(control, "web") as load:
        await control.upgrade_job("web", service("two", count=6, parallel=2))
        await until_updated(control, 2, at_least=2)
        await asyncio.gather(fleet.kill_machine("node-3"), fleet.kill_control())
        await fleet.start_control()
        await until_job(control, JobState.RUNNING)

        async def moved():
            views = await insist(control.list_workloads)
            return {view.assigned_node_id for view in views} == {"node-1", "node-2"} and all(
                view.status == "Running" and view.observed_revision_id == "r2" for view in views
            )

        await until(moved, what="every replica runs r2 on a living node", patience=PATIENCE)
        await until_job(control, JobState.RUNNING)
        await load.answered("two", 20)
        assert {node for node, _why in load.lost} <= {"node-3"}, load.lost

"""A dataflow job on three agents loses its processes one after the other: nothing is lost, nothing is doubled."""

import contextlib
import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.model.workloads import ResourceRequest

pytestmark = pytest.mark.e2e


@pytest.fixture
def lease():
    """So long that no test passes because a lease has ended."""
    return timedelta(seconds=120)


@pytest.fixture
async def running(world):
    """The job runs, has put something out, and is fed all the time."""
    world.feed(400)
    await world.submit()
    await world.wait_state("Running")
    await world.wait_output()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(world.under_load())

        async def finish():
            await stack.aclose()
            await world.check()

        world.finish = finish
        yield world


async def test_a_task_host_then_the_coordinator_then_an_agent_alone_are_killed(running):
    epoch = await running.epoch()
    await running.kill("host-1")
    report = await running.wait_recovered(epoch)
    assert report.recoveries >= 1
    await running.wait_state("Running")
    await running.kill("coordinator")
    epoch = (await running.wait_recovered(report.epoch)).epoch
    await running.wait_state("Running")
    # The task host of the agent goes on.
    before = await running.workload("host-0")
    await running.fleet.kill_agent(before.assigned_node_id)
    await running.wait_output(await running.wait_output())
    await running.fleet.start_agent(before.assigned_node_id)
    await running.fleet.wait_ready()
    await running.wait_output(await running.wait_output())
    after = await running.workload("host-0")
    assert after.run.pid == before.run.pid
    assert await running.epoch() == epoch
    await running.finish()


async def test_an_agent_dies_with_its_process_tree(running):
    epoch = await running.epoch()
    coordinator = (await running.workload("coordinator")).assigned_node_id
    hosts = {part: (await running.workload(part)).assigned_node_id for part in ("host-0", "host-1")}
    part = next(part for part, node in hosts.items() if node != coordinator)
    await running.fleet.kill_machine(hosts[part])
    await running.wait_recovered(epoch)
    assert (await running.workload(part)).assigned_node_id != hosts[part]
    await running.wait_state("Running")
    await running.finish()


async def test_the_agent_of_the_coordinator_dies_with_its_process_tree(running):
    epoch = await running.epoch()
    node = (await running.workload("coordinator")).assigned_node_id
    await running.fleet.kill_machine(node)
    await running.wait_recovered(epoch)
    assert (await running.workload("coordinator")).assigned_node_id != node
    await running.wait_state("Running")
    await running.finish()


async def test_the_control_plane_is_away(running):
    epoch = await running.epoch()
    host = await running.workload("host-1")
    await running.fleet.kill_control()
    count = await running.wait_output(await running.wait_output())
    os.kill(host.run.pid, signal.SIGKILL)  # its agent starts it again in its place
    count = await running.wait_output(count)
    await running.wait_output(count + 50)
    await running.fleet.start_control()
    await running.wait_recovered(epoch)
    await running.wait_state("Running")
    await running.finish()


async def test_a_task_host_that_stands_still_is_replaced_and_changes_nothing_when_it_wakes(running):
    epoch = await running.epoch()
    before = await running.workload("host-1")
    node, pid = before.assigned_node_id, before.run.pid
    # Its agent stands still with it: nobody ends the process before it wakes.
    running.fleet.signal(node, signal.SIGSTOP)
    os.kill(pid, signal.SIGSTOP)
    try:
        await running.wait_recovered(epoch)
        assert (await running.workload("host-1")).assigned_node_id != node
        count = await running.wait_output(await running.wait_output())
        assert Path(f"/proc/{pid}/cmdline").read_bytes()  # it is there
        os.kill(pid, signal.SIGCONT)
        await running.wait_output(count + 50)
    finally:
        running.fleet.signal(node, signal.SIGCONT)
    await running.wait_state("Running")
    await running.finish()


async def test_a_coordinator_that_stands_still_is_replaced_under_a_higher_term(running):
    before, epoch = await running.report(), await running.epoch()
    node = await running.kill("coordinator", signal.SIGSTOP)  # its agent ends it when it is placed elsewhere
    after = await running.wait_recovered(epoch)
    assert after.term > before.term
    assert (await running.workload("coordinator")).assigned_node_id != node
    await running.wait_state("Running")
    await running.finish()
    # Tokens of each term are signed with a key of its own, which the control plane gave to each process.
    kept = [json.loads(path.read_text()) for path in running.fleet.base_dir.rglob("job.key")]
    newest = [each["key"] for each in kept if each["term"] == after.term]
    assert len(newest) == 3
    assert len(set(newest)) == 1
    logs = "".join(path.read_text(errors="replace") for path in running.fleet.base_dir.rglob("*.log"))
    assert newest[0] not in logs


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_a_row_that_ends_its_process_fails_the_job_after_the_third_time(world):
    world.feed(400)
    await world.submit(does="die")
    await world.wait_output()
    world.feed_one("k1", -1)
    job = await world.wait_state("Failed", seconds=180)
    assert "died 3 times since checkpoint" in job.message
    assert f"topic {world.input} split" in job.message


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_a_task_host_that_needs_more_memory_than_it_may_have_is_ended_and_its_events_say_so(world):
    world.feed(400)
    await world.submit(does="eat", task_host=ResourceRequest(memory_mb=700))
    await world.wait_output()
    world.feed_one("k1", -1)
    job = await world.wait_state("Failed", seconds=180)
    assert "died 3 times since checkpoint" in job.message
    events = [
        event
        for number in (0, 1)
        for event in (await world.client.list_events(subject_id=f"{world.job_id}-host-{number}")).events
    ]
    assert any("out of memory" in f"{each.message} {each.cause}" for each in events), events

"""What an agent stops by itself, because it could not reach the control plane: seen there afterwards, as a restart."""

from __future__ import annotations

import asyncio
import time

import pytest

from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from tests.unit.control.real_agents import real_fleet

pytestmark = pytest.mark.looptime(start=time.monotonic)

#: Longer than a lease, so that the agent stops what may exist only once.
OUTAGE = 60.0


async def told(fleet, workload_id):
    request = pb.ListEventsRequest(subject_kind="workload", subject_id=workload_id)
    answer = await fleet.channel.call(AgentControl.LIST_EVENTS, request)
    return [(event.kind, event.message, event.cause) for event in answer.events]


@pytest.mark.parametrize("no_listen", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("how", ["the control plane is away", "the node is cut off"])
async def test_a_restart_after_an_outage_is_counted_and_has_its_reason(tmp_path, how, no_listen):
    async with real_fleet(tmp_path) as fleet:
        await fleet.start("n1", no_listen=no_listen)
        await fleet.wait_node("n1", "Ready")
        await fleet.apply("once", at_most_one=True)
        await fleet.apply("free")
        await fleet.wait_status("once", "Running")
        await fleet.wait_status("free", "Running")
        assert (await fleet.workload("once")).run.restarts == 0
        if how == "the node is cut off":
            fleet.network.partition("agent n1", "control")
            await asyncio.sleep(OUTAGE)
            fleet.network.heal()
        else:
            await fleet.stop_control()
            await asyncio.sleep(OUTAGE)
            await fleet.start_control()
        await fleet.wait(lambda: fleet.machines["n1"].count("started", "once") == 2, seconds=120)
        await asyncio.sleep(30)
        view = await fleet.wait_status("once", "Running")
        assert (view.assigned_node_id, view.run.restarts) == ("n1", 1)
        assert (await fleet.workload("free")).run.restarts == 0
        assert fleet.machines["n1"].count("started", "free") == 1
        events = await told(fleet, "once")
        stops = [index for index, (_kind, words, _cause) in enumerate(events) if "no contact with the" in words]
        assert stops, events
        later = [kind for kind, _words, _cause in events[stops[-1] + 1 :]]
        assert "WorkloadRunning" in later, events


async def test_what_its_agent_stopped_with_itself_is_counted_too(tmp_path):
    async with real_fleet(tmp_path) as fleet:
        await fleet.start("n1", stop_workloads_on_exit=True)
        await fleet.wait_node("n1", "Ready")
        await fleet.apply("web")
        await fleet.wait_status("web", "Running")
        await fleet.kill("n1")
        assert not fleet.machines["n1"].alive("web")
        await fleet.start("n1")
        await fleet.wait(lambda: fleet.machines["n1"].count("started", "web") == 2, seconds=60)
        await asyncio.sleep(15)
        assert (await fleet.wait_status("web", "Running")).run.restarts == 1


async def test_one_that_people_stopped_and_started_was_not_restarted(tmp_path):
    async with real_fleet(tmp_path) as fleet:
        await fleet.start("n1")
        await fleet.wait_node("n1", "Ready")
        await fleet.apply("web", at_most_one=True)
        await fleet.wait_status("web", "Running")
        await fleet.apply("web", at_most_one=True, desired="Stopped")
        await fleet.wait_status("web", "Stopped")
        await fleet.apply("web", at_most_one=True, desired="Running")
        await fleet.wait_status("web", "Running")
        assert fleet.machines["n1"].count("started", "web") == 2
        assert (await fleet.workload("web")).run.restarts == 0

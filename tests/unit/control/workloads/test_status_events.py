"""What the list of events says of a run that crashes or is not ready any longer."""

from dataclasses import replace
from datetime import timedelta

import pytest

from shoal.core.ids import NodeId
from shoal.model.workloads import Exit, FailureReason, RunState
from shoal.testing.control import START, ControlKit

pytestmark = pytest.mark.looptime

CRASHED = {
    "state": RunState.PENDING,
    "pid": 0,
    "exit": Exit(3),
    "failure": FailureReason.RUNTIME_ERROR,
    "next_restart_at": START + timedelta(seconds=5),
}
UNREADY = {"state": RunState.PENDING, "ready": False}


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as kit:
        kit.node("n1")
        await kit.wait_node("n1", "Ready")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        yield kit


@pytest.mark.parametrize(
    ("reports", "kinds"),
    [
        ([UNREADY], ["WorkloadNotReady"]),
        ([UNREADY, {}], ["WorkloadNotReady", "WorkloadRunning"]),
        ([CRASHED], ["WorkloadCrashed"]),
        ([UNREADY, CRASHED], ["WorkloadNotReady", "WorkloadCrashed"]),
        ([CRASHED, {"state": RunState.PENDING, "pid": 8, "restarts": 1}], ["WorkloadCrashed", "WorkloadStarting"]),
        ([CRASHED, CRASHED], ["WorkloadCrashed"]),
    ],
    ids=["not ready", "ready again", "crash", "crash while not ready", "started again", "the same crash"],
)
async def test_a_run_that_crashes_or_is_not_ready_has_its_own_events(kit, reports, kinds):
    leadership = kit.plane.leadership
    running = replace(leadership.fleet.observations["web"].status, pid=7)
    await leadership.reports.take_in(NodeId("n1"), [running])
    before = await kit.event_kinds("web")
    for report in reports:
        await leadership.reports.take_in(NodeId("n1"), [replace(running, **report)])
    assert (await kit.event_kinds("web"))[len(before) :] == kinds

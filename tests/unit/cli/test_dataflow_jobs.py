"""`shoal job …` on a dataflow job: a control plane in virtual time, and what the processes of the job say."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest

from shoal.cli.commands.jobs import changing, reading, upgrading
from shoal.cli.connection import session
from shoal.client import ControlPlane
from shoal.core.errors import InvalidError, PreconditionError
from shoal.core.tasks import task_scope
from shoal.dataflow.fleet import DataflowEngine
from shoal.jobs.engine import Engines
from shoal.testing.control import CONTROL_ADDRESS, ControlKit
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1.control_pb2 import ListEventsRequest
from tests.unit.control.jobs.test_dataflow_jobs import Processes, spec, submit, wait_state

pytestmark = pytest.mark.looptime(start=time.monotonic)
SECONDS = timedelta(seconds=120)


@pytest.fixture
async def kit(tmp_path):
    engines = Engines({"dataflow": DataflowEngine()})
    async with ControlKit(
        tmp_path, lease=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=10), engines=engines, streams=True
    ) as made:
        for number in range(3):
            made.node(f"n{number}", slots=2)
            await made.wait_node(f"n{number}", "Ready")
        token = session.surroundings.set(session.Surroundings(make_clock=lambda: made.clock))
        made.processes = Processes(made)
        async with task_scope("processes") as scope:
            speaking = scope.start(made.processes.run(), name="processes")
            await submit(made)
            await wait_state(made, "Running")
            yield made
            speaking.cancel()
        session.surroundings.reset(token)


@pytest.fixture
async def control(kit):
    async with ControlPlane([CONTROL_ADDRESS], kit.network.transport("client"), clock=kit.clock) as client:
        yield client


async def causes(kit, workload_id):
    answer = await kit.channel.call(AgentControl.LIST_EVENTS, ListEventsRequest(subject_id=workload_id))
    return [event.cause for event in answer.events]


async def test_it_is_saved_rescaled_stopped_and_resumed(kit, control, capsys):
    assert await changing.savepoint(control, "j", timeout=SECONDS) == 0
    assert "j: saved" in capsys.readouterr().err
    await reading.get_job(control, "j")
    assert re.search(r"savepoint\s+/c/a\.b/4", capsys.readouterr().out)
    assert await changing.rescale(control, "j", 3, timeout=SECONDS) == 0
    assert "j: rescaled to 3" in capsys.readouterr().err
    assert any("job j: rescale" in cause for cause in await causes(kit, "j-host-2")), "an assignment has its cause"
    assert await changing.savepoint(control, "j", stop=True, timeout=SECONDS) == 0
    assert "j: stopped" in capsys.readouterr().err
    with pytest.raises(PreconditionError, match="is Stopped: nothing of it runs"):
        await reading.graph(control, "j")
    assert await changing.resume(control, "j", timeout=SECONDS) == 0
    assert "j: resumed" in capsys.readouterr().err
    assert len((await control.get_job("j")).workloads) == 4, "with the width that it had"
    assert await changing.cancel(control, "j", timeout=SECONDS) == 0
    assert "j: canceled" in capsys.readouterr().err


async def test_a_width_without_room_ends_with_3_and_the_job_goes_on(control, capsys):
    assert await changing.rescale(control, "j", 7, timeout=SECONDS) == 3
    assert "there is no room for the change of job j: it goes on as before" in capsys.readouterr().err
    view = await control.get_job("j")
    assert (view.state, len(view.workloads)) == ("Running", 3)
    for width in (0, 129):
        with pytest.raises(InvalidError, match="WIDTH"):
            await changing.rescale(control, "j", width, timeout=SECONDS)


async def test_a_whole_spec_is_an_upgrade_and_one_that_does_not_fit_is_refused(control, capsys, tmp_path):
    fits, misfit = tmp_path / "fits.json", tmp_path / "misfit.json"
    fits.write_bytes(spec(bundle="c" * 64))
    misfit.write_bytes(spec(name="another"))
    assert await upgrading.upgrade(control, "j", file=str(fits), timeout=SECONDS) == 0
    assert "j: upgraded" in capsys.readouterr().err
    with pytest.raises(InvalidError, match=r"must stay \'a\.b\'"):
        await upgrading.upgrade(control, "j", file=str(misfit), timeout=SECONDS)
    with pytest.raises(PreconditionError, match="is Running"):
        await changing.resume(control, "j", timeout=SECONDS)


async def test_a_task_host_that_is_placed_anew_says_why(kit):
    before = kit.plane.leadership.fleet.workloads["j-host-1"]
    await kit.clock.sleep(15)  # it is not just starting
    kit.processes.lost = "1"
    await kit.wait(lambda: kit.plane.leadership.fleet.workloads["j-host-1"].revision_id == "d1.1", seconds=60.0)
    assert kit.plane.leadership.fleet.workloads["j-host-1"].node_id != before.node_id
    assert any("job j: recover" in cause for cause in await causes(kit, "j-host-1"))

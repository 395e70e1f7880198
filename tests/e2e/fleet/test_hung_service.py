"""A service that hangs, on real processes: it is NotReady first, then it is restarted and ready again."""

import os
import signal
import sys

import pytest

from tests.e2e.fleet.drill import is_alive, process, processes_of, until, until_status

pytestmark = pytest.mark.e2e


async def test_a_service_that_hangs_is_not_ready_and_then_restarted(fleet, control):
    probe = {"http": {"port": "web"}, "timeout": "1s"}
    service = {
        "command": [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "$SHOAL_PORT_WEB"],
        "ports": [{"name": "web"}],
        "readiness": {**probe, "period": "200ms", "failure_threshold": 2},
        "liveness": {**probe, "interval": "1s", "failure_threshold": 2},
        "restart": {"policy": "always", "delay": "100ms"},
    }
    service["command"] = ["sh", "-c", f"exec {' '.join(service['command'])}"]
    await control.apply(process("web", process=service))
    await until_status(control, "web", "Running")
    before = (await control.list_events(newest=True, limit=1)).next
    (hung,) = processes_of(fleet, "web")
    os.kill(hung, signal.SIGSTOP)

    async def kinds():
        page = await control.list_events(after=before, subject_kind="workload", subject_id="web")
        found = [event.kind for event in page.events]
        return found if found[-1:] == ["WorkloadRunning"] else None

    found = await until(kinds, what="the service runs again")
    assert found[0] == "WorkloadNotReady"
    assert not is_alive(hung)
    (again,) = processes_of(fleet, "web")
    assert again != hung
    assert (await control.get_workload("web")).run.restarts >= 1

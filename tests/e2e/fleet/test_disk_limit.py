"""A workload that uses more disk than its spec allows, on real processes."""

import pytest

from tests.e2e.fleet.drill import process, processes_of, until_status

pytestmark = pytest.mark.e2e


async def test_a_workload_beyond_its_disk_is_stopped(fleet, control):
    greedy = ["sh", "-c", "fallocate -l 1100M big; exec sleep 3600"]
    resources = {"cpu_millicores": 50, "memory_mb": 32, "disk_gb": 1}
    await control.apply(process("greedy", command=greedy, resources=resources))
    view = await until_status(control, "greedy", "Failed")
    assert view.failure_reason == "STORAGE_ERROR"
    assert "resources.disk_gb" in view.reason.message
    assert processes_of(fleet, "greedy") == []

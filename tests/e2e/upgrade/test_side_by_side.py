"""Programs one version apart work together, both ways, and one takes over from the other without stopping anything."""

from __future__ import annotations

import pytest

from shoal.core.errors import ShoalError
from tests.e2e.fleet.drill import process, until, until_gone, until_status
from tests.e2e.upgrade.processes import Machines, pids_of, port
from tests.services.versions import version_before

pytestmark = pytest.mark.e2e

#: The version before this one; older ones are upgraded step by step.
BEFORE = version_before()


async def live(control, agent_data) -> None:
    """A short life of a workload beside the one that must not be touched."""
    await control.apply(process("brief", revision="v1"))
    await until_status(control, "brief", "Running", revision="v1")
    await control.apply(process("brief", revision="v2", command=["sleep", "7200"]))
    await until_status(control, "brief", "Running", revision="v2")
    assert len(pids_of(agent_data)) == 2
    await control.delete("brief")
    await until_gone(control, "brief")


async def test_agents_are_upgraded_under_a_newer_control_plane_and_may_go_back(machines: Machines) -> None:
    address = f"127.0.0.1:{port()}"
    await machines.start_control("control", port=int(address.rpartition(":")[2]))
    data = machines.data_dir("n1")
    async with machines.client(address) as control:
        await machines.start_agent("n1", control=[address], version=BEFORE)
        await control.apply(process("kept"))
        await until_status(control, "kept", "Running")
        kept = pids_of(data)
        for version in (BEFORE, None, BEFORE, None):
            await machines.stop("n1")
            await machines.start_agent("n1", control=[address], version=version)
            await live(control, data)
            assert pids_of(data) == kept
        view = await until_status(control, "kept", "Running")
        assert (view.generation, view.run.restarts) == (1, 0)


async def test_a_control_plane_is_upgraded_over_newer_and_older_agents(machines: Machines) -> None:
    address = f"127.0.0.1:{port()}"
    number = int(address.rpartition(":")[2])
    await machines.start_control("control", port=number, version=BEFORE)
    async with machines.client(address) as control:
        await machines.start_agent("newer", control=[address])
        await machines.start_agent("older", control=[address], version=BEFORE)
        for name in ("newer", "older"):
            here = {"constraints": [{"key": "node_id", "values": [name]}]}
            await control.apply(process(f"kept-{name}", placement=here))
            await until_status(control, f"kept-{name}", "Running")
        kept = {name: pids_of(machines.data_dir(name)) for name in ("newer", "older")}
        await machines.stop("control")
        await machines.start_control("control", port=number)
        for name in ("newer", "older"):
            view = await until_status(control, f"kept-{name}", "Running")
            assert (view.generation, view.assigned_node_id) == (1, name)
            await until(lambda name=name: _is_ready(control, name), what=f"{name} is Ready")
        await control.apply(process("kept-older", revision="again", command=["sleep", "7200"]))
        await until_status(control, "kept-older", "Running", revision="again")
        assert pids_of(machines.data_dir("newer")) == kept["newer"]
        assert pids_of(machines.data_dir("older")) != kept["older"]


async def test_an_older_program_refuses_a_newer_database_and_says_what_to_do(machines: Machines) -> None:
    number = port()
    await machines.start_control("control", port=number)
    await machines.stop("control")
    with pytest.raises(ShoalError, match="newer version of shoal"):
        await machines.start_control("control", port=number, version=BEFORE)
    assert "restore a backup" in machines.log_of("control")


async def _is_ready(control, name: str) -> bool:
    return (await control.get_node(name)).status == "Ready"

"""The same control plane on a real PostgreSQL: killed between a decision and its commit, it forgets nothing."""

from datetime import timedelta

import pytest

from shoal.cli.local.fleet import LocalFleet
from tests.e2e.fleet.drill import life, nurse, process, until_status

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("point", [pytest.param("store.commit.before", marks=pytest.mark.long), "store.commit.after"])
async def test_a_whole_life_on_postgresql_through_a_kill_at_the_commit(tmp_path, postgres_url, point):
    fleet = LocalFleet(
        tmp_path,
        agents=1,
        cpu="4",
        memory="4096MB",
        lease=timedelta(seconds=3),
        heartbeat_interval=timedelta(milliseconds=300),
        control_args=["--database", postgres_url],
    )
    try:
        await fleet.start()
        async with fleet.client() as control:
            await control.apply(process("kept", revision="v1"))
            await until_status(control, "kept", "Running")
            await fleet.kill_control()
            await fleet.start_control(env={"SHOAL_FAULTS": f"{point}=kill@3"})
            async with nurse(fleet) as deaths:
                await life(fleet, control, "life")
                assert deaths, f"{point} was not reached"
            view = await until_status(control, "kept", "Running")
            assert (view.generation, view.revision_id) == (1, "v1")
        assert not (tmp_path / "control" / "data" / "control.db").exists()
        assert postgres_url not in fleet.log_of("control").read_text()
    finally:
        await fleet.kill()

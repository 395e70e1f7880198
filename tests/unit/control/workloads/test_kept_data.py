"""Agents are told whether a workload is deleted, or only leaves their node with its data left behind."""

import pytest

from shoal.testing.control import ControlKit
from tests.unit.control.operating import drain, ready, running_on

pytestmark = pytest.mark.looptime


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as kit:
        await ready(kit, "n1", "n2")
        yield kit


@pytest.mark.parametrize("at_most_one", [False, True], ids=["replacement first", "replacement after"])
async def test_a_move_leaves_the_data_and_a_delete_does_not(kit, at_most_one):
    old, (new,) = await running_on(kit, "web", at_most_one=at_most_one)
    await drain(kit, old.node_id)
    await kit.wait(lambda: "web" in new.runs and "web" not in old.runs)
    assert old.kept_data == ["web"]
    await kit.delete("web")
    await kit.wait_gone("web")
    assert "web" not in new.runs
    assert new.kept_data == []

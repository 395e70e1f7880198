"""Agents that answer slowly or not at all beside healthy ones: they delay nobody but themselves. Virtual time."""

import asyncio
import time

import pytest

from tests.unit.control.operating import drain, ready, running_on

pytestmark = pytest.mark.looptime(start=time.monotonic)

SILENT = 100
#: From the request to the agent, with placing and storing in between: no timeout fits into it.
AT_ONCE = 0.5


async def seconds_until_updated(kit, name, node, **spec):
    """Apply another revision, and say how long it takes to reach a node."""
    began = kit.clock.monotonic()
    assert (await kit.apply(name, revision="new", **spec)).success
    await kit.wait(lambda: name in node.runs and node.runs[name].request.revision_id == "new", seconds=120)
    return kit.clock.monotonic() - began


class TestOldCopies:
    """The node that a workload has left does not answer, while it sends heartbeats."""

    async def moved(self, kit, **settings):
        """A workload that has moved to a healthy node. The old one is back, has the copy, and answers nothing."""
        await ready(kit, "old", **settings)
        await running_on(kit, "web", cpu=100)
        (healthy,) = await ready(kit, "healthy")
        old = kit.agents.nodes["old"]
        old.silent = True
        await kit.wait(lambda: "web" in healthy.runs, seconds=120)
        old.silent, old.deaf = False, True
        await kit.wait_node("old", "Ready")
        return old, healthy

    @pytest.mark.parametrize("features", [pytest.param((), id="foreign"), None], ids=["foreign", "ours"])
    async def test_the_owner_is_told_at_once(self, kit, features):
        _old, healthy = await self.moved(kit, **({} if features is None else {"features": features}))
        assert await seconds_until_updated(kit, "web", healthy) < AT_ONCE

    async def test_the_copy_is_removed_when_its_node_answers_again(self, kit):
        old, healthy = await self.moved(kit)
        await seconds_until_updated(kit, "web", healthy)
        old.deaf = False
        await kit.wait(lambda: "web" not in old.runs, seconds=60)
        await kit.wait(lambda: not kit.plane.leadership.fleet.workloads["web"].left_on, seconds=60)
        assert "web" in healthy.runs

    async def test_a_move_off_a_node_that_does_not_answer_does_not_wait_for_it(self, kit):
        await ready(kit, "old")
        await running_on(kit, "web", cpu=100)
        (healthy,) = await ready(kit, "healthy")
        kit.agents.nodes["old"].deaf = True
        await drain(kit, "old")
        await kit.wait(lambda: "web" in healthy.runs, seconds=5)
        await kit.wait_status("web", "Running")
        assert await seconds_until_updated(kit, "web", healthy) < AT_ONCE


@pytest.mark.parametrize("features", [pytest.param((), id="foreign"), None], ids=["foreign", "ours"])
async def test_an_update_beside_a_hundred_silent_nodes_arrives_at_once(kit, features):
    """Each has work whose command it does not answer, and gets more of it in the same moment."""
    settings = {} if features is None else {"features": features}
    names = [f"silent{number}" for number in range(SILENT)]
    for node in await ready(kit, *names, **settings):
        node.deaf = True
        await kit.apply(f"on-{node.node_id}", only_on=node.node_id)
    (healthy,) = await ready(kit, "healthy")
    await kit.apply("web", only_on="healthy")
    await kit.wait_status("web", "Running")
    await asyncio.gather(*(kit.apply(f"{part}-{name}", only_on=name) for part in range(4) for name in names))
    assert await seconds_until_updated(kit, "web", healthy, only_on="healthy", cpu=200) < AT_ONCE


async def test_a_slow_foreign_agent_works_on_many_commands_at_once(kit):
    """It takes three seconds for each: sixty deletes take four rounds, not sixty."""
    (slow,) = await ready(kit, "slow", features=())
    for number in range(60):
        await kit.apply(f"w{number}", cpu=10, memory=10)
    await kit.wait(lambda: len(slow.runs) == 60)
    slow.slow = 3.0
    began = kit.clock.monotonic()
    for number in range(60):
        await kit.delete(f"w{number}")
    await kit.wait(lambda: not slow.runs, seconds=120)
    assert kit.clock.monotonic() - began < 30.0


async def test_a_node_that_does_not_answer_costs_its_share_of_calls(kit):
    (silent,) = await ready(kit, "silent", cpu_millicores=10_000)
    silent.deaf = True
    for number in range(100):
        await kit.apply(f"w{number}", cpu=10, memory=10)
    await kit.clock.sleep(2.0)
    line = kit.plane.leadership.pump._lines["silent"]
    assert len(line.in_flight) <= 16
    assert len(line.in_flight) + len(line.waiting) <= 100
    silent.deaf = False
    await kit.wait(lambda: len(silent.runs) == 100, seconds=60)


async def test_a_workload_moves_on_while_its_command_to_a_lost_node_is_not_answered(kit):
    """A foreign agent gets 45 s for an answer; its lease ends sooner, and then the work starts elsewhere."""
    (old,) = await ready(kit, "old", features=())
    old.deaf = True
    await kit.apply("web", cpu=100)
    await kit.wait(lambda: kit.plane.leadership.fleet.workloads["web"].node_id == "old")
    (healthy,) = await ready(kit, "healthy")
    old.silent = True
    await kit.wait_node("old", "NotReady")
    await kit.wait(lambda: "web" in healthy.runs, seconds=15)

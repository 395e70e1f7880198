"""Commands to foreign agents that behave as real ones were seen to: nothing gets stuck, no reservation is left."""

from __future__ import annotations

import asyncio

import pytest

from tests.peers.contract import agent
from tests.peers.foreign import Behavior, container, until
from tests.peers.lives import live

pytestmark = pytest.mark.integration

#: The part of the matrix that failed once, and one cell for each behavior and restart.
CELLS = [
    ("apply", "queue full", "agent"),
    ("update", "slow", "agent"),
    ("stop", "no queue", "control plane"),
    ("start", "queued", "both"),
    ("delete", "queue full", "no restart"),
    ("delete", "no queue", "no restart"),
    ("delete", "queued", "agent"),
    ("delete", "slow", "both"),
    ("delete", "ghosts", "agent"),
    ("delete", "ghosts without a queue", "control plane"),
    ("delete", "deletes fail at first", "no restart"),
    ("delete what is starting", "queued", "agent"),
]


@pytest.mark.parametrize(("command", "behavior", "restart"), CELLS)
async def test_a_command_comes_to_its_end(stage, command, behavior, restart):
    await live(stage, command, behavior, restart)


async def test_sixty_deletes_on_one_node_at_once(stage):
    """More than its queue has room for: the others are done inside their calls, and no list names them."""
    foreign = await stage.agent("n1", interval=0.2)
    names = [f"w{number}" for number in range(60)]
    small = container()
    small.resources.cpu_millicores = 10
    await asyncio.gather(*(stage.client.apply(name, small) for name in names))
    await asyncio.gather(*(stage.client.wait_status(name, "Running") for name in names))
    await asyncio.gather(*(stage.client.delete(name) for name in names))
    await asyncio.gather(*(stage.client.wait_gone(name) for name in names))
    assert foreign.runs == {}
    assert (await stage.client.call("GetNode", node_id="n1")).node.available_cpu_cores == 4.0
    assert (await stage.client.call("GetClusterSummary")).total_workloads == 0


async def test_a_delete_that_overtakes_its_apply_is_sent_again(stage):
    """With a full queue the delete is done at once, while the apply still waits."""
    foreign = await stage.agent("n1", behavior=Behavior(workers=1, depth=1, takes=1.0), interval=0.1)
    names = ["w0", "w1"]
    await asyncio.gather(*(stage.client.apply(name, container()) for name in names))
    await until(lambda: len(foreign.tasks) == len(names), "both queued")
    await asyncio.gather(*(stage.client.delete(name) for name in names))
    await asyncio.gather(*(stage.client.wait_gone(name) for name in names))
    assert not any(task.status in ("pending", "running") for task in foreign.tasks)
    assert foreign.runs == {}


@pytest.mark.parametrize("depth", [0, 20], ids=["no queue", "queued"])
async def test_a_workload_that_vanished_from_its_agent_can_be_deleted(stage, depth):
    foreign = await stage.agent("n1", behavior=Behavior(workers=depth // 2, depth=depth), interval=0.1)
    await stage.client.apply("web", container())
    await stage.client.wait_status("web", "Running")
    await stage.client.apply("web", container(), desired="Stopped")
    await stage.client.wait_status("web", "Stopped")
    del foreign.runs["web"]
    await stage.client.delete("web")
    await stage.client.wait_gone("web")


@pytest.mark.parametrize(
    "says",
    [{}, {"reasons": False}, {"forgets_failed": True}],
    ids=["in heartbeats", "in the metadata of a status", "in its list of actions"],
)
async def test_a_spec_that_fails_as_invalid_is_not_tried_again(stage, says):
    failure = ("INVALID_SPECIFICATION", "no pool called fast")
    foreign = await stage.agent("n1", behavior=Behavior(failure=failure, **says), interval=0.1)
    await stage.client.apply("web", container())
    view = await stage.client.wait_status("web", "Failed")

    async def explained():
        nonlocal view
        view = await stage.client.view("web")
        return view.reason.code == "INVALID_SPEC"

    await until(explained, "INVALID_SPEC")
    assert (view.failure_reason, view.reason.retryable) == ("INVALID_SPEC", False)
    assert failure[1] in view.reason.message
    sent = len(foreign.calls_of("ApplyWorkload", "web"))
    seen = len(foreign.heartbeats)
    await until(lambda: len(foreign.heartbeats) >= seen + 30, "more heartbeats")
    assert len(foreign.calls_of("ApplyWorkload", "web")) == sent
    assert (await stage.client.view("web")).reason.code == "INVALID_SPEC"


async def test_a_spec_that_an_answer_calls_invalid_is_failed_and_not_tried_elsewhere(stage):
    agents = [await stage.agent(name, behavior=Behavior(calls_invalid=True), interval=0.1) for name in ("n1", "n2")]
    await stage.client.apply("web", container())
    view = await stage.client.wait_status("web", "Failed")
    assert (view.failure_reason, view.reason.code, view.reason.retryable) == ("INVALID_SPEC", "INVALID_SPEC", False)
    assert "must contain a pool" in view.reason.message
    seen = len(agents[0].heartbeats)
    await until(lambda: len(agents[0].heartbeats) >= seen + 30, "more heartbeats")
    assert sum(len(each.calls_of("ApplyWorkload", "web")) for each in agents) == 1
    for each in agents:
        each.behavior = Behavior()
    assert (await stage.client.apply("web", container("nginx:2"), revision="r2")).success
    await stage.client.wait_status("web", "Running")


async def test_an_update_that_an_answer_calls_invalid_is_failed_while_the_old_copy_runs(stage):
    foreign = await stage.agent("n1", interval=0.1)
    await stage.client.apply("web", container())
    await stage.client.wait_status("web", "Running")
    foreign.behavior = Behavior(calls_invalid=True)
    assert (await stage.client.apply("web", container("nginx:2"), revision="r2")).success
    view = await stage.client.wait_status("web", "Failed")
    sent, seen = len(foreign.calls_of("ApplyWorkload", "web")), len(foreign.heartbeats)
    await until(lambda: len(foreign.heartbeats) >= seen + 30, "more heartbeats, which say that it runs")
    view = await stage.client.view("web")
    assert (view.status, view.failure_reason, view.reason.retryable) == ("Failed", "INVALID_SPEC", False)
    assert "must contain a pool" in view.reason.message
    assert len(foreign.calls_of("ApplyWorkload", "web")) == sent
    assert "web" in foreign.runs

    foreign.behavior = Behavior()
    assert (await stage.client.apply("web", container("nginx:3"), revision="r3")).success
    await stage.client.wait_status("web", "Running")


@pytest.mark.parametrize(
    "says",
    [{"workers": 0, "depth": 0}, {}, {"forgets_failed": True}],
    ids=["in the answer", "in its status", "in its list of actions"],
)
async def test_a_type_that_a_node_has_no_runtime_for_is_taken_off_until_it_registers_again(stage, says):
    without = frozenset({agent.WORKLOAD_TYPE_CONTAINER})
    first = await stage.agent("n1", behavior=Behavior(without_runtime=without, **says), interval=0.1)
    await stage.client.apply("web", container())

    async def types():
        return list((await stage.client.call("GetNode", node_id="n1")).node.supported_workload_types)

    async def taken_off():
        return await types() == ["compose", "vm"]

    await until(taken_off, "container taken off")
    await stage.agent("n2", interval=0.1)
    assert (await stage.client.wait_status("web", "Running")).assigned_node_id == "n2"
    first.behavior = Behavior()
    await first.restart()

    async def back():
        return await types() == ["container", "compose", "vm"]

    await until(back, "container after its registration")


async def test_a_compose_project_in_git_is_not_sent_to_an_agent_that_cannot_fetch_it(stage):
    from tests.peers.contract import control

    foreign = await stage.agent("n1", interval=0.1)
    spec = control.WorkloadSpec(
        type="compose",
        compose=control.ComposeSpec(source_type="git", git_repo="https://example.org/shop.git", git_ref="main"),
    )
    assert (await stage.client.apply("shop", spec)).success

    async def explained():
        return "git" in (await stage.client.view("shop")).reason.message

    await until(explained, "the reason")
    assert foreign.calls_of("ApplyWorkload", "shop") == []


async def test_a_deleted_workload_that_a_returning_node_holds_is_never_shown_again(stage):
    foreign = await stage.agent("n1", interval=0.1, behavior=Behavior(takes=1.0))
    await stage.client.apply("web", container())
    await stage.client.wait_status("web", "Running")
    foreign.cut_off = True

    async def lost():
        return await stage.node_status("n1") == "NotReady"

    await until(lost, "n1 NotReady")
    await stage.client.delete("web")
    await stage.client.wait_gone("web")
    foreign.cut_off = False
    seen = []

    async def removed():
        seen.extend(each.workload_id for each in (await stage.client.call("ListWorkloads")).workloads)
        return "web" not in foreign.runs

    await until(removed, "the copy removed")
    assert seen == []
    node = (await stage.client.call("GetNode", node_id="n1")).node
    assert node.available_cpu_cores == 4.0

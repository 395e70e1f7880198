"""Commands to agents: one at a time for each node and workload, so many for each node, and nobody waits for others."""

import asyncio
import time

import pytest

from shoal.control.agents import pump
from shoal.control.agents.pump import FEW, HOLD_LOOK_SECONDS, HOLD_SECONDS, LATE_SECONDS, MANY, PER_NODE, TOGETHER, Pump
from shoal.control.placement.placer import BUSY_BATCH, BUSY_SECONDS
from shoal.core.tasks import TaskScope

pytestmark = pytest.mark.looptime(start=time.monotonic)


class Commands:
    """Commands that are answered when the test says so."""

    def __init__(self):
        self.scope = TaskScope("commands")
        self.busy = False
        self.freed = []
        self.backlog = False
        self.pump = Pump(
            self.scope,
            is_busy=lambda: self.busy,
            has_backlog=lambda: self.backlog,
            on_free=self.freed.append,
        )
        self.started = []
        self.ended = []
        self._answers = {}

    def submit(self, node, workload, *, can_wait=True):
        async def send():
            self.started.append((node, workload))
            answer = self._answers[node, workload] = asyncio.Event()
            await answer.wait()
            self.ended.append((node, workload))

        return self.pump.submit(node, workload, send, can_wait=can_wait)

    async def answer(self, node, workload):
        self._answers[node, workload].set()
        await settle()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def commands():
    made = Commands()
    yield made
    made.pump.close()
    await made.scope.close()


async def test_one_at_a_time_for_each_node_and_workload(commands):
    assert commands.submit("n1", "w")
    assert commands.submit("n2", "w")
    assert commands.submit("n1", "v")
    assert not commands.submit("n1", "w")
    await settle()
    assert commands.started == [("n1", "w"), ("n2", "w"), ("n1", "v")]
    await commands.answer("n2", "w")
    assert commands.freed == []
    await commands.answer("n1", "w")
    assert commands.freed == ["w"]
    assert commands.submit("n1", "w")


async def test_what_is_submitted_while_another_waits_is_decided_again_after_it(commands):
    for number in range(PER_NODE):
        commands.submit("n1", f"w{number}")
    assert commands.submit("n1", "late")
    assert not commands.submit("n1", "late")
    await settle()
    assert ("n1", "late") not in commands.started
    await commands.answer("n1", "w0")
    await commands.answer("n1", "late")
    assert commands.freed == ["late"]


async def test_a_silent_node_has_so_many_in_flight_and_the_rest_waits_in_its_own_line(commands):
    for number in range(10 * PER_NODE):
        commands.submit("silent", f"w{number}")
    await asyncio.sleep(100 * LATE_SECONDS)
    assert len(commands.started) == PER_NODE
    commands.submit("healthy", "w")
    await settle()
    assert commands.started[-1] == ("healthy", "w")


@pytest.mark.parametrize("busy", [False, True])
async def test_a_healthy_node_does_not_wait_for_a_hundred_that_are_late(commands, busy):
    commands.busy = busy
    for number in range(100 * PER_NODE):
        commands.submit(f"silent{number % 100}", f"w{number}")
    await asyncio.sleep(LATE_SECONDS * (2 + 100 // FEW))  # each has had its first turn
    commands.submit("healthy", "w")
    await settle()
    assert commands.started[-1] == ("healthy", "w")


async def test_an_update_on_a_node_that_was_late_once_does_not_wait_until_fewer_are_placed(commands):
    commands.submit("was-late", "w")
    await asyncio.sleep(2 * LATE_SECONDS)
    await commands.answer("was-late", "w")
    for number in range(100 * PER_NODE):
        commands.submit(f"silent{number % 100}", f"w{number}", can_wait=False)
    await asyncio.sleep(3 * LATE_SECONDS)  # all of them are late
    commands.busy = commands.backlog = True
    for number in range(100):
        commands.submit(f"silent{number}", "new")
    commands.submit("was-late", "v", can_wait=False)
    await settle()
    assert commands.started[-1] == ("was-late", "v")


async def test_nodes_take_turns_and_each_gets_its_commands_together(commands, monkeypatch):
    monkeypatch.setattr(pump, "MANY", 2)
    for number in range(4):
        commands.submit("n1", f"w{number}")
    commands.submit("n2", "w")
    commands.submit("n3", "w")
    await settle()
    assert commands.started == [("n1", "w0"), ("n1", "w1")]
    await commands.answer("n1", "w0")
    assert commands.started[2:] == [("n1", "w2")]
    await commands.answer("n1", "w1")
    await commands.answer("n1", "w2")
    assert commands.started[3:] == [("n2", "w"), ("n3", "w")]
    await commands.answer("n2", "w")
    assert commands.started[5:] == [("n1", "w3")]


@pytest.mark.parametrize(("busy", "most"), [(True, FEW), (False, MANY)])
async def test_only_so_many_are_started_at_once_and_each_answer_starts_the_next(commands, busy, most):
    commands.busy = busy
    for number in range(2 * most):
        commands.submit(f"n{number}", "w")
    await settle()
    assert len(commands.started) == most
    await commands.answer("n0", "w")
    assert len(commands.started) == most + 1


async def test_one_that_is_not_answered_in_time_lets_the_next_start(commands, monkeypatch):
    monkeypatch.setattr(pump, "MANY", 1)
    for node in ("n1", "n2", "n3"):
        commands.submit(node, "w")
    await asyncio.sleep(2.5 * LATE_SECONDS)
    assert len(commands.started) == 3
    for node in ("n1", "n2", "n3"):
        await commands.answer(node, "w")
    # A late answer does not count twice.
    for node in ("n4", "n5"):
        commands.submit(node, "w")
    await settle()
    assert len(commands.started) == 4


async def test_a_node_that_answers_again_is_no_longer_late(commands, monkeypatch):
    monkeypatch.setattr(pump, "MANY", 2)
    commands.submit("slow", "w1")
    await asyncio.sleep(2 * LATE_SECONDS)
    await commands.answer("slow", "w1")
    for number in range(2):
        commands.submit("slow", f"v{number}")
    await settle()
    assert commands.started[1:] == [("slow", "v0")]  # half of what may be started
    await commands.answer("slow", "v0")
    commands.submit("slow", "v2")
    await settle()
    assert commands.started[2:] == [("slow", "v1"), ("slow", "v2")]


async def test_nothing_is_kept_of_nodes_without_commands(commands):
    for number in range(10):
        commands.submit(f"n{number}", "w")
    await settle()
    for number in range(10):
        await commands.answer(f"n{number}", "w")
    assert not commands.pump._lines


async def test_nothing_starts_after_the_end(commands):
    for number in range(PER_NODE + 1):
        commands.submit("n1", f"w{number}")
    await settle()
    commands.pump.close()
    assert not commands.submit("n2", "w")
    await commands.answer("n1", "w0")
    assert len(commands.started) == PER_NODE


async def test_commands_are_few_while_much_waits_for_a_place_and_many_otherwise(kit):
    placer = kit.plane.leadership.placer
    assert not placer.is_busy
    kit.node("n1")
    await kit.wait_node("n1", "Ready")
    await asyncio.gather(*(kit.apply(f"w{number}", cpu=1, memory=1) for number in range(2 * BUSY_BATCH)))
    await kit.wait(lambda: placer.is_busy)
    await kit.clock.sleep(2 * BUSY_SECONDS)
    assert not placer.is_busy


async def test_a_request_that_changed_while_its_command_waited_is_sent_as_it_is_now(kit, monkeypatch):
    node = kit.node("n1")
    await kit.wait_node("n1", "Ready")
    leadership = kit.plane.leadership
    told = []
    apply = leadership.agents.apply

    async def listen(node, record, secrets=None):
        told.append(record.revision_id)
        return await apply(node, record, secrets)

    monkeypatch.setattr(leadership.agents, "apply", listen)
    monkeypatch.setattr(pump, "PER_NODE", 1)
    release = asyncio.Event()
    leadership.pump.submit("n1", "blocker", release.wait)
    await kit.apply("w1", cpu=10, memory=10, revision="1")
    await kit.wait(lambda: leadership.fleet.workloads["w1"].node_id)
    await kit.apply("w1", cpu=20, memory=10, revision="2")
    await kit.wait(lambda: leadership.fleet.workloads["w1"].revision_id == "2")
    release.set()
    await kit.wait(lambda: "w1" in node.runs)
    assert told == ["2"]


# ---------------------------------------------------------------------------------------------------------
# A backlog of placements


async def test_with_a_backlog_the_commands_of_a_node_wait_for_each_other(commands):
    commands.backlog = True
    for number in range(TOGETHER - 1):
        commands.submit("n1", f"w{number}")
    await settle()
    assert commands.started == []
    commands.submit("n1", "last")
    await settle()
    assert len(commands.started) == TOGETHER


async def test_with_a_backlog_a_node_in_turn_gets_all_of_its_commands(commands, monkeypatch):
    monkeypatch.setattr(pump, "MANY", 1)
    commands.submit("n1", "first")
    await settle()
    commands.backlog = True
    for number in range(TOGETHER):
        commands.submit("n2", f"w{number}")
    commands.submit("n3", "w")
    await settle()
    assert commands.started == [("n1", "first")]
    await commands.answer("n1", "first")
    assert commands.started[1:] == [("n2", f"w{number}") for number in range(TOGETHER)]


async def test_with_a_backlog_no_command_waits_longer_than_a_few_seconds(commands):
    commands.backlog = True
    commands.submit("n1", "w")
    await asyncio.sleep(HOLD_SECONDS - HOLD_LOOK_SECONDS)
    assert commands.started == []
    await asyncio.sleep(2 * HOLD_LOOK_SECONDS)
    assert commands.started == [("n1", "w")]


async def test_a_command_that_cannot_wait_takes_the_others_of_its_node_along(commands):
    commands.backlog = True
    commands.submit("n1", "new")
    commands.submit("n2", "new")
    commands.submit("n1", "update", can_wait=False)
    await settle()
    assert commands.started == [("n1", "new"), ("n1", "update")]


async def test_what_waited_for_others_starts_when_the_backlog_is_gone(commands):
    commands.backlog = True
    commands.submit("n1", "w")
    commands.submit("n2", "w")
    await settle()
    commands.backlog = False
    await asyncio.sleep(2 * HOLD_LOOK_SECONDS)
    assert commands.started == [("n1", "w"), ("n2", "w")]


async def test_a_node_that_has_commands_in_flight_gets_the_next_at_once_with_a_backlog_too(commands):
    commands.submit("n1", "w")
    await settle()
    commands.backlog = True
    commands.submit("n1", "v")
    await settle()
    assert commands.started == [("n1", "w"), ("n1", "v")]


async def test_a_pump_that_is_closed_starts_nothing_that_waited_for_others(commands):
    commands.backlog = True
    commands.submit("n1", "w")
    commands.pump.close()
    await asyncio.sleep(2 * HOLD_SECONDS)
    assert commands.started == []

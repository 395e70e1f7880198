"""Orders take turns: few are begun at once, and none is held up by one that is not answered."""

import asyncio
import time

import pytest

from shoal.control.agents.concurrency import MOMENT, Turns
from shoal.control.placement.placer import BUSY_BATCH, BUSY_SECONDS

pytestmark = pytest.mark.looptime(start=time.monotonic)


class Commands:
    """Orders that are answered when the test says so."""

    def __init__(self, most):
        self.most = most
        self.turns = Turns(lambda: self.most)
        self.begun = []
        self.answers = {}

    async def give(self, name):
        self.answers[name] = asyncio.Event()
        async with self.turns.one():
            self.begun.append(name)
            await self.answers[name].wait()


async def _settle():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_only_so_many_are_begun_at_once():
    commands = Commands(2)
    tasks = [asyncio.ensure_future(commands.give(name)) for name in "abcd"]
    await _settle()
    assert commands.begun == ["a", "b"]
    commands.answers["a"].set()
    await _settle()
    assert commands.begun == ["a", "b", "c"]
    for name in "bc":
        commands.answers[name].set()
    await _settle()
    commands.answers["d"].set()
    await asyncio.gather(*tasks)
    assert commands.begun == ["a", "b", "c", "d"]


async def test_one_that_is_not_answered_gives_its_turn_to_the_next():
    commands = Commands(1)
    tasks = [asyncio.ensure_future(commands.give(name)) for name in "abc"]
    await asyncio.sleep(2.5 * MOMENT)
    assert commands.begun == ["a", "b", "c"]
    for name in "abc":
        commands.answers[name].set()
    await asyncio.gather(*tasks)
    # Who gave its turn away does not give it back once more.
    more = [asyncio.ensure_future(commands.give(name)) for name in "de"]
    await _settle()
    assert commands.begun == ["a", "b", "c", "d"]
    for each in more:
        each.cancel()
    await asyncio.gather(*more, return_exceptions=True)


async def test_one_that_is_given_up_gives_its_turn_back():
    commands = Commands(1)
    first, second = (asyncio.ensure_future(commands.give(name)) for name in "ab")
    await _settle()
    first.cancel()
    await _settle()
    assert commands.begun == ["a", "b"]
    commands.answers["b"].set()
    await second


async def test_when_more_may_be_begun_the_next_answer_begins_them():
    commands = Commands(1)
    tasks = [asyncio.ensure_future(commands.give(name)) for name in "abcd"]
    await _settle()
    commands.most = 3
    commands.answers["a"].set()
    await _settle()
    assert commands.begun == ["a", "b", "c", "d"]
    commands.most = 1
    tasks.append(asyncio.ensure_future(commands.give("e")))
    for name in "bc":
        commands.answers[name].set()
        await _settle()
        assert commands.begun == ["a", "b", "c", "d"]
    commands.answers["d"].set()
    await _settle()
    assert commands.begun[-1] == "e"
    commands.answers["e"].set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("gone_first", [True, False])
async def test_who_goes_away_in_the_moment_of_its_turn_is_passed_over(gone_first):
    turns = Turns(lambda: 1)
    await turns.take()
    gone, following = (asyncio.ensure_future(turns.take()) for _ in range(2))
    await _settle()
    for step in (gone.cancel, turns.give_back) if gone_first else (turns.give_back, gone.cancel):
        step()
    async with asyncio.timeout(1):
        await following
    assert gone.cancelled()


async def test_those_who_went_away_hold_up_nobody_who_comes_later():
    turns = Turns(lambda: 1)
    await turns.take()
    gone = [asyncio.ensure_future(turns.take()) for _ in range(3)]
    await _settle()
    for each in gone:
        each.cancel()
    turns.give_back()
    await asyncio.gather(*gone, return_exceptions=True)
    async with asyncio.timeout(1):
        await turns.take()


async def test_orders_are_few_while_much_waits_for_a_place_and_many_otherwise(kit):
    placer = kit.plane.leadership.placer
    assert not placer.is_busy
    kit.node("n1")
    await kit.wait_node("n1", "Ready")
    await asyncio.gather(*(kit.apply(f"w{number}", cpu=1, memory=1) for number in range(2 * BUSY_BATCH)))
    await kit.wait(lambda: placer.is_busy)
    await kit.clock.sleep(2 * BUSY_SECONDS)
    assert not placer.is_busy


async def test_a_wish_that_changed_while_it_waited_is_told_as_it_is_now(kit, monkeypatch):
    node = kit.node("n1")
    await kit.wait_node("n1", "Ready")
    leadership = kit.plane.leadership
    told = []
    apply = leadership.agents.apply

    async def listen(node, record, secrets=None):
        told.append(record.revision_id)
        return await apply(node, record, secrets)

    monkeypatch.setattr(leadership.agents, "apply", listen)
    leadership.dispatch._turns = turns = Turns(lambda: 1, moment=3600)
    async with turns.one():
        await kit.apply("w1", cpu=10, memory=10, revision="1")
        await kit.wait(lambda: leadership.fleet.workloads["w1"].node_id)
        await kit.apply("w1", cpu=20, memory=10, revision="2")
        await kit.wait(lambda: leadership.fleet.workloads["w1"].revision_id == "2")
    await kit.wait(lambda: "w1" in node.runs)
    assert told == ["2"]

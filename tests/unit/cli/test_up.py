"""`shoal up` and its children, by script and in virtual time: who is started again, and who is given up."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from shoal.cli.connection import session
from shoal.cli.local import up
from shoal.cli.local.children import ChildExit
from shoal.cli.local.fleet import together
from shoal.cli.output import ProgressRow
from shoal.core.errors import PreconditionError, UnavailableError
from shoal.testing.clock import LoopClock
from tests.unit.cli.scripted import START

pytestmark = pytest.mark.looptime


class ScriptedFleet:
    """Children that live and fail to start for as long as a test says."""

    def __init__(self, *, lives: dict[str, float], start_fails: bool = False) -> None:
        self.names = tuple(name for name in lives if name != "control")
        self.starts: list[tuple[str, float]] = []
        self._lives = lives
        self._start_fails = start_fails
        self._exits: asyncio.Queue[ChildExit] = asyncio.Queue()

    def die_later(self, name: str) -> None:
        ended = ChildExit(name, -9, "", Path("log"))
        asyncio.get_running_loop().call_later(self._lives[name], self._exits.put_nowait, ended)

    async def wait_exit(self) -> ChildExit:
        return await self._exits.get()

    async def start_again(self, name: str) -> None:
        self.starts.append((name, asyncio.get_running_loop().time()))
        if self._start_fails:
            await asyncio.sleep(60)
            raise UnavailableError(f"{name} did not serve within 1m")
        self.die_later(name)


@pytest.fixture(autouse=True)
def virtual_time():
    around = session.Surroundings(make_clock=lambda: LoopClock(START))
    token = session.surroundings.set(around)
    yield
    session.surroundings.reset(token)


async def test_one_that_dies_quickly_is_not_restarted_after_five_deaths_in_a_row():
    fleet = ScriptedFleet(lives={"control": 1e6, "node-1": 3.0})
    fleet.die_later("node-1")
    death = await up._tend(fleet)
    assert death.name == "node-1"
    assert len(fleet.starts) == up.MOST_DEATHS - 1


async def test_one_that_dies_slowly_and_always_is_not_restarted_for_ever():
    fleet = ScriptedFleet(lives={"control": 1e6, "node-1": 40.0})
    fleet.die_later("node-1")
    async with asyncio.timeout(3600):
        assert (await up._tend(fleet)).name == "node-1"


async def test_one_that_never_serves_again_is_not_restarted_for_ever():
    fleet = ScriptedFleet(lives={"control": 5.0}, start_fails=True)
    fleet.die_later("control")
    async with asyncio.timeout(3600):
        death = await up._tend(fleet)
    assert death.sentence == "control did not serve within 1m"


async def test_one_that_lived_for_a_while_each_time_is_started_again_for_ever():
    fleet = ScriptedFleet(lives={"control": 1e6, "node-1": 61.0})
    fleet.die_later("node-1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await up._tend(fleet)
    assert len(fleet.starts) > 50


async def test_deaths_of_different_children_are_not_added_up():
    fleet = ScriptedFleet(lives={"control": 1e6, "node-1": 100.0, "node-2": 100.0, "node-3": 100.0})
    for name in fleet.names:
        fleet.die_later(name)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1000):
            await up._tend(fleet)


async def test_when_one_of_several_fails_the_others_have_ended():
    ended = []

    async def wait(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(name)

    async def fail() -> None:
        await asyncio.sleep(1)
        raise UnavailableError("it cannot be started")

    with pytest.raises(UnavailableError, match="cannot be started"):
        await together([wait("a"), fail(), wait("b")])
    assert sorted(ended) == ["a", "b"]


async def test_nothing_is_said_to_start_in_a_folder_that_is_in_use(capsys):
    class InUse(ScriptedFleet):
        async def take_folder(self) -> None:
            raise PreconditionError("a fleet runs already in .shoal")

    with pytest.raises(PreconditionError):
        await up._start(InUse(lives={"control": 1e6, "node-1": 1e6}))
    assert capsys.readouterr().err == ""


class Ending:
    """A fleet of which some processes still run."""

    def __init__(self, *running: str) -> None:
        self._running = running

    def is_running(self, name: str) -> bool:
        return name in self._running


def test_what_is_waited_for_at_the_end_is_named():
    own = {"web": os.getpid(), "gone": 2**22 + 1}
    fleet = Ending("control", "node-1", "node-2")
    assert up._ending_row(fleet, "node-1", own) == ProgressRow("node-1", "Stopping", "waits for web")
    assert up._ending_row(fleet, "node-2", {}) == ProgressRow("node-2", "Stopping")
    assert up._ending_row(fleet, "control", {}) == ProgressRow("control", "Stopping", "waits for the agents")
    assert up._ending_row(fleet, "node-3", own) == ProgressRow("node-3", "Stopped", done=True)

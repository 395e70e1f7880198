"""Steady load in virtual time: what is counted, and from when."""

from __future__ import annotations

import asyncio

import pytest

from bench.load import Load, observations
from shoal.client import ControlPlane
from shoal.core.errors import DeadlineError, UnavailableError
from shoal.testing.control import CONTROL_ADDRESS, ControlKit
from shoal.testing.hollow import HollowFleet, HollowNode

pytestmark = pytest.mark.looptime

NAMES = ("a", "b", "c", "d")


async def test_waiting_for_a_turn_counts() -> None:
    load = Load(NAMES, rate=10.0, effects=("done",))
    turn = asyncio.Lock()

    async def act(name: str) -> None:
        async with turn:  # one at a time, and slower than they come
            await asyncio.sleep(0.25)
        load.see("done", name)

    await load.run(act)
    assert load.latencies("done") == pytest.approx([0.25, 0.4, 0.55, 0.7])


async def test_operations_begin_when_they_are_due_whatever_the_others_do() -> None:
    load = Load(NAMES, rate=10.0, effects=("begun", "done"))

    async def act(name: str) -> None:
        load.see("begun", name)
        await asyncio.sleep(5)
        load.see("done", name)

    await load.run(act)
    assert load.latencies("begun") == pytest.approx([0.0] * 4, abs=1e-6)
    assert load.latencies("done") == pytest.approx([5.0] * 4)


async def test_the_first_sight_counts_and_strangers_do_not() -> None:
    load = Load(["a"], rate=10.0, effects=("done",))
    load.see("done", "a")  # before it was due: not an effect of this load

    async def act(name: str) -> None:
        await asyncio.sleep(1)
        load.see("done", name)
        load.see("done", "stranger")
        load.see("something else", name)
        await asyncio.sleep(1)
        load.see("done", name)

    await load.run(act)
    assert load.latencies("done") == pytest.approx([1.0])


async def test_a_missing_effect_is_a_failure() -> None:
    load = Load(NAMES, rate=10.0, effects=("told", "gone"))

    async def act(name: str) -> None:
        load.see("told", name)
        if name != "c":
            load.see("gone", name)

    with pytest.raises(DeadlineError, match="1 of 'gone'"):
        await load.run(act, patience=7)


async def test_an_operation_that_fails_ends_the_load() -> None:
    load = Load(NAMES, rate=10.0, effects=("done",))

    async def act(name: str) -> None:
        raise UnavailableError("nobody is there")

    with pytest.RaisesGroup(UnavailableError, allow_unwrapped=False, flatten_subgroups=True):
        await load.run(act)


async def test_a_whole_life_is_seen_from_both_ends(tmp_path) -> None:
    commands: list[tuple[str, str, int]] = []
    async with ControlKit(tmp_path) as kit:
        hollow = HollowFleet(
            kit.network.transport("more"),
            CONTROL_ADDRESS,
            listen="more:50051",
            clock=kit.clock,
            on_command=lambda *command: commands.append(command),
        )
        await hollow.start()
        hollow.add(HollowNode("n1"))
        async with ControlPlane([CONTROL_ADDRESS], kit.network.transport("bench"), clock=kit.clock) as control:
            await asyncio.sleep(1)
            async with observations(control) as seen:
                kinds: list[str] = []
                seen.listen(lambda event: kinds.append(event.kind))
                await kit.apply("web")
                await seen.wait_for(lambda event: event.kind == "WorkloadRunning")
                await kit.delete("web")
                (gone,) = await seen.wait_for(lambda event: event.kind == "WorkloadDeleted")
                assert gone <= asyncio.get_running_loop().time()
                assert kinds.index("WorkloadPlaced") < kinds.index("WorkloadRunning") < kinds.index("WorkloadDeleted")
                with pytest.raises(DeadlineError):
                    await seen.wait_for(lambda event: event.kind == "NeverHeardOf", patience=3)
        await hollow.stop()
    assert [(verb, name) for verb, name, _generation in commands] == [("apply", "web"), ("delete", "web")]
    assert commands[1][2] > commands[0][2]

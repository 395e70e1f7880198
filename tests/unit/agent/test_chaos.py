"""Random commands, crashes, outages and kills of the agent, by seed, in virtual time; after the last all is right."""

from __future__ import annotations

import asyncio

import pytest

from shoal.core.entropy import SeededEntropy
from shoal.core.errors import ShoalError, UnavailableError
from shoal.model.workloads import DesiredState, RestartPolicy, RunState
from shoal.testing.runtimes import FakeScript
from tests.unit.agent.kit import opened
from tests.unit.agent.making import probed, process

pytestmark = pytest.mark.looptime

NAMES = ("a", "b", "c")
POLICIES = ("always", "on-failure", "no")


class Requests:
    """What was accepted: the truth that the agent is measured against."""

    def __init__(self) -> None:
        self.latest: dict[str, tuple[str, DesiredState] | None] = {}
        self.generation = 0


async def do_something(kit, chance, requests: Requests) -> None:
    name = NAMES[int(chance.uniform(0, 3))]
    what = chance.uniform(0, 10)
    requests.generation += 1
    try:
        if what < 4:
            program = f"program-{int(chance.uniform(0, 3))}"
            restart = RestartPolicy(policy=POLICIES[int(chance.uniform(0, 3))])
            make = probed if chance.uniform(0, 1) < 0.3 else process
            desired = DesiredState.STOPPED if chance.uniform(0, 1) < 0.2 else DesiredState.RUNNING
            spec = make(restart=restart, env={"PROGRAM": program})
            # Written down before the answer: a command whose answer was lost may have been taken.
            requests.latest[name] = (program, desired)
            await kit.apply(name, spec, generation=requests.generation, desired=desired)
        elif what < 5:
            requests.latest[name] = None
            await kit.delete(name, generation=requests.generation)
        elif what < 7:
            for run in kit.machine.alive(name):
                kit.machine.kill(run.run_id, signal=0, code=int(chance.uniform(0, 2)))
        elif what < 8:
            kit.machine.outage = UnavailableError("silence") if kit.machine.outage is None else None
        elif what < 9:
            kit.machine.script = FakeScript(
                start_takes=chance.uniform(0, 2),
                stop_takes=chance.uniform(0, 2),
                ready_after=chance.uniform(0, 3),
                run_for=chance.uniform(1, 20) if chance.uniform(0, 1) < 0.5 else None,
            )
        else:
            kit.machine.outage = None
            await kit.restart()
    except ShoalError:
        requests.latest.pop(name, None)  # refused: what was requested before counts, and this test does not remember it


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_the_last_accepted_command_counts(tmp_path, seed):
    chance, requests = SeededEntropy(seed), Requests()
    async with opened(tmp_path) as kit:
        for _ in range(60):
            await do_something(kit, chance, requests)
            await kit.settle(chance.uniform(0, 1.5))
            for name in NAMES:
                assert kit.machine.most_at_once(name) <= 1
        kit.machine.outage = None
        kit.machine.script = FakeScript()
        await kit.restart()
        await kit.settle(200)
        for name, request in requests.latest.items():
            check(kit, name, request)
        before = list(kit.machine.history)
        await kit.restart()
        await kit.settle(100)
        assert kit.machine.history == before, "a restart of the agent in peace changed something"


def check(kit, name: str, request) -> None:
    assert kit.machine.most_at_once(name) <= 1
    if request is None:
        assert not kit.knows(name)
        assert not kit.machine.alive(name)
        return
    program, desired = request
    status = kit.status(name)
    alive = kit.machine.alive(name)
    if desired is DesiredState.STOPPED or status.completed or status.state is RunState.FAILED:
        assert not alive
        return
    assert status.state is RunState.RUNNING, status
    (run,) = alive
    assert kit.machine.started_with[run.run_id].spec.env["PROGRAM"] == program


async def test_two_agents_after_each_other_never_overlap(tmp_path):
    async with opened(tmp_path) as kit:
        kit.machine.script = FakeScript(start_takes=1, stop_takes=1)
        for number in range(30):
            await kit.apply("a", process(f"p{number}"))
            await asyncio.sleep(0.4)
            await kit.restart()
        await kit.settle(10)
        assert kit.machine.most_at_once("a") == 1
        (run,) = kit.machine.alive("a")
        assert kit.machine.started_with[run.run_id].spec.command == ("p29",)

"""When at-most-one runs are asked to end, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal.core.errors import UnavailableError
from shoal.core.ids import RunId
from shoal.core.tasks import TaskScope
from shoal.runtimes.guard.warnings import DeadlineWarnings
from shoal.testing.clock import LoopClock
from tests.unit.agent.making import START

pytestmark = pytest.mark.looptime

WEB, DB = RunId("web-1"), RunId("db-1")


class Asked:
    """What was asked, and when. The engine of `broken` is away, and that of `hung` answers never."""

    def __init__(self) -> None:
        self.at: dict[RunId, float] = {}
        self.broken: RunId | None = None
        self.hung: RunId | None = None

    async def ask(self, run_id: RunId) -> None:
        self.at[run_id] = asyncio.get_running_loop().time()
        if run_id == self.broken:
            raise UnavailableError("away")
        if run_id == self.hung:
            await asyncio.Event().wait()


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
async def warnings(asked: Asked) -> AsyncIterator[DeadlineWarnings]:
    scope = TaskScope("test")
    made = DeadlineWarnings(scope, LoopClock(START), asked.ask)
    scope.start(made.follow(), name="follow")
    yield made
    await scope.close()


async def test_a_run_is_asked_two_seconds_before_its_deadline_or_its_grace_period(
    warnings: DeadlineWarnings, asked: Asked
) -> None:
    warnings.plan(WEB, 100.0, grace=10.0)
    warnings.plan(DB, 100.0, grace=0.5)
    await asyncio.sleep(200)
    assert asked.at == {WEB: 98.0, DB: 99.5}


async def test_an_extended_deadline_is_planned_anew_and_that_of_an_ended_run_is_forgotten(
    warnings: DeadlineWarnings, asked: Asked
) -> None:
    warnings.plan(WEB, 100.0, grace=10.0)
    warnings.plan(DB, 100.0, grace=10.0)
    await asyncio.sleep(90)
    warnings.plan(WEB, 150.0, grace=10.0)
    warnings.drop(DB)
    await asyncio.sleep(200)
    assert asked.at == {WEB: 148.0}


@pytest.mark.parametrize("what", ["broken", "hung"])
async def test_a_run_that_cannot_be_asked_delays_no_other(warnings: DeadlineWarnings, asked: Asked, what: str) -> None:
    setattr(asked, what, WEB)
    warnings.plan(WEB, 100.0, grace=10.0)
    warnings.plan(DB, 100.5, grace=10.0)
    await asyncio.sleep(200)
    assert asked.at == {WEB: 98.0, DB: 98.5}

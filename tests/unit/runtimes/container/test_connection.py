"""How a runtime reaches its engine: what it has compared before it is open, and when it asks again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator

import pytest

from shoal.core.errors import UnavailableError
from shoal.core.tasks import TaskScope
from shoal.runtimes.container.engine.api import EngineApi, EngineError
from shoal.runtimes.container.engine.connection import EngineConnection
from shoal.testing.clock import LoopClock
from tests.unit.agent.making import START

pytestmark = pytest.mark.looptime


class Comparisons:
    """Refuses to compare with each of these errors in turn, then compares."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.done = 0

    async def compare(self, api: EngineApi) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.done += 1


@contextlib.asynccontextmanager
async def opened(comparisons: Comparisons, *refusals: Exception) -> AsyncIterator[EngineConnection]:
    """A connection that is refused with each of these errors in turn, and then comes about."""
    left = list(refusals)

    async def connect() -> EngineApi:
        if left:
            raise left.pop(0)
        return EngineApi("unix:///nowhere/engine.sock")

    connection = EngineConnection(connect, comparisons.compare, clock=LoopClock(START), labels={})
    scope = TaskScope("test")
    await connection.open(scope)
    try:
        yield connection
    finally:
        await scope.close()
        await connection.close()


@pytest.mark.parametrize(
    "errors", [(), (EngineError("a container goes meanwhile", status=500),) * 3], ids=["at once", "refused at first"]
)
async def test_everything_is_compared_before_it_is_open(errors: tuple[Exception, ...]) -> None:
    comparisons = Comparisons(*errors)
    async with opened(comparisons) as connection:
        assert comparisons.done == 1
        assert connection.current is not None


async def test_an_engine_that_is_lost_meanwhile_delays_nothing() -> None:
    comparisons = Comparisons(UnavailableError("gone"))
    async with opened(comparisons) as connection:
        assert comparisons.done == 0
        assert connection.current is None
        assert await connection.health() == "unhealthy: gone"


async def test_an_agent_that_ends_loses_no_engine(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(Comparisons()) as connection:
        pass
    assert connection.current is None
    assert await connection.health() == "unhealthy: the agent has let go of it"
    assert caplog.text == ""


FULL = OSError(errno.ENOSPC, "No space left on device")


async def test_an_engine_that_cannot_be_started_without_room_is_started_later() -> None:
    comparisons = Comparisons()
    async with opened(comparisons, FULL, FULL) as connection:
        assert await connection.health() == f"unhealthy: the container engine cannot be started: {FULL}"
        await asyncio.sleep(5)
        assert comparisons.done > 0


async def test_an_error_of_the_disk_while_it_compares_is_met_again_until_it_is_gone() -> None:
    comparisons = Comparisons(UnavailableError("gone"), FULL, FULL)
    async with opened(comparisons):
        await asyncio.sleep(10)
        assert comparisons.done > 0

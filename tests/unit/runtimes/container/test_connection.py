"""How a runtime reaches its engine: what it has compared before it is open, and when it asks again."""

from __future__ import annotations

import contextlib
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
async def opened(comparisons: Comparisons) -> AsyncIterator[EngineConnection]:
    async def connect() -> EngineApi:
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

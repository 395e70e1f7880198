from __future__ import annotations

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import UnavailableError
from shoal.serving.models.profiling import measure, percentile


@pytest.mark.looptime
async def test_latencies_are_summed_up():
    clock = SystemClock()
    waits = iter([0.1] * 98 + [0.5] * 2 + [UnavailableError("busy")] * 1000)

    async def call() -> None:
        wait = next(waits)
        if isinstance(wait, Exception):
            raise wait
        await clock.sleep(wait)

    found = await measure(call, clock=clock, seconds=11, parallel=1)
    assert found.calls == 100
    assert found.errors > 0
    assert found.first_error == "busy"
    assert found.p50_ms == pytest.approx(100, abs=2)
    assert found.p99_ms == pytest.approx(500, abs=2)
    assert found.average_ms == pytest.approx(108, abs=2)
    assert found.qps == pytest.approx(100 / 11, rel=0.01)


@pytest.mark.looptime
async def test_calls_go_side_by_side():
    clock = SystemClock()
    found = await measure(lambda: clock.sleep(0.1), clock=clock, seconds=1, parallel=5)
    assert found.calls >= 45


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 2), (0.99, 3), (1, 3)])
def test_percentiles(share, value):
    assert percentile([1, 2, 3], share) == value


def test_no_values():
    assert percentile([], 0.5) == 0

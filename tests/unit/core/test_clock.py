from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.clock import SystemClock, epoch_ms, from_epoch_ms


def test_outside_a_loop_time_does_not_run_backwards() -> None:
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()
    assert clock.wall().tzinfo is UTC


@pytest.mark.looptime
async def test_the_clock_is_the_loop() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(3600)
    assert clock.monotonic() - before == 3600
    assert clock.monotonic() == asyncio.get_running_loop().time()


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=80_000)))
def test_milliseconds_and_back(since: timedelta) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + since
    assert abs(from_epoch_ms(epoch_ms(moment)) - moment) <= timedelta(milliseconds=1)


@given(st.integers(0, 7_258_118_400_000))
def test_stamps_survive_exactly(value: int) -> None:
    assert epoch_ms(from_epoch_ms(value)) == value

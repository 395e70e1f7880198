"""The life of dataflows: started together, stopped together, and what is said about it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from shoal.dataflow.api.apps.lifetime import Told, in_own_thread, run_all, start_all, stop_all


class Flow:
    """A dataflow that does what the test says."""

    def __init__(self, name: str, log: list[str], *, ends: bool = False, fails: str = "") -> None:
        self.name = name
        self._log = log
        self._fails = fails
        self._ends = ends
        self._over = asyncio.Event()
        self.is_started = False

    @property
    def is_running(self) -> bool:
        return self.is_started and not self._over.is_set()

    async def prepare(self) -> None:
        self._does("prepare")

    async def start(self, parallelism: int) -> None:
        self._does("start")
        self.is_started = True
        if self._ends:
            self._over.set()

    async def stop(self) -> str:
        self._over.set()
        self.is_started = False
        self._does("stop")
        return "report"

    async def wait(self) -> str:
        if self._fails != "wait":
            await self._over.wait()
        self._does("wait")
        return "report"

    def _does(self, what: str) -> None:
        self._log.append(f"{what} {self.name}")
        if self._fails == what:
            raise ValueError(f"{what} of {self.name}")


class Notes(Told):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def started(self, flow: Any) -> None:
        self.notes.append(f"started {flow.name}")

    def ended(self, flow: Any, report: Any) -> None:
        self.notes.append(f"ended {flow.name}")


async def test_none_starts_before_all_were_checked() -> None:
    log: list[str] = []
    flows = [Flow("a", log), Flow("b", log, fails="prepare")]
    with pytest.raises(ValueError, match="prepare of b"):
        await start_all(flows, parallelism=1)
    assert log == ["prepare a", "prepare b"]


async def test_those_that_started_are_stopped_when_one_cannot() -> None:
    log: list[str] = []
    flows = [Flow("a", log), Flow("b", log, fails="start"), Flow("c", log)]
    with pytest.raises(ValueError, match="start of b"):
        await start_all(flows, parallelism=1)
    assert log[3:] == ["start a", "start b", "stop a"]


async def test_it_runs_until_all_have_ended() -> None:
    notes, log = Notes(), []
    await run_all([Flow("a", log, ends=True), Flow("b", log, ends=True)], parallelism=1, told=notes)
    assert sorted(notes.notes) == ["ended a", "ended b", "started a", "started b"]
    assert not [each for each in log if each.startswith("stop")]


async def test_one_that_fails_stops_the_others_and_is_what_is_raised() -> None:
    log: list[str] = []
    flows = [Flow("a", log), Flow("b", log, fails="wait"), Flow("c", log, fails="stop")]
    with pytest.raises(ValueError, match="wait of b"):
        await run_all(flows, parallelism=1)
    assert {"stop a", "stop c"} <= set(log)


async def test_all_are_stopped_before_an_error_is_raised() -> None:
    log: list[str] = []
    flows = [Flow("a", log, fails="stop"), Flow("b", log)]
    for flow in flows:
        await flow.start(1)
    with pytest.raises(ValueError, match="stop of a"):
        await stop_all(flows)
    assert log[-2:] == ["stop a", "stop b"]


async def test_a_call_raises_what_it_raised() -> None:
    def raises() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await in_own_thread(raises)


async def test_more_calls_than_a_pool_has_threads_wait_side_by_side() -> None:
    enough = threading.Barrier(64)
    await asyncio.gather(*(in_own_thread(enough.wait) for _ in range(64)))


async def test_what_nobody_waits_for_any_more_is_given_away() -> None:
    go, given = threading.Event(), threading.Event()
    found: list[str] = []

    def work() -> str:
        go.wait()
        return "a flow"

    def discard(result: str) -> None:
        found.append(result)
        given.set()

    waiting = asyncio.ensure_future(in_own_thread(work, unwanted=discard))
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    go.set()
    await in_own_thread(given.wait)
    assert found == ["a flow"]

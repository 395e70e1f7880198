"""Keepers killed at any moment while runs start, end and are stopped: nothing is lost, nobody is left over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import ShoalError
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.workloads import ProcessSpec, StopPolicy
from shoal.runtimes.base import RunInfo, RunPhase, RunRequest
from shoal.runtimes.process import ProcessRuntime, find_run_pids, read_keeper_pid, read_run_records
from shoal.testing.machines import kill_machine

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPTS = (
    "exit 3",
    "echo hello; sleep 0.05; exit 4",
    "setsid sleep 1000 & exec sleep 1000",
    'trap "" TERM; while :; do sleep 0.02; done',
    "while :; do echo busy; done",
)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_when_keepers_die(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    runtime = ProcessRuntime(tmp_path, clock=SystemClock(), node_id=NodeId("n1"))
    await runtime.open()
    told: dict[str, RunInfo] = {}
    started: set[str] = set()
    over = False

    async def watch() -> None:
        async for info in runtime.watch():
            before = told.setdefault(info.run_id, info)
            assert before == info, "an end changed after it was told"

    async def kill_keepers() -> None:
        while not over:
            await asyncio.sleep(chance.uniform(0.0, 0.7))
            pid = read_keeper_pid(tmp_path)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def live(number: int) -> None:
        for turn in range(5):
            run_id = f"w{number}-{turn}"
            spec = ProcessSpec(
                command=("/bin/sh", "-c", chance.choice(SCRIPTS)),
                stop=StopPolicy(grace=timedelta(milliseconds=100)),
            )
            deadline = chance.choice([None, SystemClock().monotonic() + 60.0])
            request = RunRequest(run_id, WorkloadId(f"w{number}"), spec, deadline=deadline)
            for call in (lambda request=request: runtime.start(request), lambda run_id=run_id: runtime.stop(run_id)):
                while True:
                    try:
                        info = await call()
                        break
                    except ShoalError:
                        await asyncio.sleep(0.05)
                assert info is not None, "a run that was started is not known"
                started.add(run_id)
                await asyncio.sleep(chance.uniform(0.0, 0.2))
            assert info.phase is RunPhase.ENDED

    watching = asyncio.create_task(watch())
    killing = asyncio.create_task(kill_keepers())
    try:
        await asyncio.gather(*(live(number) for number in range(8)))
        over = True
        await killing
        async with asyncio.timeout(30):
            while told.keys() != started:
                await asyncio.sleep(0.05)
        assert {info.run_id for info in await runtime.list_runs()} == started
        assert {record.run_id for record in read_run_records(tmp_path)} == started
        assert find_run_pids(tmp_path) == ()
        assert not watching.done()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await runtime.close()
        kill_machine(tmp_path)

"""A full disk of the agent keeps no container from its start, its end and its removal."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import UnavailableError
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.workloads import ContainerSpec
from shoal.runtimes.base import RunInfo, RunPhase, RunRequest
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine.api import EngineApi
from shoal.runtimes.container.records import SPARES, ContainerRun, RunEnd, RunRecords, run_from_json
from shoal.runtimes.container.runtime import ContainerRuntime
from shoal.testing.engine import FakeEngine
from tests.services.disks import fill, small_disk

pytestmark = pytest.mark.integration

OWNER = Owner("test", NodeId("n1"))
PATIENCE = 30.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "agent", megabytes=2) as made:
        yield made


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(tmp_path / "engine.sock") as made:
        yield made


async def connect(address: str) -> EngineApi:
    api = EngineApi(address)
    await api.ping()
    return api


@pytest.fixture
async def runtime(disk: Path, engine: FakeEngine) -> AsyncIterator[ContainerRuntime]:
    made = ContainerRuntime(disk, clock=SystemClock(), owner=OWNER, connect=partial(connect, engine.address))
    await made.open()
    yield made
    await made.close()


def request(run_id: str = "web-1") -> RunRequest:
    return RunRequest(RunId(run_id), WorkloadId("web"), ContainerSpec(image="test:1"))


async def wait_ended(runtime: ContainerRuntime, run_id: str) -> RunInfo:
    async with asyncio.timeout(PATIENCE):
        async for info in runtime.watch():
            if info.run_id == run_id:
                return info
    raise AssertionError("watching ended")


async def test_a_container_is_stopped_and_forgotten(disk: Path, runtime: ContainerRuntime, engine: FakeEngine) -> None:
    await runtime.start(request())
    fill(disk / "filling")
    ended = await runtime.stop(RunId("web-1"))
    assert ended is not None
    assert (ended.phase, ended.ended_by) == (RunPhase.ENDED, "stop")
    assert engine.containers == {}
    await runtime.forget_workload(WorkloadId("web"), delete_data=True)
    assert await runtime.list_runs() == ()


async def test_a_container_is_started_again_and_its_ends_are_known_to_the_next_agent(
    disk: Path, runtime: ContainerRuntime, engine: FakeEngine
) -> None:
    await runtime.start(request())
    fill(disk / "filling")
    engine.end("shoal-n1-web", 3)
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert ended.exit.code == 3
    assert (await runtime.start(request("web-2"))).phase is RunPhase.RUNNING
    await runtime.close()
    following = ContainerRuntime(disk, clock=SystemClock(), owner=OWNER, connect=partial(connect, engine.address))
    await following.open()
    try:
        runs = {run.run_id: run for run in await following.list_runs()}
        assert runs["web-1"].exit == ended.exit
        assert runs["web-2"].phase is RunPhase.RUNNING
        assert engine.running() == ["shoal-n1-web"]
    finally:
        await following.close()


async def test_a_container_is_killed_also_when_nothing_can_be_written(
    disk: Path, runtime: ContainerRuntime, engine: FakeEngine
) -> None:
    await runtime.start(request())
    for record in (disk / "containers").glob("web-1.json"):
        record.unlink()  # nothing is left to be written over
    for spare in (disk / "containers").glob("*.spare"):
        spare.unlink()
    fill(disk / "filling")
    with pytest.raises(UnavailableError, match="No space left on device"):
        await runtime.stop(RunId("web-1"))
    assert engine.running() == []
    (disk / "filling").unlink()
    ended = await runtime.stop(RunId("web-1"))
    assert ended is not None
    assert ended.ended_by == "stop"


def run(number: int, **fields: object) -> ContainerRun:
    made = ContainerRun(RunId(f"web-{number}"), WorkloadId("web"), "c" * 64, 1, 2, "SIGTERM", 10.0)
    return dataclasses.replace(made, **fields)


def test_records_have_room_for_ends_and_spares_for_starts(disk: Path) -> None:
    records = RunRecords(disk / "records", run_from_json)
    records.load()
    records.put(run(0))
    fill(disk / "filling")
    for number in range(1, SPARES + 1):
        records.put(run(number))
    with pytest.raises(UnavailableError):
        records.put(run(SPARES + 1))
    records.put(run(0, end=RunEnd(code=7), last_output="x" * 4096))
    records.put(run(1, end=RunEnd(code=8), last_output="short"))
    # What is forgotten is a spare for the next one, for ever.
    for _ in range(2 * SPARES):
        records.drop(RunId("web-2"))
        records.put(run(2))
    following = RunRecords(disk / "records", run_from_json)
    following.load()
    assert sorted(following.runs) == [f"web-{number}" for number in range(SPARES + 1)]
    ends = {name: following.runs[RunId(name)] for name in ("web-0", "web-1")}
    # There is no room for all that it printed.
    assert [(each.end, each.last_output) for each in ends.values()] == [(RunEnd(code=7), ""), (RunEnd(code=8), "short")]
    (disk / "filling").unlink()
    following.load()
    assert len(list((disk / "records").glob("*.spare"))) == SPARES

"""What the container runtime does when an engine hangs, refuses, loses answers, goes away or is another one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import ShoalError, UnavailableError
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.workloads import ContainerSpec, FailureReason, StopPolicy
from shoal.runtimes.base import RunError, RunInfo, RunPhase, RunRequest
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine import api as engine_api
from shoal.runtimes.container.engine.api import EngineApi
from shoal.runtimes.container.engine.choice import CHOICE_FILE, ChosenEngine, EngineChoice
from shoal.runtimes.container.engine.finding import EngineFinder, PodmanService
from shoal.runtimes.container.runtime import ContainerRuntime
from shoal.runtimes.finding import has_runs
from shoal.runtimes.guard import client as guard_client
from shoal.testing.engine import FakeEngine, FakePull, Fault

pytestmark = pytest.mark.integration

OWNER = Owner("test", NodeId("n1"))
PATIENCE = 30.0


async def test_what_another_engine_does_not_have_has_not_ended(opened, engine: FakeEngine) -> None:
    """It takes over in the middle of a comparison, before the end of the first one is noticed."""
    runtime = await opened()
    await runtime.start(request())
    containers, engine.containers, engine.identity = engine.containers, {}, "fake-2"
    with pytest.raises(UnavailableError, match="another container engine"):
        await runtime.stop(RunId("web-1"))
    engine._tell()
    assert await phase_of(runtime, "web-1") is RunPhase.RUNNING
    engine.containers, engine.identity = containers, "fake-1"
    assert (await persist(lambda: runtime.stop(RunId("web-1")))).ended_by == "stop"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that hangs is given up soon. No `podman` is started beside the fake engines."""
    monkeypatch.setattr(engine_api, "_CALL_SECONDS", 0.5)
    monkeypatch.setattr(PodmanService, "is_possible", staticmethod(lambda: False))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(tmp_path / "engine.sock") as made:
        yield made


@pytest.fixture
async def opened(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[Callable[..., ContainerRuntime]]:
    """Opens runtimes one after another on one data directory, each with a finder of its own."""
    made: list[ContainerRuntime] = []

    async def open_one() -> ContainerRuntime:
        for each in made:
            await each.close()
        finder = find(tmp_path, engine.address)
        runtime = ContainerRuntime(tmp_path / "agent", clock=SystemClock(), owner=OWNER, connect=finder.connect)
        made.append(runtime)
        await runtime.open()
        return runtime

    yield open_one
    for each in made:
        await each.close()


def find(tmp_path: Path, address: str) -> EngineFinder:
    data_dir = tmp_path / "agent"
    choice = EngineChoice(data_dir / CHOICE_FILE, is_binding=partial(has_runs, data_dir))
    return EngineFinder(data_dir / "podman", {"DOCKER_HOST": address}, clock=SystemClock(), choice=choice)


def request(run_id: str = "web-1", **fields) -> RunRequest:
    spec = ContainerSpec(**{"image": "test:1", "stop": StopPolicy(), **fields})
    return RunRequest(RunId(run_id), WorkloadId(run_id.rpartition("-")[0]), spec)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def persist(call: Callable[[], object]) -> object:
    """As an agent does: again and again, until there is a definite answer."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except RunError:
                raise
            except ShoalError:
                await asyncio.sleep(0.05)


async def phase_of(runtime: ContainerRuntime, run_id: str) -> RunPhase | None:
    info = await runtime.inspect(RunId(run_id))
    return None if info is None else info.phase


async def wait_ended(runtime: ContainerRuntime, run_id: str) -> RunInfo:
    async with asyncio.timeout(PATIENCE):
        async for info in runtime.watch():
            if info.run_id == run_id:
                return info
    raise AssertionError("watching ended")


# ---------------------------------------------------------------------------------------------------------
# One engine, and no other


async def test_an_agent_with_runs_does_not_go_to_another_engine(opened, engine: FakeEngine, tmp_path: Path) -> None:
    runtime = await opened()
    await runtime.start(request())
    await engine.close()
    async with FakeEngine(tmp_path / "engine.sock", identity="fake-2") as other:
        # It listens where the other one did, and knows nothing of the run.
        await until(lambda: "GET /info" in other.calls)
        assert "is another" in await told(runtime)
        assert await phase_of(runtime, "web-1") is RunPhase.RUNNING
        with pytest.raises(UnavailableError):
            await runtime.start(request("db-1"))
        # Nor does the next agent.
        runtime = await opened()
        assert await phase_of(runtime, "web-1") is RunPhase.RUNNING
        assert not other.containers
    await engine.open()
    await persist(lambda: runtime.start(request("db-1")))
    assert engine.running() == ["shoal-n1-db", "shoal-n1-web"]


async def told(runtime: ContainerRuntime) -> str:
    async with asyncio.timeout(PATIENCE):
        while (health := await runtime.health()) == "healthy" or "is another" not in health:
            await asyncio.sleep(0.01)
    return health


async def test_the_same_engine_under_another_address_is_the_same(tmp_path: Path, engine: FakeEngine) -> None:
    finder = find(tmp_path, engine.address)
    runtime = ContainerRuntime(tmp_path / "agent", clock=SystemClock(), owner=OWNER, connect=finder.connect)
    await runtime.open()
    await runtime.start(request())
    await runtime.close()
    await engine.close()
    moved = FakeEngine(tmp_path / "moved.sock", identity=engine.identity)
    moved.containers = engine.containers
    async with moved:
        finder = find(tmp_path, moved.address)
        api = await finder.connect()
        assert api.address == moved.address
        await api.close()
        assert EngineChoice(tmp_path / "agent" / CHOICE_FILE, is_binding=bool).read() == ChosenEngine(
            moved.address, f"docker {engine.identity}"
        )


@pytest.mark.parametrize("left", ["nothing", "a run", "an ended run", "a start", "a project"])
async def test_an_agent_without_anything_in_its_engine_takes_any(tmp_path: Path, left: str) -> None:
    async with FakeEngine(tmp_path / "one.sock", identity="one") as one:
        finder = find(tmp_path, one.address)
        runtime = ContainerRuntime(tmp_path / "agent", clock=SystemClock(), owner=OWNER, connect=finder.connect)
        await runtime.open()
        if left in ("a run", "an ended run"):
            await runtime.start(request())
        if left == "an ended run":
            await runtime.stop(RunId("web-1"))
        if left == "a start":  # the agent was killed between the engine's answer and its own record
            (tmp_path / "agent/containers/web-1.starting").touch()
        if left == "a project":
            (tmp_path / "agent/projects/shop/inline").mkdir(parents=True)
        await runtime.close()
    async with FakeEngine(tmp_path / "two.sock", identity="two") as two:
        finder = find(tmp_path, two.address)
        assert finder.is_here()
        if left == "nothing":
            api = await finder.connect()
            assert api.address == two.address
            await api.close()
        else:
            with pytest.raises(UnavailableError, match="is another") as raised:
                await finder.connect()
            assert "engine.json" in raised.value.hint


@pytest.mark.parametrize("text", ["", "{}", "null", "[1]", '{"address": "unix:///x"}', "\x00"])
async def test_a_damaged_choice_is_made_again(tmp_path: Path, engine: FakeEngine, text: str) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / CHOICE_FILE).write_text(text)
    api = await find(tmp_path, engine.address).connect()
    await api.close()
    assert "fake-1" in (tmp_path / "agent" / CHOICE_FILE).read_text()


async def test_an_engine_that_does_not_say_which_one_it_is_is_not_used(tmp_path: Path, engine: FakeEngine) -> None:
    engine.faults.append(Fault("GET /info", status=500))
    with pytest.raises(ShoalError):
        await find(tmp_path, engine.address).connect()
    assert not (tmp_path / "agent" / CHOICE_FILE).exists()


# ---------------------------------------------------------------------------------------------------------
# One container beside others


@pytest.mark.parametrize(
    "fault",
    [{"status": 500, "message": "container has dependents"}, {"status": 409, "message": "in use"}, {"hangs": True}],
    ids=["refused", "in use", "hung"],
)
async def test_a_container_that_cannot_be_removed_delays_no_other(opened, engine: FakeEngine, fault) -> None:
    runtime = await opened()
    for name in ("a", "b", "c"):
        await runtime.start(request(f"{name}-1"))
    stuck = engine._known("shoal-n1-a").id
    engine.faults.append(Fault(rf"DELETE /containers/{stuck}", **fault))
    engine.faults.append(Fault(rf"POST /containers/{stuck}/wait", **fault))
    for name in ("a", "b", "c"):
        engine.end(f"shoal-n1-{name}", code=7)
        assert (await wait_ended(runtime, f"{name}-1")).exit.code == 7
    await until(lambda: list(engine.containers) == [stuck])
    assert await runtime.health() == "healthy"
    # Nor one that an earlier agent left.
    runtime = await opened()
    await runtime.start(request("d-1"))
    engine.end("shoal-n1-d", code=8)
    assert (await wait_ended(runtime, "d-1")).exit.code == 8
    assert await runtime.health() == "healthy"
    engine.faults.clear()
    await until(lambda: not engine.containers)


@pytest.mark.parametrize("fault", [{"status": 500}, {"hangs": True}], ids=["refused", "hung"])
async def test_a_container_that_cannot_be_looked_at_delays_no_other(opened, engine: FakeEngine, fault) -> None:
    runtime = await opened()
    await runtime.start(request("a-1"))
    await runtime.start(request("b-1"))
    stuck = engine._known("shoal-n1-a").id
    engine.faults.append(Fault(rf"GET /containers/{stuck}/json", **fault))
    engine.end("shoal-n1-a", code=6)
    engine.end("shoal-n1-b", code=7)
    assert (await wait_ended(runtime, "b-1")).exit.code == 7
    assert await runtime.health() == "healthy"
    engine.faults.clear()
    assert (await wait_ended(runtime, "a-1")).exit.code == 6


async def test_a_container_that_cannot_be_adopted_keeps_no_other_from_it(opened, engine: FakeEngine, tmp_path) -> None:
    runtime = await opened()
    for name in ("a", "b", "c"):
        await runtime.start(request(f"{name}-1"))
        (tmp_path / f"agent/containers/{name}-1.json").unlink()
    stuck = engine._known("shoal-n1-a").id
    engine.faults.append(Fault(rf"GET /containers/{stuck}/json", hangs=True))
    runtime = await opened()
    assert {run.run_id for run in await runtime.list_runs()} == {"b-1", "c-1"}
    engine.faults.clear()
    async with asyncio.timeout(PATIENCE):
        while len(await runtime.list_runs()) < 3:
            await asyncio.sleep(0.05)


# ---------------------------------------------------------------------------------------------------------
# Starts that are interrupted, and calls whose answer is lost

CALLS = ("POST /containers/create", "POST /containers/.*/start", "GET /containers/.*/json")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("how", ["hangs", "hangs_up"])
@pytest.mark.parametrize("then", ["stop", "start", "restart"])
async def test_a_start_without_an_answer_is_never_two_and_can_be_stopped(
    opened, engine: FakeEngine, *, call: str, is_after: bool, how: str, then: str
) -> None:
    runtime = await opened()
    engine.faults.append(Fault(call, after=is_after, times=1, **{how: True}))
    starting = asyncio.ensure_future(runtime.start(request()))
    await until(lambda: not engine.faults[0].times)
    if then == "stop":
        starting.cancel()
    await asyncio.wait({starting})
    if then == "start":
        await persist(lambda: runtime.start(request()))
    if then == "restart":
        runtime = await opened()
        await persist(lambda: runtime.start(request()))
    if then != "stop":
        assert engine.running() == ["shoal-n1-web"]
    await persist(lambda: runtime.stop(RunId("web-1")))
    assert engine.running() == []
    await persist(lambda: runtime.forget_workload(WorkloadId("web"), delete_data=True))
    await until(lambda: not engine.containers)


async def test_a_pull_that_hangs_is_ended_with_the_start(opened, engine: FakeEngine) -> None:
    runtime = await opened()
    engine.pulls["slow:1"] = FakePull(({"status": "Pulling fs layer", "id": "a"},), hangs=True)
    for call in (runtime.fetch, runtime.start, runtime.prepare):
        pulling = asyncio.ensure_future(call(request(image="slow:1")))
        await until(lambda: engine.pulling == 1)
        pulling.cancel()
        await asyncio.wait({pulling})
        await until(lambda: engine.pulling == 0)
    assert await runtime.stop(RunId("web-1")) is None
    engine.pulls["slow:1"] = FakePull(({"status": "Pull complete", "id": "a"},))
    await runtime.fetch(request(image="slow:1"))
    assert (await runtime.start(request(image="slow:1"))).phase is RunPhase.RUNNING
    assert sum("/images/create" in each for each in engine.calls) == 4


async def test_an_image_is_pulled_once_for_a_start(opened, engine: FakeEngine) -> None:
    runtime = await opened()
    engine.pulls["test:1"] = FakePull(({"status": "Already exists", "id": "a"},))
    await runtime.fetch(request(pull_policy="always"))
    await runtime.start(request(pull_policy="always"))
    assert engine.calls.count("POST /images/create") == 1


# ---------------------------------------------------------------------------------------------------------
# An engine that is away when the agent comes up


async def test_nothing_is_known_to_have_stopped_before_the_engine_was_seen(
    opened, engine: FakeEngine, tmp_path
) -> None:
    runtime = await opened()
    await runtime.start(request())
    await runtime.start(request("known-1"))
    (tmp_path / "agent/containers/web-1.json").unlink()  # the agent was killed before it wrote it
    await engine.close()
    runtime = await opened()
    assert [run.run_id for run in await runtime.list_runs()] == ["known-1"]
    assert await phase_of(runtime, "known-1") is RunPhase.RUNNING
    web = RunId("web-1")
    for call in (runtime.inspect(web), runtime.stop(web), runtime.forget_workload(WorkloadId("web"), delete_data=True)):
        with pytest.raises(UnavailableError):
            await call
    await engine.open()
    ended = await persist(lambda: runtime.stop(web))
    assert (ended.phase, ended.ended_by) == (RunPhase.ENDED, "stop")
    assert engine.running() == ["shoal-n1-known"]
    await runtime.forget_workload(WorkloadId("web"), delete_data=True)
    assert await runtime.inspect(web) is None


async def test_an_outage_after_that_changes_nothing_about_what_is_known(opened, engine: FakeEngine) -> None:
    runtime = await opened()
    await engine.close()
    assert await runtime.inspect(RunId("web-1")) is None
    with pytest.raises(UnavailableError):
        await runtime.stop(RunId("web-1"))  # an interrupted start may have left it
    await runtime.forget_workload(WorkloadId("web"), delete_data=True)


# ---------------------------------------------------------------------------------------------------------
# Failures of a pull


@pytest.mark.parametrize(
    ("pull", "failure", "transient"),
    [
        (FakePull(error="manifest unknown"), FailureReason.IMAGE_NOT_FOUND, False),
        (FakePull(error="unauthorized: authentication required"), FailureReason.IMAGE_PULL_FAILED, False),
        (FakePull(error="read: connection reset by peer"), FailureReason.IMAGE_PULL_FAILED, True),
    ],
)
async def test_a_pull_that_fails_says_why(opened, engine: FakeEngine, pull, failure, transient) -> None:
    runtime = await opened()
    engine.pulls["other:1"] = pull
    with pytest.raises(RunError) as raised:
        await runtime.fetch(request(image="other:1"))
    assert (raised.value.failure, raised.value.transient) == (failure, transient)


async def test_two_agents_share_an_engine_without_seeing_each_other(tmp_path: Path, engine: FakeEngine) -> None:
    runtimes = []
    for node in ("n1", "n2"):

        async def connect() -> EngineApi:
            return EngineApi(engine.address)

        owner = Owner("test", NodeId(node))
        runtimes.append(ContainerRuntime(tmp_path / node, clock=SystemClock(), owner=owner, connect=connect))
        await runtimes[-1].open()
    one, two = runtimes
    try:
        await one.start(request())
        await two.start(request())
        assert engine.running() == ["shoal-n1-web", "shoal-n2-web"]
        await one.stop(RunId("web-1"))
        assert engine.running() == ["shoal-n2-web"]
        await one.forget_workload(WorkloadId("web"), delete_data=True)
        assert await phase_of(two, "web-1") is RunPhase.RUNNING
    finally:
        for each in runtimes:
            await each.close()


async def test_a_process_of_this_machine_is_not_taken_for_one_of_an_engine_elsewhere(
    opened, engine: FakeEngine
) -> None:
    engine.pid = os.getpid()
    runtime = await opened()
    assert (await runtime.start(request())).pid == os.getpid()
    assert await runtime.usage(RunId("web-1")) is None


async def test_an_at_most_one_container_that_no_guard_can_end_is_refused(opened, engine: FakeEngine) -> None:
    engine.pid = os.getpid()  # of no container
    runtime = await opened()
    with pytest.raises(RunError, match="cannot be guarded") as raised:
        await runtime.start(replace(request(), deadline=SystemClock().monotonic() + 600))
    assert raised.value.failure is FailureReason.RUNTIME_ERROR
    assert engine.containers == {}


async def test_an_at_most_one_container_that_ends_at_once_was_started(opened, engine: FakeEngine, monkeypatch) -> None:
    engine.pid = os.getpid()

    def ends(pid: int, container_ids: tuple[str, ...]) -> bool:
        engine.end("shoal-n1-web", 5)
        return False

    monkeypatch.setattr(guard_client, "belongs", ends)
    runtime = await opened()
    await runtime.start(replace(request(), deadline=SystemClock().monotonic() + 600))
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert ended.exit.code == 5
    await until(lambda: not runtime._guard.container_ids)  # it is gone, and its guards end with the runtime

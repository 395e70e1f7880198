"""The compose runtime on a real Podman: the suite of every runtime, and projects of several services."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, ShoalError, UnavailableError
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.execs import ExecEnd
from shoal.model.resources import Resources
from shoal.model.workloads import ComposeSpec, FailureReason, StopPolicy
from shoal.runtimes.base import RunError, RunInfo, RunPhase, RunRequest, Runtime
from shoal.runtimes.compose.command import ComposeCommand, find_command
from shoal.runtimes.compose.interpolation import escape
from shoal.runtimes.compose.runtime import ComposeRuntime
from shoal.runtimes.container.api import EngineApi
from shoal.runtimes.container.connection import Connect
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.finding import PodmanService
from shoal.testing.suites.runtime import RuntimeSuite, read_all, run_command, wait_ended, wait_output
from tests.services.engine import IMAGE, Engine, private_engine

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with private_engine() as made:
        yield made


@pytest.fixture(autouse=True)
def no_guards_left(tmp_path: Path) -> Iterator[None]:
    """Guards wait a minute for more to guard: those of a test end with it."""
    yield
    for path in (tmp_path / "compose-guard").glob("guard*"):
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text().split()[0]), signal.SIGKILL)


@pytest.fixture
async def command() -> ComposeCommand:
    found = await find_command()
    assert found is not None, "podman-compose is not installed"
    return found


class TestCompose(RuntimeSuite):
    __test__ = True

    @pytest.fixture
    def make_runtime(self, tmp_path: Path, service: PodmanService, command: ComposeCommand) -> Callable[[], Runtime]:
        owner = Owner("test", NodeId("n1"))
        return lambda: ComposeRuntime(tmp_path, clock=SystemClock(), owner=owner, connect=service.open, command=command)

    def make_request(
        self,
        script: str,
        *,
        run_id: str = "web-1",
        workload_id: str = "web",
        env: Mapping[str, str] | None = None,
        stop: StopPolicy | None = None,
        ports: Mapping[str, int] | None = None,
        limits: Resources | None = None,
        deadline: float | None = None,
    ) -> RunRequest:
        service = {
            "image": IMAGE,
            "command": ["sh", "-c", escape(script)],
            "environment": list(env or {}),
            "init": True,
        }
        spec = ComposeSpec(
            inline_yaml=json.dumps({"services": {"main": service}}), env=env or {}, stop=stop or StopPolicy()
        )
        return RunRequest(
            run_id=RunId(run_id),
            workload_id=WorkloadId(workload_id),
            spec=spec,
            limits=limits or Resources(),
            ports=ports or {},
            identity={"SHOAL_TEST_IDENTITY": "this one"},
            deadline=None if deadline is None else SystemClock().monotonic() + deadline,
        )

    def make_missing_program(self, run_id: str) -> RunRequest:
        service = {"image": IMAGE, "command": ["/nowhere/no-such-program"]}
        spec = ComposeSpec(inline_yaml=json.dumps({"services": {"main": service}}))
        return RunRequest(run_id=RunId(run_id), workload_id=WorkloadId("web"), spec=spec)


# ---------------------------------------------------------------------------------------------------------
# Projects of several services

SLEEP = {"image": IMAGE, "command": ["sleep", "1000"], "init": True}


def says(text: str, then: str = "exec sleep 1000") -> dict[str, object]:
    return {"image": IMAGE, "command": ["sh", "-c", f"echo {text}; {then}"], "init": True}


def request(services: Mapping[str, object], *, run_id: str = "web-1", generation: int = 1, **top: object) -> RunRequest:
    spec = ComposeSpec(
        inline_yaml=json.dumps({"services": dict(services), **top}), stop=StopPolicy(grace=timedelta(seconds=5))
    )
    return RunRequest(
        run_id=RunId(run_id), workload_id=WorkloadId("web"), spec=spec, revision=f"r{generation}", generation=generation
    )


@pytest.fixture
async def service(engine: Engine) -> AsyncIterator[PodmanService]:
    service = PodmanService(engine.folder / "service", clock=SystemClock(), arguments=engine.arguments)
    yield service
    await service.close()


@pytest.fixture
async def open_runtime(
    tmp_path: Path, service: PodmanService, command: ComposeCommand
) -> AsyncIterator[Callable[[], Awaitable[ComposeRuntime]]]:
    opened: list[ComposeRuntime] = []

    async def open_one(connect: Connect = service.open) -> ComposeRuntime:
        runtime = ComposeRuntime(
            tmp_path, clock=SystemClock(), owner=Owner("test", NodeId("n1")), connect=connect, command=command
        )
        await runtime.open()
        opened.append(runtime)
        return runtime

    yield open_one
    for runtime in opened:
        with suppress(ShoalError):
            for run in await runtime.list_runs():
                await runtime.stop(run.run_id)
            await runtime.forget_workload(WorkloadId("web"), delete_data=True)
        await runtime.close()


async def test_one_crashed_service_fails_the_run_and_ends_the_others(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], engine: Engine
) -> None:
    runtime = await open_runtime()
    services = {"db": says("ready"), "job": says("one; echo two", "exit 0"), "web": says("up", "sleep 1; exit 3")}
    started = await runtime.start(request(services))
    assert started.services == {"db": "running", "job": "running", "web": "running"}
    labels = engine.podman("ps", "-a", "--format", "{{.Labels}}", "--filter", "label=shoal.compose-run=web-1")
    for label in ("shoal.cluster:test", "shoal.node:n1", "shoal.workload:web", "shoal.revision:r1"):
        assert labels.count(label) == 3
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert (ended.exit.code, ended.ended_by) == (3, "")
    assert ended.services == {"db": "killed by signal 15", "job": "exited (0)", "web": "exited (3)"}
    lines = (await read_all(runtime)).decode().splitlines()
    assert sorted(lines) == ["db | ready", "job | one", "job | two", "web | up"]
    async with asyncio.timeout(30):
        # The end is stored first, then the project is removed.
        while engine.containers() or "shoal-n1-web_default" in engine.podman("network", "ls", "-q").split():
            await asyncio.sleep(0.1)


async def test_an_update_replaces_what_changed_and_keeps_volumes(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], engine: Engine
) -> None:
    runtime = await open_runtime()
    db = {**says("db", "echo kept > /data/file; exec sleep 1000"), "volumes": ["data:/data"]}
    first = {"db": db, "web": says("old"), "extra": SLEEP}
    await runtime.start(request(first, volumes={"data": None}))
    await wait_output(runtime, b"web | old\n")
    before = engine.podman("ps", "--format", "{{.Names}} {{.ID}}").split()
    second = {"db": db, "web": {**says("new; cat /data/file"), "volumes": ["data:/data"]}}
    updated = await runtime.update(RunId("web-1"), request(second, generation=2, volumes={"data": None}))
    assert (updated.run_id, dict(updated.services)) == ("web-1", {"db": "running", "web": "running"})
    await wait_output(runtime, b"web | new\nweb | kept\n")
    after = engine.podman("ps", "--format", "{{.Names}} {{.ID}}").split()
    assert set(before) & set(after) == {
        "shoal-n1-web_db_1",
        before[before.index("shoal-n1-web_db_1") + 1],
        "shoal-n1-web_web_1",
    }
    # A project that cannot be started leaves the one that runs.
    broken = {"db": db, "web": {"image": IMAGE, "command": ["/nowhere/no-such-program"]}}
    with pytest.raises(RunError):
        await runtime.update(RunId("web-1"), request(broken, generation=3, volumes={"data": None}))
    info = await runtime.inspect(RunId("web-1"))
    assert info is not None
    assert (info.phase, dict(info.services)) == (RunPhase.RUNNING, {"db": "running", "web": "running"})


class SlowApi(EngineApi):
    """An engine whose next list of containers is on its way while something else happens."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def containers(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        found = await super().containers(labels)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return found


async def test_an_update_while_containers_are_listed_ends_nothing(
    open_runtime: Callable[..., Awaitable[ComposeRuntime]], service: PodmanService
) -> None:
    found = await service.open()
    await found.close()
    api = SlowApi(found.address)

    async def connect() -> EngineApi:
        return api

    runtime = await open_runtime(connect)
    await runtime.start(request({"web": says("one")}))
    updates: list[asyncio.Task[RunInfo]] = []

    async def update() -> None:
        is_locked = runtime._lock(WorkloadId("web")).locked()
        new = request({"web": says("two")}, generation=2)
        updates.append(asyncio.create_task(runtime.update(RunId("web-1"), new)))
        if not is_locked:
            await updates[0]

    api.meanwhile = update
    async with asyncio.timeout(60):
        while not updates:
            await runtime.inspect(RunId("web-1"))
            await asyncio.sleep(0.01)
        await updates[0]
    info = await runtime.inspect(RunId("web-1"))
    assert info is not None
    assert (info.phase, dict(info.services)) == (RunPhase.RUNNING, {"web": "running"})


@pytest.mark.parametrize(("delete_data", "expected"), [(None, "kept"), (False, "kept"), (True, "none")])
async def test_volumes_go_only_with_a_delete_that_says_so(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], delete_data: bool | None, expected: str
) -> None:
    runtime = await open_runtime()
    writes = {**says("write", "echo kept > /data/file; exit 1"), "volumes": ["data:/data"]}
    await runtime.start(request({"web": writes}, volumes={"data": None}))
    await wait_ended(runtime, "web-1")
    if delete_data is not None:
        await runtime.forget_workload(WorkloadId("web"), delete_data=delete_data)
    reads = {**says("read", "cat /data/file || echo none; exit 0"), "volumes": ["data:/data"]}
    await runtime.start(request({"web": reads}, run_id="web-2", volumes={"data": None}))
    assert expected in (await wait_ended(runtime, "web-2")).last_output


async def test_a_project_comes_from_a_repository(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    for words in (("init", "-q", "-b", "main"), ("config", "user.email", "a@b"), ("config", "user.name", "a")):
        subprocess.run(["git", *words], cwd=repository, check=True)
    for version in ("one", "two"):
        project = {"services": {"web": {**says("$VERSION"), "env_file": "settings"}}}
        (repository / "compose.yaml").write_text(json.dumps(project).replace("$VERSION", "$$VERSION"))
        (repository / "settings").write_text(f"VERSION={version}\n")
        subprocess.run(["git", "add", "."], cwd=repository, check=True)
        subprocess.run(["git", "commit", "-q", "-m", version], cwd=repository, check=True)
        subprocess.run(["git", "tag", version], cwd=repository, check=True)
    runtime = await open_runtime()
    spec = ComposeSpec(source_type="git", git_repo=str(repository), git_ref="one")
    run = RunRequest(run_id=RunId("web-1"), workload_id=WorkloadId("web"), spec=spec)
    await runtime.start(run)
    await wait_output(runtime, b"one\n")
    await runtime.stop(RunId("web-1"))
    await runtime.start(replace(run, run_id=RunId("web-2"), spec=replace(spec, git_ref="two")))
    await wait_output(runtime, b"two\n")
    with pytest.raises(RunError) as raised:
        await runtime.prepare(replace(run, spec=replace(spec, git_ref="missing")))
    assert raised.value.transient
    assert "missing" in raised.value.message


@pytest.mark.parametrize(
    ("broken", "failure", "transient"),
    [
        ({"image": "localhost/nowhere:1", "pull_policy": "never"}, FailureReason.IMAGE_NOT_FOUND, False),
        ({"image": IMAGE, "privileged": True}, FailureReason.INVALID_SPEC, False),
        ({"image": IMAGE, "comand": "x"}, FailureReason.INVALID_SPEC, False),
    ],
    ids=["image", "privileged", "key"],
)
async def test_a_project_that_cannot_run_is_refused_before_anything_is_touched(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]],
    engine: Engine,
    broken: dict[str, object],
    failure: FailureReason,
    transient: bool,
) -> None:
    runtime = await open_runtime()
    with pytest.raises(RunError) as raised:
        await runtime.start(request({"db": SLEEP, "web": broken}))
    assert (raised.value.failure, raised.value.transient) == (failure, transient)
    assert engine.containers() == []


async def test_a_taken_port_leaves_nothing(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], engine: Engine
) -> None:
    runtime = await open_runtime()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        web = {**SLEEP, "ports": [f"127.0.0.1:{taken.getsockname()[1]}:80"]}
        with pytest.raises(RunError) as raised:
            await runtime.start(request({"db": SLEEP, "web": web}))
    assert (raised.value.failure, raised.value.transient) == (FailureReason.NETWORK_ERROR, True)
    assert engine.containers() == []
    assert await runtime.list_runs() == ()


@pytest.mark.parametrize("step", ["created", "started", "stored"])
async def test_a_start_that_was_cut_off_is_done_once(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]],
    engine: Engine,
    tmp_path: Path,
    step: str,
) -> None:
    """What an agent leaves that is killed between the steps of a start."""
    first = await open_runtime()
    run = request({"db": SLEEP, "web": says("up")})
    started = await first.start(run)
    await first.close()
    if step != "stored":
        (tmp_path / "compose" / "web-1.json").unlink()
    if step == "created":
        engine.podman("rm", "-f", "-t", "0", "shoal-n1-web_db_1")
    second = await open_runtime()
    info = await second.start(run)
    assert info.phase is RunPhase.RUNNING
    assert dict(info.services) == {"db": "running", "web": "running"}
    assert len(engine.containers()) == 2
    assert (info.pid == started.pid) == (step != "created")
    assert len(await second.list_runs()) == 1


async def test_a_project_without_a_record_is_known_at_once_and_ends_before_the_next(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], engine: Engine, tmp_path: Path
) -> None:
    """What an agent leaves that is killed between the start of a project and its record."""
    first = await open_runtime()
    started = await first.start(request({"db": SLEEP, "web": says("up")}))
    await first.close()
    (tmp_path / "compose" / "web-1.json").unlink()
    second = await open_runtime()
    assert [(run.run_id, run.phase) for run in await second.list_runs()] == [("web-1", RunPhase.RUNNING)]
    info = await second.start(request({"db": SLEEP, "web": says("up")}, run_id="web-2"))
    assert (info.phase, info.pid != started.pid) == (RunPhase.RUNNING, True)
    before = await second.inspect(RunId("web-1"))
    assert before is not None
    assert (before.phase, before.ended_by) == (RunPhase.ENDED, "stop")
    assert len(engine.containers()) == 2


async def test_a_restart_of_the_engine_loses_nothing(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], service: PodmanService
) -> None:
    runtime = await open_runtime()
    await runtime.start(request({"db": SLEEP, "web": says("up")}))
    await wait_output(runtime, b"up\n")
    await service.close()
    await wait_until_health(runtime, "unhealthy")
    assert [run.phase for run in await runtime.list_runs()] == [RunPhase.RUNNING]
    with pytest.raises(UnavailableError):
        await runtime.start(request({"db": SLEEP}, run_id="web-2"))
    await (await service.open()).close()
    await wait_until_health(runtime, "healthy")
    info = await runtime.inspect(RunId("web-1"))
    assert info is not None
    assert info.services == {"db": "running", "web": "running"}


async def test_projects_of_others_are_left_alone(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], engine: Engine
) -> None:
    theirs = {"com.docker.compose.project": "shoal-n1-web", "shoal.cluster": "other", "shoal.node": "n1"}
    labels = [word for name, value in theirs.items() for word in ("--label", f"{name}={value}")]
    engine.podman("create", "--name", "theirs", *labels, IMAGE, "true")
    runtime = await open_runtime()
    with pytest.raises(RunError, match="not this agent's"):
        await runtime.start(request({"web": SLEEP}))
    await runtime.forget_workload(WorkloadId("web"), delete_data=True)
    assert engine.containers() == ["theirs"]
    engine.podman("rm", "theirs")


async def wait_until_health(runtime: ComposeRuntime, word: str) -> None:
    async with asyncio.timeout(30):
        while not (await runtime.health()).startswith(word):
            await asyncio.sleep(0.05)


# ---------------------------------------------------------------------------------------------------------
# Commands inside a service


async def test_commands_inside_a_named_service(open_runtime: Callable[[], Awaitable[ComposeRuntime]]) -> None:
    runtime = await open_runtime()
    await runtime.start(request({"db": SLEEP, "web": {**SLEEP, "environment": {"COLOR": "green"}}}))
    stdout, _, end = await run_command(runtime, "sh", "-c", "echo in $COLOR", service="web")
    assert (stdout, end) == (b"in green\n", ExecEnd())
    assert (await run_command(runtime, "sh", "-c", "echo in $COLOR", service="db"))[0] == b"in\n"
    _, stderr, end = await run_command(runtime, "/nowhere/no-such-program", service="db")
    assert (b"no-such-program" in stderr, end) == (True, ExecEnd(code=127))
    with pytest.raises(InvalidError, match="must be one of the services db, web"):
        await run_command(runtime, "true")

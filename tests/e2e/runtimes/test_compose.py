"""The compose runtime on a real Podman: the suite of every runtime, and projects of several services."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import InvalidError, NotFoundError, ShoalError, UnavailableError
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.execs import ExecEnd
from shoal.model.resources import Resources
from shoal.model.workloads import ComposeSpec, FailureReason, FileSpec, StopPolicy
from shoal.runtimes.base import RunError, RunInfo, RunPhase, RunRequest, Runtime
from shoal.runtimes.compose import runtime as compose_runtime
from shoal.runtimes.compose.command import ComposeCommand
from shoal.runtimes.compose.interpolation import escape
from shoal.runtimes.compose.runtime import ComposeRuntime
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine import connection
from shoal.runtimes.container.engine.api import EngineApi
from shoal.runtimes.container.engine.connection import Connect
from shoal.runtimes.container.engine.finding import PodmanService
from shoal.runtimes.guard import client as guard_client
from shoal.testing.suites.runtime import RuntimeSuite, read_all, run_command, wait_ended, wait_output
from tests.e2e.runtimes.containers import compose_command, connect_to, make_repository
from tests.e2e.runtimes.processes import is_alive, wait_until
from tests.services.disks import fill, small_disk
from tests.services.engine import IMAGE, Engine, engine_service, private_engine

pytestmark = pytest.mark.e2e

#: Of this process alone: the networks of all engines on a machine have rules in one firewall, by their names.
NODE = NodeId(f"n{secrets.token_hex(3)}")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with private_engine() as made:
        yield made


@pytest.fixture(scope="module")
def connect(engine: Engine) -> Iterator[Connect]:
    """Connects to the API of the engine, which no test of the suite stops."""
    with engine_service(engine) as address:
        yield partial(connect_to, address)


@pytest.fixture(autouse=True)
def no_guards_left(tmp_path: Path) -> Iterator[None]:
    """Guards wait a minute for more to guard: those of a test end with it."""
    yield
    for path in (tmp_path / "compose-guard").glob("guard*"):
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text().split()[0]), signal.SIGKILL)


@pytest.fixture
def command() -> ComposeCommand:
    return compose_command()


class TestCompose(RuntimeSuite):
    __test__ = True

    @pytest.fixture
    def make_runtime(self, tmp_path: Path, connect: Connect, command: ComposeCommand) -> Callable[[], Runtime]:
        owner = Owner("test", NODE)
        return lambda: ComposeRuntime(tmp_path, clock=SystemClock(), owner=owner, connect=connect, command=command)

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

    async def open_one(connect: Connect = service.open, command: ComposeCommand = command) -> ComposeRuntime:
        runtime = ComposeRuntime(
            tmp_path, clock=SystemClock(), owner=Owner("test", NODE), connect=connect, command=command
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
    for label in ("shoal.cluster:test", f"shoal.node:{NODE}", "shoal.workload:web", "shoal.revision:r1"):
        assert labels.count(label) == 3
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert (ended.exit.code, ended.ended_by) == (3, "")
    assert ended.services == {"db": "killed by signal 15", "job": "exited (0)", "web": "exited (3)"}
    lines = (await read_all(runtime)).decode().splitlines()
    assert sorted(lines) == ["db | ready", "job | one", "job | two", "web | up"]
    async with asyncio.timeout(30):
        # The end is stored first, then the project is removed.
        while engine.containers() or f"shoal-{NODE}-web_default" in engine.podman("network", "ls", "-q").split():
            await asyncio.sleep(0.1)


async def test_a_service_that_ends_during_the_start_is_noticed_without_another_event(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_COMPARE_SECONDS", 3600.0)
    runtime = await open_runtime()
    await runtime.start(request({"db": says("up", "exit 3"), "web": says("up", "exit 3")}))
    # Asked for, it would look: the agent is told.
    async with asyncio.timeout(30):
        ended = await anext(runtime.watch())
    assert ended.exit is not None
    assert ended.exit.code == 3


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
        f"shoal-{NODE}-web_db_1",
        before[before.index(f"shoal-{NODE}-web_db_1") + 1],
        f"shoal-{NODE}-web_web_1",
    }
    # A project that cannot be started leaves the one that runs.
    broken = {"db": db, "web": {"image": IMAGE, "command": ["/nowhere/no-such-program"]}}
    with pytest.raises(RunError):
        await runtime.update(RunId("web-1"), request(broken, generation=3, volumes={"data": None}))
    info = await runtime.inspect(RunId("web-1"))
    assert info is not None
    assert (info.phase, dict(info.services)) == (RunPhase.RUNNING, {"db": "running", "web": "running"})


def pids(engine: Engine) -> dict[str, str]:
    words = engine.podman("ps", "--format", "{{.Names}} {{.Pid}}").split()
    return dict(zip(words[::2], words[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class HangingCommand(ComposeCommand):
    """Does its work and does not return, so that the agent can be killed meanwhile."""

    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, *arguments: Any, **options: Any) -> None:
        await ComposeCommand.run(self, *arguments, **options)
        self.done.set()
        await asyncio.Event().wait()


SECRET = "correct-horse-battery"


def web_of(name: str) -> dict[str, object]:
    script = f"cat /conf/name; echo $$PASSWORD {name}; exec sleep 1000"
    return {**says("web", script), "environment": ["PASSWORD"], "volumes": ["./conf:/conf:ro"]}


def version(name: str, services: Mapping[str, object], generation: int) -> RunRequest:
    """A project with a secret and a file, both of which have the name of the version in them."""
    made = request(services, generation=generation)
    return replace(
        made,
        spec=replace(made.spec, env_from_secrets={"PASSWORD": "pw"}),
        secrets={"PASSWORD": f"{SECRET}-{name}"},
        files=((FileSpec(path="conf/name"), f"{name}\n".encode()),),
    )


@pytest.mark.parametrize("how", ["fails", "is cut off"])
async def test_an_update_that_fails_after_a_restart_of_the_agent_is_undone(
    open_runtime: Callable[..., Awaitable[ComposeRuntime]],
    engine: Engine,
    command: ComposeCommand,
    tmp_path: Path,
    how: str,
) -> None:
    """The project returns with its variables, secrets and files. No secret lies on the disk."""
    first = await open_runtime()
    await first.start(version("one", {"db": SLEEP, "web": web_of("one")}, 1))
    said = f"web | one\nweb | {SECRET}-one one\n"
    await wait_output(first, said.encode())
    before = pids(engine)
    await first.close()
    if how == "fails":
        second = await open_runtime()
        broken = {"image": IMAGE, "command": ["/nowhere/no-such-program"]}
        with pytest.raises(RunError):
            await second.update(RunId("web-1"), version("two", {"db": SLEEP, "web": broken, "new": SLEEP}, 2))
    else:
        hanging = HangingCommand(command.arguments)
        cut_off = await open_runtime(command=hanging)
        newer = version("two", {"db": SLEEP, "web": web_of("two"), "new": SLEEP}, 2)
        updating = asyncio.ensure_future(cut_off.update(RunId("web-1"), newer))
        await hanging.done.wait()
        assert len(pids(engine)) == 3
        updating.cancel()
        await asyncio.wait({updating})
        await cut_off.close()
        second = await open_runtime()
    async with asyncio.timeout(60):
        while pids(engine).keys() != before.keys():
            info = await second.inspect(RunId("web-1"))
            assert info is not None
            assert info.phase is RunPhase.RUNNING
            await asyncio.sleep(0.1)
    assert pids(engine)[f"shoal-{NODE}-web_db_1"] == before[f"shoal-{NODE}-web_db_1"]
    output = (await wait_output(second, f"{said}web | web\n{said}".encode())).decode()
    assert output.count(said) == 2
    info = await second.inspect(RunId("web-1"))
    assert info is not None
    assert (info.phase, dict(info.services)) == (RunPhase.RUNNING, {"db": "running", "web": "running"})
    on_disk = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert [path for path in on_disk if path.parent.name != "logs"] == []
    # The same update, without its mistake, succeeds.
    await second.update(RunId("web-1"), version("three", {"db": SLEEP, "web": web_of("three")}, 3))
    await wait_output(second, f"{SECRET}-three three\n".encode())
    await second.stop(RunId("web-1"))
    await second.forget(RunId("web-1"))
    assert list((tmp_path / "compose").glob("web-1*")) == []


@pytest.mark.parametrize("has_record", [True, False])
async def test_replaced_files_are_those_that_a_rollback_returns_to(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], tmp_path: Path, has_record: bool
) -> None:
    """Also of a project whose record was lost with an agent, as far as it is known."""
    runtime = await open_runtime()
    older = version("one", {"web": web_of("one")}, 1)
    await runtime.start(older)
    await wait_output(runtime, b"one\n")
    if not has_record:
        await runtime.close()
        (tmp_path / "compose" / "web-1.json").unlink()
        runtime = await open_runtime()
    await runtime.replace_files(RunId("web-1"), ((older.files[0][0], b"rotated\n"),))
    assert await run_command(runtime, "cat", "/conf/name") == (b"rotated\n", b"", ExecEnd())
    with pytest.raises(NotFoundError):
        await runtime.replace_files(RunId("nobody"), ())
    if has_record:
        broken = {"image": IMAGE, "command": ["/nowhere/no-such-program"]}
        with pytest.raises(RunError):
            await runtime.update(RunId("web-1"), version("two", {"web": broken}, 2))
        await wait_output(runtime, f"rotated\n{SECRET}-one one\n".encode())


async def test_what_an_update_adds_to_an_at_most_one_project_is_guarded_and_asked_to_end_before_it_is_killed(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], engine: Engine
) -> None:
    runtime = await open_runtime()
    until = SystemClock().monotonic() + 600
    await runtime.start(replace(request({"db": SLEEP}), deadline=until))
    web = says("up", 'trap "echo bye; exit 0" TERM; while :; do sleep 0.05; done')
    newer = replace(request({"db": SLEEP, "web": web}, generation=2), deadline=until)
    await runtime.update(RunId("web-1"), newer)
    members = runtime._records.runs[RunId("web-1")].members
    assert len(members) == 2
    assert all(runtime._guard.seconds_left(each.container_id) for each in members)
    await wait_output(runtime, b"web | up\n")
    await runtime.extend_deadlines((RunId("web-1"),), SystemClock().monotonic() + 6)
    ended = await wait_ended(runtime, "web-1")
    assert ended.ended_by == "deadline"
    assert dict(ended.services) == {"db": "killed by signal 15", "web": "exited (0)"}
    assert b"web | bye\n" in await read_all(runtime)
    assert pids(engine) == {}


async def test_an_at_most_one_project_that_no_guard_can_end_is_refused(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for an agent that runs in a container itself: the processes of its engine are out of its sight."""
    runtime = await open_runtime()
    monkeypatch.setattr(guard_client, "belongs", lambda pid, ids: False)
    with pytest.raises(RunError, match="cannot be guarded") as raised:
        await runtime.start(replace(request({"db": SLEEP}), deadline=SystemClock().monotonic() + 600))
    assert (raised.value.failure, raised.value.transient) == (FailureReason.RUNTIME_ERROR, False)
    assert engine.containers() == []
    assert runtime._guard.container_ids == frozenset()


async def test_an_at_most_one_project_without_guards_is_killed_by_the_next_agent(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], tmp_path: Path
) -> None:
    first = await open_runtime()
    await first.start(replace(request({"db": SLEEP, "web": SLEEP}), deadline=SystemClock().monotonic() + 600))
    await first.close()
    guards = [int(path.read_text().split()[0]) for path in (tmp_path / "compose-guard").glob("guard*")]
    for guard in guards:
        os.kill(guard, signal.SIGKILL)
    # The next agent would take over the deadline of a guard that is still dying.
    await wait_until(lambda: not any(map(is_alive, guards)))
    second = await open_runtime()
    assert (await wait_ended(second, "web-1")).ended_by == "deadline"


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_stop_ends_what_an_interrupted_start_left(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], engine: Engine, tmp_path: Path, is_whole: bool
) -> None:
    first = await open_runtime()
    await first.start(request({"db": SLEEP, "web": SLEEP}))
    await first.close()
    (tmp_path / "compose" / "web-1.json").unlink()
    if not is_whole:
        engine.podman("rm", "-f", "-t", "0", f"shoal-{NODE}-web_db_1")
    second = await open_runtime()
    ended = await second.stop(RunId("web-1"))
    assert (ended is not None) is is_whole
    assert pids(engine) == {}
    async with asyncio.timeout(30):
        while engine.containers():
            await asyncio.sleep(0.1)


async def test_a_project_without_a_record_has_not_stopped_while_the_engine_is_away(
    open_runtime: Callable[..., Awaitable[ComposeRuntime]], service: PodmanService, engine: Engine, tmp_path: Path
) -> None:
    first = await open_runtime()
    await first.start(request({"db": SLEEP, "web": SLEEP}))
    await first.close()
    (tmp_path / "compose" / "web-1.json").unlink()
    is_away = True

    async def connect() -> EngineApi:
        if is_away:
            raise UnavailableError("switched off")
        return await service.open()

    second = await open_runtime(connect)
    web = WorkloadId("web")
    for call in (second.inspect(RunId("web-1")), second.stop(RunId("web-1"))):
        with pytest.raises(UnavailableError):
            await call
    with pytest.raises(UnavailableError):
        await second.forget_workload(web, delete_data=True)
    assert len(pids(engine)) == 2
    is_away = False
    async with asyncio.timeout(60):
        while not await second.list_runs():
            await asyncio.sleep(0.05)
    assert (await second.stop(RunId("web-1"))).ended_by == "stop"
    assert pids(engine) == {}


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


async def test_what_is_listed_by_labels_carries_all_of_them(connect: Connect, engine: Engine) -> None:
    """Podman 4 lists volumes that carry any of them: a delete would remove those of other workloads."""
    api = await connect()
    ours = {"shoal.node": NODE, "shoal.workload": "one"}
    for name in ("one", "two"):
        labels = {**ours, "shoal.workload": name}
        words = [f"--label={key}={value}" for key, value in labels.items()]
        await api.create_volume(f"{NODE}-{name}", labels)
        await api.create_network(f"{NODE}-{name}", labels)
        engine.podman("create", "--name", f"{NODE}-{name}", *words, IMAGE, "true")
    try:
        assert await api.volumes(ours) == [f"{NODE}-one"]
        assert await api.networks(ours) == [f"{NODE}-one"]
        assert [each["Names"] for each in await api.containers(ours)] == [[f"/{NODE}-one"]]
    finally:
        for name in ("one", "two"):
            await api.remove(f"{NODE}-{name}")
            await api.remove_volume(f"{NODE}-{name}")
            await api.remove_network(f"{NODE}-{name}")
        await api.close()


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
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], engine: Engine, tmp_path: Path
) -> None:
    """A new commit replaces the services that take its files, although their definitions are the same. Data that a
    service keeps in the project's directory is none of them.
    """
    script = "cat /word /data/last 2>/dev/null; echo last $$VERSION > /data/last; echo $$VERSION; exec sleep 1000"
    web = {**says("up", script), "env_file": "settings", "volumes": ["./word:/word:ro", "./data:/data"]}
    db = {**SLEEP, "volumes": ["./data:/data"]}
    compose = json.dumps({"services": {"db": db, "web": web}})
    versions = {
        version: {"compose.yaml": compose, "settings": f"VERSION={version}\n", "word": f"file {version}\n"}
        for version in ("one", "two")
    }
    repository = make_repository(tmp_path, **versions)
    runtime = await open_runtime()
    spec = ComposeSpec(source_type="git", git_repo=str(repository), git_ref="one")
    run = RunRequest(run_id=RunId("web-1"), workload_id=WorkloadId("web"), spec=spec)
    await runtime.start(run)
    await wait_output(runtime, b"web | file one\nweb | one\n")
    before = pids(engine)
    newer = replace(run, spec=replace(spec, git_ref="two"), generation=2)
    await runtime.prepare(newer)
    await runtime.update(RunId("web-1"), newer)
    await wait_output(runtime, b"web | file two\nweb | last one\nweb | two\n")
    assert pids(engine)[f"shoal-{NODE}-web_db_1"] == before[f"shoal-{NODE}-web_db_1"]
    with pytest.raises(RunError) as raised:
        await runtime.prepare(replace(run, spec=replace(spec, git_ref="missing")))
    assert (raised.value.failure, raised.value.transient) == (FailureReason.INVALID_SPEC, False)
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


async def test_a_command_that_takes_too_long_has_failed_and_leaves_nothing(
    open_runtime: Callable[..., Awaitable[ComposeRuntime]],
    engine: Engine,
    command: ComposeCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text(f'#!/bin/sh\n{" ".join(command.arguments)} "$@"\nexec sleep 1000\n')
    hangs.chmod(0o755)
    runtime = await open_runtime(command=ComposeCommand((str(hangs),)))
    monkeypatch.setattr(compose_runtime, "_UP_SECONDS", 3.0)
    with pytest.raises(RunError, match="hangs takes longer than 3 s") as raised:
        await runtime.start(request({"db": SLEEP}))
    assert (raised.value.failure, raised.value.transient) == (FailureReason.RUNTIME_ERROR, True)
    assert engine.containers() == []


#: What the engine has to make first for a project, and on a full disk cannot.
FIRST_MADE: dict[str, dict[str, dict[str, object]]] = {
    "network": {"service": {}, "top": {}},
    "volume": {"service": {"network_mode": "none", "volumes": ["data:/data"]}, "top": {"volumes": {"data": None}}},
    "container": {"service": {"network_mode": "none"}, "top": {}},
}


@pytest.mark.parametrize("first_made", FIRST_MADE)
async def test_a_project_starts_once_when_a_full_disk_of_the_engine_has_room_again(
    tmp_path: Path, command: ComposeCommand, first_made: str
) -> None:
    with private_engine(size="24m") as small:
        service = PodmanService(small.folder / "service", clock=SystemClock(), arguments=small.arguments)
        owner = Owner("test", NODE)
        runtime = ComposeRuntime(tmp_path, clock=SystemClock(), owner=owner, connect=service.open, command=command)
        made = FIRST_MADE[first_made]
        run = request({name: {**SLEEP, **made["service"]} for name in ("db", "web")}, **made["top"])
        filling = small.folder / "filling"
        try:
            await runtime.open()
            fill(filling)
            with pytest.raises(RunError, match=r"(?i)no space left") as raised:
                await runtime.start(run)
            assert (raised.value.failure, raised.value.transient) == (FailureReason.STORAGE_ERROR, True)
            assert pids(small) == {}
            filling.unlink()
            info = await runtime.start(run)
            assert dict(info.services) == {"db": "running", "web": "running"}
            assert len(pids(small)) == 2
            assert "trial" not in small.podman("network", "ls") + small.podman("volume", "ls")
            await runtime.stop(RunId("web-1"))
        finally:
            filling.unlink(missing_ok=True)
            await runtime.close()
            await service.close()


async def test_a_project_starts_and_ends_while_the_disk_of_its_agent_is_full(
    tmp_path: Path, command: ComposeCommand, engine: Engine, service: PodmanService
) -> None:
    with small_disk(tmp_path / "agent", megabytes=2) as data_dir:
        owner = Owner("test", NODE)
        runtime = ComposeRuntime(data_dir, clock=SystemClock(), owner=owner, connect=service.open, command=command)
        try:
            await runtime.open()
            fill(data_dir / "filling")
            info = await runtime.start(request({"db": SLEEP, "web": SLEEP}))
            assert dict(info.services) == {"db": "running", "web": "running"}
            ended = await runtime.stop(RunId("web-1"))
            assert ended is not None
            assert (ended.phase, ended.ended_by) == (RunPhase.ENDED, "stop")
            await runtime.forget_workload(WorkloadId("web"), delete_data=True)
            assert await runtime.list_runs() == ()
            assert engine.containers() == []
        finally:
            await runtime.close()


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
        engine.podman("rm", "-f", "-t", "0", f"shoal-{NODE}-web_db_1")
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


async def test_an_engine_that_is_killed_and_started_again_loses_nothing(
    open_runtime: Callable[..., Awaitable[ComposeRuntime]], service: PodmanService
) -> None:
    is_away = False

    async def connect() -> EngineApi:
        if is_away:
            raise UnavailableError("switched off")
        return await service.open()

    runtime = await open_runtime(connect)
    await runtime.start(request({"db": SLEEP, "web": says("up")}))
    await wait_output(runtime, b"up\n")
    is_away = True
    os.kill(service.pid, signal.SIGKILL)
    await wait_until_health(runtime, "unhealthy")
    assert [run.phase for run in await runtime.list_runs()] == [RunPhase.RUNNING]
    with pytest.raises(UnavailableError):
        await runtime.start(request({"db": SLEEP}, run_id="web-2"))
    is_away = False
    await wait_until_health(runtime, "healthy")
    info = await runtime.inspect(RunId("web-1"))
    assert info is not None
    assert info.services == {"db": "running", "web": "running"}


async def test_projects_of_others_are_left_alone(
    open_runtime: Callable[[], Awaitable[ComposeRuntime]], engine: Engine
) -> None:
    theirs = {"com.docker.compose.project": f"shoal-{NODE}-web", "shoal.cluster": "other", "shoal.node": NODE}
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

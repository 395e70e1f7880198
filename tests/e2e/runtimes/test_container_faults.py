"""What the container runtime does when images, disks, engine, guards and agent fail, on a real Podman."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import UnavailableError
from shoal.core.ids import RunId, WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import FailureReason, PortMapping, VolumeMount
from shoal.runtimes.base import RunError, RunPhase
from shoal.runtimes.container import images
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine.choice import CHOICE_FILE, EngineChoice
from shoal.runtimes.container.engine.finding import EngineFinder, PodmanService, find_service_pids
from shoal.runtimes.container.runtime import ContainerRuntime
from shoal.runtimes.finding import has_runs
from shoal.testing.suites.runtime import read_all, wait_ended, wait_output
from tests.e2e.runtimes.containers import (
    RUNTIMES,
    OpenContainers,
    OwnContainers,
    engine,
    open_containers,
    own_containers,
    owner,
    project,
    random_layer,
    registry,
    request,
    service,
)
from tests.e2e.runtimes.processes import is_alive, wait_until
from tests.services.disks import fill, small_disk
from tests.services.engine import Engine, private_engine, root_file_system
from tests.services.registry import Registry, serve_registry

__all__ = ["engine", "open_containers", "own_containers", "owner", "registry", "service"]

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
StartAgent = Callable[..., subprocess.Popen[str]]


# ---------------------------------------------------------------------------------------------------------
# Reasons


async def failure_of(runtime: ContainerRuntime, **fields: object) -> tuple[FailureReason, bool]:
    before = await runtime.list_runs()
    with pytest.raises(RunError) as raised:
        await runtime.start(request(**fields))
    assert await runtime.list_runs() == before
    return raised.value.failure, raised.value.transient


@pytest.mark.parametrize(
    ("fields", "reason", "transient"),
    [
        ({"image": "localhost/nothing:1", "pull_policy": "never"}, FailureReason.IMAGE_NOT_FOUND, False),
        ({"image": "NOT A NAME"}, FailureReason.INVALID_SPEC, False),
        ({"image": "127.0.0.1:1/nobody:1"}, FailureReason.IMAGE_PULL_FAILED, True),
        ({"command": ("/nowhere/program",), "init": False}, FailureReason.INVALID_SPEC, False),
        ({"command": ("/etc",), "init": False}, FailureReason.INVALID_SPEC, False),
        ({"user": "stranger"}, FailureReason.INVALID_SPEC, False),
        ({"given": {"limits": Resources(memory_mb=1)}}, FailureReason.INVALID_SPEC, False),
    ],
    ids=["no image", "no name", "no registry", "no program", "not a program", "no user", "too little memory"],
)
async def test_a_container_that_cannot_be_started_says_why(
    open_containers: OpenContainers,
    own_containers: OwnContainers,
    fields: dict[str, object],
    reason: FailureReason,
    transient: bool,
) -> None:
    assert await failure_of(await open_containers(), **fields) == (reason, transient)
    assert own_containers() == []


async def test_a_taken_port_is_a_network_error(open_containers: OpenContainers) -> None:
    runtime = await open_containers()
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        ports = (PortMapping(container_port=80, host_port=taken.getsockname()[1]),)
        assert await failure_of(runtime, ports=ports) == (FailureReason.NETWORK_ERROR, True)
    assert (await runtime.start(request(ports=ports))).phase is RunPhase.RUNNING


async def test_images_are_pulled_by_policy_and_with_a_login(
    open_containers: OpenContainers, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await open_containers()
    image = registry.add("pulled", "1", root_file_system(), {"Cmd": ["sh"]})
    missing = f"127.0.0.1:{registry.port}/pulled:2"
    never = {"image": image, "pull_policy": "never"}
    assert await failure_of(runtime, **never) == (FailureReason.IMAGE_NOT_FOUND, False)
    assert await failure_of(runtime, image=missing) == (FailureReason.IMAGE_NOT_FOUND, False)
    logins = tmp_path / "logins.json"
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(logins))
    registry.login = "reader:right"
    try:
        assert await failure_of(runtime, image=image) == (FailureReason.IMAGE_PULL_FAILED, False)
        for password, works in (("wrong", False), ("right", True)):
            login = base64.b64encode(f"reader:{password}".encode()).decode()
            logins.write_text(json.dumps({"auths": {f"127.0.0.1:{registry.port}": {"auth": login}}}))
            if not works:
                assert await failure_of(runtime, image=image) == (FailureReason.IMAGE_PULL_FAILED, False)
        assert (await runtime.start(request(image=image))).phase is RunPhase.RUNNING
        await runtime.stop(RunId("web-1"))
        registry.broken_with = 503
        # What the engine has needs no registry, unless the policy says so.
        await runtime.start(request("exit 0", run_id="web-2", image=image))
        await wait_ended(runtime, "web-2")
        with pytest.raises(RunError) as raised:
            await runtime.start(request(run_id="web-3", image=image, pull_policy="always"))
        assert (raised.value.failure, raised.value.transient) == (FailureReason.IMAGE_PULL_FAILED, True)
        registry.broken_with = 0
        pulls = registry.pulls
        await runtime.start(request("exit 0", run_id="web-3", image=image, pull_policy="always"))
        assert registry.pulls > pulls
    finally:
        registry.login, registry.broken_with = "", 0


async def test_a_pull_that_hangs_is_interrupted_or_fails_and_keeps_no_other_run_from_its_start(
    open_containers: OpenContainers, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await open_containers()
    slow = [registry.add(f"slow{number}", "1", random_layer(1 << 20), {"Cmd": ["sh"]}) for number in range(9)]
    registry.hangs = True
    try:
        fetches = [
            asyncio.ensure_future(runtime.fetch(request(run_id=f"slow{number}-1", image=image)))
            for number, image in enumerate(slow)
        ]
        await wait_until(lambda: registry.hanging >= 8)
        assert (await runtime.start(request(run_id="quick-1"))).phase is RunPhase.RUNNING
        for each in fetches:
            each.cancel()
        await asyncio.wait(fetches)
        # The engine does not go on with what nobody wants.
        await wait_until(lambda: registry.hanging == 0)
        monkeypatch.setattr(images, "STALL_SECONDS", 2.0)
        failure = await failure_of(await open_containers(), run_id="slow0-1", image=slow[0])
        assert failure == (FailureReason.IMAGE_PULL_FAILED, True)
    finally:
        registry.hangs = False
    await runtime.fetch(request(run_id="slow0-2", image=slow[0]))


async def test_a_full_disk_is_a_storage_error(tmp_path: Path, owner: Owner) -> None:
    with (
        serve_registry() as registry,
        private_engine(insecure=(f"127.0.0.1:{registry.port}",), size="24m") as engine,
    ):
        service = PodmanService(tmp_path / "s", clock=SystemClock(), arguments=engine.arguments)
        runtime = ContainerRuntime(tmp_path / "agent", clock=SystemClock(), owner=owner, connect=service.open)
        try:
            await runtime.open()
            image = registry.add("large", "1", random_layer(32 << 20), {"Cmd": ["sh"]})
            assert await failure_of(runtime, image=image) == (FailureReason.STORAGE_ERROR, True)
        finally:
            await runtime.close()
            await service.close()


async def test_an_engine_that_the_agent_starts_is_started_again_on_a_full_disk(engine: Engine, tmp_path: Path) -> None:
    with small_disk(tmp_path / "agent", megabytes=1) as disk:
        made = PodmanService(disk / "podman", clock=SystemClock(), arguments=engine.arguments)
        try:
            await (await made.open()).close()
            await made.close()
            fill(disk / "filling")
            api = await made.open()
            assert await api.identity()
            await api.close()
        finally:
            await made.close()


# ---------------------------------------------------------------------------------------------------------
# The engine


async def unhealthy(runtime: ContainerRuntime) -> str:
    async with asyncio.timeout(30):
        while (health := await runtime.health()) == "healthy":
            await asyncio.sleep(0.05)
    return health


async def healthy(runtime: ContainerRuntime) -> None:
    async with asyncio.timeout(60):
        while await runtime.health() != "healthy":
            await asyncio.sleep(0.05)


async def test_a_killed_engine_loses_nothing_and_returns(
    open_containers: OpenContainers, service: PodmanService, tmp_path: Path
) -> None:
    runtime = await open_containers()
    go = tmp_path / "go"
    go.mkdir()
    mount = (VolumeMount(host_path=str(go), container_path="/go"),)
    long = await runtime.start(
        request(
            "echo up; while test ! -e /go/more; do sleep 0.05; done; echo more; sleep 1000",
            run_id="long-1",
            volumes=mount,
        )
    )
    await runtime.start(
        request("while test ! -e /go/now; do sleep 0.05; done; echo done; exit 7", run_id="short-1", volumes=mount)
    )
    await wait_output(runtime, b"up\n", workload_id="long")
    short = await runtime.inspect(RunId("short-1"))
    assert short is not None
    os.kill(service.pid, signal.SIGKILL)
    (go / "now").touch()
    await wait_until(lambda: not is_alive(short.pid))
    # The runtime has another engine by now, or none; it concludes nothing from that.
    assert {run.run_id for run in await runtime.list_runs()} == {"long-1", "short-1"}
    await healthy(runtime)
    ended = await wait_ended(runtime, "short-1")
    assert ended.exit is not None
    assert (ended.exit.code, ended.exit.unknown, ended.last_output) == (7, False, "done\n")
    (go / "more").touch()
    assert await wait_output(runtime, b"more\n", workload_id="long") == b"up\nmore\n"
    after = await runtime.inspect(RunId("long-1"))
    assert after == long


async def test_output_is_read_without_a_stream_of_the_engine(
    open_containers: OpenContainers, service: PodmanService
) -> None:
    """Podman's service stops answering when about a hundred streams are open."""
    runtime = await open_containers()
    await runtime.start(request("echo hello; exec sleep 1000"))
    assert await wait_output(runtime, b"hello\n") == b"hello\n"
    open_files = []
    for handle in Path(f"/proc/{service.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            open_files.append(handle.readlink().name)
    assert open_files
    assert "ctr.log" not in open_files


async def test_the_service_of_a_killed_agent_is_ended_by_the_next_one(service: PodmanService, engine: Engine) -> None:
    """Left alone, it would remove the socket of its successor when it ends."""
    await (await service.open()).close()
    left = service.pid
    successor = PodmanService(engine.folder / "service", clock=SystemClock(), arguments=engine.arguments)
    api = await successor.open()
    try:
        assert left not in (0, successor.pid)
        assert find_service_pids(engine.folder / "service") == [successor.pid]
        await api.ping()
    finally:
        await api.close()
        await successor.close()
    assert find_service_pids(engine.folder / "service") == []


async def test_an_engine_that_is_away_is_told_and_found_again(
    open_containers: OpenContainers, service: PodmanService
) -> None:
    away = False

    async def connect():
        if away:
            raise UnavailableError("the engine was switched off")
        return await service.open()

    runtime = await open_containers(connect=connect)
    info = await runtime.start(request())
    away = True
    os.kill(service.pid, signal.SIGKILL)
    assert (await unhealthy(runtime)).startswith("unhealthy: ")
    async with asyncio.timeout(30):
        while "switched off" not in await runtime.health():
            await asyncio.sleep(0.05)
    assert await runtime.inspect(RunId("web-1")) == info
    with pytest.raises(UnavailableError, match="switched off"):
        await runtime.start(request(run_id="db-1"))
    away = False
    await healthy(runtime)
    assert await runtime.inspect(RunId("web-1")) == info
    assert is_alive(info.pid)
    assert (await runtime.stop(RunId("web-1"))).ended_by == "stop"


@pytest.mark.long
async def test_an_agent_keeps_to_the_engine_that_has_its_runs(
    engine: Engine, owner: Owner, tmp_path: Path, service: PodmanService
) -> None:
    """The engine at the usual socket goes away. The agent could start a Podman of its own, with another storage."""
    usual = tmp_path / "run/podman/podman.sock"
    usual.parent.mkdir(parents=True)
    api = await service.open()
    await api.close()
    usual.symlink_to(api.address.removeprefix("unix://"))
    data_dir = tmp_path / "agent"
    choice = EngineChoice(data_dir / CHOICE_FILE, is_binding=partial(has_runs, data_dir))
    with private_engine() as other:
        finder = EngineFinder(
            data_dir / "p",
            {"XDG_RUNTIME_DIR": str(tmp_path / "run")},
            clock=SystemClock(),
            choice=choice,
            arguments=other.arguments,
        )
        runtime = ContainerRuntime(data_dir, clock=SystemClock(), owner=owner, connect=finder.connect)
        try:
            await runtime.open()
            info = await runtime.start(request())
            await service.close()
            usual.unlink()
            async with asyncio.timeout(60):
                while "is another" not in await runtime.health():
                    await asyncio.sleep(0.1)
            assert await runtime.inspect(RunId("web-1")) == info
            assert other.containers() == []
            assert find_service_pids(data_dir / "p") == []
            # The same storage behind another socket is the same engine.
            api = await service.open()
            await api.close()
            usual.symlink_to(api.address.removeprefix("unix://"))
            await healthy(runtime)
            assert is_alive(info.pid)
            assert (await runtime.stop(RunId("web-1"))).ended_by == "stop"
            await runtime.forget(RunId("web-1"))
            await service.close()
            usual.unlink()
            # Nothing of the agent's is there any more: any engine will do.
            await healthy(runtime)
            await runtime.start(request(run_id="web-2"))
            assert other.containers() == [f"shoal-{owner.node_id}-web"]
            await runtime.stop(RunId("web-2"))
        finally:
            await runtime.close()
            await finder.close()


async def test_a_container_that_somebody_else_removed_has_ended(
    open_containers: OpenContainers, engine: Engine, owner: Owner
) -> None:
    runtime = await open_containers()
    await runtime.start(request())
    await wait_output(runtime, b"up\n")
    engine.podman("rm", "--force", "--time", "0", f"shoal-{owner.node_id}-web")
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert ended.exit.unknown or ended.exit.signal == signal.SIGKILL
    assert await read_all(runtime) == b"up\n"


# ---------------------------------------------------------------------------------------------------------
# The agent


@pytest.fixture
async def start_agent(tmp_path: Path, owner: Owner, service: PodmanService) -> Iterator[StartAgent]:
    """Starts an agent's stand-in on the same ground as `open_containers`, and kills it after the test."""
    started: list[subprocess.Popen[str]] = []
    api = await service.open()
    await api.close()

    def start_one(*runs: dict[str, object], kind: str = "container", fault: str = "") -> subprocess.Popen[str]:
        script = Path(__file__).with_name("container_agent.py")
        where = (str(tmp_path / "agent"), api.address, owner.node_id)
        command = [sys.executable, str(script), kind, *where, json.dumps(runs)]
        env = {**os.environ, "SHOAL_FAULTS": fault, "PYTHONPATH": str(ROOT)}
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=env)
        started.append(agent)
        return agent

    yield start_one
    for agent in started:
        agent.kill()
        agent.wait()
        agent.stdout.close()


@pytest.mark.parametrize("point", ["container.create.before", "container.create.after", "container.start.after"])
@pytest.mark.parametrize("deadline", [None, 600.0])
async def test_an_agent_that_is_killed_while_it_starts_a_run_leaves_one_container(
    start_agent: StartAgent,
    open_containers: OpenContainers,
    own_containers: OwnContainers,
    point: str,
    deadline: float | None,
) -> None:
    agent = start_agent(
        {"run_id": "web-1", "script": "echo up; exec sleep 1000", "deadline": deadline}, fault=f"{point}=kill"
    )
    assert agent.wait(timeout=60) == -signal.SIGKILL
    runtime = await open_containers()
    info = await runtime.start(request(deadline=deadline))
    assert info.phase is RunPhase.RUNNING
    assert await wait_output(runtime, b"up\n") == b"up\n"
    assert own_containers() == ["web"]
    assert [run.run_id for run in await runtime.list_runs()] == ["web-1"]


@pytest.mark.parametrize(
    ("point", "deadline"),
    [
        pytest.param("compose.create.before", None, marks=pytest.mark.long),
        pytest.param("compose.create.before", 600.0, marks=pytest.mark.long),
        ("compose.create.after", 600.0),
        ("compose.start.after", None),
        pytest.param("compose.start.after", 600.0, marks=pytest.mark.long),
    ],
)
async def test_an_agent_that_is_killed_while_it_starts_a_project_leaves_one(
    start_agent: StartAgent,
    open_containers: OpenContainers,
    own_containers: OwnContainers,
    *,
    point: str,
    deadline: float | None,
) -> None:
    run = {"run_id": "web-1", "script": "echo up; exec sleep 1000", "deadline": deadline}
    assert start_agent(run, kind="compose", fault=f"{point}=kill").wait(timeout=60) == -signal.SIGKILL
    left = own_containers()
    assert len(left) == (0 if point == "compose.create.before" else 2)
    runtime = await open_containers("compose")
    info = await runtime.start(project(deadline=deadline))
    assert (info.phase, dict(info.services)) == (RunPhase.RUNNING, {"db": "running", "web": "running"})
    await wait_output(runtime, b"db | up\n")
    assert sorted(own_containers()) == ["web_db_1", "web_web_1"]
    assert [run.run_id for run in await runtime.list_runs()] == ["web-1"]


#: Where an agent is killed in an update of a project, with a deadline or without, and whether the update counts then.
UPDATE_POINTS = [
    pytest.param("compose.update.begun=kill", None, False, marks=pytest.mark.long),
    pytest.param("compose.create.before=kill@2", 600.0, False, marks=pytest.mark.long),
    pytest.param("compose.create.after=kill@2", 600.0, False, marks=pytest.mark.long),
    pytest.param("compose.start.after=kill@2", 600.0, False),
    pytest.param("compose.start.after=kill@2", None, False, marks=pytest.mark.long),
    pytest.param("compose.update.stored=kill", None, False),
    pytest.param("compose.update.after=kill", None, True, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("fault", "deadline", "counts"), UPDATE_POINTS)
async def test_an_agent_that_is_killed_while_it_updates_a_project_leaves_one_version_whole(
    start_agent: StartAgent,
    open_containers: OpenContainers,
    own_containers: OwnContainers,
    tmp_path: Path,
    *,
    fault: str,
    deadline: float | None,
    counts: bool,
) -> None:
    older = {"db": "echo db; exec sleep 1000", "web": "echo one; exec sleep 1000", "gone": "exec sleep 1000"}
    newer = {"db": older["db"], "web": "echo two; exec sleep 1000", "new": "exec sleep 1000"}
    first = {"run_id": "web-1", "services": older, "update": newer, "deadline": deadline}
    assert start_agent(first, kind="compose", fault=fault).wait(timeout=60) == -signal.SIGKILL
    db = next(pid for name, pid in services_of(tmp_path, "web-1") if name == "db")
    runtime = await open_containers("compose")

    def is_whole(services: dict[str, str]) -> bool:
        return sorted(own_containers()) == sorted(f"web_{name}_1" for name in services)

    await wait_until(lambda: is_whole(newer if counts else older))
    async with asyncio.timeout(60):
        while (info := await runtime.inspect(RunId("web-1"))) is None or info.services.keys() != (
            newer if counts else older
        ).keys():
            await asyncio.sleep(0.05)
    assert set(info.services.values()) == {"running"}
    # The agent asks for the update again.
    info = await runtime.update(RunId("web-1"), project(services=newer, run_id="web-1", deadline=deadline))
    assert dict(info.services) == dict.fromkeys(newer, "running")
    assert is_whole(newer)
    await wait_output(runtime, b"web | two\n")
    assert dict(services_of(tmp_path, "web-1"))["db"] == db, "a service that did not change goes on"
    assert is_alive(db)
    assert len(list((tmp_path / "agent/compose").glob("*.project"))) == 1
    if deadline is not None:  # nothing is guarded that is gone, such as what the killed agent had made
        now = {each["container_id"] for each in members_of(tmp_path, "web-1")}
        await wait_until(lambda: runtime._guard.container_ids == now)


def services_of(folder: Path, run_id: str) -> list[tuple[str, int]]:
    """The services of a run with the pid of each."""
    return [(each["service"], each["pid"]) for each in members_of(folder, run_id)]


def members_of(folder: Path, run_id: str) -> list[dict[str, Any]]:
    """The containers of a run, as the agent has written them down."""
    record = json.loads((folder / "agent" / RUNTIMES["compose"].DIRECTORY / f"{run_id}.json").read_text())
    return record["members"]


#: Where an agent is killed while one container replaces another, and how many are left then.
REPLACE_POINTS = [
    pytest.param("container.trial.after=kill", 2),
    pytest.param("container.end.before=kill", 1, marks=pytest.mark.long),
    pytest.param("container.remove.before=kill", 1, marks=pytest.mark.long),
    pytest.param("container.create.before=kill@2", 0, marks=pytest.mark.long),
    pytest.param("container.create.after=kill@2", 1, marks=pytest.mark.long),
    pytest.param("container.start.after=kill@2", 1),
]


@pytest.mark.parametrize(("fault", "left"), REPLACE_POINTS)
async def test_an_agent_that_is_killed_while_it_replaces_a_container_leaves_one(
    start_agent: StartAgent, open_containers: OpenContainers, own_containers: OwnContainers, *, fault: str, left: int
) -> None:
    first = {"run_id": "web-1", "script": "echo one; exec sleep 1000", "update": "web-2"}
    assert start_agent(first, fault=fault).wait(timeout=60) == -signal.SIGKILL
    assert len(own_containers()) == left
    runtime = await open_containers()
    if "trial" in fault:
        before = await runtime.inspect(RunId("web-1"))
        assert before is not None
        assert before.phase is RunPhase.RUNNING
        await wait_until(lambda: own_containers() == ["web"])
    # The agent goes on with what it has not done yet.
    ended = await runtime.stop(RunId("web-1"))
    assert ended is not None
    assert (ended.phase, ended.ended_by) == (RunPhase.ENDED, "stop")
    info = await runtime.start(request(run_id="web-2"))
    assert (info.run_id, info.phase) == ("web-2", RunPhase.RUNNING)
    await wait_output(runtime, b"up\n")
    assert own_containers() == ["web"]
    assert {run.run_id for run in await runtime.list_runs()} == {"web-1", "web-2"}


@pytest.mark.parametrize("point", ["compose.end.before", pytest.param("compose.remove.before", marks=pytest.mark.long)])
async def test_an_agent_that_is_killed_while_a_project_ends_knows_the_end(
    start_agent: StartAgent, open_containers: OpenContainers, own_containers: OwnContainers, point: str
) -> None:
    run = {"run_id": "web-1", "script": "echo bye; exit 5"}
    assert start_agent(run, kind="compose", fault=f"{point}=kill").wait(timeout=60) == -signal.SIGKILL
    assert len(own_containers()) == 2
    runtime = await open_containers("compose")
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert (ended.exit.code, ended.exit.unknown, ended.ended_by) == (5, False, "")
    assert sorted((await read_all(runtime)).splitlines()) == [b"db | bye", b"web | bye"]
    await wait_until(lambda: not own_containers())
    assert (await runtime.start(project("exit 0"))) == ended


@pytest.mark.parametrize("deadline", [None, 600.0])
async def test_a_run_that_a_killed_agent_left_without_a_record_is_known_at_once_and_ends_before_the_next(
    start_agent: StartAgent, open_containers: OpenContainers, own_containers: OwnContainers, deadline: float | None
) -> None:
    agent = start_agent(
        {"run_id": "web-1", "script": "exec sleep 1000", "deadline": deadline}, fault="container.start.after=kill"
    )
    assert agent.wait(timeout=60) == -signal.SIGKILL
    runtime = await open_containers()
    (left,) = await runtime.list_runs()
    assert (left.run_id, left.phase) == ("web-1", RunPhase.RUNNING)
    # An agent that could not see it yet, because the engine was away, starts another run.
    info = await runtime.start(dataclasses.replace(request(deadline=deadline), run_id=RunId("web-2")))
    assert info.phase is RunPhase.RUNNING
    before = await runtime.inspect(RunId("web-1"))
    assert before is not None
    assert (before.phase, before.ended_by) == (RunPhase.ENDED, "stop")
    assert not is_alive(left.pid)
    assert own_containers() == ["web"]
    await runtime.stop(RunId("web-2"))
    await runtime.forget_workload(WorkloadId("web"), delete_data=True)
    assert own_containers() == []


@pytest.mark.parametrize("point", ["container.end.before", "container.remove.before"])
async def test_an_agent_that_is_killed_while_a_run_ends_knows_the_end(
    start_agent: StartAgent, open_containers: OpenContainers, own_containers: OwnContainers, point: str
) -> None:
    agent = start_agent({"run_id": "web-1", "script": "echo bye; exit 5"}, fault=f"{point}=kill")
    assert agent.wait(timeout=60) == -signal.SIGKILL
    runtime = await open_containers()
    async with asyncio.timeout(30):
        while not await runtime.list_runs():
            await asyncio.sleep(0.05)
    ended = await wait_ended(runtime, "web-1")
    assert ended.exit is not None
    assert (ended.exit.code, ended.exit.unknown, ended.last_output) == (5, False, "bye\n")
    assert await read_all(runtime) == b"bye\n"
    await wait_until(lambda: not own_containers())
    assert (await runtime.start(request("exit 0"))) == ended


async def test_a_container_that_never_started_goes_with_its_workload(
    start_agent: StartAgent, open_containers: OpenContainers, own_containers: OwnContainers
) -> None:
    agent = start_agent({"run_id": "web-1", "script": "exit 0"}, fault="container.create.after=kill")
    agent.wait(timeout=60)
    assert own_containers() == ["web"]
    runtime = await open_containers()
    await runtime.forget_workload(WorkloadId("web"), delete_data=True)
    assert own_containers() == []


# ---------------------------------------------------------------------------------------------------------
# At most one


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("container", signal.SIGSTOP),
        ("container", signal.SIGKILL),
        ("compose", signal.SIGSTOP),
        pytest.param("compose", signal.SIGKILL, marks=pytest.mark.long),
    ],
)
async def test_an_at_most_one_run_ends_without_its_agent_and_its_engine(
    start_agent: StartAgent,
    open_containers: OpenContainers,
    service: PodmanService,
    tmp_path: Path,
    *,
    kind: str,
    how: signal.Signals,
) -> None:
    """VMs, which are children of the keeper, have theirs in `test_vm_faults`."""
    deaf = 'trap "" TERM; echo up; while :; do sleep 0.05; done'
    agent = start_agent(
        {"run_id": "one-1", "script": deaf, "ends_once_up": 3.0},
        {"run_id": "free-1", "script": "exec sleep 1000"},
        kind=kind,
    )
    assert agent.stdout.readline() == "ready\n"
    os.kill(agent.pid, how)
    os.kill(service.pid, signal.SIGSTOP)
    try:
        one, free = (pids_of(tmp_path / "agent", kind, run_id) for run_id in ("one-1", "free-1"))
        assert len(one) == len(free) == (2 if kind == "compose" else 1)
        await wait_until(lambda: not any(map(is_alive, one)))
        assert all(map(is_alive, free))
    finally:
        os.kill(service.pid, signal.SIGCONT)
    agent.kill()
    agent.wait()
    runtime = await open_containers(kind)
    async with asyncio.timeout(30):
        while len(await runtime.list_runs()) < 2:
            await asyncio.sleep(0.05)
    ended = await wait_ended(runtime, "one-1")
    assert ended.ended_by == "deadline"
    left = await runtime.inspect(RunId("free-1"))
    assert left is not None
    assert left.phase is RunPhase.RUNNING


def pids_of(data_dir: Path, kind: str, run_id: str) -> list[int]:
    """The first process of each container of a run, as the agent has written it down."""
    record = json.loads((data_dir / RUNTIMES[kind].DIRECTORY / f"{run_id}.json").read_text())
    return [each["pid"] for each in record.get("members", [record])]


async def test_an_at_most_one_container_without_guards_is_killed_by_the_next_agent(
    start_agent: StartAgent, open_containers: OpenContainers, tmp_path: Path
) -> None:
    agent = start_agent({"run_id": "one-1", "script": "exec sleep 1000", "deadline": 600.0})
    assert agent.stdout.readline() == "ready\n"
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    guards = [int(path.read_text().split()[0]) for path in (tmp_path / "agent/containers/guard").iterdir()]
    for guard in guards:
        os.kill(guard, signal.SIGKILL)
    await wait_until(lambda: not any(map(is_alive, guards)))
    runtime = await open_containers()
    ended = await wait_ended(runtime, "one-1")
    assert (ended.ended_by, ended.exit.signal) == ("deadline", signal.SIGKILL)

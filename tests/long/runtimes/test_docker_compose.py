"""The compose runtime passes its suite with each of Docker's compose commands, on Docker's daemon and on Podman."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.ids import RunId, WorkloadId
from shoal.model.workloads import ComposeSpec
from shoal.runtimes.base import RunRequest, Runtime
from shoal.runtimes.compose.command import ComposeCommand, find_command
from shoal.runtimes.compose.runtime import ComposeRuntime
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine.api import EngineApi
from shoal.testing.suites.runtime import wait_ended, wait_output
from tests.e2e.runtimes import test_compose
from tests.e2e.runtimes.containers import owner
from tests.services.compose import COMMANDS, environment_with
from tests.services.docker import private_docker
from tests.services.engine import IMAGE, engine_service, private_engine

__all__ = ["owner"]


@dataclass(frozen=True, slots=True)
class Ground:
    """An engine and the compose command that is used with it."""

    address: str
    command: ComposeCommand

    async def connect(self) -> EngineApi:
        """As an agent does."""
        return EngineApi(self.address)


@pytest.fixture(scope="module", params=["docker", "podman"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "docker":
        with private_docker() as docker:
            yield docker.address
    else:
        with private_engine() as engine, engine_service(engine) as served:
            yield served


@pytest.fixture(params=COMMANDS)
async def ground(request: pytest.FixtureRequest, address: str, monkeypatch: pytest.MonkeyPatch) -> Ground:
    for name, value in environment_with(request.param).items():
        monkeypatch.setenv(name, value)
    found = await find_command()
    assert found == ComposeCommand(COMMANDS[request.param])
    return Ground(address, found)


@pytest.fixture
def make_runtime(tmp_path: Path, ground: Ground, owner: Owner) -> Callable[[], ComposeRuntime]:
    return lambda: ComposeRuntime(
        tmp_path, clock=SystemClock(), owner=owner, connect=ground.connect, command=ground.command
    )


class TestDockerCompose(test_compose.TestCompose):
    @pytest.fixture
    def make_runtime(self, make_runtime: Callable[[], ComposeRuntime]) -> Callable[[], Runtime]:
        return make_runtime


def says(text: str, **fields: object) -> dict[str, object]:
    return {"image": IMAGE, "command": ["sh", "-c", f"echo {text}; exec sleep 1000"], "init": True, **fields}


def wanted(services: dict[str, object]) -> RunRequest:
    project = {"services": services, "volumes": {"data": {}}}
    return RunRequest(
        run_id=RunId("web-1"), workload_id=WorkloadId("web"), spec=ComposeSpec(inline_yaml=json.dumps(project))
    )


async def test_an_update_replaces_what_changed_and_a_crash_fails_the_project(
    make_runtime: Callable[[], ComposeRuntime], ground: Ground, owner: Owner
) -> None:
    runtime, api = make_runtime(), EngineApi(ground.address)
    await runtime.open()
    data = ["data:/data"]
    try:
        first = {
            "db": says("ready", volumes=data),
            "web": says("one", volumes=data, depends_on=["db"]) | {"command": ["sh", "-c", "echo kept > /data/word"]},
            "gone": says("gone"),
        }
        await runtime.start(wanted(first))
        await wait_output(runtime, b"db | ready\n")
        before = await containers(api, owner)
        second = {"db": first["db"], "web": says("two", volumes=data), "new": says("new")}
        info = await runtime.update(RunId("web-1"), wanted(second))
        assert dict(info.services) == dict.fromkeys(("db", "new", "web"), "running")
        await wait_output(runtime, b"web | two\n")
        after = await containers(api, owner)
        assert after.keys() == {"db", "web", "new"}
        assert after["db"] == before["db"], "what did not change goes on"
        assert after["web"] != before["web"]
        third = {**second, "new": {"image": IMAGE, "command": ["sh", "-c", "cat /data/word; exit 3"], "volumes": data}}
        await runtime.update(RunId("web-1"), replace(wanted(third), revision="3"))
        ended = await wait_ended(runtime, "web-1")
        assert ended.exit is not None
        assert (ended.exit.code, ended.services["new"]) == (3, "exited (3)")
        assert "new | kept\n" in ended.last_output
        async with asyncio.timeout(60):
            while await containers(api, owner):  # the end is stored first
                await asyncio.sleep(0.1)
        await runtime.forget_workload(WorkloadId("web"), delete_data=True)
        assert await api.volumes(owner.labels) == []
        assert await api.networks(owner.labels) == []
    finally:
        for run in await runtime.list_runs():
            await runtime.stop(run.run_id)
        await runtime.close()
        await api.close()


async def containers(api: EngineApi, owner: Owner) -> dict[str, str]:
    """The id of the container of each service."""
    return {each["Labels"]["com.docker.compose.service"]: each["Id"] for each in await api.containers(owner.labels)}

"""Fixtures and requests for tests of containers on a real engine."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import secrets
import socket
import subprocess
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import ShoalError
from shoal.core.ids import NodeId, RunId, WorkloadId
from shoal.model.workloads import ComposeSpec, ContainerSpec
from shoal.runtimes.base import RunRequest
from shoal.runtimes.compose.command import ComposeCommand, find_command
from shoal.runtimes.compose.interpolation import escape
from shoal.runtimes.compose.runtime import ComposeRuntime
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine.api import EngineApi
from shoal.runtimes.container.engine.finding import PodmanService
from shoal.runtimes.container.runtime import ContainerRuntime
from tests.services.engine import IMAGE, Engine, private_engine
from tests.services.registry import Registry, serve_registry

OwnContainers = Callable[[], list[str]]
OpenContainers = Callable[..., Awaitable[Any]]
#: The runtimes whose runs live in an engine.
RUNTIMES: dict[str, type[ContainerRuntime | ComposeRuntime]] = {
    "container": ContainerRuntime,
    "compose": ComposeRuntime,
}
FOREVER = "echo up; exec sleep 1000"


@functools.cache
def compose_command() -> ComposeCommand:
    """What this machine has: it takes half a second to find."""
    with ThreadPoolExecutor(1) as aside:  # the caller may have a loop that runs
        found = aside.submit(lambda: asyncio.run(find_command())).result()
    assert found is not None, "podman-compose is not installed"
    return found


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serve_registry() as serving:
        yield serving


@pytest.fixture(scope="module")
def engine(registry: Registry) -> Iterator[Engine]:
    with private_engine(insecure=(f"127.0.0.1:{registry.port}",)) as made:
        yield made


@pytest.fixture
async def service(engine: Engine) -> AsyncIterator[PodmanService]:
    made = PodmanService(engine.folder / "service", clock=SystemClock(), arguments=engine.arguments)
    yield made
    await made.close()


async def connect_to(address: str) -> EngineApi:
    """A connection to the API at an address."""
    api = EngineApi(address)
    await api.ping()
    return api


@pytest.fixture
def owner() -> Owner:
    """Of one test alone: the engine is shared, and what another test left in it is not this one's."""
    return Owner("test", NodeId(f"n{secrets.token_hex(4)}"))


@pytest.fixture
def own_containers(engine: Engine, owner: Owner) -> Callable[[], list[str]]:
    """The names of the containers of this test, without what they have in common."""
    prefix = f"shoal-{owner.node_id}-"
    return lambda: [name.removeprefix(prefix) for name in engine.containers() if name.startswith(prefix)]


@pytest.fixture
async def open_containers(tmp_path: Path, owner: Owner, service: PodmanService) -> AsyncIterator[OpenContainers]:
    """Opens runtimes on the same ground, one after another, and ends their runs after the test."""
    opened: list[ContainerRuntime | ComposeRuntime] = []

    async def open_one(kind: str = "container", **options: Any) -> ContainerRuntime | ComposeRuntime:
        options = {"data_dir": tmp_path / "agent", "owner": owner, "connect": service.open, **options}
        if kind == "compose":
            options.setdefault("command", compose_command())
        runtime = RUNTIMES[kind](clock=SystemClock(), **options)
        await runtime.open()
        opened.append(runtime)
        return runtime

    yield open_one
    for runtime in opened:
        with suppress(ShoalError):
            for run in await runtime.list_runs():
                await runtime.stop(run.run_id)
        await runtime.close()


def request(
    script: str = FOREVER,
    *,
    run_id: str = "web-1",
    deadline: float | None = None,
    given: Mapping[str, Any] | None = None,
    **fields: Any,
) -> RunRequest:
    """A run of a shell script in the test image; `given` are further fields of the request."""
    fields = {"image": IMAGE, "command": ("sh", "-c", script), "init": True, **fields}
    return RunRequest(
        run_id=RunId(run_id),
        workload_id=WorkloadId(run_id.rpartition("-")[0]),
        spec=ContainerSpec(**fields),
        deadline=None if deadline is None else SystemClock().monotonic() + deadline,
        **(given or {}),
    )


def project(script: str = FOREVER, *, services: Mapping[str, str] | None = None, **fields: Any) -> RunRequest:
    """A run of a compose project: two services that run a shell script, or a script for each service."""
    made = {
        name: {"image": IMAGE, "command": ["sh", "-c", escape(each)], "init": True}
        for name, each in (services or dict.fromkeys(("db", "web"), script)).items()
    }
    return replace(request(**fields), spec=ComposeSpec(inline_yaml=json.dumps({"services": made})))


def make_repository(folder: Path, **versions: Mapping[str, str]) -> Path:
    """A repository with a tag for each version of its files."""
    repository = folder / "repository"
    repository.mkdir()
    for words in (("init", "-q", "-b", "main"), ("config", "user.email", "a@b"), ("config", "user.name", "a")):
        subprocess.run(["git", *words], cwd=repository, check=True)
    for version, files in versions.items():
        for name, text in files.items():
            (repository / name).write_text(text)
        for words in (("add", "."), ("commit", "-q", "-m", version), ("tag", version)):
            subprocess.run(["git", *words], cwd=repository, check=True)
    return repository


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def random_layer(size: int) -> bytes:
    """A layer of an image with one file that cannot be compressed."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("filling")
        entry.size = size
        tar.addfile(entry, io.BytesIO(secrets.token_bytes(size)))
    return archive.getvalue()

"""The container runtime passes its suite on Docker's own daemon, where that starts. Each sentence by which a refusal of
Docker is judged is provoked there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import Runtime
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine.api import EngineApi
from shoal.runtimes.container.runtime import ContainerRuntime
from tests.e2e.runtimes import test_container
from tests.e2e.runtimes.containers import owner, registry
from tests.e2e.runtimes.engine_failures import DISK, EngineFailures, Ground, Provocation, away, check_refusal, silent
from tests.services.docker import Docker, private_docker
from tests.services.registry import Registry

__all__ = ["owner", "registry"]


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    with private_docker() as made:
        yield made


class TestDocker(test_container.TestContainer):
    @pytest.fixture
    def make_runtime(self, tmp_path: Path, owner: Owner, docker: Docker) -> Callable[[], Runtime]:
        async def connect() -> EngineApi:
            return EngineApi(docker.address)

        return lambda: ContainerRuntime(tmp_path, clock=SystemClock(), owner=owner, connect=connect)


@pytest.fixture(scope="module")
def small_docker() -> Iterator[Docker]:
    with private_docker(size=DISK) as made:
        yield made


SILENT = away("silent registry", silent, {"docker": r"context deadline exceeded|Client\.Timeout exceeded"})
CPUS = Provocation(
    "too many CPUs",
    lambda it: it.start(HostConfig={"NanoCpus": 1 << 60}),
    FailureReason.INSUFFICIENT_RESOURCES,
    says={"docker": r"Range of CPUs is from"},
)


class TestDockerFailures(EngineFailures):
    engine_name = "docker"
    more = (SILENT, CPUS)

    @pytest.fixture
    async def ground(self, small_docker: Docker, registry: Registry) -> AsyncIterator[Ground]:
        api = EngineApi(small_docker.address)
        yield Ground("docker", api, small_docker.folder, registry)
        await api.close()

    @pytest.mark.parametrize("provoked", more, ids=lambda each: each.name)
    async def test_what_only_docker_says_is_known(self, ground: Ground, provoked: Provocation) -> None:
        await check_refusal(ground, provoked)

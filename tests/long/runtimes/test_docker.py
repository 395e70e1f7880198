"""The container runtime passes its suite on Docker's own daemon, where that starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.runtimes.base import Runtime
from shoal.runtimes.container.api import EngineApi
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.runtime import ContainerRuntime
from tests.e2e.runtimes import test_container
from tests.e2e.runtimes.containers import owner
from tests.services.docker import Docker, private_docker

__all__ = ["owner"]


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

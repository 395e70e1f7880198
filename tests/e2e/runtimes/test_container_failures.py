"""Each sentence and each cause by which a refusal of Podman is judged, provoked on a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.runtimes.container.api import EngineApi
from tests.e2e.runtimes.containers import registry
from tests.e2e.runtimes.engine_failures import DISK, EngineFailures, Ground
from tests.services.engine import engine_service, private_engine
from tests.services.registry import Registry

__all__ = ["registry"]

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def podman(registry: Registry) -> Iterator[tuple[str, Path]]:
    """The address and the directory of an engine with a small disk."""
    with (
        private_engine(insecure=(f"127.0.0.1:{registry.port}",), size=DISK) as engine,
        engine_service(engine) as address,
    ):
        yield address, engine.folder


class TestPodman(EngineFailures):
    engine_name = "podman"

    @pytest.fixture
    async def ground(self, podman: tuple[str, Path], registry: Registry) -> AsyncIterator[Ground]:
        address, folder = podman
        api = EngineApi(address)
        yield Ground("podman", api, folder, registry)
        await api.close()

"""Each sentence and each cause by which a refusal of Podman is judged, provoked on a real one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.runtimes.container.engine.api import EngineApi
from tests.e2e.runtimes.containers import registry
from tests.e2e.runtimes.engine_failures import (
    DISK,
    EngineFailures,
    Ground,
    Provocation,
    away,
    check_refusal,
    silent,
    unreachable,
)
from tests.services.downloads import serve_downloads
from tests.services.engine import engine_service, private_engine
from tests.services.registry import Registry, serve_registry

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


async def _strange_authority(ground: Ground) -> None:
    with tempfile.TemporaryDirectory() as folder, serve_downloads(Path(folder), {}) as serving:
        await ground.pull(f"{serving.url.removeprefix('https://')}/any:1")


async def _no_tls(ground: Ground) -> None:
    with serve_registry() as plain:  # the engine is not told that this one has no TLS
        await ground.pull(f"127.0.0.1:{plain.port}/any:1")


# Docker needs no TLS on loopback.
STRANGE = away("strange authority", _strange_authority, {"podman": r"x509: "})
NO_TLS = away("no TLS", _no_tls, {"podman": r"tls: first record does not look like a TLS handshake"})
SILENT = away("silent registry", silent, {"podman": r"TLS handshake timeout"})
UNREACHABLE = away("unreachable registry", unreachable, {"podman": r"i/o timeout"})


class TestPodman(EngineFailures):
    engine_name = "podman"
    more = (STRANGE, NO_TLS, SILENT, UNREACHABLE)

    @pytest.fixture
    async def ground(self, podman: tuple[str, Path], registry: Registry) -> AsyncIterator[Ground]:
        address, folder = podman
        api = EngineApi(address)
        yield Ground("podman", api, folder, registry)
        await api.close()

    @pytest.mark.parametrize("provoked", [STRANGE, NO_TLS], ids=lambda each: each.name)
    async def test_a_registry_that_speaks_otherwise_is_known(self, ground: Ground, provoked: Provocation) -> None:
        await check_refusal(ground, provoked)

    @pytest.mark.long
    @pytest.mark.timeout(400)  # Podman waits for one and a half minutes and for four
    async def test_registries_that_do_not_answer_are_known(self, ground: Ground) -> None:
        await asyncio.gather(check_refusal(ground, SILENT), check_refusal(ground, UNREACHABLE))

"""Which runtimes are found, when what they need is there from the start, comes later or never."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.ids import NodeId
from shoal.model.workloads import WorkloadType
from shoal.runtimes import finding
from shoal.runtimes.compose import command as compose_command
from shoal.runtimes.finding import FoundRuntimes, RuntimeSettings
from shoal.testing.engine import FakeEngine

PROCESS, CONTAINER, COMPOSE, VM = (
    WorkloadType.PROCESS,
    WorkloadType.CONTAINER,
    WorkloadType.COMPOSE,
    WorkloadType.VM,
)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuntimeSettings:
    """The settings of an agent on a machine with nothing; it listens for programs in `programs`."""
    (tmp_path / "programs").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    monkeypatch.setattr("shoal.runtimes.container.engine.finding._USUAL_SOCKETS", (str(tmp_path / "docker.sock"),))
    monkeypatch.setattr(compose_command, "_beside_python", lambda name: None)
    monkeypatch.setattr(finding, "has_programs", lambda: False)
    return RuntimeSettings(data_dir=tmp_path / "agent", node_id=NodeId("n1"), environ={})


async def test_what_appears_later_is_found_once(
    tmp_path: Path, bare: RuntimeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "_COMMAND_SECONDS", 0.0)
    runtimes = FoundRuntimes(bare, clock=SystemClock())
    assert (await runtimes.find()).keys() == {PROCESS}
    assert runtimes.absent.keys() == {CONTAINER, COMPOSE, VM}
    assert await runtimes.find() == {}
    async with FakeEngine(tmp_path / "docker.sock"):
        found = await runtimes.find()
        assert found.keys() == {CONTAINER}
        await found[CONTAINER].open()
        assert await found[CONTAINER].health() == "healthy"
        await found[CONTAINER].close()
        program = tmp_path / "programs" / "docker-compose"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        assert (await runtimes.find()).keys() == {COMPOSE}
        assert await runtimes.find() == {}
    assert runtimes.absent.keys() == {VM}
    await runtimes.close()


async def test_what_was_asked_for_is_made_and_says_what_is_missing(tmp_path: Path, bare: RuntimeSettings) -> None:
    runtimes = FoundRuntimes(bare, clock=SystemClock(), wanted=(COMPOSE,))
    found = await runtimes.find()
    assert found.keys() == {COMPOSE}
    assert runtimes.absent == {}
    compose = found[COMPOSE]
    await compose.open()
    assert "no docker compose, docker-compose or podman-compose" in await compose.health()
    async with FakeEngine(tmp_path / "docker.sock"):
        program = tmp_path / "programs" / "docker-compose"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        while await compose.health() != "healthy":
            await SystemClock().sleep(0.05)
        await compose.close()
    await runtimes.close()

"""Where an engine is looked for, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import UnavailableError
from shoal.runtimes.container.engine.finding import EngineFinder, engine_addresses

USUAL = ("unix:///var/run/docker.sock", "unix:///run/podman/podman.sock")


@pytest.mark.parametrize(
    ("environ", "addresses"),
    [
        ({}, USUAL),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, (*USUAL, "unix:///run/user/7/podman/podman.sock")),
        ({"DOCKER_HOST": "tcp://127.0.0.1:2375", "XDG_RUNTIME_DIR": "/run/user/7"}, ("tcp://127.0.0.1:2375",)),
        ({"DOCKER_HOST": "unix:///e.sock"}, ("unix:///e.sock",)),
        ({"DOCKER_HOST": "/e.sock"}, ("unix:///e.sock",)),
    ],
)
def test_docker_host_comes_before_the_usual_sockets(environ: dict[str, str], addresses: tuple[str, ...]) -> None:
    assert engine_addresses(environ) == addresses


async def test_nothing_else_is_used_in_place_of_docker_host(tmp_path: Path) -> None:
    """Also no Podman service of the agent's own: its containers would be in another engine."""
    finder = EngineFinder(tmp_path / "p", {"DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"}, clock=SystemClock())
    assert finder.is_here()
    with pytest.raises(UnavailableError, match="no container engine answers"):
        await finder.connect()
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_engines_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("shoal.runtimes.container.engine.finding._USUAL_SOCKETS", (str(tmp_path / "docker.sock"),))
    finder = EngineFinder(tmp_path / "p", {}, clock=SystemClock())
    assert not finder.is_here()
    (tmp_path / "docker.sock").touch()
    assert finder.is_here()

"""Registries, logins and the progress of a pull."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from shoal.runtimes.container.images import PullProgress, find_login, registry_of


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("busybox", "https://index.docker.io/v1/"),
        ("library/busybox:1", "https://index.docker.io/v1/"),
        ("registry.example/a/b:1", "registry.example"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000"),
        ("localhost/a:1", "localhost"),
    ],
)
def test_the_registry_of_an_image(image: str, registry: str) -> None:
    assert registry_of(image) == registry


def login(user: str) -> str:
    return base64.b64encode(f"{user}:secret".encode()).decode()


def write(path: Path, user: str, registry: str = "registry.example") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"auths": {registry: {"auth": login(user)}}}))


def test_logins_come_from_the_first_file_that_has_one(tmp_path: Path) -> None:
    environ = {
        "REGISTRY_AUTH_FILE": str(tmp_path / "auth.json"),
        "DOCKER_CONFIG": str(tmp_path / "docker"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "HOME": str(tmp_path / "home"),
    }
    assert find_login("registry.example/a", environ) is None
    files = ("home/.docker/config.json", "docker/config.json", "run/containers/auth.json", "auth.json")
    for name in files:
        write(tmp_path / name, name)
        found = find_login("registry.example/a", environ)
        assert found is not None
        assert (found["username"], found["password"]) == (name, "secret")
    assert find_login("other.example/a", environ) is None


@pytest.mark.parametrize("content", ["", "[]", "{", '{"auths": {"registry.example": {"auth": "%%%"}}}', '{"auths": 3}'])
def test_a_file_that_cannot_be_read_has_no_login(tmp_path: Path, content: str) -> None:
    path = tmp_path / "auth.json"
    path.write_text(content)
    assert find_login("registry.example/a", {"REGISTRY_AUTH_FILE": str(path)}) is None


def test_the_progress_of_a_pull() -> None:
    progress = PullProgress()
    assert str(progress) == "0 of 0 layers, 0 of 0 MiB"
    for step in (
        {"status": "Pulling from a"},
        {"id": "one", "status": "Downloading", "progressDetail": {"current": 1 << 20, "total": 4 << 20}},
        {"id": "two", "status": "Already exists", "progressDetail": {}},
        {"id": "three", "status": "Waiting", "progressDetail": "odd"},
    ):
        progress.note(step)
    assert str(progress) == "1 of 3 layers, 1 of 4 MiB"

"""Registries, logins and the progress of a pull."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError
from shoal.runtimes.container.images import (
    MAX_PULLS,
    STALL_SECONDS,
    UNPACK_SECONDS,
    ImagePulls,
    PullProgress,
    find_login,
    registry_of,
)
from shoal.testing.clock import LoopClock
from tests.unit.agent.making import START


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("busybox", "https://index.docker.io/v1/"),
        ("library/busybox:1", "https://index.docker.io/v1/"),
        ("registry.example/a/b:1", "registry.example"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000"),
        ("localhost/a:1", "localhost"),
        ("docker.io/library/busybox", "https://index.docker.io/v1/"),
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
    files = (
        *("home/.docker/config.json", "docker/config.json"),
        *("home/.config/containers/auth.json", "run/containers/auth.json", "auth.json"),
    )
    for name in files:
        write(tmp_path / name, name)
        found = find_login("registry.example/a", environ)
        assert found is not None
        assert (found["username"], found["password"]) == (name, "secret")
    assert find_login("other.example/a", environ) is None


@pytest.mark.parametrize(
    ("image", "keys", "expected"),
    [
        ("registry.example/a/b:1", ["registry.example", "registry.example/a"], "registry.example/a"),
        ("registry.example/a/b:1", ["registry.example/a/b", "registry.example/a"], "registry.example/a/b"),
        ("registry.example/ab:1", ["registry.example", "registry.example/a"], "registry.example"),
        ("registry.example/a/b@sha256:00", ["registry.example/a/b"], "registry.example/a/b"),
        ("registry.example:5000/a", ["https://registry.example:5000"], "https://registry.example:5000"),
        ("registry.example:5000/a", ["registry.example"], None),
        ("busybox", ["docker.io"], "docker.io"),
        ("docker.io/team/app:2", ["https://index.docker.io/v1/"], "https://index.docker.io/v1/"),
        ("team/app:2", ["docker.io", "docker.io/team"], "docker.io/team"),
    ],
)
def test_the_login_of_an_image_is_the_most_specific_one(
    tmp_path: Path, image: str, keys: list[str], expected: str | None
) -> None:
    path = tmp_path / "auth.json"
    path.write_text(json.dumps({"auths": {key: {"auth": login(key)} for key in keys}}))
    found = find_login(image, {"REGISTRY_AUTH_FILE": str(path)})
    name = None if expected is None else base64.b64decode(login(expected)).decode().partition(":")[0]
    assert (found and found["username"]) == name


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


@pytest.mark.parametrize(
    ("step", "is_forward"),
    [
        ({"id": "a", "status": "Downloading", "progressDetail": {"current": 2, "total": 9}}, True),
        ({"id": "a", "status": "Downloading", "progressDetail": {"current": 1, "total": 9}}, False),
        ({"id": "a", "status": "Download complete"}, True),
        ({"id": "a", "status": "Retrying in 3 seconds"}, False),
        ({"id": "b", "status": "Waiting"}, True),
        ({"status": "Pulling from a"}, False),
        ({"stream": "Copying config"}, True),
        ({}, True),
    ],
)
def test_a_step_of_a_pull_that_says_nothing_new_is_none_forward(step: dict[str, object], is_forward: bool) -> None:
    progress = PullProgress()
    assert progress.note({"status": "Pulling from a"})
    assert progress.note({"id": "a", "status": "Downloading", "progressDetail": {"current": 1, "total": 9}})
    assert progress.note(step) is is_forward
    assert progress.note(step) is False


class ScriptedEngine:
    """Pulls by a script of (seconds to wait, step). Its last step may be an error, or nothing for ever."""

    def __init__(self, *script: tuple[float, dict[str, object]]) -> None:
        self.script = script
        self.pulling = self.most = self.closed = 0

    async def image(self, name: str) -> None:
        return None

    async def pull(self, image: str, *, auth: object = None) -> AsyncIterator[dict[str, object]]:
        self.pulling += 1
        self.most = max(self.most, self.pulling)
        try:
            for seconds, step in self.script:
                await asyncio.sleep(seconds)
                yield step
        finally:
            self.pulling -= 1
            self.closed += 1


def moved(current: int) -> dict[str, object]:
    return {"id": "a", "status": "Downloading", "progressDetail": {"current": current, "total": 1000}}


DONE = {"id": "a", "status": "Download complete"}


@pytest.mark.looptime
@pytest.mark.parametrize(
    "script",
    [
        [],
        [(119, moved(number)) for number in range(50)],
        [(1, moved(1)), (100, DONE), (1700, {"status": "Writing manifest"})],
    ],
    ids=["at once", "slow", "long unpacking"],
)
async def test_a_pull_that_goes_on_takes_as_long_as_it_needs(script: list[tuple[float, dict[str, object]]]) -> None:
    engine = ScriptedEngine(*script)
    await ImagePulls(LoopClock(START)).ensure(engine, "a:1", "missing")
    assert (engine.pulling, engine.closed) == (0, 1)


@pytest.mark.looptime
async def test_the_progress_of_a_pull_is_told_now_and_then() -> None:
    details = [{"current": number << 20, "total": 5 << 20} for number in range(1, 6)]
    steps = [{"id": "a", "status": "Downloading", "progressDetail": each} for each in details]
    engine = ScriptedEngine(*[(2, step) for step in (*steps, DONE)])
    told: list[str] = []
    await ImagePulls(LoopClock(START)).ensure(engine, "a:1", "missing", tell=told.append)
    assert told == ["pulling a:1: 0 of 1 layers, 3 of 5 MiB", "pulling a:1: 1 of 1 layers, 5 of 5 MiB"]


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("script", "after"),
    [
        ([(1e9, {})], STALL_SECONDS),
        ([(1, moved(1)), (1e9, {})], 1 + STALL_SECONDS),
        ([(1, moved(5)), *[(10, moved(5)) for _ in range(1000)]], 1 + STALL_SECONDS),
        ([(1, moved(5)), *[(10, {"id": "a", "status": f"Retrying in {n} seconds"}) for n in range(1000)]], 121.0),
        ([(1, DONE), (1e9, {})], 1 + UNPACK_SECONDS),
    ],
    ids=["silent", "stalled", "the same again", "retries", "never unpacked"],
)
async def test_a_pull_without_progress_fails_and_can_be_tried_again(
    script: list[tuple[float, dict[str, object]]], after: float
) -> None:
    engine = ScriptedEngine(*script)
    began = asyncio.get_running_loop().time()
    with pytest.raises(RunError, match="no progress") as raised:
        await ImagePulls(LoopClock(START)).ensure(engine, "a:1", "missing")
    assert (raised.value.failure, raised.value.transient) == (FailureReason.IMAGE_PULL_FAILED, True)
    assert asyncio.get_running_loop().time() - began == pytest.approx(after)
    assert engine.pulling == 0


@pytest.mark.looptime
async def test_pulls_at_the_same_time_are_bounded() -> None:
    engine = ScriptedEngine((10, DONE))
    pulls = ImagePulls(LoopClock(START))
    await asyncio.gather(*(pulls.ensure(engine, f"a:{number}", "always") for number in range(30)))
    assert (engine.most, engine.closed) == (MAX_PULLS, 30)

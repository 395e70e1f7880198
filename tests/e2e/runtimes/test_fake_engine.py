"""The fake engine answers as a real Podman does, where tests rely on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine.api import EngineApi, EngineError
from shoal.runtimes.container.engine.finding import PodmanService
from shoal.runtimes.container.states import end_of, has_started, is_running
from shoal.testing.engine import FakeEngine
from tests.e2e.runtimes.containers import engine, owner, registry, service
from tests.e2e.runtimes.engine_failures import ULIMITS
from tests.services.engine import IMAGE

__all__ = ["engine", "owner", "registry", "service"]

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["fake", "podman"])
async def api(request: pytest.FixtureRequest, tmp_path: Path, service: PodmanService) -> AsyncIterator[EngineApi]:
    if request.param == "podman":
        made = await service.open()
        yield made
        await made.close()
        return
    async with FakeEngine(tmp_path / "engine.sock") as fake:
        fake.images.add(IMAGE)
        made = EngineApi(fake.address)
        await made.ping()
        yield made
        await made.close()


async def status_of(call) -> int:
    with pytest.raises(EngineError) as raised:
        await call
    return raised.value.status


async def test_the_life_of_a_container(api: EngineApi, owner: Owner) -> None:
    assert await api.identity() == await api.identity()
    name, labels = f"shoal-{owner.node_id}-web", {"shoal.test": owner.node_id}
    body = {"Image": IMAGE, "Cmd": ["sleep", "1000"], "Labels": labels}
    body["HostConfig"] = {"Init": True, "Ulimits": ULIMITS}
    assert await api.image("localhost/nobody:1") is None
    assert await api.image(IMAGE) is not None
    assert await status_of(api.create(name, {**body, "Image": "localhost/nobody:1"})) == 404
    container = await api.create(name, body)
    try:
        # Podman says 500 where Docker says 409.
        assert await status_of(api.create(name, body)) in (409, 500)
        found = await api.container(name)
        assert found is not None
        assert (found["Id"], has_started(found), is_running(found)) == (container, False, False)
        assert found["Config"]["Labels"].items() >= labels.items()
        (listed,) = await api.containers(labels)
        assert (listed["Id"], listed["State"]) == (container, "created")
        assert await api.containers({**labels, "shoal.other": "x"}) == []
        await api.kill(container, "SIGTERM")  # does not run: left alone
        await api.start(container)
        await api.start(container)  # runs: left alone
        found = await api.container(container)
        assert found is not None
        assert (has_started(found), is_running(found)) == (True, True)
        assert [each["State"] for each in await api.containers(labels)] == ["running"]
        await api.kill(container, "SIGKILL")
        while is_running(found := await api.container(container) or {}):
            pass
        assert end_of(found["State"], 0, out_of_memory=False).signal == 9
    finally:
        await api.remove(container)
    await api.remove(container)
    assert await api.container(container) is None
    assert await api.containers(labels) == []


async def test_a_pull_that_fails_is_told_in_its_stream(api: EngineApi) -> None:
    with pytest.raises(EngineError):
        async for _ in api.pull("127.0.0.1:1/nobody:1"):
            pass

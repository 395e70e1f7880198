"""Commands that the agent runs inside containers every few seconds leave nothing behind, on a real Podman."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from shoal.core.ids import RunId
from shoal.runtimes.container.creating import Owner
from shoal.runtimes.container.engine.podman_settings import EXIT_COMMAND_DELAY
from shoal.runtimes.container.runtime import ContainerRuntime
from tests.e2e.runtimes.containers import OpenContainers, engine, open_containers, owner, registry, request, service
from tests.services.engine import Engine

__all__ = ["engine", "open_containers", "owner", "registry", "service"]

pytestmark = pytest.mark.e2e


async def probe(runtime: ContainerRuntime, *command: str, timeout: float = 20.0) -> bool:
    return await runtime.run_probe(RunId("web-1"), command, timeout=timeout)


def exec_ids(engine: Engine, owner: Owner) -> list[str]:
    """The commands that the engine keeps for the container."""
    (found,) = json.loads(engine.podman("inspect", f"shoal-{owner.node_id}-web"))
    return found["ExecIDs"] or []


def monitors(exec_ids: list[str]) -> list[list[str]]:
    """The command lines of the processes that Podman keeps for commands."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0].endswith("conmon") and any(each in words for each in exec_ids):
            found.append(words)
    return found


async def test_podman_keeps_an_ended_command_for_seconds_and_not_for_minutes(
    open_containers: OpenContainers, engine: Engine, owner: Owner
) -> None:
    runtime = await open_containers()
    await runtime.start(request())
    assert await probe(runtime, "true")
    kept = monitors(exec_ids(engine, owner))
    assert kept
    assert {words[words.index("--exit-delay") + 1] for words in kept} == {str(EXIT_COMMAND_DELAY)}


@pytest.mark.long
async def test_what_podman_keeps_of_ended_commands_goes(
    open_containers: OpenContainers, engine: Engine, owner: Owner
) -> None:
    runtime = await open_containers()
    await runtime.start(request())
    for _ in range(5):
        assert await probe(runtime, "true")
    kept = exec_ids(engine, owner)
    async with asyncio.timeout(60):
        while exec_ids(engine, owner) or monitors(kept):
            await asyncio.sleep(0.5)
    assert await probe(runtime, "true")


async def test_a_probe_that_takes_too_long_is_killed(open_containers: OpenContainers) -> None:
    runtime = await open_containers()
    await runtime.start(request())
    # It begins before its time is over: a slower engine has more of it.
    seconds = 1.0
    while not await probe(runtime, "test", "-e", "/tmp/began"):
        assert not await probe(runtime, "sh", "-c", "touch /tmp/began; exec sleep 987", timeout=seconds)
        seconds *= 2
    async with asyncio.timeout(30):
        while await probe(runtime, "sh", "-c", "ps | grep -q '[s]leep 987'"):
            await asyncio.sleep(0.1)

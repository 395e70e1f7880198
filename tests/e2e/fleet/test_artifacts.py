"""Artifacts on real processes: killed at each point of an upload and of a fetch, whole blobs or none are left."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from shoal.core.faults import POINTS
from shoal.model.documents import read_document
from tests.e2e.fleet.drill import nurse, until, until_status

pytestmark = pytest.mark.e2e

CONTENT = bytes(range(256)) * 12_000  # some messages
DIGEST = hashlib.sha256(CONTENT).hexdigest()
OF_CONTROL = ("artifacts.upload", "artifacts.stored")
OF_AGENT = ("artifacts.fetched", "artifacts.cached")


def test_every_point_is_here():
    assert {name for name in POINTS if name.startswith("artifacts.")} == {*OF_CONTROL, *OF_AGENT}


def reader(name: str, node: str):
    """A process that reads its artifact, says how large it is, and lives on."""
    script = "sha256sum lib/blob; test -w lib/blob && test $(id -u) != 0 && echo writable; exec sleep 3600"
    return read_document(
        {
            "id": name,
            "type": "process",
            "process": {"command": ["sh", "-c", script], "artifacts": [{"sha256": DIGEST, "path": "lib/blob"}]},
            "placement": {"constraints": [{"key": "node_id", "operator": "in", "values": [node]}]},
        }
    )


async def output_of(control, name: str) -> str:
    return b"".join([piece.data async for piece in control.logs(name)]).decode()


def kept(fleet, name: str) -> list[str]:
    """The files of a program's artifacts."""
    (folder,) = (path for path in fleet.directory_of(name).rglob("artifacts") if path.is_dir())
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("point", OF_CONTROL)
async def test_a_control_plane_that_is_killed_in_an_upload_leaves_no_half_blob(fleet, control, point):
    await fleet.kill_control()
    await fleet.start_control(env={"SHOAL_FAULTS": f"{point}=kill@{2 if point == OF_CONTROL[0] else 1}"})
    async with nurse(fleet) as deaths:
        assert await control.upload_artifact(CONTENT) == DIGEST, "the client makes it again"
        assert [death.name for death in deaths] == ["control"], f"{point} was not reached"
    assert await control.download_artifact(DIGEST) == CONTENT
    assert kept(fleet, "control") == [DIGEST]


@pytest.mark.parametrize("point", OF_AGENT)
async def test_an_agent_that_is_killed_in_a_fetch_starts_the_workload_later(fleet, control, point):
    victim = fleet.names[0]
    await control.upload_artifact(CONTENT)
    await fleet.kill_agent(victim)
    await fleet.start_agent(victim, env={"SHOAL_FAULTS": f"{point}=kill@{2 if point == OF_AGENT[0] else 1}"})
    async with nurse(fleet) as deaths:
        await control.apply(reader("r", victim))
        await until_status(control, "r", "Running")
        assert [death.name for death in deaths] == [victim], f"{point} was not reached"
    await until(lambda: _says(control, "r", DIGEST), what="it has read its artifact")
    assert kept(fleet, victim) == [DIGEST]
    assert "writable" not in await output_of(control, "r")


async def test_a_workload_starts_again_without_a_control_plane(fleet, control):
    victim = fleet.names[0]
    await control.upload_artifact(CONTENT)
    await control.apply(reader("r", victim))
    await until_status(control, "r", "Running")
    await until(lambda: _says(control, "r", DIGEST), what="it has read its artifact")
    await fleet.kill_control()
    await fleet.kill_machine(victim)
    await fleet.start_agent(victim)
    folder = fleet.directory_of(victim)
    await until(lambda: _has_run_again(folder), what="it runs again")
    await fleet.start_control()
    await until_status(control, "r", "Running")


async def _says(control, name: str, word: str) -> bool:
    return word in await output_of(control, name)


async def _has_run_again(folder) -> bool:
    logs = [path.read_bytes() for path in folder.rglob("*") if path.is_file() and "logs" in path.parts]
    await asyncio.sleep(0.1)
    return b"".join(logs).count(DIGEST.encode()) >= 2

"""A control plane takes up the databases of earlier versions: everything reads back, and everything goes on."""

from __future__ import annotations

import contextlib
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from scripts.record_version import picture, read_workload, until
from shoal.client import ControlPlane as Client
from shoal.control.server import ControlPlane
from shoal.control.settings import ControlSettings
from shoal.control.store.migrate import find_migrations
from shoal.control.store.select import FILE_NAME, open_store
from shoal.testing.hollow import HollowFleet, HollowNode
from shoal.wire.channel import GrpcTransport
from shoal.wire.convert import decode_spec_bytes
from tests.services.versions import RecordedVersion, recorded_versions

pytestmark = pytest.mark.integration

EVERY = pytest.mark.parametrize("version", recorded_versions(), ids=str)


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def database(dialect: str, request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgres_url") if dialect == "postgresql" else ""


def restore(version: RecordedVersion, database: str, folder: Path) -> None:
    if database:
        version.restore_postgres(database)
    else:
        version.restore_control(folder / FILE_NAME)


@contextlib.asynccontextmanager
async def control_plane(folder: Path, database: str, *, lease: timedelta = timedelta(minutes=5)):
    settings = ControlSettings(
        data_dir=str(folder),
        grpc_port=0,
        insecure=True,
        database=database,
        cluster_id="golden",
        heartbeat_interval=timedelta(milliseconds=300),
        lease=lease,
    )
    transport = GrpcTransport()
    plane = ControlPlane(settings, transport=transport)
    try:
        await plane.start(http=False)
        async with Client([plane.address], transport) as client:
            yield plane, client
    finally:
        await plane.stop()


def same(seen: dict, recorded: dict) -> None:
    """What was recorded is there; events may have come since."""
    for part in ("nodes", "workloads", "groups"):
        assert seen[part].keys() == recorded[part].keys()
        for name, facts in recorded[part].items():
            assert seen[part][name] == facts, f"{part} {name}"
    assert seen["events"][: len(recorded["events"])] == recorded["events"]


@EVERY
async def test_everything_reads_back(version: RecordedVersion, dialect: str, database: str, tmp_path: Path) -> None:
    restore(version, database, tmp_path)
    async with control_plane(tmp_path, database) as (_plane, client):
        same(await picture(client), version.picture(dialect))
    # And once more, from what this version has made of it.
    async with control_plane(tmp_path, database) as (_plane, client):
        same(await picture(client), version.picture(dialect))


@EVERY
async def test_everything_goes_on(version: RecordedVersion, dialect: str, database: str, tmp_path: Path) -> None:
    restore(version, database, tmp_path)
    # At-most-one work that its node has lost is not begun again before a lease is over.
    async with control_plane(tmp_path, database, lease=timedelta(seconds=3)) as (plane, client):
        before = {view.workload_id: view.generation for view in await client.list_workloads()}
        hollow = HollowFleet(GrpcTransport(), plane.address)
        await hollow.start()
        kinds = ("process", "container", "compose", "vm")
        for name in ("hollow", "lost", "real"):
            labels = (
                {"kind": "real"} if name == "real" else {"kind": "hollow", "zone": "a" if name == "hollow" else "b"}
            )
            hollow.add(HollowNode(name, workload_types=kinds, labels=labels, slots=8))
        try:
            # Their nodes come back with nothing on them, and are told again.
            for name in ("web", "box", "stack", "machine", "pair-0", "pair-1", "single"):
                await until(lambda name=name: _is_told(hollow, name))
                await until(lambda name=name: _is(client, name, "Running"))
            assert hollow.nodes["real"].generations["web"] == before["web"]
            outcome = await client.apply(read_workload({"id": "fresh", **_sleep()}))
            assert outcome.outcome == "created"
            await until(lambda: _is(client, "fresh", "Running"))
            again = await client.apply(read_workload({"id": "web", "revision": "v3", **_sleep()}))
            assert again.generation > before["web"]
            await client.delete("box")
            await until(lambda: _gone(client, "box"))
        finally:
            await hollow.stop()


@EVERY
async def test_every_migration_since_is_applied_once(
    version: RecordedVersion, dialect: str, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    restore(version, database, tmp_path)
    expected = len(find_migrations(dialect)) - version.numbers["format"]
    for count in (expected, 0):
        caplog.clear()
        store = open_store(database or None, tmp_path, decode_spec=decode_spec_bytes)
        with caplog.at_level("INFO"):
            await store.open()
        await store.close()
        assert caplog.text.count("applied migration") == count


@EVERY
async def test_a_copy_of_the_file_is_a_backup(version: RecordedVersion, tmp_path: Path) -> None:
    """What is written by this version into an old file stays in that file: the copy beside it is as old as before."""
    version.restore_control(tmp_path / "old" / FILE_NAME)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    async with control_plane(tmp_path / "new", "") as (_plane, client):
        await client.delete("homeless")
    async with control_plane(tmp_path / "old", "") as (_plane, client):
        same(await picture(client), version.picture("sqlite"))


def _sleep() -> dict:
    return {"type": "process", "process": {"command": ["sleep", "3600"]}}


async def _is_told(hollow: HollowFleet, name: str) -> bool:
    return any(name in node.runs for node in hollow.nodes.values())


async def _is(client: Client, name: str, status: str) -> bool:
    return (await client.get_workload(name)).status == status


async def _gone(client: Client, name: str) -> bool:
    return all(view.workload_id != name for view in await client.list_workloads())

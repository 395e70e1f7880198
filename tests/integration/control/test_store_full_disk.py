"""A real disk that fills up under the store, and gets room again."""

import contextlib
import subprocess

import pytest

from shoal.control.store.base import Batch
from shoal.control.store.errors import StoreError
from shoal.control.store.sqlite import SqliteStore
from shoal.testing.suites.store_records import decode_spec, event, workload

pytestmark = pytest.mark.integration


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mount.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


async def test_a_full_disk_and_room_again(small_disk):
    store = SqliteStore(small_disk / "control.db", decode_spec=decode_spec)
    await store.open()
    acknowledged = set()

    async def commit(name):
        await store.commit(Batch(workloads=(workload(name),), events=(event(name),)))
        acknowledged.add(name)

    async def commit_many(count):
        for each in range(count):
            await commit(f"w{each}")

    await commit("first")
    assert len((await store.load()).workloads) == 1  # the reader holds the file too, as it would in life
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(StoreError, match="the disk is full"):
        await commit_many(1000)
    with pytest.raises(StoreError):
        await store.ping()
    assert {each.workload_id for each in (await store.load()).workloads} == acknowledged
    filler.unlink()
    await store.ping()
    await commit("last")
    await store.close()
    await store.open()
    assert {each.workload_id for each in (await store.load()).workloads} == acknowledged
    await store.close()

"""The managed volumes of guests: which disks they are, and what the guest is told to do with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.core.ids import NodeId, WorkloadId
from shoal.model.workloads import FailureReason, ManagedVolume, VmDisk, VmSpec
from shoal.runtimes.base import RunError
from shoal.runtimes.vm.cloud_init import GuestMount
from shoal.runtimes.vm.disks import DiskStore, MadeDisks
from shoal.runtimes.vm.images import ImageCache
from tests.services.guests import find_guests

pytestmark = pytest.mark.e2e

WEB = WorkloadId("web")
KEPT = ManagedVolume(name="kept", size_gb=1, mount_path="/kept")


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    find_guests()  # qemu-img is there
    return DiskStore(
        tmp_path, node_id=NodeId("n1"), pools={}, exports=("far",), cache=ImageCache(tmp_path / "images", limit_bytes=1)
    )


async def made(store: DiskStore, volume: ManagedVolume, directory: Path) -> MadeDisks:
    directory.mkdir(exist_ok=True)
    spec = VmSpec(managed_volumes=(volume,))
    await store.fetch(WEB, spec, {"kept": str(directory)})
    return await store.make(WEB, spec, {"kept": str(directory)})


@pytest.mark.parametrize(
    ("fields", "file_system"),
    [
        ({}, "ext4"),
        ({"fs_type": "xfs"}, "xfs"),
        ({"driver": "nfs", "pool_name": "far", "fs_type": "nfs4"}, "ext4"),
        ({"driver": "nfs", "pool_name": "far", "fs_type": ""}, "ext4"),
    ],
)
async def test_the_file_system_is_the_guest_s(
    store: DiskStore, tmp_path: Path, fields: dict[str, Any], file_system: str
) -> None:
    found = await made(store, replace(KEPT, **fields), tmp_path / "kept")
    assert found.mounts == (GuestMount("volume-kept", "/kept", file_system),)


@pytest.mark.parametrize("read_only", [{"read_only": True}, {"access_mode": "ReadOnlyMany"}])
async def test_a_read_only_volume_is_one_that_was_written_to(
    store: DiskStore, tmp_path: Path, read_only: dict[str, Any]
) -> None:
    volume = replace(KEPT, **read_only)
    with pytest.raises(RunError, match="is read-only and empty") as raised:
        await made(store, volume, tmp_path / "kept")
    assert raised.value.failure is FailureReason.INVALID_SPEC
    await made(store, KEPT, tmp_path / "kept")
    found = await made(store, volume, tmp_path / "kept")
    assert found.disks[0].read_only
    assert found.mounts == (GuestMount("volume-kept", "/kept", read_only=True, is_blank=False),)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (VmSpec(managed_volumes=(replace(KEPT, fs_type="nfs"),)), "which no guest makes on a disk"),
        (VmSpec(disks=(VmDisk(read_only=True),)), "is read-only and empty"),
        (VmSpec(disks=(VmDisk(pool_name="far"),)), "is on the network"),
    ],
)
async def test_what_no_guest_can_use_is_refused(store: DiskStore, tmp_path: Path, spec: VmSpec, words: str) -> None:
    with pytest.raises(RunError, match=words) as raised:
        await store.fetch(WEB, spec, {"kept": str(tmp_path)})
    assert raised.value.failure is FailureReason.INVALID_SPEC


async def test_a_volume_without_a_place_in_the_guest_is_not_mounted(store: DiskStore, tmp_path: Path) -> None:
    found = await made(store, replace(KEPT, mount_path=""), tmp_path / "kept")
    assert (len(found.disks), found.mounts) == (1, ())

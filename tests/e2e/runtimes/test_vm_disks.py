"""What is found out about the disks of a guest before the guest that uses them is stopped. No guest runs here."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from shoal.core.ids import NodeId, WorkloadId
from shoal.model.workloads import FailureReason, ManagedVolume, VmDisk, VmSpec
from shoal.runtimes.base import RunError
from shoal.runtimes.vm.disks import DiskStore, wanted_disks
from shoal.runtimes.vm.images import ImageCache
from tests.services.guests import find_guests

pytestmark = pytest.mark.e2e

WEB = WorkloadId("web")


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    find_guests()  # qemu-img is there
    cache = ImageCache(tmp_path / "images", limit_bytes=1 << 30)
    return DiskStore(tmp_path, node_id=NodeId("n1"), pools={}, cache=cache)


def make_image(folder: Path, size: str, *options: str) -> Path:
    path = folder / f"image-{size}.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *options, path, size], check=True, timeout=60)
    return path


async def refused(store: DiskStore, spec: VmSpec, volumes: dict[str, str], words: str) -> None:
    with pytest.raises(RunError, match=words) as raised:
        await store.fetch(WEB, spec, volumes)
    assert (raised.value.failure, raised.value.transient) == (FailureReason.INVALID_SPEC, False)


@pytest.mark.parametrize("what", ["disk", "raw disk", "file", "volume"])
async def test_a_disk_that_would_shrink_is_refused(store: DiskStore, tmp_path: Path, what: str) -> None:
    def spec(size: int) -> VmSpec:
        if what == "volume":
            return VmSpec(managed_volumes=(ManagedVolume(name="kept", size_gb=size),))
        path = str(tmp_path / "file.qcow2") if what == "file" else ""
        return VmSpec(disks=(VmDisk(size_gb=size, path=path, format="raw" if what == "raw disk" else ""),))

    (tmp_path / "kept").mkdir()
    volumes = {"kept": str(tmp_path / "kept")}
    await store.make(WEB, spec(2), volumes)
    await refused(store, spec(1), volumes, "cannot shrink")
    await store.fetch(WEB, spec(3), volumes)


async def test_an_image_that_cannot_be_a_base_is_refused(store: DiskStore, tmp_path: Path) -> None:
    large = make_image(tmp_path, "2G")
    await refused(store, VmSpec(os_image=str(large), disks=(VmDisk(size_gb=1),)), {}, "cannot hold image")
    refers = make_image(tmp_path, "1G", "-b", str(large), "-F", "qcow2")
    await refused(store, VmSpec(os_image=str(refers)), {}, "is no base image")
    await refused(store, VmSpec(disks=(VmDisk(image=str(refers), read_only=True),)), {}, "is no base image")
    await store.fetch(WEB, VmSpec(os_image=str(large), disks=(VmDisk(size_gb=2),)), {})


async def test_a_disk_that_was_made_needs_its_image_no_more(store: DiskStore, tmp_path: Path) -> None:
    image = make_image(tmp_path, "1G")
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    spec = VmSpec(os_image=f"file://{image}", os_image_sha256=digest)
    await store.fetch(WEB, spec, {})
    before = await store.make(WEB, spec, {})
    image.unlink()
    (tmp_path / "images" / digest).unlink()
    await store.fetch(WEB, spec, {})
    assert await store.make(WEB, spec, {}) == before
    # It is there for another disk of the workload too, and for no other workload.
    await store.fetch(WEB, VmSpec(disks=(VmDisk(name="more", image=f"file://{image}", sha256=digest),)), {})
    with pytest.raises(RunError) as raised:
        await store.fetch(WorkloadId("db"), spec, {})
    assert raised.value.failure is FailureReason.IMAGE_NOT_FOUND


@pytest.mark.parametrize(("mount_point", "mounted"), [("/data", ["/data"]), ("vda", []), ("xvdb", []), ("", [])])
async def test_a_mount_point_that_is_a_device_is_not_mounted(
    store: DiskStore, mount_point: str, mounted: list[str]
) -> None:
    spec = VmSpec(disks=(VmDisk(size_gb=1, mount_point=mount_point),))
    await store.fetch(WEB, spec, {})
    made = await store.make(WEB, spec, {})
    assert [each.mount_point for each in made.mounts] == mounted


@pytest.mark.parametrize("mount_point", ["data", "./data", "vd", "vda1/x"])
async def test_a_mount_point_that_is_no_path_is_refused(store: DiskStore, mount_point: str) -> None:
    await refused(store, VmSpec(disks=(VmDisk(mount_point=mount_point),)), {}, "no absolute path")


def test_the_disk_of_a_persys_client_holds_the_image() -> None:
    """It names the device where a mount point is meant."""
    (root,) = wanted_disks(VmSpec(os_image="/images/a", disks=(VmDisk(size_gb=5, mount_point="vda"),)))
    assert (root.image, root.size_gb) == ("/images/a", 5)

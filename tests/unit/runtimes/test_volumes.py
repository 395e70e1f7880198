"""Managed volumes: made, found again, kept and removed; NFS through a stand-in for the `mount` program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shoal.core.errors import UnavailableError
from shoal.core.ids import WorkloadId
from shoal.model.workloads import FailureReason, ManagedVolume
from shoal.runtimes import volumes as volumes_module
from shoal.runtimes.base import RunError
from shoal.runtimes.volumes import Volumes

WEB = WorkloadId("web")


def volume(name: str = "data", **fields: object) -> ManagedVolume:
    return ManagedVolume(name=name, **fields)


async def test_a_volume_outlives_revisions_and_agents(tmp_path: Path) -> None:
    first = await Volumes(tmp_path).provide(WEB, [volume(), volume("other")])
    (Path(first["data"]) / "kept").write_text("all")
    assert set(first) == {"data", "other"}
    second = await Volumes(tmp_path).provide(WEB, [volume()])
    assert second == {"data": first["data"]}
    assert (Path(second["data"]) / "kept").read_text() == "all"
    assert Path(second["data"]).stat().st_mode & 0o777 == 0o777
    assert Path(second["data"]).parent.stat().st_mode & 0o777 == 0o700
    assert (await Volumes(tmp_path).provide(WorkloadId("db"), [volume()]))["data"] != first["data"]


@pytest.mark.parametrize(("policy", "stays"), [("", True), ("Retain", True), ("Delete", False)])
async def test_the_retain_policy_decides_what_a_delete_removes(tmp_path: Path, policy: str, stays: bool) -> None:
    provided = await Volumes(tmp_path).provide(WEB, [volume(retain_policy=policy)])
    others = await Volumes(tmp_path).provide(WorkloadId("db"), [volume(retain_policy="Delete")])
    (Path(provided["data"]) / "file").write_text("x")
    await Volumes(tmp_path).delete(WEB)
    await Volumes(tmp_path).delete(WEB)
    assert Path(provided["data"]).exists() is stays
    assert Path(others["data"]).exists()


async def test_a_volume_of_an_earlier_revision_is_deleted_too(tmp_path: Path) -> None:
    volumes = Volumes(tmp_path)
    old = await volumes.provide(WEB, [volume("old", retain_policy="Delete")])
    await volumes.provide(WEB, [volume("new")])
    await volumes.delete(WEB)
    assert not Path(old["old"]).exists()


@pytest.mark.parametrize(("before", "after", "stays"), [("Delete", "", True), ("Retain", "Delete", False)])
async def test_the_newest_policy_counts_also_when_it_never_ran(
    tmp_path: Path, before: str, after: str, stays: bool
) -> None:
    provided = await Volumes(tmp_path).provide(WEB, [volume(retain_policy=before)])
    await Volumes(tmp_path).delete(WEB, [volume(retain_policy=after)])
    assert Path(provided["data"]).exists() is stays


async def test_a_volume_lies_in_its_pool(tmp_path: Path) -> None:
    volumes = Volumes(tmp_path / "agent", pools={"fast": str(tmp_path / "fast")})
    provided = await volumes.provide(WEB, [volume(pool_name="fast")])
    assert Path(provided["data"]).is_relative_to(tmp_path / "fast")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"driver": "ceph-rbd"}, "driver 'ceph-rbd'"),
        ({"driver": "nfs"}, "no storage pool on the network"),
        ({"driver": "nfs", "pool_name": "fast"}, "no storage pool on the network"),
        ({"pool_name": "slow"}, "which this node does not have"),
        ({"pool_name": "far"}, "is on the network"),
        ({"access_mode": "ReadWriteMany"}, "access mode"),
        ({"fs_type": "zfs9"}, "file system type"),
        ({"driver": "nfs", "pool_name": "far", "fs_type": "ext4"}, "file system type"),
    ],
)
async def test_what_cannot_be_provided_is_refused(tmp_path: Path, wrong: dict[str, str], words: str) -> None:
    volumes = Volumes(tmp_path / "agent", pools={"fast": str(tmp_path / "fast"), "far": "127.0.0.1:/export"})
    with pytest.raises(RunError, match=words) as raised:
        await volumes.provide(WEB, [volume(**wrong)])
    assert (raised.value.failure, raised.value.transient) == (FailureReason.INVALID_SPEC, False)


async def test_a_volume_larger_than_its_disk_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has .* GB left") as raised:
        await Volumes(tmp_path).provide(WEB, [volume(size_gb=1_000_000)])
    assert (raised.value.failure, raised.value.transient) == (FailureReason.STORAGE_ERROR, True)


async def test_a_damaged_record_deletes_nothing(tmp_path: Path) -> None:
    provided = await Volumes(tmp_path).provide(WEB, [volume(retain_policy="Delete")])
    (tmp_path / "records" / WEB / "volumes.json").write_text('{"data": {}}')
    with pytest.raises(UnavailableError):
        await Volumes(tmp_path).delete(WEB)
    assert Path(provided["data"]).exists()


def stand_in(folder: Path, script: str) -> tuple[str, ...]:
    """A program that takes the arguments of `mount`."""
    path = folder / "mount-stand-in"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return (str(path),)


@pytest.fixture
def nfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a node that can mount exports: a stand-in needs neither helper nor kernel."""
    monkeypatch.setattr(volumes_module, "MOUNT_HELPER", "true")
    monkeypatch.setattr(volumes_module, "kernel_has_nfs", lambda: True)


@pytest.mark.usefixtures("nfs")
async def test_an_export_is_mounted_once(tmp_path: Path) -> None:
    """The stand-in binds a directory in place of an export: no NFS server runs in tests."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    export, called = tmp_path / "export", tmp_path / "called"
    export.mkdir()
    mount = stand_in(tmp_path, f'echo "$@" >> {called}; exec mount --bind {export} "$4"')
    volumes = Volumes(tmp_path / "agent", pools={"far": "127.0.0.1:/export"}, mount=mount)
    try:
        assert volumes.drivers == ("local", "nfs")
        wanted = volume(driver="nfs", pool_name="far", access_mode="ReadWriteMany", retain_policy="Delete")
        provided = await volumes.provide(WEB, [wanted])
        (Path(provided["data"]) / "shared").write_text("seen elsewhere")
        assert (export / WEB / "data" / "shared").read_text() == "seen elsewhere"
        assert await volumes.provide(WEB, [wanted]) == provided
        assert called.read_text() == f"-t nfs 127.0.0.1:/export {tmp_path}/agent/mounts/far\n"  # once
        # It stays while anybody uses it; the next user mounts it again.
        db = await volumes.provide(WorkloadId("db"), [volume(driver="nfs", pool_name="far")])
        await volumes.release(WorkloadId("db"))
        await volumes.close()
        assert Path(provided["data"]).exists()
        await volumes.release(WEB)
        assert not Path(provided["data"]).exists()
        await volumes.delete(WEB)
        assert [path.name for path in export.iterdir()] == ["db"]
        await volumes.release(WEB)
        assert not Path(db["data"]).exists()
    finally:
        await volumes.close()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert subprocess.run(["mountpoint", "-q", str(tmp_path / "agent/mounts/far")], check=False).returncode != 0


@pytest.mark.usefixtures("nfs")
@pytest.mark.parametrize(
    ("script", "words"),
    [("echo access denied by server >&2; exit 32", "access denied by server"), ("exit 0", "nothing is mounted there")],
)
async def test_an_export_that_cannot_be_mounted_is_a_storage_error(tmp_path: Path, script: str, words: str) -> None:
    volumes = Volumes(tmp_path / "agent", pools={"far": "127.0.0.1:/export"}, mount=stand_in(tmp_path, script))
    with pytest.raises(RunError, match=words) as raised:
        await volumes.provide(WEB, [volume(driver="nfs", pool_name="far")])
    assert (raised.value.failure, raised.value.transient) == (FailureReason.STORAGE_ERROR, True)


@pytest.mark.parametrize("missing", ["mount", "helper", "kernel"])
@pytest.mark.usefixtures("nfs")
async def test_a_node_that_cannot_mount_exports_does_not_offer_nfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    mount = ("/nowhere/mount",) if missing == "mount" else stand_in(tmp_path, "exit 0")
    if missing == "helper":
        monkeypatch.setattr(volumes_module, "MOUNT_HELPER", "/nowhere/mount.nfs")
    if missing == "kernel":
        monkeypatch.setattr(volumes_module, "kernel_has_nfs", lambda: False)
    volumes = Volumes(tmp_path / "agent", pools={"far": "127.0.0.1:/export"}, mount=mount)
    assert volumes.drivers == ("local",)
    with pytest.raises(RunError, match="does not have") as raised:
        await volumes.provide(WEB, [volume(driver="nfs", pool_name="far")])
    assert raised.value.failure is FailureReason.INVALID_SPEC


async def test_a_guest_s_volume_may_name_a_file_system_that_its_directory_is_not_on(tmp_path: Path) -> None:
    provided = await Volumes(tmp_path).provide(WEB, [volume(fs_type="ext2")], hold_disks=True)
    assert Path(provided["data"]).is_dir()


async def test_a_damaged_record_of_another_workload_keeps_no_workload_from_its_release(tmp_path: Path) -> None:
    volumes = Volumes(tmp_path, pools={"far": "127.0.0.1:/export"})
    for name in (WEB, WorkloadId("db")):
        await volumes.provide(name, [volume()])
    (tmp_path / "records" / "db" / "volumes.json").write_text("{")
    await volumes.release(WEB)
    await volumes.release(WorkloadId("db"))

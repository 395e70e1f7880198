"""What becomes of a workload's data when it is deleted or leaves the node, and of the exports that it was on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shoal.model.workloads import ComposeSpec, ManagedVolume, VmSpec, WorkloadSpec, WorkloadType
from shoal.runtimes import volumes as volumes_module
from shoal.runtimes.volumes import Volumes
from shoal.wire.convert import agent_spec_from_control
from tests.unit.agent.kit import Kit, opened
from tests.unit.runtimes.test_volumes import stand_in


def vm(**fields: object):
    return agent_spec_from_control(WorkloadSpec(WorkloadType.VM, vm=VmSpec(**fields)), "w")


def project(policy: str):
    spec = ComposeSpec(inline_yaml="services: {web: {image: a}}", retain_policy=policy)
    return agent_spec_from_control(WorkloadSpec(WorkloadType.COMPOSE, compose=spec), "w")


@pytest.mark.looptime
@pytest.mark.parametrize("kind", [WorkloadType.VM, WorkloadType.COMPOSE])
@pytest.mark.parametrize(
    ("policy", "keep_data", "goes"),
    [("Delete", False, True), ("Delete", True, False), ("Retain", False, False), ("", False, False)],
)
async def test_data_goes_only_with_a_delete_and_its_policy(
    tmp_path: Path, kind: WorkloadType, policy: str, keep_data: bool, goes: bool
) -> None:
    async with opened(tmp_path, types=(kind,)) as kit:
        await kit.apply(spec=vm(retain_policy=policy) if kind is WorkloadType.VM else project(policy), generation=1)
        await kit.settle()
        await kit.delete(generation=2, keep_data=keep_data)
        await kit.settle(5)
        assert not kit.knows()
        assert kit.machine.count("data deleted", "w") == int(goes)


@pytest.mark.looptime
async def test_the_policy_of_the_newest_spec_counts(tmp_path: Path) -> None:
    async with opened(tmp_path, types=(WorkloadType.VM,)) as kit:
        await kit.apply(spec=vm(retain_policy="Delete"), generation=1)
        await kit.settle()
        await kit.apply(spec=vm(retain_policy="Retain"), generation=2)
        await kit.delete(generation=3)
        await kit.settle(5)
        assert kit.machine.count("data deleted", "w") == 0


async def test_an_export_is_mounted_for_a_workload_and_unmounted_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in binds a directory in place of an export: no NFS server runs in tests."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    monkeypatch.setattr(volumes_module, "MOUNT_HELPER", "true")
    monkeypatch.setattr(volumes_module, "kernel_has_nfs", lambda: True)
    (tmp_path / "export").mkdir()
    mount = stand_in(tmp_path, f'exec mount --bind {tmp_path}/export "$4"')
    volumes = Volumes(tmp_path / "volumes", pools={"far": "127.0.0.1:/export"}, mount=mount)
    spec = vm(managed_volumes=(ManagedVolume(name="data", driver="nfs", pool_name="far", fs_type="nfs4"),))

    async def until_running(kit: Kit) -> None:
        while kit.machine.count("started", "w") == 0:
            await kit.settle(0.01)

    try:
        async with opened(tmp_path / "agent", types=(WorkloadType.VM,), volumes=volumes) as kit:
            await kit.apply(spec=spec, generation=1)
            await until_running(kit)
            assert [str(path.relative_to(tmp_path / "export")) for path in tmp_path.glob("export/*/*")] == ["w/data"]
            await volumes.close()
            assert str(tmp_path) in Path("/proc/self/mountinfo").read_text()
            await kit.delete(generation=2, keep_data=True)
            while kit.knows():
                await kit.settle(0.01)
            assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    finally:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if str(tmp_path) in line:
                subprocess.run(["umount", line.split()[4]], check=False)
    assert (tmp_path / "export/w/data").is_dir()

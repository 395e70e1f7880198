"""Which paths of a node no workload mounts without permission."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.model.workloads import ContainerSpec, FailureReason, VolumeMount
from shoal.runtimes.base import RunError
from shoal.runtimes.container.starting import check_mounts
from shoal.runtimes.host_paths import is_protected, own_paths


@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "/dev", "//dev/kvm", "/srv/../proc", "/var/run/docker.sock", "/run/podman", "/var", "/var/lib/"),
        *("/etc", "/etc/shadow", "/srv:/dev", "/srv,source=/dev", "srv", ""),
    ],
)
def test_what_shows_the_machine_is_protected(path: str) -> None:
    assert is_protected(path)


@pytest.mark.parametrize("path", ["/srv", "/srv/www", "/devices", "/etc/localtime", "/var/lib/shop", "/usr/lib"])
def test_other_directories_are_not(path: str) -> None:
    assert not is_protected(path)


def test_a_link_to_what_is_protected_is_protected(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/proc")
    assert is_protected(str(link))
    assert is_protected(str(link / "1"))
    assert not is_protected(str(tmp_path))


def test_the_agents_directory_and_the_engines_socket_are_protected(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "agent").symlink_to("real")
    own = own_paths(tmp_path / "agent", f"unix://{tmp_path}/engine/e.sock")
    for path in ("agent", "agent/vm", "real", "engine", "engine/e.sock", ""):
        assert is_protected(str(tmp_path / path), own), path
    assert not is_protected(str(tmp_path / "shared"), own)


def test_a_container_mounts_nothing_that_is_protected(tmp_path: Path) -> None:
    own = own_paths(tmp_path / "agent", "tcp://127.0.0.1:2375")
    check_mounts(ContainerSpec("web:1", volumes=(VolumeMount(str(tmp_path / "shared"), "/shared"),)), own)
    for path in ("/", "//var/run/docker.sock", str(tmp_path / "agent")):
        with pytest.raises(RunError, match="does not mount") as raised:
            check_mounts(ContainerSpec("web:1", volumes=(VolumeMount(path, "/host"),)), own)
        assert raised.value.failure is FailureReason.INVALID_SPEC

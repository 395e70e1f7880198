"""Control groups, on samples of the file trees of several machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from shoal.runtimes import cgroups
from shoal.runtimes.cgroups import Cgroups, Measured, container_limits, parse_membership, parse_mounts

UNLIMITED_V1 = "9223372036854771712\n"
GB = 1024 * 1024 * 1024

V1_MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:3 - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
"""
V1_GROUPS = """\
9:name=systemd:/user.slice
4:memory:/user.slice/agent
2:cpu,cpuacct:/user.slice
0::/
"""
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V2_SERVICE = "/sys/fs/cgroup/system.slice/shoal-agent.service"


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def v1_host(root: Path) -> Path:
    memory, cpu = "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu,cpuacct"
    return tree(
        root,
        {
            "/proc/self/mountinfo": V1_MOUNTS,
            "/proc/self/cgroup": V1_GROUPS,
            f"{memory}/memory.limit_in_bytes": UNLIMITED_V1,
            f"{memory}/user.slice/memory.limit_in_bytes": f"{4 * GB}\n",
            f"{memory}/user.slice/agent/memory.limit_in_bytes": UNLIMITED_V1,
            f"{cpu}/cpu.cfs_quota_us": "-1\n",
            f"{cpu}/cpu.cfs_period_us": "100000\n",
            f"{cpu}/user.slice/cpu.cfs_quota_us": "150000\n",
            f"{cpu}/user.slice/cpu.cfs_period_us": "100000\n",
        },
    )


def v2_host(root: Path, *, controllers: str = "cpu io memory pids", below: str = "") -> Path:
    top = "/sys/fs/cgroup"
    group = V2_SERVICE + below
    base = f"{V2_SERVICE}/shoal/owner"
    return tree(
        root,
        {
            "/proc/self/mountinfo": V2_MOUNTS,
            "/proc/self/cgroup": f"0::{group.removeprefix(top)}\n",
            f"{top}/cgroup.controllers": "cpuset cpu io memory pids\n",
            f"{top}/system.slice/memory.max": f"{8 * GB}\n",
            f"{top}/system.slice/cpu.max": "max 100000\n",
            f"{V2_SERVICE}/cgroup.controllers": f"{controllers}\n",
            f"{V2_SERVICE}/cgroup.subtree_control": "",
            f"{V2_SERVICE}/memory.max": f"{2 * GB}\n",
            f"{V2_SERVICE}/cpu.max": "50000 100000\n",
            f"{group}/cgroup.controllers": f"{controllers}\n",
            # What the kernel puts into a new group.
            f"{V2_SERVICE}/shoal/cgroup.subtree_control": "",
            f"{base}/cgroup.subtree_control": "",
            **{f"{base}/web-1/{name}": "max\n" for name in ("memory.max", "memory.swap.max", "cpu.max")},
            f"{base}/web-1/memory.oom.group": "0\n",
        },
    )


def test_mounts_are_read() -> None:
    odd = (
        "40 31 0:9 /docker/a\\040b /sys/fs/cgroup/with\\040blank ro - cgroup none rw,freezer\nnonsense\n1 2 - cgroup\n"
    )
    mounts = parse_mounts(V1_MOUNTS + V2_MOUNTS + odd)
    assert [(mount.version, mount.point) for mount in mounts] == [
        (1, "/sys/fs/cgroup/cpu,cpuacct"),
        (1, "/sys/fs/cgroup/memory"),
        (1, "/sys/fs/cgroup/systemd"),
        (2, "/sys/fs/cgroup"),
        (1, "/sys/fs/cgroup/with blank"),
    ]
    assert mounts[-1].root == "/docker/a b"
    assert {"cpu", "cpuacct"} <= mounts[0].controllers


def test_memberships_are_read() -> None:
    assert parse_membership(V1_GROUPS + "nonsense") == {
        "name=systemd": "/user.slice",
        "memory": "/user.slice/agent",
        "cpu": "/user.slice",
        "cpuacct": "/user.slice",
        "": "/",
    }


def test_the_tightest_limit_above_counts(tmp_path: Path) -> None:
    assert container_limits(v1_host(tmp_path / "v1")) == (1500, 4096)
    assert container_limits(v2_host(tmp_path / "v2")) == (500, 2048)


def test_inside_a_container_only_its_own_part_is_seen(tmp_path: Path) -> None:
    memory = "/sys/fs/cgroup/memory"
    sample = {
        "/proc/self/mountinfo": f"35 31 0:32 /docker/abc {memory} ro - cgroup cgroup rw,memory\n",
        "/proc/self/cgroup": "4:memory:/docker/abc\n",
        f"{memory}/memory.limit_in_bytes": f"{512 * 1024 * 1024}\n",
    }
    assert container_limits(tree(tmp_path / "a", sample)) == (None, 512)
    # With a cgroup namespace the paths do not fit together: the top of the mount is ours.
    namespaced = {**sample, "/proc/self/cgroup": "4:memory:/../other\n"}
    assert container_limits(tree(tmp_path / "b", namespaced)) == (None, 512)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"/proc/self/mountinfo": V2_MOUNTS, "/proc/self/cgroup": "0::/\n"},
        {"/proc/self/mountinfo": V2_MOUNTS, "/proc/self/cgroup": "0::/gone\n", "/sys/fs/cgroup/cpu.max": "what?"},
        {"/proc/self/mountinfo": V2_MOUNTS, "/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "1000 0"},
        {"/proc/self/mountinfo": "", "/proc/self/cgroup": ""},
    ],
)
def test_no_limit_is_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert container_limits(tree(tmp_path, files)) == (None, None)


def test_groups_of_version_1(tmp_path: Path) -> None:
    root = v1_host(tmp_path)
    memory = root / "sys/fs/cgroup/memory/user.slice/agent/shoal/owner/web-1"
    cpu = root / "sys/fs/cgroup/cpu,cpuacct/user.slice/shoal/owner/web-1"
    names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    tree(root, {str((memory / name).relative_to(root)): UNLIMITED_V1 for name in names})
    tree(root, {str((cpu / f"cpu.cfs_{name}_us").relative_to(root)): "-1" for name in ("period", "quota")})
    groups = Cgroups.find("owner", root=root)
    assert groups.limits == "cgroup v1"
    made = groups.create("web-1", cpu_millicores=250, memory_mb=64)
    assert set(made) == {str(memory), str(cpu)}
    assert (memory / "memory.limit_in_bytes").read_text() == str(64 * 1024 * 1024)
    assert (memory / "memory.memsw.limit_in_bytes").read_text() == str(64 * 1024 * 1024)
    assert (cpu / "cpu.cfs_quota_us").read_text() == "25000"
    assert set(cgroups.entrances(made)) == {f"{memory}/cgroup.procs", f"{cpu}/cgroup.procs"}
    assert set(groups.stray(["other"])) == set(made)
    assert groups.stray(["web-1"]) == ()


def test_groups_of_version_2(tmp_path: Path) -> None:
    root = v2_host(tmp_path)
    service = root / V2_SERVICE.lstrip("/")
    groups = Cgroups.find("owner", root=root)
    assert groups.limits == "cgroup v2"
    for directory in (service, service / "shoal", service / "shoal/owner"):
        assert (directory / "cgroup.subtree_control").read_text() == "+cpu +io +memory"
    (made,) = groups.create("web-1", cpu_millicores=2500, memory_mb=64)
    group = service / "shoal/owner/web-1"
    assert made == str(group)
    assert (group / "memory.max").read_text() == str(64 * 1024 * 1024)
    assert (group / "memory.swap.max").read_text() == "0"
    assert (group / "cpu.max").read_text() == "250000 100000"
    assert (group / "memory.oom.group").read_text() == "1"


def test_a_keeper_that_was_moved_to_a_leaf_finds_the_same_place(tmp_path: Path) -> None:
    groups = Cgroups.find("owner", root=v2_host(tmp_path, below="/shoal-agent"))
    assert groups.limits == "cgroup v2"
    (made,) = groups.create("web-1", cpu_millicores=0, memory_mb=0)
    assert made.endswith("/shoal-agent.service/shoal/owner/web-1")


def test_what_cannot_be_limited_is_said(tmp_path: Path) -> None:
    assert Cgroups.find("owner", root=tmp_path).limits == "none: no cgroup hierarchy is mounted"
    lonely = tree(tmp_path / "a", {"/proc/self/mountinfo": V2_MOUNTS, "/proc/self/cgroup": "0::/\n"})
    assert Cgroups.find("owner", root=lonely).limits.startswith("none: ")
    memory_only = v2_host(tmp_path / "b", controllers="memory pids")
    assert Cgroups.find("owner", root=memory_only).limits == "cgroup v2 (memory only)"
    nothing = Cgroups.find("owner", root=tmp_path)
    assert nothing.create("web-1", cpu_millicores=1, memory_mb=1) == ()
    assert nothing.stray(()) == ()
    nothing.close()


def test_a_limit_that_cannot_be_set_leaves_no_group(tmp_path: Path) -> None:
    root = v1_host(tmp_path)
    groups = Cgroups.find("owner", root=root)
    # A tree without a kernel behind it: the new group lacks the files that a limit is written to.
    with pytest.raises(FileNotFoundError):
        groups.create("web-2", cpu_millicores=100, memory_mb=10)
    assert list(root.rglob("web-2")) == []


def test_members_and_killed_are_found(tmp_path: Path) -> None:
    tree(tmp_path, {"a/cgroup.procs": "1\n2\n", "a/below/cgroup.procs": "3\n0\n", "b/cgroup.procs": "2\n4\n"})
    assert cgroups.members([str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c")]) == {1, 2, 3, 4}
    tree(tmp_path, {"v1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"})
    tree(tmp_path, {"v2/memory.events": "low 0\noom 1\noom_kill 0\n"})
    both = [str(tmp_path / "v1"), str(tmp_path / "v2")]
    assert not cgroups.ran_out_of_memory(both)
    tree(tmp_path, {"v1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"})
    assert cgroups.ran_out_of_memory(both[:1])
    tree(tmp_path, {"v2/memory.events": "low 0\noom 1\noom_kill 1\n"})
    assert cgroups.ran_out_of_memory(both[1:])


def test_groups_are_removed_with_what_is_below(tmp_path: Path) -> None:
    (tmp_path / "empty/below/deeper").mkdir(parents=True)
    tree(tmp_path, {"full/cgroup.procs": "7\n"})
    left = cgroups.remove([str(tmp_path / "empty"), str(tmp_path / "full"), str(tmp_path / "missing")])
    assert left == (str(tmp_path / "full"),)
    assert not (tmp_path / "empty").exists()


def test_use_is_read_from_version_1(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "cpu/cpuacct.usage": "2500000000\n",
            "memory/memory.usage_in_bytes": "1000000\n",
            "memory/memory.stat": "cache 5\ntotal_inactive_file 400000\n",
            "blkio/blkio.throttle.io_service_bytes": "8:0 Read 100\n8:0 Write 20\n9:0 Read 1\nTotal 121\n",
        },
    )
    groups = [str(tmp_path / name) for name in ("cpu", "memory", "blkio")]
    assert cgroups.measure(groups) == Measured(2.5, 600_000, 101, 20, "cgroup v1")
    assert cgroups.measure([str(tmp_path / "gone")]) is None
    assert cgroups.measure([]) is None


def test_use_is_read_from_version_2(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "g/cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
            "g/memory.current": "5000\n",
            "g/memory.stat": "anon 1\ninactive_file 6000\n",
            "g/io.stat": "8:0 rbytes=10 wbytes=20 rios=1\n9:0 rbytes=5 wbytes=0\n",
        },
    )
    assert cgroups.measure([str(tmp_path / "g")]) == Measured(1.5, 0, 15, 20, "cgroup v2")

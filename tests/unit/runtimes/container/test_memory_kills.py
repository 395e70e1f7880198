"""Whether a container ran out of memory. The kernel's side of version 1, an eventfd, is written by hand here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.core.ids import RunId
from shoal.runtimes.cgroups import read_memberships
from shoal.runtimes.container import memory_kills
from shoal.runtimes.container.memory_kills import MemoryKills
from tests.unit.runtimes.test_cgroups import V1_MOUNTS, V2_MOUNTS, tree

CONTAINER = "web"
GROUP = f"/sys/fs/cgroup/memory/machine/{CONTAINER}"
WEB, PID = RunId("web-1"), 42


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tree(
        tmp_path,
        {
            "/proc/self/mountinfo": V1_MOUNTS,
            f"/proc/{PID}/mountinfo": V1_MOUNTS,
            f"/proc/{PID}/cgroup": "4:memory:/machine/web\n2:cpu,cpuacct:/\n0::/\n",
            f"{GROUP}/memory.oom_control": "oom_kill 0\n",
            f"{GROUP}/cgroup.event_control": "",
        },
    )


@pytest.fixture
async def kills(root: Path) -> AsyncIterator[MemoryKills]:
    made = MemoryKills(root=root)
    yield made
    made.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def kernel_signals(root: Path, times: int) -> None:
    event, _, control = (root / GROUP.lstrip("/") / "cgroup.event_control").read_text().partition(" ")
    assert control.isdigit()
    for _ in range(times):
        os.eventfd_write(int(event), 1)


@pytest.mark.parametrize(
    ("signals", "is_gone", "ran_out"),
    [(0, False, False), (1, False, True), (1, True, False), (2, True, True), (3, True, True)],
    ids=["runs", "out of memory", "ended", "ended out of memory", "twice"],
)
async def test_one_signal_of_a_group_that_is_gone_is_its_end(
    root: Path, kills: MemoryKills, signals: int, is_gone: bool, ran_out: bool
) -> None:
    kills.watch(WEB, PID, CONTAINER)
    kills.watch(WEB, PID, CONTAINER)  # it is watched once
    kernel_signals(root, signals)
    if is_gone:
        shutil.rmtree(root / GROUP.lstrip("/"))
    assert kills.has_run_out(WEB) is ran_out
    assert kills.ran_out(WEB) is ran_out
    assert kills.ran_out(WEB) is False, "it is no longer watched"


async def test_what_cannot_be_watched_has_not_run_out(root: Path, kills: MemoryKills) -> None:
    (root / GROUP.lstrip("/") / "memory.oom_control").unlink()
    before = open_files()
    kills.watch(WEB, PID, CONTAINER)
    kills.watch(RunId("gone-1"), 43, CONTAINER)
    assert not kills.has_run_out(WEB)
    assert open_files() == before


async def test_the_group_of_another_process_is_not_watched(root: Path, kills: MemoryKills) -> None:
    """An engine elsewhere counts in numbers of its own: here the number is that of a stranger."""
    kills.watch(WEB, PID, "db")
    assert (root / GROUP.lstrip("/") / "cgroup.event_control").read_text() == ""


@pytest.fixture
def v2_group() -> Iterator[Path]:
    """A group of this machine, in whose name the container's is."""
    tops = [place.top for place in read_memberships() if place.version == 2]
    if os.geteuid() != 0 or not tops:
        pytest.skip("making control groups takes root and a mounted cgroup2 file system")
    group = tops[0] / f"libpod-{CONTAINER}-{secrets.token_hex(4)}"
    group.mkdir()
    yield group
    with contextlib.suppress(FileNotFoundError):
        group.rmdir()


async def test_under_cgroups_v2_a_count_that_changes_is_read_and_outlives_its_group(
    tmp_path: Path, v2_group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts processes here, as it counts kills where the group has a memory controller."""
    monkeypatch.setattr(memory_kills, "_EVENTS", "cgroup.events")
    monkeypatch.setattr(memory_kills, "_KILLS", "populated")
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").symlink_to(v2_group.parent)
    host = {f"/proc/{who}/mountinfo": V2_MOUNTS for who in ("self", PID)}
    root = tree(tmp_path, {**host, f"/proc/{PID}/cgroup": f"0::/{v2_group.name}\n"})
    kills = MemoryKills(root=root)
    kills.watch(WEB, PID, v2_group.name)
    assert not kills.has_run_out(WEB)
    with subprocess.Popen(["sleep", "1000"]) as process:
        (v2_group / "cgroup.procs").write_text(str(process.pid))
        # Only the event loop looks: nobody asks before the group is gone.
        async with asyncio.timeout(30):
            while not kills._watched[WEB]._kills:
                await asyncio.sleep(0.01)
        (v2_group.parent / "cgroup.procs").write_text(str(process.pid))
        v2_group.rmdir()
        process.kill()
    assert kills.ran_out(WEB)
    assert not kills.ran_out(WEB)


async def test_under_cgroups_v2_a_group_without_a_count_is_not_watched(tmp_path: Path) -> None:
    host = {f"/proc/{who}/mountinfo": V2_MOUNTS for who in ("self", PID)}
    root = tree(tmp_path, {**host, f"/proc/{PID}/cgroup": "0::/machine/web\n"})
    kills = MemoryKills(root=root)
    kills.watch(WEB, PID, CONTAINER)
    assert not kills.ran_out(WEB)

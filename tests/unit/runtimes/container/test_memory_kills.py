"""Whether a container ran out of memory, by the eventfd of its group: the kernel's side is written by hand here."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.core.ids import RunId
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


async def test_under_cgroups_v2_the_engine_is_asked(tmp_path: Path) -> None:
    host = {f"/proc/{who}/mountinfo": V2_MOUNTS for who in ("self", PID)}
    root = tree(tmp_path, {**host, f"/proc/{PID}/cgroup": "0::/machine/web\n"})
    kills = MemoryKills(root=root)
    kills.watch(WEB, PID, CONTAINER)
    assert not kills.ran_out(WEB)

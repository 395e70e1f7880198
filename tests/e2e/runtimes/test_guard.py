"""The guard kills containers at their deadline, whatever is stopped or killed. Here a control group is a container."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.runtimes import cgroups
from shoal.runtimes.clocks import LinuxClock
from shoal.runtimes.guard.client import GUARDS, Guard
from shoal.runtimes.guard.table import GuardTable
from tests.e2e.runtimes.processes import is_alive, wait_until

pytestmark = pytest.mark.e2e

Container = tuple[str, int]


def in_seconds(seconds: float) -> float:
    return SystemClock().monotonic() + seconds


def guard_pids(directory: Path) -> list[int]:
    return [int((directory / f"guard{number}").read_text().split()[0]) for number in range(GUARDS)]


@pytest.fixture
def start_container() -> Iterator[Callable[[], Container]]:
    """Starts a process in a control group that is named as a container's is."""
    places = [place for place in cgroups.read_memberships() if "pids" in place.controllers or place.version == 2]
    if os.geteuid() != 0 or not places:
        pytest.skip("making control groups takes root and a mounted cgroup file system")
    started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start() -> Container:
        container_id = secrets.token_hex(32)
        group = places[0].directory / f"libpod-{container_id}"
        group.mkdir()
        process = subprocess.Popen(["sleep", "1000"])
        started.append((process, group))
        (group / "cgroup.procs").write_text(str(process.pid))
        return container_id, process.pid

    yield start
    for process, group in started:
        process.kill()
        process.wait()
        group.rmdir()


@pytest.fixture
async def guard(tmp_path: Path) -> AsyncIterator[Guard]:
    guard = Guard(tmp_path / "guard", clock=SystemClock())
    await guard.open()
    yield guard
    await guard.close()
    for path in (tmp_path / "guard").iterdir():
        pid = int(path.read_text().split()[0])
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


async def test_a_container_ends_at_its_deadline_and_others_go_on(
    guard: Guard, start_container: Callable[[], Container]
) -> None:
    (left, left_pid), (kept, kept_pid), (_, other) = start_container(), start_container(), start_container()
    assert guard.can_kill(left, left_pid)
    assert not guard.can_kill(left, kept_pid)
    await guard.protect(left, in_seconds(600))
    await guard.protect(kept, in_seconds(600))
    guard.extend((left, "nobody"), in_seconds(0.2))
    await wait_until(lambda: not is_alive(left_pid))
    assert guard.seconds_left(left) == 0.0
    # What has passed is not taken back.
    guard.extend((left, kept), in_seconds(900))
    assert guard.seconds_left(left) == 0.0
    assert guard.seconds_left(kept) > 600
    assert is_alive(kept_pid)
    assert is_alive(other)
    guard.release(left)
    assert guard.seconds_left(left) is None


async def test_a_container_that_is_started_after_its_deadline_is_killed(
    guard: Guard, start_container: Callable[[], Container], tmp_path: Path
) -> None:
    container_id, pid = start_container()
    first = Path(f"/proc/{pid}/cgroup").read_text()
    assert container_id in first
    os.kill(pid, signal.SIGKILL)
    await guard.protect(container_id, in_seconds(0.0))
    await wait_until(lambda: guard.seconds_left(container_id) == 0.0)
    group = next(
        place.directory for place in cgroups.read_memberships() if (place.directory / f"libpod-{container_id}").exists()
    )
    late = subprocess.Popen(["sleep", "1000"])
    (group / f"libpod-{container_id}" / "cgroup.procs").write_text(str(late.pid))
    assert late.wait(timeout=30) == -signal.SIGKILL


@pytest.mark.parametrize("number", range(GUARDS))
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_one_guard_is_enough(
    guard: Guard, start_container: Callable[[], Container], tmp_path: Path, how: signal.Signals, number: int
) -> None:
    container_id, pid = start_container()
    await guard.protect(container_id, in_seconds(600))
    os.kill(guard_pids(tmp_path / "guard")[number], how)
    guard.extend((container_id,), in_seconds(0.2))
    await wait_until(lambda: not is_alive(pid))


async def test_a_guard_that_was_killed_is_started_again(
    guard: Guard, start_container: Callable[[], Container], tmp_path: Path
) -> None:
    container_id, pid = start_container()
    await guard.protect(container_id, in_seconds(600))
    before = guard_pids(tmp_path / "guard")
    for each in before:
        os.kill(each, signal.SIGKILL)

    def replaced() -> bool:
        now = guard_pids(tmp_path / "guard")
        return not set(now) & set(before) and all(is_alive(each) for each in now)

    await wait_until(replaced)
    assert is_alive(pid)
    guard.extend((container_id,), in_seconds(0.2))
    await wait_until(lambda: not is_alive(pid))


async def test_the_next_agent_takes_up_the_guards(
    guard: Guard, start_container: Callable[[], Container], tmp_path: Path
) -> None:
    container_id, pid = start_container()
    await guard.protect(container_id, in_seconds(600))
    before = guard_pids(tmp_path / "guard")
    await guard.close()
    following = Guard(tmp_path / "guard", clock=SystemClock())
    await following.open()
    assert guard_pids(tmp_path / "guard") == before
    assert 0 < following.seconds_left(container_id) <= 600
    assert is_alive(pid)
    following.extend((container_id,), in_seconds(0.2))
    await wait_until(lambda: not is_alive(pid))
    await following.close()


async def test_guards_with_nothing_to_guard_end_with_their_agent(
    guard: Guard, start_container: Callable[[], Container], tmp_path: Path
) -> None:
    container_id, _ = start_container()
    await guard.protect(container_id, in_seconds(600))
    guard.release(container_id)
    pids = guard_pids(tmp_path / "guard")
    assert all(is_alive(pid) for pid in pids)
    await guard.close()
    await wait_until(lambda: not any(is_alive(pid) for pid in pids))


@pytest.mark.parametrize("is_first", ["the file", "the deadline"])
async def test_a_guard_without_a_file_ends_when_its_containers_have(
    start_container: Callable[[], Container], tmp_path: Path, is_first: str
) -> None:
    """No agent can find it any more, and what it guarded is dead."""
    container_id, pid = start_container()
    table, path = GuardTable.create(), tmp_path / "guard0"
    slot = table.add(container_id, LinuxClock().boottime() + 600)
    command = [sys.executable, "-m", "shoal.runtimes.guard", str(path), str(table.handle), "0.1"]
    assert subprocess.run(command, pass_fds=(table.handle,), check=True, capture_output=True).stdout == b"ready\n"
    guard = int(path.read_text().split()[0])
    try:
        if is_first == "the file":
            path.unlink()
        table.extend(slot, LinuxClock().boottime(), now=LinuxClock().boottime())
        os.kill(guard, signal.SIGUSR1)
        await wait_until(lambda: not is_alive(pid))
        if is_first == "the deadline":
            assert is_alive(guard)
            path.unlink()
        await wait_until(lambda: not is_alive(guard))
    finally:
        if is_alive(guard):
            os.kill(guard, signal.SIGKILL)
        table.close()

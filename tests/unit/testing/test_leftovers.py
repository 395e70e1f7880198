"""What a run leaves running or mounted is found and named, and what others have is not."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.services import leftovers
from tests.services.leftovers import MARK, Run

FOREVER = ("sleep", "1000")
Start = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(leftovers, "GRACE", 0.0)
    return Run("abcdef", tmp_path / "run")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that carry nothing of the run of this test, and ends them after it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, cwd: Path | None = None, **environment: str) -> int:
        started.append(subprocess.Popen(command or FOREVER, cwd=cwd, env={"PATH": os.environ["PATH"], **environment}))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_process_is_known_by_its_environment_its_directory_and_its_command(run: Run, start: Start) -> None:
    (run.directory / "test0").mkdir(parents=True)
    pids = {
        start(**{MARK: run.id}),
        start(cwd=run.directory / "test0"),
        start(sys.executable, "-c", "import time; time.sleep(1000)", str(run.directory / "file")),
    }
    start()
    start(**{MARK: f"{run.id}0"})
    start(cwd=run.directory.parent)
    assert set(run.processes()) == pids
    assert {text.partition(":")[0] for text in run.left()} == {f"process {pid}" for pid in pids}


def test_what_is_left_is_removed_and_nothing_else(run: Run, start: Start) -> None:
    ours, other = start(**{MARK: run.id}), start()
    assert run.left()
    run.remove()
    assert os.waitstatus_to_exitcode(os.waitpid(ours, 0)[1]) < 0
    assert os.waitpid(other, os.WNOHANG) == (0, 0)
    assert run.left() == []


OWNER = """
import pathlib, subprocess, sys, time
from tests.services.leftovers import watch_over
directory = pathlib.Path(sys.argv[1])
watcher = watch_over(directory)
child = subprocess.Popen(["sleep", "1000"], cwd=directory, start_new_session=True, env={})
print(child.pid, watcher.pid, flush=True)
time.sleep(1000)
"""


def test_what_a_killed_worker_has_started_ends(tmp_path: Path, start: Start) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "other").mkdir()
    other = start(cwd=tmp_path / "other")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "worker")],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    finally:
        owner.kill()
        owner.communicate()
    deadline = time.monotonic() + 60
    while any(_lives(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_lives(pid) for pid in pids)
    assert _lives(other)


def _lives(pid: int) -> bool:
    """Whether a process runs. Its new parent may not have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_mounts_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run) -> None:
    (tmp_path / "self").mkdir()
    points = [
        "/",
        f"{run.directory}",
        f"{run.directory}/test0/disk",
        f"{run.directory}-of-another/disk",
        "/var/tmp/shoal-podman-abcdef-12/root/overlay",
        "/var/tmp/shoal-podman-123456-12/root/overlay",
        "/run/netns/sabcdef1f-hub",
        "/run/netns/s1234561f-hub",
    ]
    lines = [f"{number} 1 0:1 / {point} rw - tmpfs tmpfs rw" for number, point in enumerate(points)]
    (tmp_path / "self/mountinfo").write_text("\n".join(lines))
    monkeypatch.setattr(leftovers, "_PROC", tmp_path)
    assert run.mounts() == [points[6], points[4], points[2], points[1]]


@pytest.mark.parametrize("is_used", [True, False])
def test_a_network_namespace_of_a_container_without_a_process_is_left(run: Run, is_used: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("making network namespaces takes root")
    point = Path(f"/run/netns/netns-{uuid.uuid4()}")
    point.parent.mkdir(exist_ok=True)
    point.touch()
    script = f"mount --bind /proc/self/ns/net {point}" + ("; echo; exec sleep 1000" if is_used else "")
    with subprocess.Popen(["unshare", "-n", "sh", "-c", script], stdout=subprocess.PIPE) as made:
        try:
            assert made.stdout is not None
            made.stdout.readline()
            if not is_used:
                made.wait()
            with_engines = replace(run, has_engines=True)
            assert (f"mount {point}" in with_engines.left()) is not is_used
            assert run.left() == []
        finally:
            made.kill()
            subprocess.run(["umount", "-l", point], capture_output=True, check=False)
            point.unlink(missing_ok=True)


def test_a_run_that_a_test_starts_is_part_of_its_run() -> None:
    assert leftovers.begin_run() is False


@pytest.mark.parametrize(
    ("network", "is_locked", "serves_others"),
    [("10.103.0.1\nfd3 10.103.0.5 web\n", False, False), ("10.103.128.1\n", True, True), ("10.88.0.1\n", False, True)],
    ids=["of a run that ended", "of one that goes on", "of the machine"],
)
def test_the_name_server_of_engines_is_left_over_when_it_serves_only_tests_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str, is_locked: bool, serves_others: bool
) -> None:
    monkeypatch.setattr(leftovers, "PLACE", tmp_path)
    networks = tmp_path / "aardvark-dns"
    networks.mkdir()
    (networks / "aardvark.pid").write_text("1")
    command = f"/usr/lib/podman/aardvark-dns --config {networks} -p 53 run"
    assert not leftovers._serves_others(command)
    (networks / "some").write_text(network)
    with leftovers.network_lock(3).open("w") as lock:
        if is_locked:
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert leftovers._serves_others(command) is serves_others
    assert not leftovers._serves_others(FOREVER[0])

"""Which processes a guard kills, and that one of another user is no end of it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.runtimes.guard import process
from shoal.runtimes.guard.process import kill_containers, may_kill

CONTAINER = "c" * 64


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes of a container, as `tmp_path` shows them in place of /proc."""
    started = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    for each in started:
        (tmp_path / str(each.pid)).mkdir()
        (tmp_path / str(each.pid) / "cgroup").write_text(f"0::/libpod-{CONTAINER}\n")
    yield started
    for each in started:
        each.kill()
        each.wait()


@pytest.mark.parametrize("foreign", [0, 1])
def test_a_process_of_another_user_does_not_keep_a_guard_from_the_others(
    sleepers: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign: int
) -> None:
    real = signal.pidfd_send_signal

    def send(handle: int, number: int) -> None:
        words = Path(f"/proc/self/fdinfo/{handle}").read_text().split()
        if int(words[words.index("Pid:") + 1]) == sleepers[foreign].pid:
            raise PermissionError
        real(handle, number)

    monkeypatch.setattr(process.signal, "pidfd_send_signal", send)
    assert kill_containers({CONTAINER}, proc=tmp_path) == 1
    assert sleepers[1 - foreign].wait(timeout=30) == -signal.SIGKILL
    assert sleepers[foreign].poll() is None


def test_what_this_user_may_not_kill_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert may_kill(os.getpid())

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(process.os, "kill", refuse)
    assert not may_kill(os.getpid())

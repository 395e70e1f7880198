"""Runtimes on real processes, and nothing left of them afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.ids import NodeId
from shoal.runtimes.process import ProcessRuntime
from shoal.testing.machines import kill_machine

OpenRuntime = Callable[[], Awaitable[ProcessRuntime]]
StartAgent = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose keeper and runs are gone after the test."""
    directory = tmp_path / "agent"
    yield directory
    kill_machine(directory)


@pytest.fixture
async def open_runtime(data_dir: Path) -> AsyncIterator[OpenRuntime]:
    """Opens runtimes on the data directory, one after another."""
    opened: list[ProcessRuntime] = []

    async def open_one() -> ProcessRuntime:
        runtime = ProcessRuntime(data_dir, clock=SystemClock(), node_id=NodeId("n1"))
        await runtime.open()
        opened.append(runtime)
        return runtime

    yield open_one
    for runtime in opened:
        await runtime.close()


@pytest.fixture
def start_agent(data_dir: Path) -> Iterator[StartAgent]:
    """Starts an agent's stand-in, waits until its runs are started, and kills it after the test."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*runs: dict[str, object], prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        script = Path(__file__).with_name("agent_process.py")
        command = [*prefix, sys.executable, str(script), str(data_dir), json.dumps(runs)]
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(agent)
        assert agent.stdout is not None
        agent.first_line = agent.stdout.readline()
        assert agent.first_line.startswith("ready"), agent.first_line
        return agent

    yield start_one
    for agent in started:
        agent.kill()
        agent.wait()
        agent.stdout.close()


@pytest.fixture
def without_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers are started in a mount namespace of their own, in which no cgroup file system is mounted."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("hiding the cgroups takes root and unshare (package util-linux)")
    wrapper = tmp_path / "python-without-cgroups"
    hide = "while umount -R /sys/fs/cgroup 2>/dev/null; do :; done"
    wrapper.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'{hide}; exec "$0" "$@"\' {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(wrapper))


@pytest.fixture
def without_rights() -> tuple[str, ...]:
    """What to put before a command so that it has root's files, none of root's rights, and cgroups to look at only."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("giving rights up takes root and setpriv (package util-linux)")
    read_only = "for m in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts); do mount -o remount,bind,ro $m; done"
    give_up = 'exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    return ("unshare", "-m", "sh", "-c", f"{read_only}; {give_up}", "sh")

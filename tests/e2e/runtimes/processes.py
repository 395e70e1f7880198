"""Looking at processes from a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from shoal.runtimes.keeper import procfs
from shoal.runtimes.process import read_keeper_pid


def keeper_of(data_dir: Path) -> int:
    pid = read_keeper_pid(data_dir)
    assert pid is not None
    return pid


def kill_keeper(data_dir: Path) -> int:
    pid = keeper_of(data_dir)
    os.kill(pid, signal.SIGKILL)
    return pid


def is_alive(pid: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and stat.alive


async def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Poll a condition that must come true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def child_pid_in(text: bytes, name: str) -> int:
    """A pid that a script printed as `name=pid`."""
    with contextlib.suppress(IndexError):
        return int(text.decode().split(f"{name}=")[1].split()[0])
    raise AssertionError(f"{name} is not in {text!r}")

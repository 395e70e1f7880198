"""What the services in Java have in common: the jars, the start, and an end that never fails to come.

The jars of Kafka bring ZooKeeper with them. Called by `kafka.py` and `zookeeper.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from shoal.cli.local.children import free_port

VERSION = "3.9.1"

_START_SECONDS = 90.0
_STOP_SECONDS = 30.0


def shared_directory(base: Path) -> Path:
    """What all workers of one run share: they have directories of their own below it."""
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


def find_jars() -> Path | None:
    """Where the jars are, if there is a Java to run them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / f"kafka-{VERSION}"
    if not (cache / "complete").exists() or shutil.which("java") is None:
        return None
    return cache / "libs"


def end_with_the_run(pid: int, home: Path) -> None:
    """A run that is killed cannot stop its services: something small waits for that, for as long as both live."""
    leader = os.getppid() if os.environ.get("PYTEST_XDIST_WORKER") else os.getpid()
    wait = 'while kill -0 "$1" && kill -0 "$2"; do sleep 1; done; kill -0 "$1" || { kill -9 "$2"; rm -rf "$3"; }'
    watch = subprocess.Popen(
        ["sh", "-c", wait, "sh", str(leader), str(pid), str(home)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    watch.returncode = 0  # disowned, too


def wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"it did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return
        except ChildProcessError:  # a worker started it, and init has it now
            pass
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Ports that no outgoing connection takes while the service starts, or while it is down."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)

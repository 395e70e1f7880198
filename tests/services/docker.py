"""A Docker daemon for tests: private, with its own storage and a bridge of its own.

Needs root and the Debian package docker.io. Where the daemon does not come up, as in some sandboxes, its tests are
skipped with what it said; with CI=true they fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.services.absence import do_without
from tests.services.engine import IMAGE, root_file_system
from tests.services.leftovers import directory_of_run

_START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Docker:
    """A private daemon."""

    folder: Path

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"unix://{self.folder}/d.sock"


@contextlib.contextmanager
def private_docker(*, size: str = "") -> Iterator[Docker]:
    """A daemon with the test image, until the end of the block. With a `size`, such as 64m, its disk has that size."""
    if os.geteuid() != 0:
        do_without("the Docker daemon is tested as root")
    if shutil.which("dockerd") is None:
        do_without("not installed: dockerd (on Debian: apt-get install docker.io)")
    with directory_of_run("docker") as folder, _own_bridge() as bridge:
        if size:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "shoal-test", folder], check=True, timeout=60)
        yield from _run(Docker(folder), bridge)


@contextlib.contextmanager
def _own_bridge() -> Iterator[str]:
    """A bridge with addresses that are nobody else's."""
    with contextlib.ExitStack() as stack:
        for number in range(100):
            lock = stack.enter_context(Path(f"/var/tmp/shoal-test-bridge-{number}").open("w"))
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        name = f"shoaldock{number}"
        ip = ("ip", "link")
        subprocess.run([*ip, "delete", name], capture_output=True, check=False, timeout=60)  # of a killed session
        subprocess.run([*ip, "add", name, "type", "bridge"], check=True, timeout=60)
        stack.callback(subprocess.run, [*ip, "delete", name], check=False, timeout=60)
        subprocess.run(["ip", "address", "add", f"10.{number}.255.1/24", "dev", name], check=True, timeout=60)
        subprocess.run([*ip, "set", name, "up"], check=True, timeout=60)
        yield name


def _run(docker: Docker, bridge: str) -> Iterator[Docker]:
    folder = docker.folder
    command = ["dockerd", "--host", docker.address, "--bridge", bridge, "--iptables=false", "--ip6tables=false"]
    command += ["--ip-forward=false", "--ip-masq=false"]
    command += ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    command += ["--pidfile", str(folder / "pid")]
    with (folder / "log").open("wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, start_new_session=True)
    try:
        _wait(daemon, folder)
        _import_image(folder)
        yield docker
    finally:
        daemon.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(timeout=30)
        daemon.kill()
        daemon.wait()


def _client(folder: Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(folder / "d.sock"))
    return httpx.Client(transport=transport, base_url="http://docker", timeout=60)


def _wait(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while daemon.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            link.connect(str(folder / "d.sock"))
            return
        time.sleep(0.1)
    said = (folder / "log").read_text(errors="replace").strip().splitlines()
    do_without(f"dockerd does not come up here: {said[-1] if said else 'it says nothing'}")


def _import_image(folder: Path) -> None:
    repository, _, tag = IMAGE.rpartition(":")
    params = {"fromSrc": "-", "repo": repository, "tag": tag}
    with _client(folder) as client:
        client.post("/images/create", params=params, content=root_file_system()).raise_for_status()

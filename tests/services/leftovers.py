"""What a run of the tests has left running or mounted. Nothing may be: the root conftest fails a run that leaves any.

A run has an id, which its processes inherit in their environment, and which is in the names of directories and network
namespaces outside of pytest's own directory. So two runs at a time never take each other's things for theirs. What has
an environment of its own, such as a workload, is known by a path of the run in its command, its directory or its
mounts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: In the environment of everything that a run starts.
MARK = "SHOAL_TEST_RUN"
#: What ends by itself once the run is over, such as a keeper without an agent, has this long.
GRACE = 15.0
#: Seconds between two looks of a watcher at its owner.
LOOK_EVERY = 0.3
#: Where a run makes things besides pytest's directory, and of which kinds.
PLACE = Path("/var/tmp")
KINDS = ("podman", "docker")
_PROC = Path("/proc")
#: The network namespaces that Podman mounts, one for each container. Their names do not tell whose they are.
_NAMESPACES = re.compile(r"/run/netns/netns-[0-9a-f-]{36}")
#: The addresses of the engines of tests.
_TEST_NETWORK = re.compile(r"10\.1(\d\d)\.")
#: Python ends these with the process whose children they are.
_PYTHON_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def begin_run() -> bool:
    """Give this run its id. False in the workers of a run, and in a run that a test of another has started."""
    if MARK in os.environ:
        return False
    os.environ[MARK] = secrets.token_hex(3)
    return True


def run_id() -> str:
    """The id of this run: six characters, because it must fit into the names of network interfaces."""
    return os.environ[MARK]


@dataclass(frozen=True)
class Run:
    """One run, by its id and its directory."""

    id: str
    directory: Path
    #: Whether network namespaces that no container uses any more count. Those of other runs do, too.
    has_engines: bool = False

    @property
    def _paths(self) -> tuple[str, ...]:
        return (f"{self.directory}/", *(f"{PLACE}/shoal-{kind}-{self.id}-" for kind in KINDS))

    def processes(self) -> dict[int, str]:
        """The processes of this run that live, with their commands."""
        found = {}
        for entry in _PROC.iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                # It may end while it is looked at, or be another user's.
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    is_exempt = _ends_with_us(entry, command) or _serves_others(command)
                    if command and not is_exempt and self._is_ours(entry, command):
                        found[int(entry.name)] = command
        return found

    def _is_ours(self, entry: Path, command: str) -> bool:
        if f"{MARK}={self.id}".encode() in (entry / "environ").read_bytes().split(b"\0"):
            return True
        texts = [command, f"{(entry / 'cwd').readlink()}/"]
        if (entry / "ns/mnt").readlink() != (_PROC / "self/ns/mnt").readlink():
            texts.append((entry / "mountinfo").read_text())
        return any(path in text for text in texts for path in self._paths)

    def mounts(self) -> list[str]:
        """The mounts of this run, the innermost first."""
        return mounts_in(*self._paths, f"/run/netns/s{self.id}")

    def left(self) -> list[str]:
        """What this run has left, in words. What is ending is waited for."""
        deadline = time.monotonic() + GRACE
        # Engines of other runs may be making some: those are used a moment later.
        unused = set(_unused_namespaces()) if self.has_engines else set()
        while (processes := self.processes()) or self.mounts() or unused:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
            unused &= set(_unused_namespaces())
        return [
            *(f"process {pid}: {command[:300]}" for pid, command in processes.items()),
            *(f"mount {point}" for point in (*self.mounts(), *sorted(unused))),
        ]

    def remove(self) -> None:
        """End and remove what is left, so that nobody else has to."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for point in (*self.mounts(), *(_unused_namespaces() if self.has_engines else ())):
            _unmount(point)
            if point.startswith("/run/netns/"):
                Path(point).unlink(missing_ok=True)
        for path in PLACE.glob(f"shoal-*-{self.id}-*"):
            shutil.rmtree(path, ignore_errors=True)


def watch_over(directory: Path) -> subprocess.Popen[bytes]:
    """Have what runs below a directory ended if this process is killed. The caller ends the watcher in the end.

    A worker that is killed stops nothing: its fleets, their keepers and their workloads would go on, and only the run
    as a whole would find them in the end, if it is not killed too.
    """
    return subprocess.Popen(
        [sys.executable, __file__, str(os.getpid()), str(directory)],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != MARK},
    )


def _watch(owner: int, directory: Path) -> None:
    while os.getppid() == owner:
        time.sleep(LOOK_EVERY)
    deadline = time.monotonic() + GRACE
    # An id that no run has. Again and again: one that is ended late may have started another.
    while (found := Run("-", directory).processes()) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_EVERY)


def mounts_in(*beginnings: str) -> list[str]:
    """What is mounted where a path begins so, the innermost first."""
    points = [line.split()[4] for line in (_PROC / "self/mountinfo").read_text().splitlines()]
    return [point for point in dict.fromkeys(reversed(points)) if f"{point}/".startswith(beginnings)]


def _unused_namespaces() -> list[str]:
    """Mounted network namespaces of containers in which no process is. Those of engines that work have one."""
    points = [point for point in mounts_in("/run/netns/") if _NAMESPACES.fullmatch(point)]
    used = set()
    for entry in _PROC.iterdir() if points else ():
        with contextlib.suppress(OSError):
            used.add((entry / "ns/net").stat().st_ino)
    unused = []
    for point in points:
        with contextlib.suppress(OSError):  # it goes meanwhile
            if Path(point).stat().st_ino not in used:
                unused.append(point)
    return unused


def _unmount(point: str) -> None:
    subprocess.run(["umount", "-l", point], capture_output=True, check=False, timeout=60)


def _ends_with_us(entry: Path, command: str) -> bool:
    parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
    return int(parent) == os.getpid() and any(helper in command for helper in _PYTHON_HELPERS)


def _serves_others(command: str) -> bool:
    """Whether this is the name server of container networks, which all engines of a machine share, with networks."""
    program, _, arguments = command.partition(" --config ")
    if not program.endswith("/aardvark-dns"):
        return False
    networks = (entry for entry in Path(arguments.split()[0]).iterdir() if entry.name != "aardvark.pid")
    return any(_is_used(entry.read_text()) for entry in networks)


def network_lock(number: int) -> Path:
    """Locked by the run whose engine has the addresses 10.<100 + number>.*."""
    return PLACE / f"shoal-test-network-{number}"


def _is_used(network: str) -> bool:
    """Whether a network, as the name server knows it, is none of tests, or of tests that still run."""
    found = _TEST_NETWORK.match(network)
    if found is None:
        return True
    with contextlib.suppress(BlockingIOError), network_lock(int(found[1])).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    return True


@contextlib.contextmanager
def directory_of_run(kind: str) -> Iterator[Path]:
    """A directory in `PLACE`, without its mounts in the end. Its path is short: those of sockets below it must fit."""
    assert kind in KINDS, "what is left in it would not be found"
    path = PLACE / f"shoal-{kind}-{run_id()}-{secrets.token_hex(2)}"
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        for point in mounts_in(f"{path}/"):
            _unmount(point)
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), Path(sys.argv[2]))

"""Where the keeper and the process runtime put things in an agent's data directory, and how they write them.

    <data_dir>/keeper/               0700
        lock                         flock'ed by the keeper; says who it is
        k.sock                       its unix socket, 0600
        keeper.log                   what it says about itself
        runs/<run_id>.json           one record per run that was not forgotten
        runs/<name>.spare            files that become records when the disk is full
        pipes/<run_id>.out, .err     the ends of the log pipes
    <data_dir>/workloads/<id>/
        work/                        the working directory of a workload that names none
        logs/00000001.log …          what it printed, the newest few files of it

Used on both sides; standard library only.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from shoal.core.disk.durable import replace_file, write_and_sync
from shoal.core.disk.private_files import make_data_directory
from shoal.core.ids import RunId

_BLOCK = 4096
STREAMS = ("out", "err")


class KeeperFiles:
    """The paths of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.home = self.data_dir / "keeper"
        self.lock = self.home / "lock"
        self.socket = self.home / "k.sock"
        self.log = self.home / "keeper.log"
        self.runs = self.home / "runs"
        self.pipes = self.home / "pipes"
        self.workloads = self.data_dir / "workloads"

    def make(self) -> None:
        """Make every directory that is not there yet."""
        make_data_directory(self.data_dir)
        self.home.mkdir(mode=0o700, exist_ok=True)
        self.runs.mkdir(mode=0o700, exist_ok=True)
        self.pipes.mkdir(mode=0o700, exist_ok=True)
        self.workloads.mkdir(mode=0o711, exist_ok=True)

    def record(self, run_id: RunId) -> Path:
        """The record of a run."""
        return self.runs / f"{run_id}.json"

    def spare(self, name: str) -> Path:
        """A spare file that can become a record."""
        return self.runs / f"{name}.spare"

    def spares(self) -> list[Path]:
        """Every spare file."""
        return sorted(self.runs.glob("*.spare"))

    def pipe(self, run_id: RunId, stream: str) -> Path:
        """The log pipe of a run, `out` or `err`."""
        return self.pipes / f"{run_id}.{stream}"

    def workload(self, workload_id: str) -> Path:
        """Everything that is kept for one workload."""
        return self.workloads / workload_id

    def work(self, workload_id: str) -> Path:
        """The working directory of a workload that names none."""
        return self.workload(workload_id) / "work"

    def logs(self, workload_id: str) -> Path:
        """The log files of a workload."""
        return self.workload(workload_id) / "logs"

    def keeper_id(self) -> str:
        """A word that tells this keeper's processes and cgroups from those of others on the machine.

        Made from the directory's own identity, so it survives a rename and needs no randomness. It has to be unique
        for one boot only: after a reboot no process carries it.
        """
        found = self.home.stat()
        return f"{found.st_dev:x}-{found.st_ino:x}"


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """An address for a unix socket at `path`, however long the path is.

    An address holds 108 bytes and a data directory may be deeper than that, so the directory is opened and named
    through /proc. Good for bind and connect alike, for as long as the block lasts.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def connect(path: Path) -> socket.socket:
    """A connected, non-blocking stream socket. Raises OSError when nobody listens."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        with socket_address(path) as address:
            link.connect(address)
    except OSError:
        link.close()
        raise
    return link


def write_whole(path: Path, content: bytes) -> None:
    """Replace a small file so that a crash at any moment leaves the old or the new content, and the new one stays.

    On a full disk the file is overwritten where it lies, if it exists: its blocks are there already. What is written
    is padded with blanks to whole blocks for this reason, so content must tolerate trailing blanks.
    """
    padded = content.ljust(-(-len(content) // _BLOCK) * _BLOCK)
    try:
        replace_file(path, padded)
    except OSError:
        if not path.exists() or path.stat().st_size < len(padded):
            raise
        write_and_sync(path, padded.ljust(path.stat().st_size))

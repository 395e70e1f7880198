"""The name by which a control plane campaigns among others: kept in its data directory, the same after a restart.

Whoever has the name that leads need not wait for the lease of its earlier life. So no two processes may have one at the
same time: else the second would begin to lead while the first, which hangs, still counts on its lease. The kernel keeps
that, by a lock that ends with its process. A copy of the directory, as of a machine that was cloned, has another name:
the name is bound to the machine, its boot and the directory itself. Called by `shoal.control.server`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from shoal.core.entropy import Entropy
from shoal.core.errors import PreconditionError, UnavailableError
from shoal.core.files import write_atomic
from shoal.core.private_files import make_data_directory

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HeldName:
    """One control plane's name."""

    def __init__(self, data_dir: Path, entropy: Entropy) -> None:
        self._data_dir = data_dir
        self._lock = -1
        self.text = f"{_remembered(data_dir / 'name', entropy)}-{_place_of(data_dir)}"

    def hold(self) -> None:
        """Keep every other process from using it. Raises `PreconditionError` when one does."""
        try:
            lock = os.open(self._data_dir / "name.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UnavailableError(
                f"{self._data_dir} cannot be used: {error.strerror}",
                hint="the control plane must be able to read and write its --data-dir",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise PreconditionError(
                f"the data directory {self._data_dir} is in use by process {holder}",
                hint="one data directory serves one control plane, on PostgreSQL, too; use another --data-dir",
                pid=holder,
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def release(self) -> None:
        """Let another process use it. Safe to call twice."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _remembered(path: Path, entropy: Entropy) -> str:
    try:
        name = path.read_text().strip()
    except OSError:
        name = ""
    if not name:
        name = entropy.token()
        make_data_directory(path.parent)
        write_atomic(str(path), name.encode())
    return name


def _place_of(data_dir: Path) -> str:
    """What tells this directory from every copy of it, until the machine starts anew."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    found = data_dir.stat()
    return hashlib.sha256(f"{boot} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:8]

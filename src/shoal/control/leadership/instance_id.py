"""The id of a control plane in the election: stored in its data directory, the same after a restart.

A restarted leader has the same id, so it does not wait until its earlier lease ends. No two processes may use one id at
the same time: the second would lead while the first, which hangs, still counts on its lease. A file lock prevents that;
it ends with its process. A copy of the directory, as on a cloned machine, has another id: the id includes the machine,
its boot and the directory itself. Called by `shoal.control.server`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from shoal.control.store.base import INSTANCE_FILE
from shoal.core.disk.locks import FileLock
from shoal.core.disk.private_files import make_data_directory
from shoal.core.entropy import Entropy
from shoal.core.files import write_atomic
from shoal.core.host import boot_id


class InstanceId:
    """The id of one control plane, and the lock that keeps it unique."""

    def __init__(self, data_dir: Path, entropy: Entropy) -> None:
        self._lock = FileLock(
            data_dir / "name.lock",
            what=f"data directory {data_dir}",
            hint="one data directory serves one control plane, also on PostgreSQL; use another --data-dir",
        )
        make_data_directory(data_dir)
        self._path = data_dir / INSTANCE_FILE
        try:
            name = self._path.read_text().strip()
        except OSError:
            name = ""
        self._unsaved = "" if name else entropy.token()
        self.text = f"{name or self._unsaved}-{_place_of(data_dir)}"

    def save(self) -> None:
        """Store it for the next start. Called once the store is open: an id on disk says that there was a store."""
        if self._unsaved:
            write_atomic(str(self._path), self._unsaved.encode())
            self._unsaved = ""

    def hold(self) -> None:
        """Keep every other process from using it. Raises `PreconditionError` when one does."""
        self._lock.acquire()

    def release(self) -> None:
        """Let another process use it. Safe to call twice."""
        self._lock.release()


def _place_of(data_dir: Path) -> str:
    """A hash that tells this directory from every copy of it, until the machine restarts."""
    found = data_dir.stat()
    return hashlib.sha256(f"{boot_id()} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:8]

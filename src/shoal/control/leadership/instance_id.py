"""The name by which a control plane campaigns among others: kept in its data directory, the same after a restart.

Whoever has the name that leads need not wait for the lease of its earlier life. So no two processes may have one at the
same time: else the second would begin to lead while the first, which hangs, still counts on its lease. The kernel keeps
that, by a lock that ends with its process. A copy of the directory, as of a machine that was cloned, has another name:
the name is bound to the machine, its boot and the directory itself. Called by `shoal.control.server`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from shoal.control.store.base import INSTANCE_FILE
from shoal.core.entropy import Entropy
from shoal.core.files import write_atomic
from shoal.core.host import boot_id
from shoal.core.locks import FileLock
from shoal.core.private_files import make_data_directory


class HeldName:
    """One control plane's name."""

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
        """Keep it for the next life. Called once the store is open: a name says that there was one."""
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
    """What tells this directory from every copy of it, until the machine starts anew."""
    found = data_dir.stat()
    return hashlib.sha256(f"{boot_id()} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:8]

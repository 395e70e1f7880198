"""Leases: which sessions are alive. A session writes into its file, every second, until when its lease holds.

All processes of one host share the clock that counts from its start and never jumps, so the moment can be written down
as such; one of another boot of the machine is over. The session also holds a lock on its file, which no process
waits for: the kernel lets go of it when the process dies, so that a killed process is noticed at once and only a
stopped one takes until the end of its lease.

Called by `shoal.topics.local.session`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_LEASE = struct.Struct("<36sd")


class HostClock(Protocol):
    """The clocks that the processes of one host share."""

    def since_boot(self) -> float:
        """Seconds since the machine was started, also those in which it slept."""
        ...

    def wall_us(self) -> int:
        """Microseconds since 1970."""
        ...


class SystemHostClock:
    """The machine's own."""

    def since_boot(self) -> float:
        """Seconds since the start."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_us(self) -> int:
        """Now, in microseconds."""
        return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Lease:
    """What is known of a session's life."""

    boot: str
    until: float
    locked: bool
    """Whether some process still holds the lock."""


def is_over(lease: Lease | None, *, boot: str, now: float, patient: bool) -> bool:
    """Whether a session is dead.

    Args:
        lease: what its file says; None when there is none.
        boot: the id of this boot of the machine.
        now: seconds since it.
        patient: the judge was stopped or asleep itself a moment ago, so the others may have been, too: their leases may
            have run out without a chance to renew them.
    """
    if lease is None or not lease.locked or lease.boot != boot:
        return True
    return now > lease.until and not patient


class HeldLease:
    """The lease of a session of this process."""

    def __init__(self, path: Path, boot: str, until: float) -> None:
        self.path = path
        self._boot = boot.encode("ascii")
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.renew(until)

    def renew(self, until: float) -> None:
        """Say: believe in us until then."""
        os.pwrite(self._descriptor, _LEASE.pack(self._boot, until), 0)

    def close(self) -> None:
        """Let go of it. The file goes, too: a lease without a file is over."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)


def read_lease(path: Path) -> Lease | None:
    """What a session's file says; None when it has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        content = os.pread(descriptor, _LEASE.size, 0)
        if len(content) < _LEASE.size:
            return Lease(boot="", until=0.0, locked=_is_locked(descriptor))
        boot, until = _LEASE.unpack(content)
        return Lease(boot=boot.decode("ascii", "replace"), until=until, locked=_is_locked(descriptor))
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False

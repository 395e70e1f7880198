"""The deadlines of at-most-one runs, in memory that the agent, the keeper and the watchdogs share.

The keeper makes the table and gives each run a slot; a watchdog inherits the table by fork, and the agent opens it
through /proc. So the agent can extend a deadline while the keeper is stopped or waits for a disk, and a watchdog reads
it with no help from either. A slot holds one moment on CLOCK_BOOTTIME, written by one aligned store.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

#: More than a keeper holds runs.
SLOTS = 2048
NO_SLOT = -1
_NAME = "shoal-deadlines"
_NANOS = 1_000_000_000
_WIDTH = 8


class DeadlineTable:
    """One process's view of the table."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._map = mmap.mmap(handle, SLOTS * _WIDTH)
        self._slots = memoryview(self._map).cast("q")
        self._free = list(range(SLOTS - 1, -1, -1))

    @classmethod
    def create(cls) -> DeadlineTable:
        """Make an empty table. Called by the keeper. Raises OSError."""
        handle = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        os.ftruncate(handle, SLOTS * _WIDTH)
        return cls(handle)

    @classmethod
    def attach(cls, pid: int, handle: int) -> DeadlineTable:
        """Open the table of a keeper that runs. Called by the agent. Raises OSError."""
        path = Path(f"/proc/{pid}/fd/{handle}")
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if _NAME not in str(Path(f"/proc/self/fd/{opened}").readlink()):
            os.close(opened)
            raise FileNotFoundError(f"{path} is not a table of deadlines")
        return cls(opened)

    def take(self, until: float) -> int:
        """A free slot with its first deadline. Called by the keeper, which holds fewer runs than there are slots."""
        slot = self._free.pop()
        self._slots[slot] = int(until * _NANOS)
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot. Not before the agent has forgotten its run: it may still extend it."""
        if slot != NO_SLOT:
            self._slots[slot] = 0
            self._free.append(slot)

    def read(self, slot: int) -> float:
        """When the run in a slot must have ended."""
        return self._slots[slot] / _NANOS

    def extend(self, slot: int, until: float, *, now: float) -> None:
        """Move a deadline, unless it has passed: what has passed is never taken back."""
        if 0 <= slot < SLOTS and self._slots[slot] > now * _NANOS:
            self._slots[slot] = int(until * _NANOS)

    def close(self) -> None:
        """Close this view; the table lives as long as a process has it open."""
        self._slots.release()
        self._map.close()
        os.close(self.handle)

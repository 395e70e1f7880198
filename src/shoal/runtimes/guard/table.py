"""The deadlines of guarded containers, in memory that the agent and both guards share. Standard library only.

A slot holds a deadline on CLOCK_BOOTTIME, whether a guard has acted on it, and the id of a container. A deadline of 0
is a free slot. The agent writes a slot's id before its deadline, and each number by one aligned store.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SLOTS = 1024
#: Of a container, in hexadecimal digits.
ID_LENGTH = 64
_NAME = "shoal-guard"
_NANOS = 1_000_000_000
#: Of a slot, in numbers of 8 bytes: deadline, expired, id.
_WIDTH = 2 + ID_LENGTH // 8


@dataclass(frozen=True, slots=True)
class Guarded:
    """One container in the table."""

    slot: int
    container_id: str
    #: On CLOCK_BOOTTIME.
    deadline: float


class GuardTable:
    """One process's view of the table."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._map = mmap.mmap(handle, SLOTS * _WIDTH * 8)
        self._numbers = memoryview(self._map).cast("q")

    @classmethod
    def create(cls) -> GuardTable:
        """Make an empty table. Raises OSError."""
        handle = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        os.ftruncate(handle, SLOTS * _WIDTH * 8)
        return cls(handle)

    @classmethod
    def attach(cls, pid: int, handle: int) -> GuardTable:
        """Open the table of a guard that runs. Raises OSError."""
        path = Path(f"/proc/{pid}/fd/{handle}")
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if _NAME not in str(Path(f"/proc/self/fd/{opened}").readlink()):
            os.close(opened)
            raise FileNotFoundError(f"{path} is not a table of a guard")
        return cls(opened)

    def add(self, container_id: str, deadline: float) -> int:
        """Fill a free slot. Raises OSError when there is none."""
        name = container_id.encode()
        if len(name) != ID_LENGTH:
            raise ValueError(f"{container_id!r} is not the id of a container")
        for slot in range(SLOTS):
            start = slot * _WIDTH
            if self._numbers[start] == 0:
                self._numbers[start + 1] = 0
                self._map[(start + 2) * 8 : (start + 2) * 8 + ID_LENGTH] = name
                self._numbers[start] = max(1, int(deadline * _NANOS))
                return slot
        raise OSError(f"{SLOTS} containers are guarded already")

    def remove(self, slot: int) -> None:
        """Free a slot."""
        self._numbers[slot * _WIDTH] = 0

    def deadline(self, slot: int) -> float:
        """When the container in a slot must have ended."""
        return self._numbers[slot * _WIDTH] / _NANOS

    def extend(self, slot: int, until: float, *, now: float) -> None:
        """Move a deadline, unless it has passed: what has passed is never taken back."""
        if self._numbers[slot * _WIDTH] > now * _NANOS and not self.has_expired(slot):
            self._numbers[slot * _WIDTH] = max(1, int(until * _NANOS))

    def expire(self, slot: int) -> None:
        """Note that a guard acts on a deadline."""
        self._numbers[slot * _WIDTH + 1] = 1

    def has_expired(self, slot: int) -> bool:
        """Whether a guard has acted on a deadline."""
        return self._numbers[slot * _WIDTH + 1] != 0

    def __iter__(self) -> Iterator[Guarded]:
        for slot in range(SLOTS):
            start = slot * _WIDTH
            if deadline := self._numbers[start]:
                name = bytes(self._map[(start + 2) * 8 : (start + 2) * 8 + ID_LENGTH]).decode(errors="replace")
                yield Guarded(slot, name, deadline / _NANOS)

    def close(self) -> None:
        """Close this view; the table lives as long as a process has it open."""
        self._numbers.release()
        self._map.close()
        os.close(self.handle)

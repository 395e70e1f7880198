"""Decides whether a node's disk is nearly full, and reads the numbers for it. Called by `health`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024
#: A disk is nearly full with less than this part of it free, or less than this much on a large one.
LEAST_FREE = 0.05
LEAST_FREE_BYTES = 1024 * MIB
LEAST_FREE_FILES = 0.01
#: The pressure is over once so much more is free, so that the condition does not flap.
WELL_AGAIN = 1.5


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """What a file system has, in bytes and in files. It has no number of files where that is 0."""

    free: int
    total: int
    free_files: int = 0
    total_files: int = 0


def disk_space(path: Path) -> DiskSpace | None:
    """The space on the file system of a directory; None when it cannot be read."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(
        free=found.f_bavail * found.f_frsize,
        total=found.f_blocks * found.f_frsize,
        free_files=found.f_favail,
        total_files=found.f_files,
    )


def disk_pressure(space: DiskSpace, *, before: bool) -> str:
    """Why a disk counts as nearly full; empty when it does not. `before` is whether it did last time."""
    factor = WELL_AGAIN if before else 1.0
    least = min(space.total * LEAST_FREE, LEAST_FREE_BYTES) * factor
    if space.free < least:
        return f"{space.free // MIB} MB of {space.total // MIB} MB are free; at least {least / MIB:.0f} MB are needed"
    if space.total_files and space.free_files < space.total_files * LEAST_FREE_FILES * factor:
        return f"{space.free_files} of {space.total_files} files are free"
    return ""

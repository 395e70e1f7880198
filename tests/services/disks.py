"""Small disks that a test can fill."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.services.absence import do_without


@contextlib.contextmanager
def small_disk(path: Path, *, megabytes: int) -> Iterator[Path]:
    """A file system of a few megabytes at `path`, gone afterwards."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "shoal-test", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        do_without(f"a small disk takes root and the right to mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    """Write into a file until its disk is full."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.write(handle, b"x" * size)
    finally:
        os.close(handle)
    assert os.statvfs(path).f_bavail == 0

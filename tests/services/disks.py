"""Small disks that a test can fill, and one that it can freeze."""

from __future__ import annotations

import contextlib
import os
import shlex
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


class FreezableDisk:
    """An ext4 file system that can stop answering: a writer waits until it is thawed."""

    def __init__(self, path: Path, guard: subprocess.Popen[bytes]) -> None:
        self.path = path
        self._guard = guard

    def freeze(self) -> None:
        """Let writers wait from now on."""
        subprocess.run(["fsfreeze", "-f", str(self.path)], check=True, timeout=60)

    def thaw(self) -> None:
        """Let them go on."""
        subprocess.run(["fsfreeze", "-u", str(self.path)], check=True, timeout=60)

    def close(self) -> None:
        """Thaw it if it is frozen, and unmount it."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(timeout=60)


@contextlib.contextmanager
def freezable_disk(folder: Path) -> Iterator[FreezableDisk]:
    """Mount one below a folder.

    A process of its own thaws and unmounts it as soon as this one lets go of its pipe, so also when this one is killed,
    and after two minutes in any case.
    """
    image, path = folder / "disk.img", folder / "disk"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    make = f"mkfs.ext4 -q {shlex.quote(str(image))} && mount -o loop {shlex.quote(str(image))} {shlex.quote(str(path))}"
    made = subprocess.run(["sh", "-c", make], capture_output=True, text=True, check=False, timeout=60)
    if made.returncode:
        do_without(f"a disk that can be frozen takes root, mkfs.ext4 and a loop device: {made.stderr.strip()}")
    at = shlex.quote(str(path))
    guarding = f"timeout 120 cat >/dev/null; fsfreeze -u {at} 2>/dev/null; umount -l {at}"
    guard = subprocess.Popen(["sh", "-c", guarding], stdin=subprocess.PIPE, start_new_session=True)
    disk = FreezableDisk(path, guard)
    try:
        yield disk
    finally:
        disk.close()

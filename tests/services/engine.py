"""A container engine for tests: a Podman of its own, with its own storage, and one small image made from busybox.

Nothing is shared with an engine of the machine, and nothing is left when the session ends. Needs root and the Debian
packages podman, runc, netavark, iptables and busybox-static; where they are missing the tests that need it are skipped
with their names, and with CI=true they fail.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.services.absence import do_without

PACKAGES = {"podman": "podman", "runc": "runc", "iptables": "iptables", "busybox": "busybox-static"}
IMAGE = "localhost/shoal-test:1"


@dataclass(frozen=True, slots=True)
class Engine:
    """A private Podman: where it keeps things, and how it is called."""

    folder: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """What keeps it apart from others on this machine."""
        return (
            *("--root", str(self.folder / "root"), "--runroot", str(self.folder / "run")),
            *("--tmpdir", str(self.folder / "tmp"), "--runtime", "runc", "--cgroup-manager", "cgroupfs"),
        )

    def podman(self, *words: str, given: bytes | None = None) -> str:
        """Run one podman command."""
        done = subprocess.run(
            ["podman", *self.arguments, *words], input=given, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode()

    def containers(self) -> list[str]:
        """The names of all containers."""
        return self.podman("ps", "--all", "--format", "{{.Names}}").split()


@contextlib.contextmanager
def private_engine() -> Iterator[Engine]:
    """An engine with the test image, until the end of the block."""
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if os.geteuid() != 0:
        do_without("containers are tested as root")
    if missing:
        do_without(f"not installed: {', '.join(missing)} (on Debian: apt-get install {' '.join(missing)})")
    # Short: the paths of sockets below it must fit.
    folder = Path(tempfile.mkdtemp(prefix="shoal-podman-", dir="/var/tmp"))
    engine = Engine(folder)
    try:
        engine.podman("import", "-", IMAGE, given=root_file_system())
        yield engine
    finally:
        subprocess.run(
            ["podman", *engine.arguments, "rm", "--all", "--force", "--time", "0"], capture_output=True, check=False
        )
        subprocess.run(["podman", *engine.arguments, "system", "reset", "--force"], capture_output=True, check=False)
        with contextlib.suppress(OSError):
            for mount in _mounts_below(folder):
                subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def root_file_system() -> bytes:
    """A tar archive with a busybox and all of its names."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for name in ("bin", "etc", "proc", "sys", "dev", "tmp"):
            (root / name).mkdir()
        shutil.copy(shutil.which("busybox") or "", root / "bin/busybox")
        names = subprocess.run([str(root / "bin/busybox"), "--list"], capture_output=True, check=True, text=True)
        for name in names.stdout.split():
            if name != "busybox":
                (root / "bin" / name).symlink_to("busybox")
        (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
        archive = root / "root.tar"
        with tarfile.open(archive, "w") as tar:
            for name in ("bin", "etc", "proc", "sys", "dev", "tmp"):
                tar.add(root / name, arcname=name)
        return archive.read_bytes()


def _mounts_below(folder: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in reversed(points) if point.startswith(f"{folder}/")]

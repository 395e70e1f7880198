"""The guests that tests boot: a busybox that is up in two seconds, and a Debian with cloud-init. See
scripts/build_guests.sh, which builds both into a cache; where that was not possible, the tests that need one are
skipped with the way to get them, and with CI=true they fail.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.services.absence import do_without

VERSION = 2
#: What costs time at boot without KVM and is of no use to a test, and nothing but the script's output on the console.
KERNEL_ARGS = (
    "console=ttyS0 quiet loglevel=0 panic=-1 tsc=reliable no_timer_check mitigations=off nokaslr cryptomgr.notests"
)
DEBIAN_ARGS = "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off"


@dataclass(frozen=True, slots=True)
class Guests:
    """The files of both guests."""

    folder: Path

    @property
    def kernel(self) -> str:
        """The kernel of both guests."""
        return str(self.folder / "vmlinux")

    @property
    def initrd(self) -> str:
        """Their first file system. With root= it goes on with the system on a disk."""
        return str(self.folder / "initrd")

    @property
    def debian_image(self) -> Path:
        """The disk of the Debian guest."""
        return self.folder / "debian.qcow2"


def find_guests() -> Guests:
    """The guests in the cache."""
    if os.geteuid() != 0:
        do_without("VMs are tested as root")
    if shutil.which("qemu-system-x86_64") is None:
        do_without("not installed: qemu-system-x86 (on Debian: apt-get install qemu-system-x86 qemu-utils)")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / f"guests-{VERSION}"
    if not (cache / "complete").exists():
        do_without("there are no guests to boot: run scripts/build_guests.sh (it needs root and mmdebstrap)")
    return Guests(cache)

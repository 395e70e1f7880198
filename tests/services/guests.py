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

VERSION = 3
#: What costs time at boot without KVM and is of no use to a test, and nothing but the script's output on the console.
KERNEL_ARGS = (
    "console=ttyS0 quiet loglevel=0 panic=-1 tsc=reliable no_timer_check mitigations=off nokaslr cryptomgr.notests"
)
#: Without a timer check: on a busy machine it fails, and the kernel panics.
DEBIAN_ARGS = "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off no_timer_check tsc=reliable"


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


def boot_disk(text: str) -> bytes:
    """A raw disk of which a BIOS boots: its first sector prints a text to the first serial port, and powers off when
    the power button is pressed. It needs no kernel, which published VM specs have no field for.
    """
    code = bytes.fromhex(
        "31c0 8ed8 be0000"  # ds = 0, si = the text
        "ac 84c0 7406 baf803 ee ebf5"  # print it, to the first serial port
        "fa ba0206 b80001 ef"  # ACPI: report the power button
        "ba0006 ed f6c401 74fa"  # wait until it was pressed
        "ba0406 b80020 ef ebfe"  # power off
    )
    at = (0x7C00 + len(code)).to_bytes(2, "little")
    sector = code[:5] + at + code[7:] + text.encode() + b"\0"
    return (sector.ljust(510, b"\0") + b"\x55\xaa").ljust(1 << 20, b"\0")


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

"""The programs that VMs need. Called when an agent looks for its runtimes, and before each start."""

from __future__ import annotations

import shutil

QEMU, QEMU_IMG = "qemu-system-x86_64", "qemu-img"
#: The Debian package of each.
PACKAGES = {QEMU: "qemu-system-x86", QEMU_IMG: "qemu-utils"}
#: What QEMU and the scripts that it starts have for PATH.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_program(binary: str = QEMU) -> str:
    """The first program that is not installed; empty when all are."""
    return next((name for name in (binary, QEMU_IMG) if shutil.which(name, path=PATH) is None), "")


def has_programs() -> bool:
    """Whether VMs can run here."""
    return not missing_program()

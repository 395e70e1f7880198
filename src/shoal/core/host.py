"""Identifies the running machine. Called by everything that must notice a reboot."""

from __future__ import annotations

from pathlib import Path

BOOT_ID = Path("proc/sys/kernel/random/boot_id")


def boot_id(root: Path = Path("/")) -> str:
    """The id of this boot of the machine; empty when the kernel does not tell it."""
    try:
        return (root / BOOT_ID).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""

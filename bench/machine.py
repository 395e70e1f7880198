"""What a figure depends on besides our code: the machine and the versions of packages. No names and no paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

import psutil


def machine_facts() -> dict[str, str | int | float]:
    """The machine this runs on."""
    return {
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": f"{platform.system()} {_plain_version(platform.release())}",
        "python": platform.python_version(),
    }


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions that are installed."""
    return {name: importlib.metadata.version(name) for name in names}


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or "unknown"


def _plain_version(release: str) -> str:
    """The numbers alone: what a vendor appends may name a place."""
    found = re.match(r"\d+(\.\d+)*", release)
    return found.group() if found else "unknown"

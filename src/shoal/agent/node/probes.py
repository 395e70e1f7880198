"""Measures the machine: capacity for the registration, usage for each heartbeat.

No probe waits for a sampling interval: a rate is measured against the previous call. Capacity is what the settings say,
else what the agent's cgroup allows, else what the machine has. psutil is imported with the first probe. Called by
`shoal.agent.server` and `shoal.agent.node.health`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.core.host import boot_id
from shoal.model.resources import MAX_CPU_MILLICORES, MAX_DISK_GB, MAX_MEMORY_MB, Resources
from shoal.runtimes.cgroups import container_limits

MIB = 1024 * 1024
GIB = 1024 * MIB

_MEMORY = re.compile(r"(?P<number>[0-9]{1,12})\s*(?P<unit>|[kmgt]i?b?)", re.IGNORECASE)
#: In MB, which here are 2**20 bytes as everywhere in the contract. A bare number is in MB.
_UNITS = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024.0}
MEMORY_RULE = "must be an amount of memory such as 2048, 512MB or 4GB"


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement: how much of it is in use, in percent and in the contract's unit."""

    percent: float = 0.0
    used: int = 0


class Probe(Protocol):
    """Measures one thing."""

    def read(self) -> Reading:
        """Its use now, or since the call before."""
        ...


class CpuProbe:
    """The machine's processors, in millicores, since the call before."""

    def __init__(self, data_dir: Path) -> None:
        del data_dir
        import psutil

        self._times = psutil.cpu_times
        self._cores = psutil.cpu_count() or 1
        self._last = self._now()

    def read(self) -> Reading:
        """The use since the call before."""
        before, self._last = self._last, self._now()
        busy, total = self._last[0] - before[0], self._last[1] - before[1]
        if total <= 0:
            return Reading()
        share = min(1.0, max(0.0, busy / total))
        return Reading(percent=share * 100.0, used=round(share * self._cores * 1000))

    def _now(self) -> tuple[float, float]:
        times = self._times()
        # A guest's time is part of user's already.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return total - times.idle - getattr(times, "iowait", 0.0), total


class MemoryProbe:
    """The machine's memory, in MB."""

    def __init__(self, data_dir: Path) -> None:
        del data_dir
        import psutil

        self._memory = psutil.virtual_memory

    def read(self) -> Reading:
        """The use now."""
        memory = self._memory()
        return Reading(percent=float(memory.percent), used=(memory.total - memory.available) // MIB)


class DiskProbe:
    """The disk that holds the data directory, in GB."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def read(self) -> Reading:
        """The use now; nothing when the directory cannot be looked at."""
        try:
            disk = os.statvfs(self._data_dir)
        except OSError:
            return Reading()
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        usable = used + disk.f_bavail * disk.f_frsize
        return Reading(percent=100.0 * used / usable if usable else 0.0, used=used // GIB)


PROBES: Mapping[str, Callable[[Path], Probe]] = {"cpu": CpuProbe, "memory": MemoryProbe, "disk": DiskProbe}
"""Every probe there is, by its name."""


def make_probes(data_dir: Path) -> dict[str, Probe]:
    """One of each."""
    return {name: factory(data_dir) for name, factory in PROBES.items()}


# ---------------------------------------------------------------------------------------------------------
# Capacity


def parse_memory(text: str) -> int:
    """An amount of memory in MB. Raises ValueError with the rule."""
    match = _MEMORY.fullmatch(text.strip())
    amount = int(match["number"]) * _UNITS[match["unit"][:1].lower()] if match else 0.0
    if not 1 <= amount <= MAX_MEMORY_MB:
        raise ValueError(MEMORY_RULE)
    return int(amount)


def detect_capacity(
    *,
    cpu: float | None = None,
    memory_mb: int | None = None,
    disk_gb: int | None = None,
    slots: int | None = None,
    data_dir: Path,
    limits: Callable[[], tuple[int | None, int | None]] = container_limits,
) -> Resources:
    """What this node offers: as given, else what the agent's cgroup allows, else what the machine has.

    Without a number of slots there is one for each whole core.
    """
    allowed_cpu, allowed_memory = limits() if cpu is None or memory_mb is None else (None, None)
    millicores = round(cpu * 1000) if cpu is not None else min(allowed_cpu or MAX_CPU_MILLICORES, _host_millicores())
    memory = memory_mb if memory_mb is not None else min(allowed_memory or MAX_MEMORY_MB, _host_memory_mb())
    return Resources(
        cpu_millicores=min(millicores, MAX_CPU_MILLICORES),
        memory_mb=min(memory, MAX_MEMORY_MB),
        disk_gb=min(disk_gb if disk_gb is not None else _disk_gb(data_dir), MAX_DISK_GB),
        slots=slots if slots is not None else max(1, millicores // 1000),
    )


def _host_millicores() -> int:
    try:
        return len(os.sched_getaffinity(0)) * 1000
    except OSError:
        return (os.cpu_count() or 1) * 1000


def _host_memory_mb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB


def _disk_gb(data_dir: Path) -> int:
    """The size of the disk that the data directory is, or will be, on."""
    place = next((each for each in (data_dir, *data_dir.parents) if each.exists()), Path("/"))
    disk = os.statvfs(place)
    return disk.f_blocks * disk.f_frsize // GIB


# ---------------------------------------------------------------------------------------------------------
# Identity


def detect_host_id(root: Path = Path("/")) -> str:
    """An id that is equal for all agents on one running machine; empty when there is none.

    It includes the boot id, because agents with one running kernel share memory and loopback. It is a hash: the machine
    id is private.
    """
    boot = boot_id(root)
    machine = _first_line(root / "etc/machine-id")
    if not boot:
        return ""
    return hashlib.sha256(f"{boot}\n{machine}".encode()).hexdigest()[:32]


def default_node_id(hostname: str) -> str:
    """A machine's name as a node id."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", hostname)
    name = re.sub(r"\.{2,}", ".", name).strip("._-")[:128].rstrip("._-")
    return name or "node"


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip().splitlines()[0]
    except (OSError, IndexError):
        return ""

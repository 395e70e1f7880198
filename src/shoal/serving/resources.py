"""What a model server may use of this machine, what is used, and how large models are.

Memory and CPU are those of the cgroup of this process, of version 1 or 2, else what the platform says in MY_MEM_LIMIT
and MY_CPU_LIMIT, else those of the machine. A rate is measured against an earlier call; nothing waits. Model sizes
count the files of one version of each sub graph, and for a parameter server also its part of the checkpoint. Called by
`AgentService.GetResource` and by schedulers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.errors import NotFoundError
from shoal.runtimes.cgroups import container_limits, read_memberships
from shoal.serving.models.configs import is_version

MIB = 1024 * 1024
#: A shorter time says little: the kernel counts in steps, and several may ask.
_LEAST_SECONDS = 1.0

#: `model.ckpt-100.assets/MonolithHashTable_x_3-00000-of-00004` belongs to ps_3.
_TABLE_FILE = re.compile(r".+_(?P<ps>[0-9]{1,9})-[0-9]+-of-[0-9]+")
_STATE_FILE = "ExportSaverListenerState"
_STATE_ENTRY = re.compile(r'entries\s*\{\s*export_dir:\s*"(?P<folder>[^"]*)"\s*global_step:\s*(?P<step>-?[0-9]+)\s*\}')


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """In bytes."""

    total: int
    available: int


def read_memory(*, limit: int = 0, root: Path = Path("/")) -> MemoryUse:
    """The memory of this container. `limit` is what the platform says, in bytes; 0 without."""
    host = _host_memory(root)
    _, limited_mb = container_limits(root)
    bounds = [each for each in (limited_mb * MIB if limited_mb else 0, limit) if 0 < each < host.total]
    if not bounds:
        return host
    total = min(bounds)
    used = _cgroup_memory(root)
    if used is None:
        used = host.total - host.available
    return MemoryUse(total, max(0, min(total - used, host.available)))


def read_cpus(*, limit: float = 0.0, root: Path = Path("/")) -> float:
    """How many cores this container may use."""
    millicores, _ = container_limits(root)
    bounds = (millicores / 1000 if millicores else 0.0, limit, float(os.cpu_count() or 1))
    return min(each for each in bounds if each > 0)


class CpuMeter:
    """CPU use of this container in percent of one core, since a call that is at least a second ago."""

    def __init__(self, clock: Clock, *, root: Path = Path("/")) -> None:
        self._clock = clock
        self._root = root
        self._last = (clock.monotonic(), _cpu_seconds(root))
        self._rate = 0.0

    def read(self) -> float:
        """The use since the last call that measured. One that follows sooner than in a second gets the same answer."""
        if self._clock.monotonic() - self._last[0] >= _LEAST_SECONDS:
            before, self._last = self._last, (self._clock.monotonic(), _cpu_seconds(self._root))
            wall, used = self._last[0] - before[0], self._last[1] - before[1]
            self._rate = max(0.0, 100.0 * used / wall)
        return self._rate


def _host_memory(root: Path) -> MemoryUse:
    fields = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    return MemoryUse(fields["MemTotal"], fields.get("MemAvailable", fields["MemFree"]))


def _cgroup_memory(root: Path) -> int | None:
    """The bytes that the cgroup of this process uses; None without one that says so."""
    for place in read_memberships(root):
        for name in ("memory.current", "memory.usage_in_bytes"):
            value = _read_number(place.directory / name)
            if value is not None:
                return value
    return None


def _cpu_seconds(root: Path) -> float:
    """The CPU time that the cgroup of this process has used, else that of the machine."""
    for place in read_memberships(root):
        nanoseconds = _read_number(place.directory / "cpuacct.usage")
        if nanoseconds is not None:
            return nanoseconds / 1e9
        fields = _read_fields(place.directory / "cpu.stat")
        if "usage_usec" in fields:
            return fields["usage_usec"] / 1e6
    ticks = [int(word) for word in (root / "proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_fields(path: Path) -> Mapping[str, int]:
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {each[0]: int(each[1]) for each in words if len(each) == 2 and each[1].isdigit()}


# ---------------------------------------------------------------------------------------------------------
# Model sizes


@dataclass(frozen=True, slots=True)
class SubGraphSize:
    """One sub graph of a model."""

    bytes: int
    #: The directory of its version.
    path: Path


def model_sizes(exported: Path, *, checkpoint: str = "", version: int | None = None) -> dict[str, SubGraphSize]:
    """The sizes of the sub graphs of an exported model, by name. Raises `NotFoundError`.

    Args:
        exported: the directory with one directory per sub graph.
        checkpoint: such as `model.ckpt-100`; the one that the training wrote last when it is empty.
        version: the version; when it is None, the one that was exported from the checkpoint, else the newest that every
            sub graph has.
    """
    found = exported.iterdir() if exported.is_dir() else ()
    folders = sorted(each for each in found if each.is_dir() and not each.name.startswith("."))
    if not folders:
        raise NotFoundError("exported model", str(exported), hint="an export has one directory for each sub-graph")
    training = exported.parent
    checkpoint = checkpoint or _last_checkpoint(training)
    chosen = version if version is not None else _version_of(folders, checkpoint)
    lacking = next((folder for folder in folders if not (folder / str(chosen)).is_dir()), None)
    if lacking is not None:
        raise NotFoundError("version", str(lacking / str(chosen)), hint="every sub-graph needs it")
    sizes = {folder.name: _size(folder / str(chosen)) for folder in folders}
    for file in _files(training / f"{checkpoint}.assets") if checkpoint else ():
        match = _TABLE_FILE.fullmatch(file.name)
        if match is not None and f"ps_{int(match['ps'])}" in sizes:
            sizes[f"ps_{int(match['ps'])}"] += file.stat().st_size
    return {name: SubGraphSize(size, exported / name / str(chosen)) for name, size in sizes.items()}


def _version_of(folders: list[Path], checkpoint: str) -> int:
    common = set.intersection(*({int(each.name) for each in f.iterdir() if is_version(each.name)} for f in folders))
    if not common:
        raise NotFoundError("version that every sub graph has", str(folders[0].parent))
    step = checkpoint.rpartition("-")[2]
    exported = [_exported_at(folder, int(step)) for folder in folders] if step.isdigit() else []
    versions = {each for each in exported if each is not None}
    return versions.pop() if len(versions) == 1 and versions <= common else max(common)


def _exported_at(folder: Path, step: int) -> int | None:
    """The version of a sub graph that was exported at a step, by the record that the exporter keeps."""
    try:
        text = (folder / _STATE_FILE).read_text()
    except OSError:
        return None
    for match in _STATE_ENTRY.finditer(text):
        name = match["folder"].rstrip("/").rpartition("/")[2]
        if int(match["step"]) == step and is_version(name):
            return int(name)
    return None


def _last_checkpoint(training: Path) -> str:
    """The name of the last checkpoint, by the file that TensorFlow keeps; empty without one."""
    try:
        text = (training / "checkpoint").read_text()
    except OSError:
        return ""
    match = re.search(r'^model_checkpoint_path:\s*"([^"]*)"', text, re.MULTILINE)
    return match[1].rpartition("/")[2] if match is not None else ""


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in _files(folder))


def _files(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()] if folder.is_dir() else []

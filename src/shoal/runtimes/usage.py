"""What a run uses now, read from its cgroups or, where it has none, from /proc.

Rates are against the reading before, so nothing here waits. Called by every runtime whose runs are processes
of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from shoal.core.clock import Clock, from_epoch_ms
from shoal.core.ids import RunId
from shoal.model.workloads import Usage
from shoal.runtimes import cgroups
from shoal.runtimes.cgroups import Measured
from shoal.runtimes.keeper import procfs

#: Runs are measured one after another; one look at all processes serves them all.
_TABLE_LIFE = 1.0
#: A work directory is counted up to so many files.
MAX_ENTRIES = 1_000_000


def bytes_used(directory: Path, *, at_most: int) -> int:
    """The blocks of everything below a directory, in bytes; a file with several names counts once.

    Links are not followed, other file systems are left out, and counting ends once there are more than `at_most` bytes
    or `MAX_ENTRIES` files.
    """
    try:
        device = directory.lstat().st_dev
    except OSError:
        return 0
    total = entries = 0
    linked: set[int] = set()
    pending = [str(directory)]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as found:  # it may go while it is counted
            for entry in found:
                entries += 1
                with contextlib.suppress(OSError):
                    stat = entry.stat(follow_symlinks=False)
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if stat.st_dev != device or stat.st_ino in linked:
                        continue
                    if is_directory:
                        pending.append(entry.path)
                    elif stat.st_nlink > 1:
                        linked.add(stat.st_ino)
                    total += stat.st_blocks * 512
                if total > at_most or entries >= MAX_ENTRIES:
                    return total
    return total


class MeasurableRun(Protocol):
    """What has to be known of a run to measure it."""

    @property
    def run_id(self) -> str:
        """Its name."""
        ...

    @property
    def pid(self) -> int:
        """Its main process."""
        ...

    @property
    def started_at_ms(self) -> int:
        """When it started."""
        ...

    @property
    def cgroups(self) -> Sequence[str]:
        """The directories of its groups; none when it has none of its own."""
        ...


class Meter:
    """Remembers the last reading of each run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[str, tuple[float, float]] = {}
        #: The most that was read and written so far. The sum over processes falls when one ends whose parent is no
        #: process of the run.
        self._transferred: dict[str, tuple[int, int]] = {}
        #: A process stays in its groups, and looking for them is slow where there are many mounts.
        self._groups: dict[tuple[str, int], Sequence[str]] = {}
        self._table: tuple[float, dict[int, procfs.ProcessStat]] | None = None

    async def read(self, run: MeasurableRun) -> Usage:
        """What a run uses."""
        groups = self._groups.get((run.run_id, run.pid), ())
        groups, measured, (received, sent) = await asyncio.to_thread(_look_at, run, groups)
        self._groups[run.run_id, run.pid] = groups
        if measured is None or measured.cpu_seconds is None or measured.memory_bytes is None:
            measured = await self._measure_processes(run)
        now = self._clock.monotonic()
        cpu = measured.cpu_seconds or 0.0
        age = (self._clock.wall() - from_epoch_ms(run.started_at_ms)).total_seconds()
        before_cpu, before = self._last.get(run.run_id, (0.0, now - max(age, 0.0)))
        self._last[run.run_id] = (cpu, now)
        spent = max(0.0, cpu - before_cpu)
        read, written = self._transferred.get(run.run_id, (0, 0))
        read, written = max(read, measured.read_bytes or 0), max(written, measured.write_bytes or 0)
        self._transferred[run.run_id] = (read, written)
        return Usage(
            cpu_percent=100.0 * spent / (now - before) if now > before else 0.0,
            memory_bytes=measured.memory_bytes or 0,
            disk_read_bytes=read,
            disk_write_bytes=written,
            net_rx_bytes=received,
            net_tx_bytes=sent,
            collected_at=self._clock.wall(),
            source=measured.source,
        )

    def forget(self, run_id: RunId) -> None:
        """Let go of a run that has ended."""
        self._last.pop(run_id, None)
        self._transferred.pop(run_id, None)
        for key in [key for key in self._groups if key[0] == run_id]:
            del self._groups[key]

    async def _measure_processes(self, run: MeasurableRun) -> Measured:
        now = self._clock.monotonic()
        if self._table is None or now - self._table[0] > _TABLE_LIFE:
            table = await asyncio.to_thread(lambda: {stat.pid: stat for stat in procfs.all_stats()})
            self._table = (now, table)
        return await asyncio.to_thread(_sum_up, run, self._table[1])


def _look_at(run: MeasurableRun, groups: Sequence[str]) -> tuple[Sequence[str], Measured | None, tuple[int, int]]:
    """The groups of a run, what they use, and the bytes that it received and sent."""
    found = groups or cgroups.with_figures(run.cgroups)
    measured = cgroups.measure(found)
    if measured is not None and not measured.read_bytes and not measured.write_bytes:
        # Kernels from 6.10 on count nothing in version 1 unless a limit is set. What ended counts for its parent.
        transfers = [_transfers(pid) for pid in cgroups.members(found[:1])]
        read, written = (sum(column) for column in zip((0, 0), *transfers, strict=True))
        measured = replace(measured, read_bytes=read, write_bytes=written)
    return found, measured, network_bytes(run.pid)


def add_up(readings: Sequence[Usage]) -> Usage:
    """What several measured parts use together. There is at least one."""
    return Usage(
        cpu_percent=sum(each.cpu_percent for each in readings),
        memory_bytes=sum(each.memory_bytes for each in readings),
        disk_read_bytes=sum(each.disk_read_bytes for each in readings),
        disk_write_bytes=sum(each.disk_write_bytes for each in readings),
        net_rx_bytes=sum(each.net_rx_bytes for each in readings),
        net_tx_bytes=sum(each.net_tx_bytes for each in readings),
        collected_at=readings[-1].collected_at,
        source=readings[-1].source,
    )


def _sum_up(run: MeasurableRun, table: dict[int, procfs.ProcessStat]) -> Measured:
    ours = [
        stat
        for stat in table.values()
        if run.pid in (stat.pid, stat.session) or run.pid in procfs.ancestors(stat.pid, table)
    ]
    transfers = [_transfers(stat.pid) for stat in ours]
    return Measured(
        cpu_seconds=sum(stat.cpu_ticks for stat in ours) / os.sysconf("SC_CLK_TCK"),
        memory_bytes=sum(stat.resident_pages for stat in ours) * os.sysconf("SC_PAGE_SIZE"),
        read_bytes=sum(read for read, _ in transfers),
        write_bytes=sum(write for _, write in transfers),
        source="proc",
    )


def network_bytes(pid: int) -> tuple[int, int]:
    """What a process with a network of its own has received and sent; nothing is known of one on the host's network."""
    received = sent = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        process = procfs.PROC / str(pid)
        if os.readlink(process / "ns/net") == os.readlink(procfs.PROC / "self/ns/net"):  # noqa: PTH115 as no path is meant
            return 0, 0
        for line in (process / "net/dev").read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() != "lo":
                columns = numbers.split()
                received += int(columns[0])
                sent += int(columns[8])
    return received, sent


def _transfers(pid: int) -> tuple[int, int]:
    read = write = 0
    with contextlib.suppress(OSError, ValueError):
        for line in (procfs.PROC / str(pid) / "io").read_text().splitlines():
            name, _, value = line.partition(": ")
            if name == "read_bytes":
                read = int(value)
            elif name == "write_bytes":
                write = int(value)
    return read, write

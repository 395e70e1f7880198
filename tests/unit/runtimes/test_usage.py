"""Rates against the reading before, from groups and from processes."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shoal.core.clock import epoch_ms
from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.procfs import ProcessStat
from shoal.runtimes.keeper.records import RunRecord
from shoal.runtimes.usage import Meter, _sum_up, bytes_used
from shoal.testing.clock import LoopClock

START = datetime(2026, 1, 1, tzinfo=UTC)


def record(*, pid: int = 100, started_at_ms: int = 0, cgroups: tuple[str, ...] = ()) -> RunRecord:
    return RunRecord("web-1", "web", "b", pid, 1, started_at_ms, cgroups=cgroups)


@pytest.mark.looptime
async def test_cpu_is_a_rate_since_the_reading_before(tmp_path: Path) -> None:
    clock = LoopClock(START)
    (tmp_path / "cpuacct.usage").write_text("0")
    (tmp_path / "memory.usage_in_bytes").write_text("4096")
    run = record(started_at_ms=epoch_ms(clock.wall()), cgroups=(str(tmp_path),))
    meter = Meter(clock)
    await clock.sleep(10)
    (tmp_path / "cpuacct.usage").write_text(str(5 * 10**9))
    assert (await meter.read(run)).cpu_percent == pytest.approx(50.0)
    await clock.sleep(2)
    (tmp_path / "cpuacct.usage").write_text(str(9 * 10**9))
    usage = await meter.read(run)
    assert usage.cpu_percent == pytest.approx(200.0)
    assert usage.memory_bytes == 4096
    assert usage.source == "cgroup v1"
    # A counter that fell back, or two readings at once, are no reason for a negative number or a failure.
    (tmp_path / "cpuacct.usage").write_text("0")
    await clock.sleep(1)
    assert (await meter.read(run)).cpu_percent == 0.0
    assert (await meter.read(run)).cpu_percent == 0.0


async def test_disk_traffic_is_that_of_its_processes_where_the_group_counts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with version 1 on new kernels. It never falls."""
    for name, text in {"cpuacct.usage": "0", "memory.usage_in_bytes": "1", "cgroup.procs": "7\n8\n"}.items():
        (tmp_path / name).write_text(text)
    written = {7: (10, 100), 8: (1, 1000)}
    monkeypatch.setattr("shoal.runtimes.usage._transfers", written.__getitem__)
    run, meter = record(cgroups=(str(tmp_path),)), Meter(LoopClock(START))
    usage = await meter.read(run)
    assert (usage.disk_read_bytes, usage.disk_write_bytes) == (11, 1100)
    (tmp_path / "cgroup.procs").write_text("7\n")
    usage = await meter.read(run)
    assert (usage.disk_read_bytes, usage.disk_write_bytes) == (11, 1100)
    counted = tmp_path / "blkio.throttle.io_service_bytes"
    counted.write_text("8:0 Read 5000\n8:0 Write 7000\n")
    usage = await meter.read(run)
    assert (usage.disk_read_bytes, usage.disk_write_bytes) == (5000, 7000)


def test_a_run_is_its_session_and_its_descendants() -> None:
    def stat(pid: int, parent: int, session: int) -> ProcessStat:
        return ProcessStat(pid, "S", parent, session, session, cpu_ticks=100, start_time=1, resident_pages=10)

    stats = [
        stat(100, 50, 100),
        stat(101, 100, 100),
        stat(102, 101, 102),  # a session of its own, below us
        stat(103, 1, 100),  # left to init, still in our session
        stat(104, 50, 104),  # a stranger
        stat(50, 50, 50),  # its own parent: no endless loop
    ]
    measured = _sum_up(record(), {each.pid: each for each in stats})
    assert measured.cpu_seconds == 400 / os.sysconf("SC_CLK_TCK")
    assert measured.memory_bytes == 40 * os.sysconf("SC_PAGE_SIZE")


async def test_a_process_without_groups_is_measured_from_proc() -> None:
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    clock = LoopClock(START)
    usage = await Meter(clock).read(record(pid=os.getpid(), started_at_ms=epoch_ms(clock.wall())))
    assert usage.source == "proc"
    assert usage.memory_bytes > 1024 * 1024


def test_a_directory_is_counted_by_its_blocks(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a").write_bytes(b"x" * 100_000)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    outside = tmp_path.parent / "outside"
    outside.write_bytes(b"x" * 500_000)
    (tmp_path / "link").symlink_to(outside)
    once = bytes_used(tmp_path, at_most=1 << 30)
    assert 100_000 <= once < 200_000
    os.link(tmp_path / "deep" / "er" / "a", tmp_path / "again")
    assert bytes_used(tmp_path, at_most=1 << 30) == once
    assert bytes_used(tmp_path / "missing", at_most=1) == 0
    for number in range(50):
        (tmp_path / f"more{number}").write_bytes(b"x" * 10_000)
    assert 50_000 < bytes_used(tmp_path, at_most=50_000) < bytes_used(tmp_path, at_most=1 << 30)

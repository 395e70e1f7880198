"""Finds runs that no record explains, by the marks that their processes carry, and makes records for them.

A record can be damaged or deleted while its processes go on. Without a record nobody would stop them, and a second copy
would be started. Called by `runs` when a keeper starts.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence

from shoal.core.ids import RunId
from shoal.runtimes import cgroups
from shoal.runtimes.clocks import KeeperClock
from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.procfs import Census, ProcessStat
from shoal.runtimes.keeper.protocol import PROCESS
from shoal.runtimes.keeper.records import RunRecord


def find_unexplained(
    census: Census, groups: Iterable[str], known: Collection[str], *, boot_id: str, clock: KeeperClock
) -> Iterator[RunRecord]:
    """A record for each run with living processes that is not known.

    `groups` are cgroup directories that belong to no known run; each is named after its run.
    """
    by_run: dict[str, list[str]] = {}
    for group in groups:
        by_run.setdefault(os.path.basename(group), []).append(group)  # noqa: PTH119 - it stays a text
    for run_id in map(RunId, sorted((census.runs | by_run.keys()) - set(known))):
        found = {stat.pid: stat for stat in census.of_run(run_id)}
        own_groups = tuple(by_run.get(run_id, ()))
        for pid in cgroups.members(own_groups):
            stat = procfs.read_stat(pid)
            if stat is not None and stat.alive:
                found.setdefault(pid, stat)
        if found and _may_be_file_name(run_id):
            yield _record(run_id, list(found.values()), own_groups, boot_id=boot_id, clock=clock)


def main_process(processes: Sequence[ProcessStat]) -> ProcessStat:
    """The process that a run began with: the oldest that leads a session, else the oldest."""
    leaders = [stat for stat in processes if stat.pid == stat.session]
    return min(leaders or processes, key=lambda stat: (stat.start_time, stat.pid))


def _record(
    run_id: RunId, processes: Sequence[ProcessStat], groups: tuple[str, ...], *, boot_id: str, clock: KeeperClock
) -> RunRecord:
    main = main_process(processes)
    environ = dict(each.decode(errors="replace").partition("=")[::2] for each in procfs.read_environ(main.pid))
    age = clock.boottime() - main.start_time / os.sysconf("SC_CLK_TCK")
    return RunRecord(
        run_id=run_id,
        # A run is named after its workload; that has to do for a process that cleared its environment.
        workload_id=environ.get(procfs.WORKLOAD_ID) or run_id.rpartition("-")[0] or run_id,
        boot_id=boot_id,
        pid=main.pid,
        start_time=main.start_time,
        started_at_ms=clock.wall_ms() - int(age * 1000),
        working_dir=environ.get("PWD", ""),
        at_most_one=procfs.AT_MOST_ONE in environ,
        cgroups=groups,
        kind=environ.get(procfs.RUN_KIND, PROCESS),
        found=True,
    )


def _may_be_file_name(run_id: RunId) -> bool:
    return 0 < len(run_id) <= 200 and "/" not in run_id and run_id[0] != "."

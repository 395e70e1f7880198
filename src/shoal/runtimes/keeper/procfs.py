"""What /proc says about processes. Used by the keeper (light) and by the agent's meter.

A pid alone names nothing: pids are used again. A process is known by (boot id, pid, start time).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.core.ids import RunId

PROC = Path("/proc")
_KERNEL = 2
RUN_ID = "SHOAL_RUN_ID"
WORKLOAD_ID = "SHOAL_WORKLOAD_ID"
KEEPER_ID = "SHOAL_KEEPER"
AT_MOST_ONE = "SHOAL_AT_MOST_ONE"
RUN_KIND = "SHOAL_RUN_KIND"
#: The runs of other keepers inside which a process runs, the outermost first: `<keeper>=<run>,…`. A workload may have
#: a keeper of its own, and its processes end with it.
WITHIN = "SHOAL_WITHIN"


def outer_runs(environ: Mapping[str, str]) -> str:
    """The value of `WITHIN` for the runs of a keeper that was started in this environment; empty outside any run."""
    keeper, run = environ.get(KEEPER_ID), environ.get(RUN_ID)
    above = environ.get(WITHIN, "")
    return ",".join(filter(None, (above, f"{keeper}={run}" if keeper and run else "")))


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The few fields of /proc/<pid>/stat that are used."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    #: User and system time of the process and of the children it has waited for, in clock ticks.
    cpu_ticks: int
    #: Clock ticks after boot.
    start_time: int
    resident_pages: int

    @property
    def alive(self) -> bool:
        """Whether it still runs: a zombie does not."""
        return self.state not in "ZXx"


def parse_stat(text: str) -> ProcessStat:
    """Read one line of /proc/<pid>/stat. The program's name may hold blanks and parentheses."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return ProcessStat(
        pid=int(head.partition(" ")[0]),
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=sum(int(each) for each in fields[11:15]),
        start_time=int(fields[19]),
        resident_pages=int(fields[21]),
    )


def read_stat(pid: int) -> ProcessStat | None:
    """What is known of a process; None when it is gone."""
    try:
        return parse_stat((PROC / str(pid) / "stat").read_text(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


def read_environ(pid: int) -> tuple[bytes, ...]:
    """The environment a process was started with; empty when it is gone or not ours to see."""
    try:
        return tuple(filter(None, (PROC / str(pid) / "environ").read_bytes().split(b"\0")))
    except OSError:
        return ()


def is_running(pid: int, start_time: int) -> bool:
    """Whether this very process still runs (in this boot)."""
    stat = read_stat(pid)
    return stat is not None and stat.start_time == start_time and stat.alive


def all_stats() -> Iterator[ProcessStat]:
    """Every process there is."""
    for name in os.listdir(PROC):  # noqa: PTH208 - thousands of Path objects a scan would cost more than the scan
        if name.isdigit():
            stat = read_stat(int(name))
            if stat is not None:
                yield stat


def ancestors(pid: int, table: Mapping[int, ProcessStat]) -> Iterator[int]:
    """The parent of a process, its parent, and so on, as far as the table knows them."""
    seen: set[int] = set()
    while pid in table and pid not in seen:
        seen.add(pid)
        pid = table[pid].parent
        yield pid


class Census:
    """One look at every living process, for finding those of a keeper's runs."""

    def __init__(self, keeper_id: str) -> None:
        self._stats = {stat.pid: stat for stat in all_stats()}
        self._by_run: dict[str, list[ProcessStat]] = {}
        self._mark = f"{KEEPER_ID}={keeper_id}".encode()
        self._within = f"{keeper_id}=".encode()
        bare = [stat for stat in self._stats.values() if stat.alive and not self._enter(stat)]
        for stat in bare:
            # In the middle of exec a process has no environment to be seen; by now it is through.
            if _KERNEL not in (stat.pid, stat.parent):
                self._enter(stat)

    def _enter(self, stat: ProcessStat) -> bool:
        """Put a process to its run, if it has one. False when it shows no environment."""
        environ = read_environ(stat.pid)
        run_id = self._run_of(environ)
        if run_id:
            self._by_run.setdefault(run_id.decode(errors="replace"), []).append(stat)
        return bool(environ)

    def _run_of(self, environ: tuple[bytes, ...]) -> bytes:
        """The run of this keeper that a process belongs to: its own, or one that its own keeper runs in."""
        variable, prefix = (RUN_ID, b"") if self._mark in environ else (WITHIN, self._within)
        start = f"{variable}=".encode()
        for each in environ:
            if each.startswith(start):
                for word in each[len(start) :].split(b",") if prefix else (each[len(start) :],):
                    if word.startswith(prefix):
                        return word[len(prefix) :]
        return b""

    @property
    def runs(self) -> frozenset[str]:
        """The runs that have a living process."""
        return frozenset(self._by_run)

    @property
    def marked(self) -> tuple[ProcessStat, ...]:
        """Every living process that carries the keeper's mark."""
        return tuple(stat for stats in self._by_run.values() for stat in stats)

    def of_run(self, run_id: RunId) -> list[ProcessStat]:
        """The living processes that carry the mark of a run in their environment."""
        return self._by_run.get(run_id, [])

    def of_session(self, session: int, *, below: int) -> list[ProcessStat]:
        """The living processes of a session that descend from the process `below`.

        The second condition keeps a stranger out that was given the number of a session whose members have all gone.
        """
        return [
            stat
            for stat in self._stats.values()
            if stat.alive and stat.session == session and below in ancestors(stat.pid, self._stats)
        ]


def kill_process(pid: int, start_time: int, number: int) -> bool:
    """Send a signal to exactly this process. False when it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel or a sandbox without pidfds: the check alone has to do
        if not is_running(pid, start_time):
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
        return True
    try:
        if not is_running(pid, start_time):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # a set-uid program, and a keeper that is not root: it is there, and out of reach
        return True
    else:
        return True
    finally:
        os.close(handle)


def kill_all(stats: Iterable[ProcessStat], number: int) -> int:
    """Send a signal to each of them; how many were still there."""
    return sum(kill_process(stat.pid, stat.start_time, number) for stat in stats)

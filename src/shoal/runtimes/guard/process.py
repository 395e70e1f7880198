"""A guard process: kills every process of a container whose deadline has passed. Standard library only.

    python -m shoal.runtimes.guard FILE HANDLE [SECONDS]

HANDLE is the inherited table. FILE is locked and says who the guard is, so that another agent finds it. The guard opens
no other file on a disk, and needs neither agent nor engine. It finds the processes of a container by their control
group, whose path has the container's id; so a container that the engine starts late is killed too. It ends when for
SECONDS the table was empty, or FILE was gone (so no agent will come) and every container in the table was dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from shoal.runtimes.guard.table import GuardTable

PROC = Path("/proc")
#: A guard with nothing to do, now or later, ends after this long.
IDLE_SECONDS = 60.0
#: Between two looks at a container that was killed: until it is gone, and then for one that starts late.
_KILL_AGAIN = 0.05
_LOOK_AGAIN = 1.0
_SHORTEST_WAIT = 0.001
#: Of FILE, always as long, so that it is never seen half written.
_LINE = 40


def main(arguments: Sequence[str]) -> None:
    """Guard until nothing is left to guard."""
    # Blocked and waited for: the agent sends it when a deadline comes nearer.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGHUP, signal.SIGINT})
    path, handle = Path(arguments[0]), int(arguments[1])
    table = GuardTable(handle)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(1, b"locked\n")
        return
    if os.fork():
        os._exit(0)  # the guard is nobody's child, so that nothing ends it with the agent
    os.pwrite(lock, f"{os.getpid()} {handle}".ljust(_LINE).encode(), 0)
    os.write(1, b"ready\n")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(null, stream)
    _guard(table, lock, idle=float(arguments[2]) if len(arguments) > 2 else IDLE_SECONDS)


def _guard(table: GuardTable, file: int, *, idle: float) -> None:
    done_since = time.clock_gettime(time.CLOCK_BOOTTIME)
    while True:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        guarded = list(table)
        expired = [each for each in guarded if each.deadline <= now]
        for each in expired:
            table.expire(each.slot)
        found = kill_containers({each.container_id for each in expired}) if expired else 0
        is_done = len(expired) == len(guarded) and not found and (not guarded or not os.fstat(file).st_nlink)
        if not is_done:
            done_since = now
        elif now - done_since >= idle:
            return
        waits = [idle, *(each.deadline - now for each in guarded if each.deadline > now)]
        if expired:
            waits.append(_KILL_AGAIN if found else _LOOK_AGAIN)
        signal.sigtimedwait({signal.SIGUSR1}, max(_SHORTEST_WAIT, min(waits)))


def kill_containers(container_ids: Collection[str], *, proc: Path = PROC) -> int:
    """Kill every process of these containers; how many there were."""
    killed = 0
    for entry in os.listdir(proc):  # noqa: PTH208 as names are all that is needed, many of them
        if not entry.isdigit() or not belongs(int(entry), container_ids, proc=proc):
            continue
        # Without root some may be another user's. The first process of a container takes them with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            handle = os.pidfd_open(int(entry))
            try:
                # The number may have been given to another process since: the handle cannot.
                if belongs(int(entry), container_ids, proc=proc):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed += 1
            finally:
                os.close(handle)
    return killed


def may_kill(pid: int) -> bool:
    """Whether this user may end a process, or it is gone."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def belongs(pid: int, container_ids: Collection[str], *, proc: Path = PROC) -> bool:
    """Whether a process is in one of these containers. The engine's monitor of a container is not."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return False
    return any(each in groups and f"conmon-{each}" not in groups for each in container_ids)

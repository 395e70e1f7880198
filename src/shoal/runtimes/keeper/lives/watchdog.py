"""The watchdog of an at-most-one run: the workload's parent process, which ends the run at its deadline by itself.

    keeper ──fork──▶ watchdog ──fork──▶ workload

The keeper forks it (`children`), and it executes no other program, so it shares the keeper's memory. It opens no file
on a disk, so no disk can delay it. It reads the deadline from shared memory (`deadlines`), and kills the workload and
everything below it when the deadline has passed. A kernel timer kills the watchdog itself half a second later, also
while it is stopped by SIGSTOP; the workload dies with it by its parent-death signal. If the keeper dies, the watchdog
dies the same way.

It tells the keeper through a pipe what it did and how the workload ended, and keeps the workload's pid taken until the
keeper has answered with SIGUSR1. `Watchdog` is the keeper's side of this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import select
import signal
import time
from typing import NoReturn

from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.deadlines import DeadlineTable

#: The kernel kills the watchdog this long after the deadline. Until then it can kill the whole tree.
KERNEL_MARGIN = 0.5
#: It looks at the table this long before the deadline at the latest, so that a busy machine does not end a run.
LOOK_BEFORE = 5.0
#: Between two rounds of killing what is left.
_KILL_AGAIN = 0.05
_SHORTEST_WAIT = 0.001
_FORK_TIMEOUT_MS = 5000
_CLOCK_BOOTTIME = 7
_TIMER_ABSTIME = 1
_SIGEV_SIGNAL = 0
_SIGNALS = frozenset({signal.SIGCHLD, signal.SIGUSR1})

#: What it writes into the pipe, one word and one number in a line.
MAIN, DEADLINE, EXIT, FAILED = "main", "deadline", "exit", "failed"


class Watchdog:
    """A watchdog as the keeper sees it: a child with a pipe."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe
        #: Nothing more can come through the pipe.
        self.silent = False
        self._rest = b""

    def wait_main(self) -> int:
        """The pid of the workload, which waits at its gate. Raises OSError and leaves the watchdog dead."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        words = self.read() if poll.poll(_FORK_TIMEOUT_MS) else []
        if words and words[0][0] == MAIN:
            os.set_blocking(self.pipe, False)
            return words[0][1]
        self.drop()
        number = words[0][1] if words else errno.EAGAIN
        raise OSError(number, f"its watchdog could not be started: {os.strerror(number)}")

    def read(self) -> list[tuple[str, int]]:
        """What it has told since the last call."""
        words = []
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self.pipe, 4096)
            self.silent = not chunk
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                name, _, number = line.decode().partition(" ")
                words.append((name, int(number)))
        return words

    def wake(self) -> None:
        """Have it look at its deadline now."""
        self._signal(signal.SIGCHLD)

    def release(self) -> None:
        """The workload's end is noted: its pid may be given free."""
        self._signal(signal.SIGUSR1)

    def drop(self) -> None:
        """Kill it, and with it what it guards."""
        self._signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Close the pipe."""
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def _signal(self, number: int) -> None:
        """Its pid is taken until the keeper reaps it, and it is not signalled after that."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


# ---------------------------------------------------------------------------------------------------------
# In the watchdog itself


class _SigEvent(ctypes.Structure):
    """`struct sigevent`, as far as SIGEV_SIGNAL uses it; the kernel's has 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class KillTimer:
    """A kernel timer that sends SIGKILL to this process. A process that is stopped dies by it too."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _SigEvent(signo=signal.SIGKILL, notify=_SIGEV_SIGNAL)
        self._check(self._libc.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer)))

    def set(self, at: float) -> None:
        """Fire at a moment on CLOCK_BOOTTIME, and not before."""
        seconds = int(at)
        times = (ctypes.c_long * 4)(0, 0, seconds, max(1, int((at - seconds) * 1e9)))  # interval, then first expiry
        self._check(self._libc.timer_settime(self._timer, _TIMER_ABSTIME, times, None))

    @staticmethod
    def _check(result: int) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def seconds_to_next_look(left: float) -> float:
    """How long to wait before the table is read again, with so many seconds left until the deadline."""
    return max(_SHORTEST_WAIT, left - LOOK_BEFORE, left / 2 if left > _KILL_AGAIN else left)


def watch(main: int, *, timer: KillTimer, table: DeadlineTable, slot: int, pipe: int) -> NoReturn:
    """Guard the child `main` until it and everything below it has ended. Every signal is blocked already."""
    gc.disable()  # a collection would copy the memory that is shared with the keeper
    tell(pipe, MAIN, main)
    told = released = expired = False
    wait = 0.0
    while True:
        number = signal.sigtimedwait(_SIGNALS, wait) if wait > 0 else None
        released = released or (number is not None and number.si_signo == signal.SIGUSR1)
        left = table.read(slot) - time.clock_gettime(time.CLOCK_BOOTTIME)
        if not released and left <= 0 and not expired:
            expired = True
            tell(pipe, DEADLINE, 0)
        if expired:
            _kill_descendants()
            wait = _KILL_AGAIN
        elif released:
            wait = LOOK_BEFORE  # only what is left of the run keeps the watchdog; the timer ends it
        else:
            timer.set(time.clock_gettime(time.CLOCK_BOOTTIME) + left + KERNEL_MARGIN)
            wait = seconds_to_next_look(left)
        while (found := _ended_child()) is not None:
            if found == main and not told:
                told = True
                tell(pipe, EXIT, _status_of(main))
            if found == main and not released:
                break  # it stays a zombie until the keeper has seen to its process group
            os.waitpid(found, 0)


def tell(pipe: int, name: str, number: int) -> None:
    """One line for the keeper."""
    with contextlib.suppress(OSError):  # nobody reads: the keeper is going, and takes this process with it
        os.write(pipe, f"{name} {number}\n".encode())


def _ended_child() -> int | None:
    """A child that has ended and was not reaped. Ends the watchdog when there are no children."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        os._exit(0)
    return None if found is None else found.si_pid


def _status_of(pid: int) -> int:
    """How an ended child ended, as a wait status. It stays unreaped."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:  # cannot be: it was seen a moment ago, and only this process reaps it
        return signal.SIGKILL
    return found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status


def _kill_descendants() -> None:
    """Kill everything below this process. What loses its parent becomes a child of this one (a subreaper)."""
    table = {stat.pid: stat for stat in procfs.all_stats()}
    below = [stat for stat in table.values() if stat.alive and os.getpid() in procfs.ancestors(stat.pid, table)]
    procfs.kill_all(below, signal.SIGKILL)

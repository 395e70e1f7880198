"""Fork and exec of one child, in two steps, so that no child ever runs that is not written down.

The child stops at a gate right after the fork: a pipe whose other end only the keeper holds. The keeper writes the
run record and then opens the gate. If the keeper dies before, the gate closes and the child ends without having
run anything. What goes wrong between gate and exec comes back through a second pipe, which exec itself closes; the
keeper reads it from its loop, so that a directory on a dead network mount hangs the child and not the keeper.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pwd
import resource
import signal
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.deadlines import DeadlineTable
from shoal.runtimes.keeper.lives import watchdog
from shoal.runtimes.keeper.lives.watchdog import KillTimer, Watchdog
from shoal.runtimes.keeper.protocol import Refusal, run_refusal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_HIGHEST_HANDLE = 1 << 20
_LAST_HANDLE = 3
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_TRANSIENT = (errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.EINTR, errno.ETXTBSY)


def _prctl(option: int, value: ctypes.c_ulong | bytes) -> None:
    """The one system call that the standard library does not have. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@dataclass(frozen=True, slots=True)
class ChildDefaults:
    """What a child gets back that the keeper changed for itself."""

    open_files: tuple[int, int]
    oom_score: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything about a child that is decided before the fork."""

    argv: tuple[str, ...]
    #: HOME, USER and LOGNAME are added for a user unless they are there.
    env: dict[str, str]
    working_dir: str
    stdout: int
    stderr: int
    user: str = ""
    #: The working directory is the workload's own: it is given to the user and entered before the user is taken on.
    own_dir: bool = False
    #: Files into which the child writes itself to enter its cgroups.
    cgroup_entrances: tuple[str, ...] = ()
    #: Die when the parent dies: the watchdog if there is one, else the keeper.
    die_with_parent: bool = False
    #: Its input is a terminal, which becomes that of its session.
    terminal: bool = False


@dataclass(slots=True)
class Child:
    """A forked child, with the two pipes that lead to it; -1 for one that was closed."""

    pid: int
    start_time: int
    gate: int
    report: int
    #: Its parent, when that is not the keeper.
    watchdog: Watchdog | None = None

    def open_gate(self) -> None:
        """Let it run."""
        with contextlib.suppress(BrokenPipeError):  # it was killed already; its exit will say so
            os.write(self.gate, b"g")
        self.close_gate()

    def close_gate(self) -> None:
        """Let go of the gate; a child that still waits there ends without having run anything."""
        if self.gate >= 0:
            os.close(self.gate)
            self.gate = -1

    def close_report(self) -> None:
        """Let go of the pipe through which it says what went wrong."""
        if self.report >= 0:
            os.close(self.report)
            self.report = -1


def prepare_keeper() -> ChildDefaults:
    """Make this process fit to be everybody's parent; what its children get back."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_NAME, b"shoal-keeper")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    score = "0"
    with contextlib.suppress(OSError):
        path = procfs.PROC / "self/oom_score_adj"
        score = path.read_text().strip()
        path.write_text("-900")  # when memory runs out, the one that knows the others' exits should go last
    return ChildDefaults(open_files=(soft, hard), oom_score=score)


@dataclass(frozen=True, slots=True)
class Guard:
    """Where the watchdog of a run finds its deadline."""

    table: DeadlineTable
    slot: int


def fork_gated(launch: Launch, defaults: ChildDefaults, guard: Guard | None = None) -> Child:
    """Fork a child that waits at its gate; with a guard, below a watchdog. Raises OSError."""
    pipes: list[int] = []
    try:
        for _ in range(2 if guard is None else 3):
            pipes += os.pipe()
    except OSError:  # out of descriptors: each try would take some more with it
        for handle in pipes:
            os.close(handle)
        raise
    gate_out, gate_in, report_out, report_in, *told = pipes
    keeper = os.getpid()
    # Blocked until the child has put the handlers back, so that none of the keeper's runs in it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            os.close(gate_in)
            if guard is None:
                _run_child(launch, defaults, parent=keeper, gate=gate_out, report=report_in)
            _run_watchdog(launch, defaults, guard, keeper=keeper, gate=gate_out, report=report_in, pipe=told[1])
    except OSError:
        for handle in (gate_in, report_out, *told[:1]):
            os.close(handle)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for handle in (gate_out, report_in, *told[1:]):
            os.close(handle)
    os.set_blocking(report_out, False)
    child = Child(pid=pid, start_time=0, gate=gate_in, report=report_out)
    if told:
        child.watchdog = Watchdog(pid, told[0])
        try:
            child.pid = child.watchdog.wait_main()
        except OSError:
            child.close_gate()
            child.close_report()
            raise
    stat = procfs.read_stat(child.pid)
    child.start_time = stat.start_time if stat else 0
    return child


def read_report(child: Child) -> dict[str, object] | None:
    """What went wrong before exec; empty when nothing did. None: it is not over yet."""
    try:
        text = os.read(child.report, 65536)
    except BlockingIOError:
        return None
    return dict(json.loads(text)) if text else {}


def refusal_of(report: Mapping[str, object], launch: Launch) -> Refusal:
    """The failed start as an answer, by what failed and how."""
    stage, number, text = str(report["stage"]), int(str(report["errno"])), str(report["text"])
    if number in _NO_ROOM:
        return run_refusal("STORAGE_ERROR", f"{stage}: {text}", transient=True)
    if number in _TRANSIENT:
        return run_refusal("RUNTIME_ERROR", f"{stage}: {text}", transient=True)
    if stage == "program":
        name = launch.argv[0]
        words = {errno.ENOENT: "not found", errno.ENOTDIR: "not found", errno.EACCES: "not an executable file"}
        return run_refusal("INVALID_SPEC", f"program {name!r}: {words.get(number, text)}", hint=_program_hint(name))
    if stage == "working_dir":
        return run_refusal("INVALID_SPEC", f"working_dir {launch.working_dir!r}: {text}")
    if stage == "user":
        hint = "only an agent that runs as root can run processes as another user" if number == errno.EPERM else ""
        return run_refusal("INVALID_SPEC", f"user {launch.user!r}: {text}", hint=hint)
    return run_refusal("RUNTIME_ERROR", f"{stage}: {text}")


def _program_hint(name: str) -> str:
    if "/" in name:
        return "a path with a slash is taken as it is, relative to the working directory"
    return "a name without a slash is looked up in PATH of the process's own environment"


# ---------------------------------------------------------------------------------------------------------
# In the child


class _StageError(Exception):
    """A step before exec that failed, by its name."""

    def __init__(self, stage: str, number: int, text: str) -> None:
        super().__init__(text)
        self.report = {"stage": stage, "errno": number, "text": text}


def _run_watchdog(
    launch: Launch, defaults: ChildDefaults, guard: Guard, *, keeper: int, gate: int, report: int, pipe: int
) -> NoReturn:
    """Fork the workload's own process and watch it."""
    try:
        os.setsid()
        _prctl(_PR_SET_NAME, b"shoal-watchdog")
        _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
        _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != keeper:
            os._exit(127)
        timer = KillTimer()
        own = os.getpid()
        main = os.fork()
        if main == 0:
            _run_child(launch, defaults, parent=own, gate=gate, report=report)
        null = os.open(os.devnull, os.O_RDWR)
        _keep_handles(null, null, null, pipe)
        pipe = _LAST_HANDLE
        watchdog.watch(main, timer=timer, table=guard.table, slot=guard.slot, pipe=pipe)
    except OSError as error:
        watchdog.tell(pipe, watchdog.FAILED, error.errno or errno.EAGAIN)
    finally:
        os._exit(127)


def _run_child(launch: Launch, defaults: ChildDefaults, *, parent: int, gate: int, report: int) -> NoReturn:
    """Never returns: whatever happens, the copy of the keeper that a child is must not go on as one."""
    try:
        if os.read(gate, 1) != b"g":
            os._exit(127)
        null = os.open(os.devnull, os.O_RDWR)
    except OSError:
        os._exit(127)
    run_program(launch, defaults, stdin=null, parent=parent, report=report)


def run_program(launch: Launch, defaults: ChildDefaults, *, stdin: int, parent: int, report: int) -> NoReturn:
    """Become a program. Never returns: what goes wrong before is written to `report`, which exec closes."""
    stage = "start"
    try:
        _keep_handles(stdin, launch.stdout, launch.stderr, report)
        report = _LAST_HANDLE
        _become(launch, defaults, parent)
        stage = "program"
        os.execvpe(launch.argv[0], launch.argv, launch.env)  # noqa: S606 - running a user's program is the job
    except _StageError as error:
        os.write(report, json.dumps(error.report).encode())
    except OSError as error:
        body = {"stage": stage, "errno": error.errno or 0, "text": error.strerror or str(error)}
        os.write(report, json.dumps(body).encode())
    except BaseException as error:  # noqa: BLE001 - see above
        # A null byte in an argument is a ValueError: the spec is wrong, not the machine.
        body = {"stage": "program" if isinstance(error, ValueError) else stage, "errno": 0, "text": str(error)}
        os.write(report, json.dumps(body).encode())
    finally:
        os._exit(127)


def _keep_handles(*handles: int) -> None:
    """Keep these as 0, 1, 2 and 3; the last is closed by exec.

    Nothing else of the keeper's stays open: a lock held by a child that hangs would keep the next keeper out.
    """
    # Moved out of the way first: any of them may have one of the numbers that are about to be taken.
    for target, source in enumerate([_above(handle) for handle in handles]):
        os.dup2(source, target, inheritable=target != _LAST_HANDLE)
    os.closerange(_LAST_HANDLE + 1, _HIGHEST_HANDLE)


def _above(handle: int) -> int:
    while handle <= _LAST_HANDLE:
        handle = os.dup(handle)
    return handle


def _become(launch: Launch, defaults: ChildDefaults, parent: int) -> None:
    os.setsid()
    if launch.terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _reset_signals()
    os.umask(0o022)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, defaults.open_files)
    with contextlib.suppress(OSError):
        (procfs.PROC / "self/oom_score_adj").write_text(defaults.oom_score)
    for entrance in launch.cgroup_entrances:
        _enter_cgroup(entrance)
    if launch.own_dir:
        _enter(launch.working_dir)
    if launch.user:
        _take_user(launch)
    if not launch.own_dir:
        _enter(launch.working_dir)
    if launch.die_with_parent:
        _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))  # after the user was taken on, which resets it
        if os.getppid() != parent:
            os._exit(127)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)


def _enter_cgroup(entrance: str) -> None:
    try:
        handle = os.open(entrance, os.O_WRONLY)
        os.write(handle, b"0")
        os.close(handle)
    except OSError as error:
        raise _StageError("cgroup", error.errno or 0, f"{entrance}: {error.strerror}") from error


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise _StageError("working_dir", error.errno or 0, error.strerror or str(error)) from error


def _take_user(launch: Launch) -> None:
    try:
        entry, uid, gid = find_user(launch.user)
        if entry is not None:
            for name, value in (("HOME", entry.pw_dir), ("USER", entry.pw_name), ("LOGNAME", entry.pw_name)):
                launch.env.setdefault(name, value)
        if os.geteuid() != 0 and uid == os.geteuid():
            return
        if launch.own_dir:
            os.chown(".", uid, gid)
        for handle in (1, 2):
            with contextlib.suppress(OSError):
                os.fchown(handle, uid, gid)  # so that a program may open /dev/stdout again
        if entry is not None:
            os.initgroups(entry.pw_name, gid)
        else:
            os.setgroups([gid])
        os.setgid(gid)
        os.setuid(uid)
    except KeyError:
        raise _StageError("user", 0, "there is no such user on this machine") from None
    except OSError as error:
        raise _StageError("user", error.errno or 0, error.strerror or str(error)) from error
    except (OverflowError, ValueError) as error:
        raise _StageError("user", 0, str(error)) from error


def find_user(user: str) -> tuple[pwd.struct_passwd | None, int, int]:
    """The entry, the uid and the gid. A number needs no entry. Raises KeyError."""
    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        if user.isdigit():
            return None, int(user), int(user)
        raise
    return entry, entry.pw_uid, entry.pw_gid

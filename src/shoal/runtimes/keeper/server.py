"""The keeper's process: takes the lock, listens, answers, and ends when it is no longer needed.

Started by `launcher` as `python -m shoal.runtimes.keeper DATA_DIR IDLE_SECONDS AGENT_PID`. It detaches itself, prints
`ready` or what is wrong, and then speaks `protocol` on its socket. It ignores the signals that end other programs. It
ends when nothing runs, on `shutdown` or after IDLE_SECONDS without a connection.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from shoal.core import faults
from shoal.core.disk.locks import FileLock
from shoal.core.host import boot_id
from shoal.core.ids import RunId
from shoal.runtimes.cgroups import Cgroups
from shoal.runtimes.clocks import LinuxClock
from shoal.runtimes.keeper import procfs, protocol
from shoal.runtimes.keeper.deadlines import DeadlineTable
from shoal.runtimes.keeper.files import KeeperFiles, socket_address
from shoal.runtimes.keeper.journal import say_exception
from shoal.runtimes.keeper.lives.children import prepare_keeper
from shoal.runtimes.keeper.lives.probes import Probes
from shoal.runtimes.keeper.lives.runs import Runs
from shoal.runtimes.keeper.loop import Loop
from shoal.runtimes.keeper.protocol import LineBuffer, ProtocolError, Refusal, StartMessage, start_from_json
from shoal.runtimes.keeper.records import RunRecord, record_to_json

#: What it says when another keeper has the directory: the launcher then talks to that one.
LOCKED = "locked"
READY = "ready"

_MAX_CONNECTIONS = 16
_MAX_UNSENT = 16 * 1024 * 1024
_MAX_LOG = 1024 * 1024
_IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXFSZ")

Reply = Callable[[dict[str, Any]], None]


class Connection:
    """One agent, or somebody with the same rights."""

    def __init__(self, keeper: Keeper, link: socket.socket) -> None:
        self._keeper = keeper
        self._link = link
        self._lines = LineBuffer()
        self._unsent = bytearray()
        self.closed = False
        keeper.loop.add_reader(link.fileno(), self._read)

    def send(self, message: dict[str, Any]) -> None:
        """Send without waiting. One who does not read is let go, before memory is."""
        if self.closed:
            return
        self._unsent += protocol.encode(message)
        self._write()
        if len(self._unsent) > _MAX_UNSENT:
            self.close()

    def close(self) -> None:
        """Hang up."""
        if not self.closed:
            self.closed = True
            self._keeper.loop.remove(self._link.fileno())
            self._link.close()
            self._keeper.hung_up(self)

    def _read(self) -> None:
        try:
            chunk = self._link.recv(256 * 1024)
            messages = self._lines.feed(chunk)
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            chunk, messages = b"", []
        for message in messages:
            self._keeper.take(self, message)
        if not chunk:
            self.close()

    def _write(self) -> None:
        was_waiting = bool(self._unsent)
        try:
            while self._unsent:
                del self._unsent[: self._link.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        if not self.closed and was_waiting:
            self._keeper.loop.watch_writes(self._link.fileno(), self._read, self._write if self._unsent else None)


class Keeper:
    """Joins the loop, the runs and the connections."""

    def __init__(self, files: KeeperFiles, *, idle: float, agent_pid: int, lock: FileLock) -> None:
        self.loop = Loop(LinuxClock())
        self._files = files
        self._idle = idle
        self._lock = lock
        self._connections: set[Connection] = set()
        self._alone_since = self.loop.now()
        self._groups = Cgroups.find(files.keeper_id(), own_pids=(os.getpid(), agent_pid))
        defaults = prepare_keeper()
        self._table = DeadlineTable.create()
        self._runs = Runs(
            files, self.loop, groups=self._groups, table=self._table, defaults=defaults, on_ended=self._tell_end
        )
        self._probes = Probes(self.loop, defaults)
        self._listener = _listen(files)

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until told to go, or not needed."""
        self._catch_signals()
        self._runs.recover()
        self.loop.add_reader(self._listener.fileno(), self._accept)
        self._look_around()
        on_ready()
        gc.freeze()  # watchdogs share this memory, and a collection that writes to it would copy it for each
        self.loop.run()
        self._files.socket.unlink(missing_ok=True)
        self._groups.close()

    # --- connections --------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            return
        link.setblocking(False)
        peer = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        if len(self._connections) >= _MAX_CONNECTIONS or peer[1] not in (0, os.geteuid()):
            link.close()
            return
        connection = Connection(self, link)
        self._connections.add(connection)
        connection.send(
            {
                "hello": {
                    "version": protocol.VERSION,
                    "since": protocol.OLDEST_FULL_AGENT,
                    "pid": os.getpid(),
                    "limits": self._groups.limits,
                    "deadlines": self._table.handle,
                }
            }
        )

    def hung_up(self, connection: Connection) -> None:
        """One connection fewer."""
        self._connections.discard(connection)
        self._alone_since = self.loop.now()

    def take(self, connection: Connection, message: dict[str, Any]) -> None:
        """Carry out one request and answer it, now or later."""
        number = message.get("id")

        def reply(body: dict[str, Any]) -> None:
            connection.send({"id": number, **body})

        try:
            operation = _OPERATIONS.get(str(message.get("op")))
            if operation is None:
                raise Refusal("unsupported", f"this keeper does not know {message.get('op')!r}")
            operation(self, message, reply)
        except Refusal as refusal:
            reply({"error": refusal.to_json()})
        except (KeyError, TypeError, ValueError) as error:
            reply({"error": Refusal("invalid", f"{message.get('op')}: {error!r}").to_json()})
        except Exception as error:  # noqa: BLE001 - the parent of every workload goes on, whatever one request did
            say_exception()
            reply({"error": Refusal("internal", repr(error)).to_json()})

    def _tell_end(self, record: RunRecord) -> None:
        for connection in list(self._connections):
            connection.send({"event": {"ended": record_to_json(record)}})

    # --- operations ---------------------------------------------------------------------------------------

    def _do_start(self, message: dict[str, Any], reply: Reply) -> None:
        wanted: StartMessage = start_from_json(message["run"])

        def answer(outcome: RunRecord | Refusal) -> None:
            if isinstance(outcome, Refusal):
                reply({"error": outcome.to_json()})
            else:
                reply(_ok(run=record_to_json(outcome)))

        self._runs.start(wanted, answer)

    def _do_stop(self, message: dict[str, Any], reply: Reply) -> None:
        record = self._runs.stop(message["run_id"])
        reply(_ok(run=None if record is None else record_to_json(record)))

    def _do_inspect(self, message: dict[str, Any], reply: Reply) -> None:
        record = self._runs.get(message["run_id"])
        reply(_ok(run=None if record is None else record_to_json(record)))

    def _do_list(self, message: dict[str, Any], reply: Reply) -> None:
        records, more = self._runs.page(str(message.get("after", "")))
        reply(_ok(runs=[record_to_json(record) for record in records], more=more))

    def _do_forget(self, message: dict[str, Any], reply: Reply) -> None:
        self._runs.forget(message["run_id"])
        reply(_ok())

    def _do_forget_workload(self, message: dict[str, Any], reply: Reply) -> None:
        self._runs.forget_workload(message["workload_id"])
        reply(_ok())

    def _do_extend(self, message: dict[str, Any], reply: Reply) -> None:
        self._runs.extend([RunId(str(each)) for each in message["run_ids"]], until=float(message["until"]))
        reply(_ok())

    def _do_probe(self, message: dict[str, Any], reply: Reply) -> None:
        record = self._runs.get(message["run_id"])
        if record is None or record.exit is not None:
            reply(_ok(passed=False))
            return
        command = tuple(str(word) for word in message["command"])
        timeout = float(message["seconds"])
        self._probes.start(record, command, timeout=timeout, verdict=lambda passed: reply(_ok(passed=passed)))

    def _do_ping(self, _message: dict[str, Any], reply: Reply) -> None:
        reply(
            _ok(
                runs=len(self._runs),
                alive=self._runs.alive,
                log_errors=self._runs.book.errors(),
                late=self.loop.lateness,
            )
        )

    def _do_shutdown(self, message: dict[str, Any], reply: Reply) -> None:
        if message.get("unless_shared") and len(self._connections) > 1:
            raise Refusal(
                "precondition", "another runtime of the agent is connected", hint="the last one ends the keeper"
            )
        if self._runs.alive:
            raise Refusal("precondition", f"{self._runs.alive} runs have not ended", hint="stop them first")
        reply(_ok())
        self.loop.stop()

    # --- by itself ----------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        for name in _IGNORED:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        wake, woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # only its byte in the pipe is wanted
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self.loop.add_reader(wake, lambda: self._reap(wake))

    def _reap(self, wake: int) -> None:
        """Take in every child that has ended: main processes, probes, and grandchildren that were left to us."""
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        ended = []
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if found is None:
                break
            if self._runs.leads_idle_group(found.si_pid) or self._probes.knows(found.si_pid):
                # Before its number is given free: until then the group can be no one else's.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(found.si_pid, signal.SIGKILL)
            ended.append(os.waitpid(found.si_pid, 0))
        for pid, status in ended:
            if not self._runs.child_ended(pid, status):
                self._probes.child_ended(pid, status)
        self._runs.settle()

    def _look_around(self) -> None:
        """Once a second: end if no keeper is needed any longer, and keep the log small."""
        now = self.loop.now()
        if self._connections or self._runs.alive:
            self._alone_since = now
        if not self._runs.alive and (now - self._alone_since >= self._idle or not self._owns_directory()):
            self.loop.stop()
        with contextlib.suppress(OSError):
            if os.fstat(2).st_size > _MAX_LOG:
                os.ftruncate(2, 0)
        self.loop.call_at(now + 1.0, self._look_around)

    def _owns_directory(self) -> bool:
        """Whether the data directory is still there: somebody may have deleted it from under us."""
        return self._lock.is_in_place()


_OPERATIONS: dict[str, Callable[[Keeper, dict[str, Any], Reply], None]] = {
    name.removeprefix("_do_"): method for name, method in vars(Keeper).items() if name.startswith("_do_")
}


def _ok(**body: Any) -> dict[str, Any]:
    return {"ok": body}


def _listen(files: KeeperFiles) -> socket.socket:
    files.socket.unlink(missing_ok=True)  # left by a keeper that was killed; we hold the lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    with socket_address(files.socket) as address:
        listener.bind(address)
    files.socket.chmod(0o600)
    listener.listen(64)
    return listener


def _take_lock(files: KeeperFiles) -> FileLock | None:
    """The held lock, with our identity in its file; None when another keeper has it."""
    stat = procfs.read_stat(os.getpid())
    who = {"pid": os.getpid(), "start_time": stat.start_time if stat else 0, "boot_id": boot_id()}
    lock = FileLock(files.lock)
    return lock if lock.try_acquire(json.dumps({**who, "version": protocol.VERSION})) else None


def _serve(data_dir: Path, idle: float, agent_pid: int, out: int) -> None:
    """The detached process."""
    files = KeeperFiles(data_dir)
    files.make()
    log = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    lock = _take_lock(files)
    if lock is None:
        os.write(out, LOCKED.encode())
        return
    keeper = Keeper(files, idle=idle, agent_pid=agent_pid, lock=lock)

    def say_ready() -> None:
        os.write(out, READY.encode())
        os.close(out)

    keeper.run(say_ready)


def main(arguments: list[str]) -> NoReturn:
    """Detach and serve. Never returns."""
    data_dir, idle, agent_pid = Path(arguments[0]), float(arguments[1]), int(arguments[2])
    out = os.dup(1)
    os.set_inheritable(out, False)
    if os.fork():
        os._exit(0)  # the launcher has nobody to wait for, and the keeper has no parent that ends
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    code = 1
    try:
        faults.arm_from_environment()
        _serve(data_dir, idle, agent_pid, out)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the last line of a process: everything goes to launcher and log
        with contextlib.suppress(OSError):
            os.write(out, f"{type(error).__name__}: {error}".encode())
        say_exception()
    finally:
        os._exit(code)

"""Child processes of a local fleet, and the folder they live in.

A `Child` writes what it prints to a file and says through its ready file when and where it serves. An `OwnedFolder` has
one owner at a time: a lock keeps a second one out, and a list of the children lets the next owner end those that an
owner who was killed has left behind. Called by `shoal.cli.local.fleet`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from shoal.core.clock import Clock
from shoal.core.disk.locks import FileLock
from shoal.core.disk.private_files import FILE_MODE, let_others_pass, make_data_directory, write_private
from shoal.core.durations import format_duration
from shoal.core.entropy import Entropy, SystemEntropy
from shoal.core.errors import DeadlineError, ShoalError, UnavailableError

STARTS_WITHIN = 60.0
"""Seconds a child may take until it serves; generous, because a busy machine is not a broken one."""

MAX_LOG_BYTES = 16 * 1024 * 1024
LOOK_EVERY = 0.05

_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ChildExit:
    """A child that has ended."""

    name: str
    code: int
    #: The end of what it wrote, and where all of it is.
    tail: str
    log: Path

    def __str__(self) -> str:
        """One line for a person."""
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with code {self.code}"
        return f"{self.name} {how}"

    def to_error(self) -> ShoalError:
        """The same as an error, with the end of its log."""
        lines = [line for line in self.tail.splitlines() if line.strip() and not line.startswith("hint: ")]
        return UnavailableError(f"{self}: {lines[-1]}" if lines else str(self), hint=f"its log is {self.log}")


class Child:
    """One process, in a session of its own: Ctrl-C at the terminal reaches only its parent."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, directory: Path) -> None:
        self.name = name
        self.process = process
        self.log = directory / "log"
        #: What it wrote into its ready file.
        self.ready: dict[str, Any] = {}
        #: It was asked to end.
        self.dismissed = False
        self._ready_file = directory / "ready.json"

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], directory: Path, env: Mapping[str, str]) -> Child:
        """Start `shoal` with these arguments."""
        ready_file = _prepare(directory)
        with _open_private(directory / "log", "ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shoal", *arguments, "--ready-file", str(ready_file)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        return cls(name, process, directory)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.returncode is None

    async def wait_serving(self, clock: Clock) -> None:
        """Wait until it says where it serves. Raises when it ends instead, or takes too long."""
        deadline = clock.monotonic() + STARTS_WITHIN
        while (ready := read_json(self._ready_file)) is None:
            if not self.running:
                self.dismissed = True
                raise (await self.wait_exit()).to_error()
            if clock.monotonic() > deadline:
                raise DeadlineError(
                    f"{self.name} did not serve within {format_duration(STARTS_WITHIN)}", hint=f"its log is {self.log}"
                )
            await clock.sleep(LOOK_EVERY)
        self.ready = ready

    async def wait_exit(self) -> ChildExit:
        """Wait until it has ended."""
        return ChildExit(self.name, await self.process.wait(), self._tail(), self.log)

    async def end(self, number: int, *, within: float) -> None:
        """Send a signal and wait for its end; kill it when that takes too long."""
        self.dismissed = True
        if not self.running:
            return
        # Not through the process object: its `send_signal` polls for the end, which the event loop would then miss.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
            os.kill(self.process.pid, signal.SIGCONT)  # a stopped process would not receive the first one
        try:
            async with asyncio.timeout(within):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    def _tail(self) -> str:
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""


def _prepare(directory: Path) -> Path:
    """Prepare the directory of a child. Returns the path of its ready file, which does not exist yet."""
    _make_folder(directory)
    trim_log(directory / "log")
    ready_file = directory / "ready.json"
    ready_file.unlink(missing_ok=True)
    return ready_file


# ---------------------------------------------------------------------------------------------------------
# The folder


class OwnedFolder:
    """A folder with one owner at a time."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._register = path / "children.json"
        self._lock = FileLock(
            path / "lock", what=f"the fleet directory {path}", hint="stop it, or use another directory with --data-dir"
        )

    @property
    def is_owned(self) -> bool:
        """Whether it is ours."""
        return self._lock.held

    async def take(self, *, asked: str) -> None:
        """Become the owner, and end the processes that a killed owner left behind. Raises `PreconditionError`.

        The child called `asked` is asked to end. The others, which are agents, are killed: their work goes on under
        its keeper and is adopted by the next agent.
        """
        if self._lock.held:
            return
        _make_folder(self._path)
        self._lock.acquire()
        deadline = self._clock.monotonic() + 10.0
        while left := dict(_left_behind(self._register)):
            patient = self._clock.monotonic() < deadline
            for name, pid in left.items():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if name == asked and patient else signal.SIGKILL)
            await self._clock.sleep(LOOK_EVERY)

    def note(self, pids: Mapping[str, int]) -> None:
        """Write down which children run now."""
        register = {
            name: {"pid": pid, "started": started}
            for name, pid in pids.items()
            if (started := _start_time(pid)) is not None
        }
        write_private(self._register, json.dumps(register, indent=2).encode())

    def release(self) -> None:
        """Give up the ownership."""
        self._lock.release()


def _make_folder(path: Path) -> None:
    """Make a folder that only we can read. An existing one is left as it is. Raises `UnavailableError`."""
    is_new = not path.exists()
    make_data_directory(path)
    if is_new and os.geteuid() == 0:
        # Root's agents start workloads as other users, who have to reach their own directories below by their names.
        let_others_pass(path)


def _open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file for writing. A new one is readable by us alone."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, FILE_MODE))


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _left_behind(register: Path) -> Iterator[tuple[str, int]]:
    for name, entry in (read_json(register) or {}).items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            pid = int(entry["pid"])
            if _start_time(pid) == entry["started"]:
                yield name, pid


def _start_time(pid: int) -> float | None:
    """When a process was started, which identifies it together with its pid. None for one that has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        return process.create_time() if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


# ---------------------------------------------------------------------------------------------------------
# Logs and ports


def trim_log(path: Path) -> None:
    """Bound the log of a child: the newer part moves to `log.1`, and the log is emptied.

    The child has opened it for appending, so it goes on at the new end.
    """
    try:
        if path.stat().st_size <= MAX_LOG_BYTES:
            return
        with path.open("r+b") as log:
            log.seek(-MAX_LOG_BYTES // 2, os.SEEK_END)
            with _open_private(path.with_suffix(".1"), "wb") as older:
                older.write(log.read(MAX_LOG_BYTES))
            log.truncate(0)
    except OSError:
        return  # a missing log needs no trimming, and a full disk must not take the fleet down with it


def free_port(entropy: Entropy | None = None) -> int:
    """A port that is free now and that the system does not hand out by itself.

    A port of the system's own range could be given to an outgoing connection while a control plane that is to come back
    there is down.
    """
    chance = entropy or SystemEntropy()
    lowest_own = _first_ephemeral_port()
    low, high = (10_000, lowest_own) if lowest_own > 11_000 else (61_001, 65_535)
    for _ in range(1000):
        port = int(chance.uniform(low, high))
        if is_free(port):
            return port
    raise UnavailableError("no free port was found on 127.0.0.1")


def is_free(port: int) -> bool:
    """Whether a port of 127.0.0.1 is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768

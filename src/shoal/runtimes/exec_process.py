"""Commands beside runs that are processes. Called by `shoal.runtimes.process`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import shoal
from shoal.core.errors import PreconditionError, UnavailableError
from shoal.core.tasks import running
from shoal.model.execs import ExecCommand, ExecEnd
from shoal.model.workloads import FailureReason
from shoal.runtimes import cgroups
from shoal.runtimes.base import ExecSession, RunError
from shoal.runtimes.keeper import procfs
from shoal.runtimes.keeper.lives.children import Launch, refusal_of
from shoal.runtimes.keeper.records import RunRecord

_CHUNK = 32 * 1024
_START_SECONDS = 20.0
_ENVIRON_TRIES = 100
_ENVIRON_PAUSE = 0.01


async def _read_environ(record: RunRecord) -> tuple[bytes, ...]:
    """The environment of a run's process. Raises `PreconditionError` when there is no process."""
    for _ in range(_ENVIRON_TRIES):
        environ = await asyncio.to_thread(procfs.read_environ, record.pid)
        if not procfs.is_running(record.pid, record.start_time):
            break
        if environ:
            return environ
        # A process that is just being replaced by another program (execve) shows none for a moment.
        await asyncio.sleep(_ENVIRON_PAUSE)
    raise PreconditionError(f"run {record.run_id!r} has no process to run a command beside")


async def start_command(record: RunRecord, wanted: ExecCommand) -> ExecSession:
    """Run a command with the user, directory, environment and limits of a run. Raises what `SupportsExec` says."""
    environ = await _read_environ(record)
    pairs = (os.fsdecode(each).partition("=") for each in environ)
    env = {name: value for name, _, value in pairs if name}
    if wanted.terminal:
        env["TERM"] = wanted.term
    launch = Launch(
        argv=wanted.command,
        env=env,
        working_dir=record.working_dir,
        stdout=1,
        stderr=2,
        user=record.user,
        own_dir=record.own_dir,
        cgroup_entrances=cgroups.entrances(record.cgroups),
        terminal=wanted.terminal,
    )
    if wanted.terminal:
        return await _start_in_terminal(launch, wanted)
    process = await _spawn(
        launch,
        stdin=asyncio.subprocess.PIPE if wanted.interactive else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    return PipeSession(process)


async def _start_in_terminal(launch: Launch, wanted: ExecCommand) -> ExecSession:
    master, slave = pty.openpty()
    try:
        _set_size(master, wanted.window.rows, wanted.window.columns)
        process = await _spawn(launch, stdin=slave, stdout=slave, stderr=slave)
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    os.set_blocking(master, False)
    return TerminalSession(process, master)


async def _spawn(launch: Launch, *, stdin: int, stdout: int, stderr: int) -> asyncio.subprocess.Process:
    """Start the child and wait until it has become the command. Raises `RunError`."""
    body = {
        "argv": launch.argv,
        "env": launch.env,
        "working_dir": launch.working_dir,
        "user": launch.user,
        "own_dir": launch.own_dir,
        "cgroup_entrances": launch.cgroup_entrances,
        "terminal": launch.terminal,
    }
    config_out, config_in = os.pipe()
    report_out, report_in = os.pipe()
    source = str(Path(shoal.__path__[0]).parent)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-P", "-m", "shoal.runtimes.keeper.exec_child", str(config_out), str(report_in)),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": source},
            pass_fds=(config_out, report_in),
        )
    except OSError as error:
        os.close(config_in)
        os.close(report_out)
        raise UnavailableError(f"the command cannot be started: {error.strerror}") from error
    finally:
        os.close(config_out)
        os.close(report_in)
    try:
        async with asyncio.timeout(_START_SECONDS):
            await asyncio.to_thread(_hand_over, config_in, json.dumps(body).encode())
            said = await asyncio.to_thread(_read_all, report_out)
    except TimeoutError as error:
        process.kill()
        raise UnavailableError("the command did not start in time") from error
    if said:
        await process.wait()
        raise _refused(said, launch)
    return process


def _hand_over(handle: int, content: bytes) -> None:
    with open(handle, "wb") as file, contextlib.suppress(BrokenPipeError):
        file.write(content)


def _read_all(handle: int) -> bytes:
    with open(handle, "rb") as file:
        return file.read(64 * 1024)


def _refused(said: bytes, launch: Launch) -> RunError:
    report: Mapping[str, object] = json.loads(said)
    refusal = refusal_of(report, launch)
    return RunError(
        refusal.message,
        failure=FailureReason(refusal.failure),
        transient=refusal.transient,
        hint=refusal.hint,
    )


@dataclass(slots=True)
class _ProcessSession:
    """What both kinds share: the end of the process."""

    _process: asyncio.subprocess.Process

    async def wait(self) -> ExecEnd:
        """How it ended."""
        status = await self._process.wait()
        return ExecEnd(code=max(0, status), signal=max(0, -status))

    async def close(self) -> None:
        """Kill it with its session, unless it has ended: what it left in the background then goes on with the run."""
        if self._process.returncode is None:
            await asyncio.to_thread(_kill_session, self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


class PipeSession(_ProcessSession):
    """A command whose input and output are pipes."""

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """Both streams, as they come."""
        queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(maxsize=2)

        async def read(name: str, stream: asyncio.StreamReader | None) -> None:
            while stream is not None and (data := await stream.read(_CHUNK)):
                await queue.put((name, data))
            await queue.put((name, b""))

        stdout, stderr = read("stdout", self._process.stdout), read("stderr", self._process.stderr)
        async with running(stdout, name="stdout"), running(stderr, name="stderr"):
            left = 2
            while left:
                name, data = await queue.get()
                if data:
                    yield name, data
                else:
                    left -= 1

    async def write(self, data: bytes) -> None:
        """Hand it input; waits while it does not read."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._process.stdin.write(data)
                await self._process.stdin.drain()

    async def end_input(self) -> None:
        """Close its input."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def resize(self, rows: int, columns: int) -> None:
        """It has no terminal."""
        del rows, columns


class TerminalSession(_ProcessSession):
    """A command in a terminal."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        super().__init__(process)
        self._master = master

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """What the terminal shows, until the last process has let go of it."""
        while True:
            try:
                data = os.read(self._master, _CHUNK)
            except BlockingIOError:
                await self._until_ready(write=False)
                continue
            except OSError:  # the kernel's way to say that nobody has the other end open
                return
            if not data:
                return
            yield "stdout", data

    async def write(self, data: bytes) -> None:
        """Type something."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._master, rest) :]
            except BlockingIOError:
                await self._until_ready(write=True)
            except OSError:
                return

    async def end_input(self) -> None:
        """Type the character that ends the input."""
        await self.write(b"\x04")

    async def resize(self, rows: int, columns: int) -> None:
        """The kernel tells the foreground processes."""
        _set_size(self._master, rows, columns)

    async def close(self) -> None:
        """Hang up, and kill what is left."""
        await super().close()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    async def _until_ready(self, *, write: bool) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
        add(self._master, wake)
        try:
            await ready
        finally:
            remove(self._master)


def _set_size(handle: int, rows: int, columns: int) -> None:
    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _kill_session(session: int) -> None:
    """Kill every process of a session whose leader is or was this process."""
    procfs.kill_all([stat for stat in procfs.all_stats() if stat.session == session], signal.SIGKILL)

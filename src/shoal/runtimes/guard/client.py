"""The agent's side of the guard: starts guard processes, and writes the table that they read.

Owned by each runtime whose runs are containers. Calls except `open` and `protect` never wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import shoal
from shoal.core.clock import Clock
from shoal.core.disk.private_files import make_private_directory
from shoal.core.errors import ShoalError, UnavailableError
from shoal.core.tasks import TaskScope
from shoal.runtimes.clocks import LinuxClock
from shoal.runtimes.guard.process import belongs, may_kill
from shoal.runtimes.guard.table import GuardTable

log = logging.getLogger(__name__)

#: Either is enough; with two, one may be stopped or killed.
GUARDS = 2
_START_SECONDS = 20.0
_RESTART_SECONDS = 1.0


class Guard:
    """The guarded containers of one runtime."""

    def __init__(self, directory: Path, *, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._table: GuardTable | None = None
        self._slots: dict[str, int] = {}
        self._guards: dict[int, int] = {}  # pidfds, by the guard's number
        self._starting = asyncio.Lock()
        self._scope = TaskScope("guard")

    async def open(self) -> None:
        """Find the guards of an earlier agent, and start those again that are missing."""
        await asyncio.to_thread(make_private_directory, self._directory)
        for number in range(GUARDS):
            self._attach(number)
        self._slots = {each.container_id: each.slot for each in self._table or ()}
        if self._slots:
            with contextlib.suppress(UnavailableError):
                await self._start_missing()

    async def close(self) -> None:
        """Let go of the guards, which go on as long as they have something to guard; without that they end now."""
        await self._scope.close()
        if not self._slots:
            self._send(signal.SIGTERM)
        for number in list(self._guards):
            self._drop(number)
        if self._table is not None:
            self._table.close()
            self._table = None

    async def protect(self, container_id: str, until: float) -> None:
        """Have a container killed at this moment of the clock's `monotonic()`. Raises `UnavailableError`."""
        try:
            if self._table is None:
                self._table = GuardTable.create()
            if container_id not in self._slots:
                self._slots[container_id] = self._table.add(container_id, self._on_boottime(until))
            await self._start_missing()
        except (OSError, ValueError) as error:
            self.release(container_id)
            raise UnavailableError(f"container {container_id[:12]} cannot be guarded: {error}") from error
        except ShoalError:
            self.release(container_id)
            raise
        self._wake()

    def extend(self, container_ids: Iterable[str], until: float) -> None:
        """Move the deadlines of containers; those that are not guarded or have expired are left alone."""
        now, moment = LinuxClock().boottime(), self._on_boottime(until)
        comes_nearer = False
        for container_id in container_ids:
            slot = self._slots.get(container_id)
            if slot is not None and self._table is not None:
                comes_nearer = comes_nearer or moment < self._table.deadline(slot)
                self._table.extend(slot, moment, now=now)
        if comes_nearer:
            self._wake()

    def seconds_left(self, container_id: str) -> float | None:
        """How long until a container is killed; None for one that is not guarded."""
        slot = self._slots.get(container_id)
        if slot is None or self._table is None:
            return None
        if self._table.has_expired(slot):
            return 0.0
        return max(0.0, self._table.deadline(slot) - LinuxClock().boottime())

    def release(self, container_id: str) -> None:
        """A container is gone."""
        slot = self._slots.pop(container_id, None)
        if slot is not None and self._table is not None:
            self._table.remove(slot)

    @property
    def container_ids(self) -> frozenset[str]:
        """The containers that are guarded."""
        return frozenset(self._slots)

    @staticmethod
    def can_kill(container_id: str, pid: int) -> bool:
        """Whether the first process of a container can be found from here, and killed.

        Not if the agent runs in a container itself, or without root while the container has another user.
        """
        return belongs(pid, (container_id,)) and may_kill(pid)

    # --- the processes ------------------------------------------------------------------------------------

    def _on_boottime(self, moment: float) -> float:
        """As a moment on the clock of the guards, which is read first: see `ProcessRuntime`."""
        now = LinuxClock().boottime()
        return now + (moment - self._clock.monotonic())

    def _path(self, number: int) -> Path:
        return self._directory / f"guard{number}"

    def _attach(self, number: int) -> bool:
        """Take up a guard that runs."""
        try:
            handle = os.open(self._path(number), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid, _, table = os.read(handle, 64).decode(errors="replace").partition(" ")
        else:
            return False  # nobody holds it
        finally:
            os.close(handle)
        try:
            found = GuardTable.attach(int(pid), int(table))
            pidfd = os.pidfd_open(int(pid))
        except (OSError, ValueError) as error:
            log.warning("guard %d cannot be taken up: %s", number, error)
            return False
        if self._table is None:
            self._table = found
        else:
            found.close()
        self._watch(number, pidfd)
        return True

    async def _start_missing(self) -> None:
        async with self._starting:
            for number in range(GUARDS):
                if number not in self._guards:
                    await self._launch(number)

    async def _launch(self, number: int) -> None:
        if self._table is None:
            return
        source = str(Path(shoal.__path__[0]).parent)
        command = [sys.executable, "-S", "-P", "-m", "shoal.runtimes.guard"]
        process = await asyncio.create_subprocess_exec(
            *command,
            str(self._path(number)),
            str(self._table.handle),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd="/",
            env={**os.environ, "PYTHONPATH": source},
            pass_fds=(self._table.handle,),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                said, _ = await process.communicate()
        except TimeoutError:
            said = b"it did not come up in time"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if said.strip() not in (b"ready", b"locked") or not self._attach(number):
            raise UnavailableError(f"a guard could not be started: {said.decode(errors='replace').strip()[-500:]}")

    def _watch(self, number: int, pidfd: int) -> None:
        self._guards[number] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._guard_ended, number)

    def _guard_ended(self, number: int) -> None:
        self._drop(number)
        if self._slots and not self._scope.is_closing:
            log.warning("guard %d is gone and is started again", number)
            self._scope.start(self._restart(), name=f"restart {number}")

    async def _restart(self) -> None:
        while self._slots:
            try:
                await self._start_missing()
            except (UnavailableError, OSError) as error:
                log.warning("a guard is started again later: %s", error)
                await self._clock.sleep(_RESTART_SECONDS)
            else:
                return

    def _drop(self, number: int) -> None:
        pidfd = self._guards.pop(number, -1)
        if pidfd >= 0:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def _wake(self) -> None:
        """Have the guards read the table now."""
        self._send(signal.SIGUSR1)

    def _send(self, number: signal.Signals) -> None:
        for pidfd in self._guards.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)

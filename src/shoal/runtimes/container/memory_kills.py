"""Notices that a container was killed for its memory limit, while its control group lives.

Podman does not report it under cgroups v1. There the kernel signals an eventfd once for each time a group runs out of
memory, and once more when the group is removed. So one signal of a group that is gone means that it only ended, two
that it ran out of memory first. Under cgroups v2 the group counts kills in a file, which is read whenever the kernel
says that it changed: with the group the file is gone. What the engine itself reports counts beside both.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
from pathlib import Path
from typing import Protocol

from shoal.core.ids import RunId
from shoal.runtimes import cgroups

log = logging.getLogger(__name__)

_EVENTS = "memory.events"
#: The line of the file that counts.
_KILLS = "oom_kill"
_MAX_FILE = 4096


class MemoryKills:
    """The memory groups of running containers, watched by one event loop."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root
        self._watched: dict[RunId, _Watch] = {}

    def watch(self, run_id: RunId, pid: int, container_id: str) -> None:
        """Begin with a run whose main process has this pid. Does nothing where it cannot be watched."""
        if run_id in self._watched:
            return
        try:
            watch = _watch(pid, container_id, self._root)
        except OSError as error:
            log.debug("run %s: its memory group cannot be watched: %s", run_id, error)
            return
        if watch is not None:
            self._watched[run_id] = watch
            asyncio.get_running_loop().add_reader(watch.handle, watch.note)

    def has_run_out(self, run_id: RunId) -> bool:
        """Whether a run that has ended was out of memory."""
        watch = self._watched.get(run_id)
        return watch is not None and watch.has_run_out()

    def ran_out(self, run_id: RunId) -> bool:
        """Whether a run that has ended was out of memory. It is no longer watched."""
        found = self.has_run_out(run_id)
        watch = self._watched.pop(run_id, None)
        if watch is not None:
            asyncio.get_running_loop().remove_reader(watch.handle)
            watch.close()
        return found

    def close(self) -> None:
        """Stop watching."""
        for run_id in list(self._watched):
            self.ran_out(run_id)


class _Watch(Protocol):
    """One group."""

    @property
    def handle(self) -> int:
        """Can be read when there is something to note."""
        ...

    def note(self) -> None:
        """Take in what the kernel says."""
        ...

    def has_run_out(self) -> bool:
        """Whether the group has run out of memory."""
        ...

    def close(self) -> None:
        """Let go of the group."""
        ...


def _watch(pid: int, container_id: str, root: Path) -> _Watch | None:
    """A watch of a container's group. None if the process is another one: the engine may count elsewhere.

    Raises OSError.
    """
    for place in cgroups.read_memberships(root, pid=pid):
        if container_id not in str(place.directory):
            continue
        if place.version == 1 and "memory" in place.controllers:
            return _Signals(place.directory)
        if place.version == 2:
            # Engines may put processes into a group below, which does not count.
            own = (each for each in (place.directory, *place.directory.parents) if container_id in each.name)
            for directory in own:
                if (directory / _EVENTS).exists():
                    return _Counts(directory)
    return None


class _Signals:
    """A group of version 1."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._signals = 0
        self.handle = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            control = os.open(directory / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
            try:
                (directory / "cgroup.event_control").write_text(f"{self.handle} {control}")
            finally:
                os.close(control)
        except OSError:
            os.close(self.handle)
            raise

    def note(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._signals += os.eventfd_read(self.handle)

    def has_run_out(self) -> bool:
        self.note()
        return self._signals > (0 if self._directory.exists() else 1)

    def close(self) -> None:
        os.close(self.handle)


class _Counts:
    """A group of version 2. What was read last stays when the group is gone."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / _EVENTS, os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.epoll()
        self._kills = 0
        try:
            self._changes.register(self._file, select.EPOLLPRI)
        except OSError:
            self.close()
            raise
        self.note()

    @property
    def handle(self) -> int:
        return self._changes.fileno()

    def note(self) -> None:
        with contextlib.suppress(OSError):
            words = os.pread(self._file, _MAX_FILE, 0).decode(errors="replace").split()
            counts = dict(zip(words[::2], words[1::2], strict=False))
            self._kills = int(counts.get(_KILLS, "0"))

    def has_run_out(self) -> bool:
        self.note()
        return self._kills > 0

    def close(self) -> None:
        self._changes.close()
        os.close(self._file)

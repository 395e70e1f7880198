"""Notices that a container was killed for its memory limit, under cgroups v1. Podman does not report it there.

The kernel signals an eventfd once for each time a group runs out of memory, and once more when the group is removed.
So one signal of a group that is gone means that it only ended, two that it ran out of memory first. Under cgroups v2
the engines themselves report it (`State.OOMKilled`), and nothing is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path

from shoal.core.ids import RunId
from shoal.runtimes import cgroups

log = logging.getLogger(__name__)


class MemoryKills:
    """The memory groups of running containers, watched by one event loop."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root
        self._watched: dict[RunId, tuple[int, Path]] = {}
        self._signals: dict[RunId, int] = {}

    def watch(self, run_id: RunId, pid: int, container_id: str) -> None:
        """Begin with a run whose main process has this pid. Does nothing where it cannot be watched."""
        if run_id in self._watched:
            return
        directory = _memory_group(pid, container_id, self._root)
        if directory is None:
            return
        event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            control = os.open(directory / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
            try:
                (directory / "cgroup.event_control").write_text(f"{event} {control}")
            finally:
                os.close(control)
        except OSError as error:
            os.close(event)
            log.debug("run %s: its memory group cannot be watched: %s", run_id, error)
            return
        self._watched[run_id] = (event, directory)
        self._signals[run_id] = 0
        asyncio.get_running_loop().add_reader(event, self._signalled, run_id)

    def has_run_out(self, run_id: RunId) -> bool:
        """Whether a run that has ended was out of memory."""
        self._signalled(run_id)
        event, directory = self._watched.get(run_id, (-1, Path()))
        return event >= 0 and self._signals[run_id] > (0 if directory.exists() else 1)

    def ran_out(self, run_id: RunId) -> bool:
        """Whether a run that has ended was out of memory. It is no longer watched."""
        found = self.has_run_out(run_id)
        event, _ = self._watched.pop(run_id, (-1, Path()))
        self._signals.pop(run_id, 0)
        if event >= 0:
            asyncio.get_running_loop().remove_reader(event)
            os.close(event)
        return found

    def close(self) -> None:
        """Stop watching."""
        for run_id in list(self._watched):
            self.ran_out(run_id)

    def _signalled(self, run_id: RunId) -> None:
        event, _ = self._watched.get(run_id, (-1, None))
        if event >= 0:
            with contextlib.suppress(BlockingIOError):
                self._signals[run_id] += os.eventfd_read(event)


def _memory_group(pid: int, container_id: str, root: Path) -> Path | None:
    """The v1 memory group of a container. None if the process is another one: the engine may count elsewhere."""
    for place in cgroups.read_memberships(root, pid=pid):
        if place.version == 1 and "memory" in place.controllers and container_id in str(place.directory):
            return place.directory
    return None

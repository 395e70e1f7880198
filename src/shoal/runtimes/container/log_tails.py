"""Follows what containers print, to their end. Called by the runtimes whose runs live in an engine.

Podman's service stops answering when about a hundred streams of output are open, and each costs it time. So the log
file of a Podman container is read directly where the agent can see it; one look at all files serves every container.
Docker, and engines on other machines, are asked for a stream.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from datetime import datetime

from shoal.core.clock import Clock, epoch_ms
from shoal.core.tasks import TaskScope
from shoal.runtimes.container.engine.api import EngineApi

_LOOK_SECONDS = 0.2
#: A file that did not change for so many looks is looked at each fifth time: most containers print rarely.
_QUIET_LOOKS = 25
_RARELY = 5
_CHUNK = 64 * 1024
#: Longer than any line that a container's monitor writes. What does not end is no log.
_MAX_LINE = 1 << 20

#: The stream, what was printed, and when, in milliseconds since 1970, if that is known.
Printed = tuple[str, bytes, int | None]


class LogTails:
    """The log files that are followed now."""

    def __init__(self, scope: TaskScope, clock: Clock) -> None:
        self._scope = scope
        self._clock = clock
        self._tails: set[LogTail] = set()
        self._looking: asyncio.Task[None] | None = None

    def new(self) -> LogTail:
        """A way to follow the output of one container."""
        return LogTail(self)

    def add(self, tail: LogTail) -> None:
        """Look at the file of a tail, again and again."""
        self._tails.add(tail)
        if self._looking is None or self._looking.done():
            self._looking = self._scope.start(self._look(), name="log files")

    def discard(self, tail: LogTail) -> None:
        """Look at it no longer."""
        self._tails.discard(tail)

    async def _look(self) -> None:
        while self._tails:
            await self._clock.sleep(_LOOK_SECONDS)
            due = tuple(tail for tail in self._tails if tail.is_due())
            for tail in await asyncio.to_thread(_changed, due) if due else ():
                tail.wake()


class LogTail:
    """The output of one container, from its beginning."""

    def __init__(self, tails: LogTails) -> None:
        self._tails = tails
        self._path = ""
        self._inode = 0
        self._offset = 0
        self._ended = False
        self._awake = asyncio.Event()
        #: Looks since something came.
        self._looks = 0

    def end(self) -> None:
        """The container has ended: what it has printed is read, and that is all."""
        self._ended = True
        self.wake()

    def wake(self) -> None:
        """There is more to read, or the file is gone."""
        self._looks = 0
        self._awake.set()

    def is_due(self) -> bool:
        """Whether the file is to be looked at this time."""
        self._looks += 1
        return self._looks <= _QUIET_LOOKS or self._looks % _RARELY == 0

    async def follow(self, api: EngineApi, container_id: str, *, tty: bool = False) -> AsyncIterator[Printed]:
        """Everything that the container prints, until it has ended."""
        path = await _log_path(api, container_id)
        if path:
            async for printed in self._read_file(path):
                yield printed
            return
        async for stream, data in api.logs(container_id, follow=True, timestamps=not tty, tty=tty):
            at_ms, text = (None, data) if tty else split_time(data)
            yield stream, text, at_ms

    def has_changed(self) -> bool:
        """Whether the file is another, longer or gone. Called in a thread."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - many times a second
        except OSError:
            return True
        return status.st_ino != self._inode or status.st_size != self._offset

    async def _read_file(self, path: str) -> AsyncIterator[Printed]:
        self._path = path
        handle = await self._open()
        lines = LogLines()
        self._tails.add(self)
        try:
            while True:
                self._awake.clear()
                # Both are found out before the read, so that what was printed before is read.
                is_last, inode = self._ended, await asyncio.to_thread(self._inode_now)
                data = await asyncio.to_thread(os.read, handle, _CHUNK)
                self._offset += len(data)
                for printed in lines.feed(data):
                    yield printed
                if data:
                    continue
                if inode not in (self._inode, 0):
                    # The monitor begins a new file when this one is long. Its last line came before.
                    os.close(handle)
                    handle, lines = await self._open(), LogLines()
                elif is_last or not inode:
                    return
                else:
                    await self._awake.wait()
        finally:
            self._tails.discard(self)
            os.close(handle)

    async def _open(self) -> int:
        handle = await asyncio.to_thread(os.open, self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._inode, self._offset = os.fstat(handle).st_ino, 0
        return handle

    def _inode_now(self) -> int:
        try:
            return os.stat(self._path).st_ino  # noqa: PTH116
        except OSError:
            return 0


class LogLines:
    """Takes the log file of a Podman container apart: `time stream F|P text`, where P has no end of line. Pure."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Printed]:
        """What the whole lines so far say. A line that is none is left out."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE:
            self._rest = b""
        for line in lines:
            stamp, _, rest = line.partition(b" ")
            stream, _, rest = rest.partition(b" ")
            tag, found, text = rest.partition(b" ")
            if found and stream in (b"stdout", b"stderr"):
                at_ms, _ = split_time(stamp + b" ")
                yield stream.decode(), text + (b"\n" if tag == b"F" else b""), at_ms


def split_time(data: bytes) -> tuple[int | None, bytes]:
    """A line of the engine as its time and its text. Podman's stream tells whole seconds: the present is better."""
    stamp, found, text = data.partition(b" ")
    if not found:
        return None, data
    try:
        moment = datetime.fromisoformat(stamp.decode())
    except (ValueError, UnicodeDecodeError):
        return None, data
    is_exact = b"." in stamp
    return (epoch_ms(moment) if is_exact else None), text


def _changed(tails: tuple[LogTail, ...]) -> list[LogTail]:
    return [tail for tail in tails if tail.has_changed()]


async def _log_path(api: EngineApi, container_id: str) -> str:
    """The log file of a Podman container that this process can read; empty where there is none."""
    if not api.is_podman:
        return ""
    found = await api.container(container_id) or {}
    path = str(found.get("LogPath") or "")
    readable = await asyncio.to_thread(os.access, path, os.R_OK)
    return path if path and readable else ""

"""The log pipes of runs, on the keeper's side.

A pipe is a named one in the keeper's directory, and the child holds it open for reading as well as for writing. So it
does not break when the keeper is killed: the child may go on printing until the pipe is full, then it waits, and the
next keeper opens the same pipe and reads on. Called by `runs`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from shoal.core.ids import RunId
from shoal.runtimes.keeper.files import STREAMS, KeeperFiles
from shoal.runtimes.keeper.loop import Loop
from shoal.runtimes.log_files import CHUNK, LogWriter, last_output

#: How much of the end of its output is kept with the record of a run.
TAIL_SIZE = 4096
#: After the end of a run its pipes are emptied, but not for ever: something that escaped may still be printing.
_LAST_WORDS = 1024 * 1024


class LogBook:
    """The log writers, one per workload that has runs."""

    def __init__(self, files: KeeperFiles, loop: Loop) -> None:
        self._files = files
        self._loop = loop
        self._writers: dict[str, tuple[LogWriter, int]] = {}

    def take(self, workload_id: str) -> LogWriter:
        """The writer of a workload, for one more run."""
        writer, users = self._writers.get(workload_id, (None, 0))
        if writer is None:
            writer = LogWriter(self._files.logs(workload_id), self._loop.clock)
        self._writers[workload_id] = (writer, users + 1)
        return writer

    def give_back(self, workload_id: str) -> None:
        """One run fewer."""
        writer, users = self._writers.pop(workload_id)
        if users > 1:
            self._writers[workload_id] = (writer, users - 1)
        else:
            writer.close()

    def errors(self) -> dict[str, str]:
        """Why the logs of some workloads cannot be written now."""
        return {name: writer.error for name, (writer, _) in self._writers.items() if writer.error}


class Outputs:
    """The two pipes of one run."""

    def __init__(self, files: KeeperFiles, loop: Loop, book: LogBook, *, run_id: RunId, workload_id: str) -> None:
        self._files = files
        self._loop = loop
        self._book = book
        self._run_id = run_id
        self._workload_id = workload_id
        self._writer = book.take(workload_id)
        self._readers: dict[int, str] = {}
        self._tail = b""

    def make(self) -> tuple[int, int]:
        """Make the pipes and begin to read; the ends for the child, which the caller closes. Raises OSError."""
        self._writer.begin_run(self._run_id)
        ends: list[int] = []
        try:
            for stream in STREAMS:
                path = self._files.pipe(self._run_id, stream)
                path.unlink(missing_ok=True)
                os.mkfifo(path, 0o600)
                self._read_from(path, stream)
                ends.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            for end in ends:
                os.close(end)
            raise
        return ends[0], ends[1]

    def reopen(self) -> None:
        """Read on where a keeper that was killed left off."""
        for stream in STREAMS:
            with contextlib.suppress(OSError):
                self._read_from(self._files.pipe(self._run_id, stream), stream)

    def recall(self, since_ms: int) -> None:
        """Take the end of what was printed before this keeper from the log."""
        with contextlib.suppress(OSError):
            self._tail = last_output(self._files.logs(self._workload_id), since_ms=since_ms, limit=TAIL_SIZE)

    def tail(self) -> str:
        """The end of what was printed, with what is in the pipes now."""
        budget = _LAST_WORDS
        for handle in list(self._readers):
            while handle in self._readers and budget > 0:
                read = self._read(handle)
                if not read:
                    break
                budget -= read
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Let go of everything, the pipes included."""
        for handle in list(self._readers):
            self._close(handle)
        self._book.give_back(self._workload_id)
        for stream in STREAMS:
            with contextlib.suppress(OSError):
                self._files.pipe(self._run_id, stream).unlink(missing_ok=True)

    def _read_from(self, path: Path, stream: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._readers[handle] = f"std{stream}"

        def take_chunk() -> None:
            self._read(handle)

        self._loop.add_reader(handle, take_chunk)

    def _read(self, handle: int) -> int:
        """Take one chunk out of a pipe; its size, 0 when there is nothing now or will be nothing more."""
        try:
            chunk = os.read(handle, CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            self._close(handle)
            return 0
        self._writer.write(self._readers[handle], chunk)
        self._tail = (self._tail + chunk)[-TAIL_SIZE:]
        return len(chunk)

    def _close(self, handle: int) -> None:
        del self._readers[handle]
        self._loop.remove(handle)
        os.close(handle)

"""What child processes print, shown by their parent: each line with the name of the process in front.

What is shown is bounded: a process that prints more than that in a second is told of by a count, and its log has the
rest for as long as it runs. Called by `shoal.dataflow.execution.hosts.processes`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

#: Lines of one stream that are shown in a second, and characters of a line.
MOST_LINES = 200
MOST_CHARACTERS = 4000


def write_to_terminal(line: str) -> None:
    """Show a line. On standard error: results of the parent on standard output stay what they are."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class ChildOutput:
    """The lines of one stream of a child process. Decides alone; only `write` acts."""

    def __init__(self, name: str, write: Callable[[str], None] = write_to_terminal) -> None:
        self._name = name
        self._write = write
        self._unfinished = b""
        self._second = -1
        self._shown = 0
        self._left_out = 0

    def feed(self, data: bytes, now: float) -> None:
        """Some bytes that it printed, at a moment in seconds."""
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for line in lines:
            self._show(line, now)
        if len(self._unfinished) > MOST_CHARACTERS:
            line, self._unfinished = self._unfinished, b""
            self._show(line, now)

    def finish(self) -> None:
        """It has ended: show what has no end of line, and how much was left out."""
        self._tell_left_out()
        if self._unfinished:
            line, self._unfinished = self._unfinished, b""
            self._put(line)

    def _show(self, line: bytes, now: float) -> None:
        if int(now) != self._second:
            self._tell_left_out()
            self._second, self._shown = int(now), 0
        if self._shown >= MOST_LINES:
            self._left_out += 1
            return
        self._shown += 1
        self._put(line)

    def _put(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        more = len(text) - MOST_CHARACTERS
        self._write(f"[{self._name}] {text[:MOST_CHARACTERS]}{f' … {more} more characters' if more > 0 else ''}")

    def _tell_left_out(self) -> None:
        left_out, self._left_out = self._left_out, 0
        if left_out:
            self._write(f"[{self._name}] … {left_out} more lines, which came too fast to show")

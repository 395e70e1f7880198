"""A command that an operator runs inside a running workload. Frozen values, no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from shoal.core.errors import Problem, problem
from shoal.core.shape import MaxLength, Pattern, Range
from shoal.model.spec.parts import Text

MAX_SIDE = 65535


@dataclass(frozen=True, slots=True)
class WindowSize:
    """The size of a terminal."""

    rows: Annotated[int, Range(1, MAX_SIDE)] = 24
    columns: Annotated[int, Range(1, MAX_SIDE)] = 80


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """A command to run beside a run."""

    command: Annotated[tuple[Text, ...], MaxLength(1024, 1)]
    #: The service of a compose project; empty where there is only one.
    service: Annotated[str, MaxLength(63)] = ""
    #: Run it in a terminal. Everything it prints is then in stdout.
    terminal: bool = False
    #: Whether input follows.
    interactive: bool = False
    window: WindowSize = WindowSize()
    #: The value of TERM, with a terminal.
    term: Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", "must be the name of a terminal")] = "xterm"

    def extra_problems(self, at: str) -> Iterator[Problem]:
        """Rules across fields."""
        prefix = f"{at}." if at else ""
        for index, word in enumerate(self.command):
            if "\x00" in word:
                yield problem(f"{prefix}command[{index}]", word, "must not contain NUL")
        if self.command and not self.command[0].strip():
            yield problem(f"{prefix}command[0]", self.command[0], "must name a program")


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """A piece of what a command prints; `stream` is `stdout` or `stderr`."""

    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ExecEnd:
    """How a command ended."""

    code: int = 0
    signal: int = 0

    @property
    def status(self) -> int:
        """The exit status as shells have it."""
        return 128 + self.signal if self.signal else self.code

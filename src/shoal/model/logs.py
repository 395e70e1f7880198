"""Queries of a workload's log, and the pieces that answer them. Used by runtimes, the agent and the client."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which part of a log to read."""

    #: Only the last so many lines; 0 for all that is kept.
    tail_lines: int = 0
    #: Wait for more output at the end.
    follow: bool = False
    #: Only output printed at or after this moment.
    since: datetime | None = None
    #: Output of the run before the last one, instead of all runs. It has an end: nothing follows.
    previous: bool = False
    #: Give every piece its time. Pieces are smaller then.
    times: bool = False
    #: Continue after this position of an earlier piece; the filters above do not apply then.
    after: str = ""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some bytes that a workload printed."""

    data: bytes
    #: stdout | stderr
    stream: str = "stdout"
    #: When it was printed, if the query asked for times.
    time: datetime | None = None
    #: Where to continue after this piece; empty when reading cannot continue there.
    position: str = ""

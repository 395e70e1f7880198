"""`shoal logs`: the output of workloads, from the nodes that run them."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands.common import selecting
from shoal.cli.connection import session
from shoal.cli.connection.options import (
    FLEET,
    GroupFilter,
    Json,
    OptionalWorkloadNames,
    SelectorText,
    client_command,
    moment,
)
from shoal.core.errors import InvalidError, ShoalError, problem
from shoal.core.tasks import task_scope

if TYPE_CHECKING:
    from shoal.client import ControlPlane, LogPiece

MAX_LINE = 64 * 1024
"""A line that never ends is printed in pieces of this many characters."""

MAX_FOLLOWED = 64
"""How many workloads can be followed at once: each holds a stream open."""

Follow = Annotated[bool, typer.Option("--follow", "-f", metavar="", help="Wait for more output; reconnects by itself")]
Tail = Annotated[int, typer.Option("--tail", min=0, metavar="N", help="Only the last N lines; 0 is all")]
Since = Annotated[
    str, typer.Option("--since", metavar="WHEN", help="Only output since then: 10m, 2h or 2026-01-31T12:00:00Z")
]
Timestamps = Annotated[
    bool, typer.Option("--timestamps", metavar="", help="Begin each line with the time of its output, in UTC")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "logs", panel=FLEET)(logs)


async def logs(
    control: ControlPlane,
    workloads: OptionalWorkloadNames = None,
    *,
    follow: Follow = False,
    tail: Tail = 0,
    since: Since = "",
    timestamps: Timestamps = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", metavar="", help="Output of the run before the last one")
    ] = False,
    selector: SelectorText = "",
    group: GroupFilter = "",
    as_json: Json = False,
) -> int:
    """Print the output of workloads, oldest first, stdout and stderr in the order they came.

    Of several workloads, or with -l or --group, each line begins with the workload's id. With --json each line becomes
    a JSON document with the keys workload, stream, text and time.
    """
    names = await selecting.choose(control, workloads or (), selector=selector, group=group)
    return await print_logs(
        control,
        names,
        follow=follow,
        tail=tail,
        since=since,
        timestamps=timestamps,
        previous=previous,
        prefixed=len(names) > 1 or bool(selector or group),
        as_json=as_json,
    )


async def print_logs(
    control: ControlPlane,
    names: Sequence[str],
    *,
    follow: bool = False,
    tail: int = 0,
    since: str = "",
    timestamps: bool = False,
    previous: bool = False,
    prefixed: bool = False,
    as_json: bool = False,
) -> int:
    """Print the output of some workloads, and return the exit code. `prefixed`: each line begins with the id."""
    if follow and previous:
        raise InvalidError([problem("--follow and --previous", None, "only one of them can be given")])
    if follow and len(names) > MAX_FOLLOWED:
        rule = f"can follow at most {MAX_FOLLOWED} workloads, and {len(names)} match"
        raise InvalidError([problem("--follow", None, rule)], hint="narrow the selection with -l")
    since_moment = moment(since, session.clock().wall(), field="--since") if since else None
    printer = Printer(prefixed=prefixed, timestamps=timestamps, as_json=as_json)

    async def read(name: str) -> int:
        pieces = control.logs(name, tail=tail, follow=follow, since=since_moment, previous=previous, times=timestamps)
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    printer.show(name, piece)
        except ShoalError as error:
            if not prefixed:
                raise
            output.fail(error)
            return session.exit_code_of(error)
        finally:
            printer.finish(name)
        return 0

    return await (_read_together(names, read) if follow and prefixed else _read_in_turn(names, read))


async def _read_in_turn(names: Sequence[str], read: selecting.ForOne) -> int:
    return max([0, *[await read(name) for name in names]])


async def _read_together(names: Sequence[str], read: selecting.ForOne) -> int:
    async with task_scope("logs") as scope:
        tasks: list[asyncio.Task[int]] = [scope.start(read(name), name=name) for name in names]
        await asyncio.wait(tasks)
        return max(task.result() for task in tasks)


class Printer:
    """Prints pieces of logs: as they are, or as lines with what was asked for in front."""

    def __init__(self, *, prefixed: bool, timestamps: bool, as_json: bool) -> None:
        self._prefixed = prefixed
        self._timestamps = timestamps
        self._as_json = as_json
        self._lines: dict[tuple[str, str], Lines] = {}

    def show(self, name: str, piece: LogPiece) -> None:
        """Print a piece of a workload's log."""
        if not (self._prefixed or self._timestamps or self._as_json):
            output.raw(piece.data)
            return
        lines = self._lines.setdefault((name, piece.stream), Lines())
        for line, time in lines.feed(piece.data, piece.time):
            self._print(name, piece.stream, line, time)

    def finish(self, name: str) -> None:
        """Print the unfinished lines of a workload that gives no more."""
        for (owner, stream), lines in self._lines.items():
            if owner == name:
                for line, time in lines.finish():
                    self._print(name, stream, line, time)

    def _print(self, name: str, stream: str, line: str, time: datetime | None) -> None:
        if self._as_json:
            output.json_line({"workload": name, "stream": stream, "text": line, "time": time})
            return
        stamp = f"{_stamp(time)} " if self._timestamps else ""
        output.raw(f"{f'{name} | ' if self._prefixed else ''}{stamp}{line}\n".encode())


def _stamp(time: datetime | None) -> str:
    if time is None:
        return "-"
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Lines:
    """Bytes in, whole lines of text out, each with the time of its first byte. Bytes that are no UTF-8 are replaced."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._time: datetime | None = None

    def feed(self, data: bytes, time: datetime | None = None) -> list[tuple[str, datetime | None]]:
        """The lines that are complete now."""
        began = self._time if self._rest else time
        *whole, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        lines = [(line, began if index == 0 else time) for index, line in enumerate(whole)]
        self._time = time if whole else began
        while len(self._rest) > MAX_LINE:
            lines.append((self._rest[:MAX_LINE], self._time))
            self._rest = self._rest[MAX_LINE:]
        return lines

    def finish(self) -> list[tuple[str, datetime | None]]:
        """The unfinished line, when nothing more comes."""
        rest = self._rest + self._decoder.decode(b"", final=True)
        self._rest = ""
        return [(rest, self._time)] if rest else []

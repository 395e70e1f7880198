"""`shoal logs`: what a workload printed."""

from __future__ import annotations

import codecs
import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.connection.options import FLEET, Json, WorkloadName, client_command

if TYPE_CHECKING:
    from shoal.client import ControlPlane

MAX_LINE = 64 * 1024
"""A line that never ends is handed on in pieces of this many characters."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "logs", panel=FLEET)(logs)


async def logs(
    control: ControlPlane,
    workload: WorkloadName,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", metavar="", help="Go on as more is printed")] = False,
    tail: Annotated[int, typer.Option("--tail", min=0, metavar="N", help="Only the last N lines; 0 is all")] = 0,
    as_json: Json = False,
) -> None:
    """Print what a workload printed, oldest first, its stdout and stderr as they came.

    With --json each line becomes a JSON document with the keys stream and text.
    """
    lines = {"stdout": Lines(), "stderr": Lines()}
    async with contextlib.aclosing(control.logs(workload, tail=tail, follow=follow)) as pieces:
        async for piece in pieces:
            if not as_json:
                output.raw(piece.data)
                continue
            for line in lines.setdefault(piece.stream, Lines()).feed(piece.data):
                output.json_line({"stream": piece.stream, "text": line})
    for stream, rest in lines.items():
        for line in rest.finish():
            output.json_line({"stream": stream, "text": line})


class Lines:
    """Bytes in, whole lines of text out; what is no UTF-8 is replaced."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        *whole, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        while len(self._rest) > MAX_LINE:
            whole.append(self._rest[:MAX_LINE])
            self._rest = self._rest[MAX_LINE:]
        return whole

    def finish(self) -> list[str]:
        """What is left when nothing more comes."""
        rest = self._rest + self._decoder.decode(b"", final=True)
        self._rest = ""
        return [rest] if rest else []

"""`shoal exec`: runs a command inside a running workload, with this terminal if it is asked for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.connection.options import FLEET, WorkloadName, client_command
from shoal.core.errors import InvalidError, UnavailableError, problem

if TYPE_CHECKING:
    from shoal.client import ControlPlane


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "exec", panel=FLEET)(execute)


async def execute(
    control: ControlPlane,
    workload: WorkloadName,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="The program and its arguments")],
    *,
    service: Annotated[str, typer.Option("--service", metavar="NAME", help="The service of a compose project")] = "",
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", metavar="", help="Pass standard input on")
    ] = False,
    terminal: Annotated[
        bool, typer.Option("--tty", "-t", metavar="", help="Run it in a terminal; with -i it is this one")
    ] = False,
) -> int:
    """Run a command inside a running workload and end with its exit status.

    It has the user, the directory, the environment and the limits of the workload. It is killed when this command ends.
    Who ran it and what is in `shoal events`; what is typed and printed is not.
    """
    from shoal.cli.commands.terminal import OwnTerminal, current_size, standard_input
    from shoal.client import ExecCommand, ExecEnd

    if terminal and interactive and not sys.stdin.isatty():
        raise InvalidError([problem("--tty", None, "needs a terminal as standard input")], hint="leave out -t")
    wanted = ExecCommand(
        command=tuple(command),
        service=service,
        terminal=terminal,
        interactive=interactive,
        window=current_size(),
        term=os.environ.get("TERM") or "xterm",
    )
    async with OwnTerminal(raw=terminal and interactive) as own:
        given = own.merged(standard_input()) if interactive else None
        async for each in control.exec(workload, wanted, given):
            if isinstance(each, ExecEnd):
                return each.status
            if each.stream == "stderr":
                output.raw_error(each.data)
            else:
                output.raw(each.data)
    raise UnavailableError("the connection ended before the command did", workload=workload)

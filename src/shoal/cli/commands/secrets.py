"""`shoal secret …`: sets, lists and deletes secrets: values for environment variables, which cannot be read back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.connection.options import Json, client_command
from shoal.cli.output.tables import Column
from shoal.core.errors import InvalidError, problem

if TYPE_CHECKING:
    from shoal.client import ControlPlane

app = typer.Typer(name="secret", help="Secrets: values that cannot be read back.", no_args_is_help=True)

_COLUMNS = (Column("SECRET"), Column("REVISION", right=True), Column("SET", right=True), Column("MADE", right=True))
_LARGEST = 32 * 1024

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name that specs use")]


@client_command(app, "set")
async def set_secret(
    control: ControlPlane,
    *,
    name: Name,
    file: Annotated[
        str | None, typer.Option("--from-file", metavar="PATH", help="Read the value from a file, every byte of it")
    ] = None,
) -> None:
    """Store a value, from a file or from stdin; on a terminal it is asked for and not shown.

    A line that is piped in loses its line end. Workloads get the new value when they are next started. A spec names it
    so: `env: {PASSWORD: {secret: NAME}}`.
    """
    view = await control.set_secret(name, _read_value(name, file))
    output.words(f"secret {view.name} is set, revision {view.revision}")


@client_command(app, "list")
async def list_secrets(control: ControlPlane, *, as_json: Json = False) -> None:
    """List the secrets, without their values."""
    found = await control.list_secrets()
    if as_json:
        output.json_document({"secrets": found})
        return
    now = session.clock().wall()
    rows: list[list[str | output.Cell]] = [
        [each.name, str(each.revision), output.ago(each.updated_at, now), output.ago(each.created_at, now)]
        for each in found
    ]
    output.table(_COLUMNS, rows, empty="no secret")


@client_command(app, "delete")
async def delete_secret(control: ControlPlane, *, name: Name) -> None:
    """Delete a secret that no workload names any longer."""
    await control.delete_secret(name)
    output.words(f"secret {name} is deleted")


def _read_value(name: str, file: str | None) -> bytes:
    if file is not None:
        try:
            with Path(file).open("rb") as opened:
                value = opened.read(_LARGEST + 1)
        except OSError as error:
            rule = f"must be a file that can be read: {(error.strerror or str(error)).lower()}"
            raise InvalidError([problem("--from-file", file, rule)]) from None
    elif sys.stdin.isatty():
        import getpass

        value = getpass.getpass(f"value of {name}: ").encode()
    else:
        value = sys.stdin.buffer.read(_LARGEST + 2)
        value = value.removesuffix(b"\n").removesuffix(b"\r")
    if not value:
        raise InvalidError([problem("value", None, "must not be empty: pipe it in, or give --from-file")])
    if len(value) > _LARGEST:
        raise InvalidError([problem("value", None, f"must have at most {_LARGEST:,} bytes")])
    return value

"""`shoal schema` and `shoal version`. Both work without a control plane."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.connection.options import Json


class Kind(enum.StrEnum):
    """A kind of document."""

    PROCESS = "process"
    CONTAINER = "container"
    COMPOSE = "compose"
    VM = "vm"
    GROUP = "group"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("schema", rich_help_panel="Other")(schema)
    app.command("version", rich_help_panel="Other")(version)


def schema(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="process, container, compose, vm or group")],
) -> None:
    """Print the JSON Schema of a workload or group document, for editors and other checkers."""
    from shoal.model.documents import group_schema, workload_schema
    from shoal.model.workloads import WorkloadType

    output.json_document(group_schema() if kind is Kind.GROUP else workload_schema(WorkloadType(kind.value)))


def version(*, as_json: Json = False) -> None:
    """Print the version."""
    if as_json:
        output.json_document({"version": installed_version()})
    else:
        output.data(f"shoal {installed_version()}")


def installed_version() -> str:
    """The version of the package that is installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as look_up

    try:
        return look_up("shoal")
    except PackageNotFoundError:
        return "unknown"

"""`shoal savepoint …`: takes, lists, restores and deletes savepoints of stream programs.

A job is named by its program, or by the folder of its checkpoints, as that of a job on a fleet. Everything is in that
folder: nothing is asked of a running process. Calls `shoal.dataflow.checkpoint.savepoints`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.connection.options import Json
from shoal.cli.output.tables import Column
from shoal.core.errors import PreconditionError

if TYPE_CHECKING:
    from shoal.dataflow.api.apps.app import App, Dataflow
    from shoal.dataflow.checkpoint.savepoints import Savepoints

app = typer.Typer(
    name="savepoint",
    help="Savepoints of stream programs: checkpoints that are kept under a name.",
    no_args_is_help=True,
)

_COLUMNS = (Column("JOB"), Column("NAME"), Column("CHECKPOINT", right=True), Column("PLACE", rank=1))

Job = Annotated[
    str,
    typer.Argument(metavar="PROGRAM|FOLDER", help="my_app:app, my_app.py, or the folder of a job's checkpoints"),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the savepoint")]
Which = Annotated[str, typer.Argument(metavar="NAME|N", help="The name of the savepoint, or its number")]
Only = Annotated[
    list[str] | None,
    typer.Option("--dataflow", metavar="NAME", help="Only this one of the program; repeatable [all]"),
]
DataDir = Annotated[str | None, typer.Option("--data-dir", metavar="PATH", help="As of `shoal run`")]


@app.command("take")
def take(job: Job, name: Name, *, dataflow: Only = None, data_dir: DataDir = None) -> None:
    """Keep the newest complete checkpoint under a name. The job may run or not.

    It stays until it is deleted. `shoal run --from-checkpoint NAME` goes on from it, `shoal run --savepoint NAME` takes
    one when the run is stopped.
    """
    for each in (found := _jobs(job, dataflow, data_dir)):
        each.check(name)
    for each in found:
        output.words(f"{each.job}: savepoint {name} is checkpoint {each.take(name).checkpoint}")


@app.command("list")
def list_savepoints(job: Job, *, dataflow: Only = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the savepoints, oldest first."""
    found = [(each.job, point) for each in _jobs(job, dataflow, data_dir) for point in each.list()]
    if as_json:
        rows: list[dict[str, Any]] = [
            {"job": name, "name": point.name, "checkpoint": point.checkpoint, "place": point.place}
            for name, point in found
        ]
        output.json_document({"savepoints": rows})
        return
    shown = [[name, point.name or "-", str(point.checkpoint), point.place] for name, point in found]
    output.table(_COLUMNS, shown, empty="no savepoint")


@app.command("restore")
def restore(
    job: Job,
    which: Which,
    *,
    accept_duplicates: Annotated[
        bool, typer.Option("--accept-duplicates", metavar="", help="Output since the savepoint may come again")
    ] = False,
    dataflow: Only = None,
    data_dir: DataDir = None,
) -> None:
    """Let the next start of a stopped job go on from a savepoint, here or on a fleet.

    What sinks have committed since then comes again, so --accept-duplicates has to be said.
    """
    from shoal.core.entropy import SystemEntropy

    if not accept_duplicates:
        raise PreconditionError(
            "what sinks have committed since the savepoint would come again", hint="accept it: --accept-duplicates"
        )
    for each in _jobs(job, dataflow, data_dir):
        number = each.restore(checkpoint_of(which) or 0, SystemEntropy())
        output.words(f"{each.job}: the next start goes on from checkpoint {number}")


@app.command("delete")
def delete(job: Job, which: Which, *, dataflow: Only = None, data_dir: DataDir = None) -> None:
    """Delete a savepoint: its files are removed with the next checkpoint of the job that does not need them."""
    for each in _jobs(job, dataflow, data_dir):
        number = each.delete(checkpoint_of(which) or 0)
        output.words(f"{each.job}: checkpoint {number} is no longer a savepoint")


def checkpoint_of(text: str | None) -> int | str | None:
    """A checkpoint as people name it: by its number, or by the name of a savepoint."""
    return int(text) if text is not None and text.isdecimal() else text


def savepoints_of(app: App, flows: Sequence[Dataflow]) -> list[Savepoints]:
    """The savepoints of some dataflows of an app."""
    from shoal.dataflow.checkpoint.savepoints import Savepoints

    return [Savepoints(app.checkpoint_directory, each.job) for each in flows]


def _jobs(target: str, dataflow: Sequence[str] | None, data_dir: str | None) -> list[Savepoints]:
    """The jobs that were named, as far as they have ever run."""
    from shoal.cli.programs.loading import load_program
    from shoal.core import files
    from shoal.dataflow.api.context import Launch
    from shoal.dataflow.checkpoint.savepoints import Savepoints

    folder = target.rstrip("/")
    if "/" in folder and ".py" not in files.name(folder):
        found = [Savepoints(folder.rpartition("/")[0], files.name(folder))]
    else:
        program = load_program(target, Launch(data_dir=data_dir))
        flows = program.app.choose(tuple(dataflow or ()) or program.dataflows)
        found = savepoints_of(program.app, flows)
    known = [each for each in found if each.has_job]
    if not known:
        names = ", ".join(each.job for each in found)
        raise PreconditionError(f"{names}: has not run with checkpoints here", hint="--data-dir says where they lie")
    return known

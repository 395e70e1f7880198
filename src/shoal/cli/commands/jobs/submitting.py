"""`shoal job submit`: packs a stream program and submits its dataflows as jobs of the engine `dataflow`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.commands.jobs import waiting
from shoal.cli.commands.jobs.changing import follow_up
from shoal.cli.commands.jobs.waiting import JobGoal
from shoal.cli.connection.options import Detach, Json, Timeout, client_command, duration
from shoal.core.errors import InvalidError, problem

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.dataflow.api.context import Launch
    from shoal.dataflow.execution.remote.submitting import CollectedJob

WAIT = timedelta(seconds=waiting.DEFAULT_TIMEOUT)


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "submit")(submit)


async def submit(
    control: ControlPlane,
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="my_app:flow, my_app:app, my_app.py or package.module:app")
    ],
    *,
    dataflow: Annotated[
        list[str] | None,
        typer.Option("--dataflow", metavar="NAME", help="Submit only this one; repeatable [all of the program]"),
    ] = None,
    parallelism: Annotated[
        int, typer.Option("--parallelism", min=1, max=128, metavar="N", help="How many task hosts each job has")
    ] = 1,
    name: Annotated[
        str, typer.Option("--name", metavar="JOB", help="The id of the job, if it is one [app.dataflow]")
    ] = "",
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="PATH", help="Where checkpoints and the local log lie")
    ] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", metavar="HOST:PORT[,…]|PATH", help="Kafka, or the folder of a local log")
    ] = None,
    exactly_once: Annotated[
        bool | None,
        typer.Option(
            "--exactly-once/--at-least-once", metavar="", help="Whether rows reach sinks once, with a checkpoint"
        ),
    ] = None,
    checkpoint_interval: Annotated[
        timedelta | None,
        typer.Option("--checkpoint-interval", parser=duration, metavar="DURATION", help="Such as 200ms, 1s or 1m"),
    ] = None,
    detach: Detach = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
) -> int:
    """Submit the dataflows of a program as jobs on the fleet, and wait until they run.

    The plan and the code of the program's module or package are uploaded. Agents need the same version of Python and of
    the key libraries. Paths that the program names must be reachable from the nodes.
    """
    from shoal.dataflow.api.context import Launch
    from shoal.dataflow.execution.remote.submitting import submit_job

    launch = Launch(
        broker=broker,
        data_dir=data_dir,
        exactly_once=exactly_once,
        checkpoint_interval=checkpoint_interval,
        is_remote=True,
    )
    packed = await _pack(program, tuple(dataflow or ()), launch, parallelism)
    if name and len(packed) > 1:
        names = ", ".join(each.spec.name for each in packed)
        raise InvalidError([problem("--name", name, f"needs one dataflow; the program has {names}")])
    code = 0
    for each in packed:
        view = await submit_job(control, each, job_id=name)
        told = await follow_up(
            control, view, JobGoal.RUNNING, done="submitted", detach=detach, timeout=timeout, as_json=as_json
        )
        code = code or told
    return code


async def _pack(program: str, names: tuple[str, ...], launch: Launch, parallelism: int) -> list[CollectedJob]:
    """Load the program, and check and pack every dataflow before anything is submitted."""
    from shoal.cli.programs.loading import failure_of, is_of_user, load_program

    try:
        found = load_program(program, launch)
        flows = found.app.choose(names or found.dataflows)
        return [await flow.pack(parallelism) for flow in flows]
    except InvalidError:
        raise
    except Exception as error:
        if not is_of_user(error):
            raise
        raise failure_of(program, error) from error

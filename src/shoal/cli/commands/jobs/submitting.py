"""`shoal job submit`: packs a stream program and submits its dataflows as jobs of the engine `dataflow`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.commands.jobs import waiting
from shoal.cli.commands.jobs.changing import follow_up
from shoal.cli.commands.jobs.packing import Broker, CheckpointInterval, DataDir, ExactlyOnce, JobOption, pack
from shoal.cli.commands.jobs.waiting import JobGoal
from shoal.cli.connection.options import Detach, Json, Timeout, client_command

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.dataflow.api.apps.app import Dataflow

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
    name: JobOption = "",
    data_dir: DataDir = None,
    broker: Broker = None,
    exactly_once: ExactlyOnce = None,
    checkpoint_interval: CheckpointInterval = None,
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

    async def width(_flow: Dataflow) -> int:
        return parallelism

    code = 0
    for each in await pack(program, dataflow, launch, name=name, width=width):
        view = await submit_job(control, each, job_id=name)
        told = await follow_up(
            control, view, JobGoal.RUNNING, done="submitted", detach=detach, timeout=timeout, as_json=as_json
        )
        code = code or told
    return code

"""`shoal job upgrade`: gives a job another program, or another spec. What its state does not fit is refused first."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.commands.jobs import waiting
from shoal.cli.commands.jobs.changing import follow_up
from shoal.cli.commands.jobs.packing import Broker, CheckpointInterval, DataDir, ExactlyOnce, JobOption, pack
from shoal.cli.commands.jobs.specs import read_spec
from shoal.cli.commands.jobs.waiting import JobGoal
from shoal.cli.connection import completion
from shoal.cli.connection.options import Detach, Json, Timeout, client_command
from shoal.core.errors import InvalidError, problem

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.dataflow.api.apps.app import Dataflow
    from shoal.dataflow.api.context import Launch
    from shoal.model.jobs import JobView

WAIT = timedelta(seconds=waiting.DEFAULT_TIMEOUT)


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "upgrade")(upgrade)


async def upgrade(
    control: ControlPlane,
    target: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM|JOB",
            help="my_app:flow, as for submit; with -f the job's id",
            autocompletion=completion.complete_jobs,
        ),
    ],
    *,
    file: Annotated[
        str, typer.Option("--file", "-f", metavar="FILE", help="The new spec in the form of its engine; - is stdin")
    ] = "",
    dataflow: Annotated[
        list[str] | None,
        typer.Option("--dataflow", metavar="NAME", help="Upgrade only this one; repeatable [all of the program]"),
    ] = None,
    parallelism: Annotated[
        int | None,
        typer.Option("--parallelism", min=1, max=128, metavar="N", help="Task hosts of each job [as many as it has]"),
    ] = None,
    name: JobOption = "",
    data_dir: DataDir = None,
    broker: Broker = None,
    exactly_once: ExactlyOnce = None,
    checkpoint_interval: CheckpointInterval = None,
    detach: Detach = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
) -> int:
    """Give a job another program on the state that it has, or with -f another spec, and wait until it runs.

    State belongs to the uids of steps. What does not fit is refused before the job stops. A stopped job goes on.
    """
    from shoal.dataflow.api.context import Launch

    launch = Launch(
        broker=broker,
        data_dir=data_dir,
        exactly_once=exactly_once,
        checkpoint_interval=checkpoint_interval,
        is_remote=True,
    )
    if file:
        others = {
            "--dataflow": dataflow,
            "--parallelism": parallelism,
            "--name": name,
            "--data-dir": data_dir,
            "--broker": broker,
            "--exactly-once": exactly_once,
            "--checkpoint-interval": checkpoint_interval,
        }
        given = {option: value for option, value in others.items() if value not in (None, "", [])}
        if given:
            rule = "is for a program; -f has the whole spec"
            raise InvalidError([problem(option, value, rule) for option, value in given.items()])
        views = [await control.upgrade_job(target, read_spec(await control.get_job(target), file))]
    else:
        views = await _upgrade(control, target, dataflow, launch, name=name, parallelism=parallelism)
    code = 0
    for view in views:
        told = await follow_up(
            control, view, JobGoal.RUNNING, done="upgraded", detach=detach, timeout=timeout, as_json=as_json
        )
        code = code or told
    return code


async def _upgrade(
    control: ControlPlane,
    program: str,
    dataflows: list[str] | None,
    launch: Launch,
    *,
    name: str,
    parallelism: int | None,
) -> list[JobView]:
    """Ask for the upgrade of each job of a program: of none before all were found to fit."""
    from shoal.dataflow.execution.remote.submitting import deployed_spec, upgrade_job
    from shoal.dataflow.fleet.spec import check_fit

    async def width(flow: Dataflow) -> int:
        return parallelism or (await deployed_spec(control, name or flow.job)).parallelism

    packed = await pack(program, dataflows, launch, name=name, width=width)
    for each in packed:
        check_fit(await deployed_spec(control, name or each.spec.name), each.spec)
    return [await upgrade_job(control, each, job_id=name) for each in packed]

"""`shoal job cancel`, `resume`, `rescale` and `savepoint`: make a request, and wait for its result.

`follow_up` does the waiting, also for `submit` and `upgrade`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands.jobs import showing, waiting
from shoal.cli.commands.jobs.waiting import JobGoal
from shoal.cli.connection import session
from shoal.cli.connection.options import Detach, JobName, Json, Timeout, client_command
from shoal.cli.output import hints
from shoal.core.errors import InvalidError
from shoal.dataflow.fleet.progress import went_back
from shoal.dataflow.fleet.spec import ENGINE as DATAFLOWS
from shoal.model.jobs import JobView

if TYPE_CHECKING:
    from shoal.client import ControlPlane

WAIT = timedelta(seconds=waiting.DEFAULT_TIMEOUT)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    client_command(app, "cancel")(cancel)
    client_command(app, "resume")(resume)
    client_command(app, "rescale")(rescale)
    client_command(app, "savepoint")(savepoint)


async def cancel(
    control: ControlPlane, job: JobName, *, detach: Detach = False, timeout: Timeout = WAIT, as_json: Json = False
) -> int:
    """End a job and remove its workloads. Its row stays, so that it can be looked at."""
    view = await control.cancel_job(job)
    return await follow_up(
        control, view, JobGoal.CANCELED, done="canceled", detach=detach, timeout=timeout, as_json=as_json
    )


async def resume(
    control: ControlPlane, job: JobName, *, detach: Detach = False, timeout: Timeout = WAIT, as_json: Json = False
) -> int:
    """Let a job go on that was stopped, has failed or is paused."""
    view = await control.resume_job(job)
    return await follow_up(
        control, view, JobGoal.RUNNING, done="resumed", detach=detach, timeout=timeout, as_json=as_json
    )


async def rescale(
    control: ControlPlane,
    job: JobName,
    width: Annotated[int, typer.Argument(metavar="WIDTH", help="The new width; of a service, its number of replicas")],
    *,
    operator: Annotated[
        str, typer.Option("--operator", metavar="UID", help="Only this step of the job, as `shoal job graph` shows it")
    ] = "",
    detach: Detach = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
) -> int:
    """Give a job, or one step of it, another width."""
    try:
        view = await control.rescale_job(job, width, operator=operator)
    except InvalidError as error:
        raise hints.renamed(error, {"width": "WIDTH", "operator": "--operator"}) from None
    done = f"{operator} rescaled to {width}" if operator else f"rescaled to {width}"
    return await follow_up(control, view, JobGoal.RUNNING, done=done, detach=detach, timeout=timeout, as_json=as_json)


async def savepoint(
    control: ControlPlane,
    job: JobName,
    *,
    stop: Annotated[bool, typer.Option("--stop", metavar="", help="Stop the job after it; `resume` goes on")] = False,
    detach: Detach = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
) -> int:
    """Take a savepoint of a job. With --stop, its workloads are removed after that, and its row stays.

    A service has no state: it can only be stopped.
    """
    view = await control.savepoint_job(job, stop=stop)
    goal, done = (JobGoal.STOPPED, "stopped") if stop else (JobGoal.RUNNING, "saved")
    return await follow_up(control, view, goal, done=done, detach=detach, timeout=timeout, as_json=as_json)


async def follow_up(
    control: ControlPlane,
    view: JobView,
    goal: JobGoal,
    *,
    done: str,
    detach: bool,
    timeout: timedelta,
    as_json: bool,
) -> int:
    """Wait until a request has come true, tell how it went, and return the exit code."""
    if detach:
        if as_json:
            output.json_document({"job": showing.plain(view, brief=True)})
        else:
            output.words(f"{view.job_id}: will be {done}")
        return 0
    waited = await waiting.wait_for(control, view, goal, clock=session.clock(), timeout=timeout.total_seconds())
    if waited.exit_code == 0 and waited.job.engine == DATAFLOWS and went_back(waited.job):
        output.fail_with(
            f"there is no room for the change of job {view.job_id}: it goes on as before",
            hint="make room, or choose a lower width, and ask again",
        )
        return 3
    if as_json:
        output.json_document({"job": showing.plain(waited.job, brief=True)})
    elif waited.exit_code == 0:
        detail = f" ({waited.judgement.detail})" if waited.judgement.detail else ""
        output.words(f"{view.job_id}: {done}{detail}")
    waiting.explain(waited)
    return waited.exit_code

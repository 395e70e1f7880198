"""`shoal job list`, `get`, `graph` and `logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands import workloads
from shoal.cli.commands.common import selecting
from shoal.cli.commands.common.listing import Listing, show
from shoal.cli.commands.jobs import showing
from shoal.cli.commands.logs import Follow, Since, Tail, Timestamps, print_logs
from shoal.cli.connection import session
from shoal.cli.connection.options import JobName, Json, Watch, client_command
from shoal.core.errors import NotFoundError, PreconditionError, UnsupportedError
from shoal.core.shape import to_mapping
from shoal.dataflow.fleet.graph import draw_graph
from shoal.dataflow.fleet.progress import COORDINATOR, workload_of
from shoal.dataflow.fleet.reports import decode_coordinator
from shoal.dataflow.fleet.spec import ENGINE
from shoal.jobs.states import ENDED
from shoal.model.jobs import JOB_LABEL, JobState, JobView

if TYPE_CHECKING:
    from shoal.client import ControlPlane


def register(app: typer.Typer) -> None:
    """Add the commands."""
    client_command(app, "list")(list_jobs)
    client_command(app, "get")(get_job)
    client_command(app, "graph")(graph)
    client_command(app, "logs")(logs)


async def list_jobs(
    control: ControlPlane,
    *,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="Only jobs of this engine")] = "",
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """List the jobs with their states."""

    async def fetch() -> list[JobView]:
        return sorted(await control.list_jobs(engine=engine), key=lambda job: job.job_id)

    listing = Listing(
        noun="jobs",
        columns=showing.COLUMNS,
        fetch=fetch,
        row=showing.row,
        name=lambda job: job.job_id,
        state=lambda job: (job.state, job.message, job.workloads),
        empty="no job yet; `shoal job submit my_app:flow` or `shoal service apply -f` makes one",
        plain=lambda job: showing.plain(job, brief=True),
    )
    await show(control, listing, as_json=as_json, watch=watch)


async def get_job(control: ControlPlane, job: JobName, *, as_json: Json = False) -> None:
    """Show a job and its workloads."""
    view = await control.get_job(job)
    if as_json:
        output.json_document({"job": showing.plain(view)})
        return
    now = session.clock().wall()
    said = await control.job_reports(job) if view.engine == ENGINE else {}
    output.facts([*showing.facts(view, now), *showing.dataflow_facts(view, said)])
    found = await selecting.select(control, selector=f"{JOB_LABEL}={job}")
    if found:
        output.data("")
        output.table(workloads.COLUMNS, [workloads.row(each, now) for each in found])


async def graph(control: ControlPlane, job: JobName, *, as_json: Json = False) -> None:
    """Draw the plan of a running dataflow job: each step with tasks, rows per second, backpressure and event time."""
    view = await control.get_job(job)
    if view.engine != ENGINE:
        words = f"job {job!r} is of the engine {view.engine!r}; only dataflow jobs have a graph"
        raise UnsupportedError(words, hint=f"`shoal job get {job}` shows its workloads")
    if view.state in ENDED:
        hint = f"`shoal job get {job}` says why" + ("" if view.state is JobState.FINISHED else "; it can be resumed")
        raise PreconditionError(f"job {job!r} is {view.state}: nothing of it runs", hint=hint)
    said = (await control.job_reports(job)).get(workload_of(view.job_id, COORDINATOR))
    if said is None:
        hint = f"it is {view.state}; `shoal job get {job}` says why"
        raise PreconditionError(f"the coordinator of job {job!r} has said nothing yet", hint=hint)
    report = decode_coordinator(said)
    if as_json:
        output.json_document({"job": job, "report": to_mapping(report)})
    else:
        output.data(draw_graph(report))


async def logs(
    control: ControlPlane,
    job: JobName,
    *,
    follow: Follow = False,
    tail: Tail = 0,
    since: Since = "",
    timestamps: Timestamps = False,
    as_json: Json = False,
) -> int:
    """Print the output of a job's workloads. Each line begins with the workload's id.

    `shoal logs WORKLOAD` prints that of one of them.
    """
    await control.get_job(job)
    found = [each.workload_id for each in await selecting.select(control, selector=f"{JOB_LABEL}={job}")]
    if not found:
        raise NotFoundError("workload", f"of job {job}", hint=f"`shoal job get {job}` shows its state")
    return await print_logs(
        control, found, follow=follow, tail=tail, since=since, timestamps=timestamps, prefixed=True, as_json=as_json
    )

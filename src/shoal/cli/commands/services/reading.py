"""`shoal service status` and `history`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands.common.listing import Listing, show
from shoal.cli.commands.services import state
from shoal.cli.commands.services.state import Replica, ServiceState
from shoal.cli.connection import completion, session
from shoal.cli.connection.options import Json, ServiceName, Watch, client_command
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column
from shoal.core.durations import format_duration
from shoal.model.jobs import JOB_LABEL, JobView
from shoal.model.phases import ContractStatus
from shoal.model.views import WorkloadView
from shoal.services.spec import ENGINE

if TYPE_CHECKING:
    from shoal.client import ControlPlane

_SERVICES = (
    Column("SERVICE"),
    Column("STATE"),
    Column("READY", right=True),
    Column("REVISION", rank=2),
    Column("AGE", right=True, rank=3),
    Column("MESSAGE", rank=1, least=24),
)
_REPLICAS = (
    Column("REPLICA"),
    Column("STATE"),
    Column("NODE"),
    Column("REVISION"),
    Column("RESTARTS", right=True, rank=2),
    Column("AGE", right=True, rank=3),
    Column("REASON", rank=1, least=24),
)
_HISTORY = (
    Column("REVISION"),
    Column("STATE"),
    Column("REPLICAS", right=True),
    Column("SINCE", right=True),
    Column("ASKED BY", rank=2, least=16),
    Column("MESSAGE", rank=1, least=24),
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    client_command(app, "status")(status)
    client_command(app, "history")(history)


@dataclass(frozen=True, slots=True)
class _Summary:
    """One service in a list."""

    service_id: str
    state: str
    replicas: int
    ready: int
    revisions: tuple[str, ...]
    message: str
    created_at: datetime | None


async def status(
    control: ControlPlane,
    service: Annotated[
        str | None,
        typer.Argument(metavar="[SERVICE]", help="One of them", autocompletion=completion.complete_services),
    ] = None,
    *,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Show the services, or one of them with its replicas."""
    if service is None:
        await _show_all(control, watch=watch, as_json=as_json)
    elif watch:
        await _watch_one(control, service, as_json=as_json)
    else:
        found = state.assemble(*await state.fetch(control, service))
        if as_json:
            output.json_document({"service": found})
        else:
            _show_one(found, session.clock().wall())


async def _show_all(control: ControlPlane, *, watch: bool, as_json: bool) -> None:
    async def fetch() -> list[_Summary]:
        jobs = sorted(await control.list_jobs(engine=ENGINE), key=lambda job: job.job_id)
        workloads = await control.list_workloads() if jobs else ()
        replicas: dict[str, list[WorkloadView]] = {}
        for each in workloads:
            replicas.setdefault(each.labels.get(JOB_LABEL, ""), []).append(each)
        return [_summary(job, replicas.get(job.job_id, ())) for job in jobs]

    listing = Listing(
        noun="services",
        columns=_SERVICES,
        fetch=fetch,
        row=_summary_row,
        name=lambda each: each.service_id,
        state=lambda each: (each.state, each.replicas, each.ready, each.revisions, each.message),
        empty="no service yet; make one with `shoal service apply -f`",
    )
    await show(control, listing, as_json=as_json, watch=watch)


async def _watch_one(control: ControlPlane, service: str, *, as_json: bool) -> None:
    await state.fetch(control, service)  # a mistyped name must not look like a service without replicas

    async def fetch() -> tuple[Replica, ...]:
        return state.assemble(*await state.fetch(control, service)).replicas

    listing = Listing(
        noun="replicas",
        columns=_REPLICAS,
        fetch=fetch,
        row=_replica_row,
        name=lambda each: each.workload_id,
        state=lambda each: (each.state, each.node_id, each.revision, each.restarts, each.reason),
        empty="it has no replica",
    )
    await show(control, listing, as_json=as_json, watch=True)


def _summary(job: JobView, replicas: Iterable[WorkloadView]) -> _Summary:
    found = list(replicas)
    return _Summary(
        service_id=job.job_id,
        state=job.state.value,
        replicas=len(found),
        ready=sum(each.status == ContractStatus.RUNNING for each in found),
        revisions=tuple(sorted({each.revision_id for each in found})),
        message=job.message,
        created_at=job.created_at,
    )


def _summary_row(each: _Summary, now: datetime) -> list[str | Cell]:
    return [
        each.service_id,
        output.state(each.state),
        f"{each.ready}/{each.replicas}",
        ", ".join(each.revisions),
        output.ago(each.created_at, now) or "-",
        each.message,
    ]


def _show_one(found: ServiceState, now: datetime) -> None:
    policy = found.update
    output.facts(
        [
            ("service", found.service_id),
            ("state", output.state(found.state.value)),
            ("message", found.message),
            ("desired", found.desired),
            ("replicas", f"{found.ready} of {found.count} ready"),
            ("revision", found.revision),
            ("spread", found.spread),
            (
                "update",
                f"{policy.parallel} at a time, each ready for {format_duration(policy.settle)} "
                f"within {format_duration(policy.deadline)}, else {policy.on_failure.value}",
            ),
            ("in this state", output.ago(found.state_at, now)),
            ("age", output.ago(found.created_at, now)),
        ]
    )
    if found.replicas:
        output.data("")
        output.table(_REPLICAS, [_replica_row(each, now) for each in found.replicas])


def _replica_row(each: Replica, now: datetime) -> list[str | Cell]:
    return [
        each.workload_id,
        output.state(each.state),
        each.node_id or "-",
        each.revision,
        str(each.restarts),
        output.ago(each.created_at, now) or "-",
        each.reason,
    ]


async def history(control: ControlPlane, service: ServiceName, *, as_json: Json = False) -> None:
    """Show the revisions of a service: what became of each, who asked for it, and why it failed."""
    found = state.history(state.check_engine(await control.get_job(service)))
    if as_json:
        output.json_document({"revisions": found})
        return
    now = session.clock().wall()
    rows: list[list[str | Cell]] = [
        [
            each.name,
            output.state(each.state),
            str(each.replicas),
            output.ago(each.at, now) or "-",
            each.cause,
            each.message,
        ]
        for each in found
    ]
    output.table(_HISTORY, rows, empty="nothing of it was placed yet")

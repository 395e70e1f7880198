"""`shoal service apply`, `scale` and `rollback`: change a service, and wait until every replica is as it should be."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands.common.specs import read_specs
from shoal.cli.commands.jobs import showing, waiting
from shoal.cli.commands.jobs.changing import WAIT, follow_up
from shoal.cli.commands.jobs.waiting import JobGoal, JobWait
from shoal.cli.commands.services import state
from shoal.cli.connection import session
from shoal.cli.connection.options import Detach, Json, Recursive, ServiceName, Timeout, client_command
from shoal.cli.output import Cell, hints
from shoal.cli.output.tables import Column
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, ShoalError, problem
from shoal.model.jobs import JobDesired, JobState, JobView
from shoal.services import spec as specs
from shoal.services.progress import RevisionState
from shoal.services.spec import ServiceDocument, ServiceSpec

if TYPE_CHECKING:
    from shoal.client import ControlPlane

_APPLIED = (
    Column("SERVICE"),
    Column("CHANGE"),
    Column("STATE"),
    Column("REVISION"),
    Column("MESSAGE", rank=1, least=24),
)
_OVER = frozenset({JobState.CANCELED, JobState.FINISHED})


def register(app: typer.Typer) -> None:
    """Add the commands."""
    client_command(app, "apply")(apply)
    client_command(app, "scale")(scale)
    client_command(app, "rollback")(rollback)


@dataclass(frozen=True, slots=True)
class _Applied:
    """One service that was applied."""

    service_id: str
    #: created | updated | unchanged
    outcome: str
    state: str
    revision: str
    message: str


async def apply(
    control: ControlPlane,
    *,
    files: Annotated[
        list[str],
        typer.Option("--file", "-f", metavar="FILE", help="YAML or JSON, or a folder of such files; - is stdin"),
    ],
    recursive: Recursive = False,
    detach: Detach = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
) -> int:
    """Create or update the services of files, and wait until every replica has settled.

    A changed workload is a new revision, which is rolled out as `update` says. When it fails, the service gets its last
    healthy revision back, or pauses; then the exit code is 1.

    Exit codes: 0 every service runs, 1 a revision failed, 2 a file is wrong, 3 no node has room, 4 timed out.
    """
    documents = [each.document for each in read_specs(files, recursive=recursive, read=specs.read_service_document)]
    stored: list[tuple[ServiceDocument, str, JobView]] = []
    try:
        for document in documents:
            outcome, view = await _store(control, document)
            stored.append((document, outcome, view))
    except ShoalError:
        if stored:
            output.words(f"applied before the error: {', '.join(document.id for document, _, _ in stored)}")
        raise
    if detach:
        _report([_applied(document, outcome, view) for document, outcome, view in stored], as_json=as_json)
        return 0
    waits: list[JobWait] = []
    applied: list[_Applied] = []
    for document, outcome, view in stored:
        waited = await waiting.wait_for(
            control, view, JobGoal.RUNNING, clock=session.clock(), timeout=timeout.total_seconds()
        )
        waits.append(waited)
        applied.append(_applied(document, outcome, waited.job))
    _report(applied, as_json=as_json)
    codes = [_explain(document, waited) for (document, _outcome, _view), waited in zip(stored, waits, strict=True)]
    return next((code for code in (1, 4, 3) if code in codes), 0)


async def _store(control: ControlPlane, document: ServiceDocument) -> tuple[str, JobView]:
    """Submit a service, or change the one that there is. Returns what that was, and the job."""
    wanted = specs.encode(document.spec)
    try:
        known = state.check_engine(await control.get_job(document.id))
    except NotFoundError:
        known = None
    if known is None or known.state in _OVER or known.desired is JobDesired.CANCELED:
        view, _created = await control.submit_job(specs.ENGINE, wanted, job_id=document.id)
        return "created", view
    failed = state.revision_of(known, document.spec)
    if (
        known.spec == wanted
        and known.desired is JobDesired.RUNNING
        and known.state is not JobState.FAILED
        and (failed is None or failed.state is not RevisionState.FAILED)
    ):
        return "unchanged", known
    return "updated", await control.upgrade_job(document.id, wanted)


def _applied(document: ServiceDocument, outcome: str, view: JobView) -> _Applied:
    revision = state.revision_of(view, document.spec)
    return _Applied(document.id, outcome, view.state.value, revision.name if revision is not None else "", view.message)


def _report(applied: list[_Applied], *, as_json: bool) -> None:
    if as_json:
        output.json_document({"applied": applied})
        return
    rows: list[list[str | Cell]] = [
        [each.service_id, each.outcome, output.state(each.state), each.revision, each.message] for each in applied
    ]
    output.table(_APPLIED, rows)


def _explain(document: ServiceDocument, waited: JobWait) -> int:
    """Print what went wrong with one service, and return its exit code."""
    revision = state.revision_of(waited.job, document.spec)
    if waited.exit_code == 0 and revision is not None and revision.state is RevisionState.FAILED:
        output.fail_with(
            f"service {document.id}: {revision.name} failed and was reverted: {revision.message}",
            hint=f"the previous revision runs; `shoal service history {document.id}` shows all of them",
        )
        return 1
    waiting.explain(waited)
    return waited.exit_code


async def scale(
    control: ControlPlane,
    service: ServiceName,
    count: Annotated[int, typer.Argument(metavar="COUNT", help=f"How many replicas, 0 to {specs.MAX_COUNT:,}")],
    *,
    detach: Detach = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
) -> int:
    """Give a service another number of replicas."""
    state.check_engine(await control.get_job(service))
    try:
        view = await control.rescale_job(service, count)
    except InvalidError as error:
        raise hints.renamed(error, {"width": "COUNT"}) from None
    done = f"scaled to {count}"
    return await follow_up(control, view, JobGoal.RUNNING, done=done, detach=detach, timeout=timeout, as_json=as_json)


async def rollback(
    control: ControlPlane,
    service: ServiceName,
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="REVISION", help="This revision, such as r3 [the last healthy one before]")
    ] = "",
    detach: Detach = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
) -> int:
    """Give a service an earlier revision back. It is rolled out like any other, under a new number."""
    job = state.check_engine(await control.get_job(service))
    wanted, name = _earlier(job, to)
    progress = state.progress_of(job)
    if job.state is JobState.RUNNING and wanted.template == progress.revision(progress.target).template:
        output.words(f"{service}: r{progress.target} runs already, and is the same as {name}")
        if as_json:
            output.json_document({"job": showing.plain(job, brief=True)})
        return 0
    view = await control.upgrade_job(service, specs.encode(wanted))
    if detach:
        return await follow_up(
            control, view, JobGoal.RUNNING, done=f"rolled back to {name}", detach=True, timeout=timeout, as_json=as_json
        )
    waited = await waiting.wait_for(
        control, view, JobGoal.RUNNING, clock=session.clock(), timeout=timeout.total_seconds()
    )
    if as_json:
        output.json_document({"job": showing.plain(waited.job, brief=True)})
    code = _explain(ServiceDocument(service, wanted), waited)
    if code == 0 and not as_json:
        made = state.revision_of(waited.job, wanted)
        output.words(f"{service}: rolled back to {name}" + (f", as {made.name}" if made is not None else ""))
    return code


def _earlier(job: JobView, name: str) -> tuple[ServiceSpec, str]:
    """The spec with an earlier template, and the name of that revision."""
    progress = state.progress_of(job)
    if name:
        found = next((each for each in progress.revisions if each.name == name), None)
        if found is None:
            known = ", ".join(each.name for each in progress.revisions) or "none"
            raise InvalidError([problem("--to", name, f"must be a revision that is kept: {known}")])
    else:
        found = state.revision_to_go_back_to(progress)
        if found is None:
            raise PreconditionError(
                f"service {job.job_id!r} has no healthy revision before r{progress.target}",
                hint=f"`shoal service history {job.job_id}` shows its revisions; --to names one",
            )
    current = state.spec_of(job)
    outline = dataclasses.replace(current.outline, spread=found.template["spread"])
    return ServiceSpec(outline, specs.read_workload(found.template["workload"])), found.name

"""`shoal apply`: creates and updates what spec files define, and waits until it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands.common import waiting
from shoal.cli.commands.common.preview import UNCHANGED, preview
from shoal.cli.commands.common.specs import LocatedDocument, read_specs
from shoal.cli.commands.common.waiting import Goal, Waited
from shoal.cli.commands.workloads import ACCEPTED
from shoal.cli.connection import session
from shoal.cli.connection.options import START, Json, OptionalTimeout, Recursive, client_command, duration
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column
from shoal.core.errors import InvalidError, NotFoundError, ShoalError
from shoal.model.documents import Document, WorkloadDocument

if TYPE_CHECKING:
    from shoal.client import ControlPlane

_APPLIED = (
    Column("WORKLOAD"),
    Column("CHANGE"),
    Column("STATE"),
    Column("NODE"),
    Column("GROUP", rank=2),
    Column("REVISION", rank=1, least=8),
)


@dataclass(frozen=True, slots=True)
class Applied:
    """One workload that was applied."""

    workload_id: str
    group_id: str
    #: created | updated | unchanged; of a member, that of its group.
    outcome: str
    revision_id: str
    generation: int
    status: str = ""
    node_id: str = ""


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "apply", panel=START)(apply)


async def apply(
    control: ControlPlane,
    *,
    files: Annotated[
        list[str],
        typer.Option("--file", "-f", metavar="FILE", help="YAML or JSON, or a folder of such files; - is stdin"),
    ],
    recursive: Recursive = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", metavar="", help="Show the diff, what restarts, where it goes and why; store nothing"
        ),
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait/--detach", metavar="", help="Wait until everything runs, or return once it is stored"),
    ] = True,
    timeout: OptionalTimeout = None,
    settle: Annotated[
        timedelta,
        typer.Option(
            "--settle", parser=duration, metavar="DURATION", help="How long each has to stay ready in one run"
        ),
    ] = timedelta(seconds=waiting.SETTLE),
    as_json: Json = False,
) -> int:
    """Create or update the workloads and groups of spec files.

    Waits until each has stayed ready for the time of --settle, or is Completed. One for which no node has room is
    reported after a moment, with every node's reason; it stays Pending. With --timeout the wait for room lasts that
    long.

    Exit codes: 0 everything runs, 1 one failed, 2 a file is wrong, 3 no node has room for one, 4 timed out.
    """
    documents = read_specs(files, recursive=recursive)
    _warn_of_unbounded_disks(documents)
    if dry_run:
        return await preview(control, documents, as_json=as_json)
    applied: list[Applied] = []
    try:
        for located in documents:
            applied.extend(await _apply_one(control, located))
    except ShoalError:
        if applied:
            output.words(f"applied before the error: {', '.join(each.workload_id for each in applied)}")
        raise
    if not wait:
        applied = [await _as_stored(control, each) for each in applied]
        _report(applied, None, as_json=as_json)
        return 0
    try:
        waited = await waiting.wait_all(
            control,
            {each.workload_id: Goal.SETTLED for each in applied},
            clock=session.clock(),
            timeout=timeout.total_seconds() if timeout is not None else waiting.DEFAULT_TIMEOUT,
            grace=waiting.GRACE if timeout is None else None,
            settle={each.workload_id: settle.total_seconds() for each in applied if each.outcome != UNCHANGED},
        )
    except asyncio.CancelledError:
        output.words("no longer waiting; what was applied stays applied")
        raise
    _report(applied, waited, as_json=as_json)
    waiting.explain(waited)
    return waited.exit_code


def _warn_of_unbounded_disks(documents: Sequence[LocatedDocument[Document]]) -> None:
    for document in (each.document for each in documents):
        for one in (document,) if isinstance(document, WorkloadDocument) else document.members:
            process, disk_gb = one.spec.process, one.spec.request.disk_gb
            if process is not None and process.working_dir and disk_gb:
                output.warn(
                    f"workload {one.id}: its {disk_gb} GB of resources.disk_gb are reserved, but not a bound: "
                    f"working_dir {process.working_dir} may be shared, so it is not measured"
                )


async def _apply_one(control: ControlPlane, located: LocatedDocument[Document]) -> list[Applied]:
    document = located.document
    try:
        if isinstance(document, WorkloadDocument):
            outcome = await control.apply(document)
            return [Applied(document.id, "", outcome.outcome, outcome.revision_id, outcome.generation)]
        group = await control.apply_group(document)
    except InvalidError as error:
        raise located.located(error) from None
    return [
        Applied(view.workload_id, document.id, group.outcome, view.revision_id, view.generation)
        for view in group.members
    ]


async def _as_stored(control: ControlPlane, each: Applied) -> Applied:
    """A workload that was unchanged has a state already, which says more than Accepted."""
    if each.outcome != UNCHANGED:
        return each
    try:
        view = await control.get_workload(each.workload_id)
    except NotFoundError:
        return each  # it was deleted just now
    return replace(each, status=view.status, node_id=view.assigned_node_id)


def _report(applied: Sequence[Applied], waited: Waited | None, *, as_json: bool) -> None:
    if waited is not None:
        applied = [_with_state(each, waited) for each in applied]
    if as_json:
        output.json_document({"applied": applied})
        return
    rows: list[list[str | Cell]] = [
        [
            each.workload_id,
            each.outcome,
            output.state(each.status or ACCEPTED),
            each.node_id or "-",
            each.group_id,
            output.short(each.revision_id),
        ]
        for each in applied
    ]
    output.table(_APPLIED, rows)


def _with_state(each: Applied, waited: Waited) -> Applied:
    view = waited.views.get(each.workload_id)
    return Applied(
        workload_id=each.workload_id,
        group_id=each.group_id,
        outcome=each.outcome,
        revision_id=each.revision_id,
        generation=each.generation,
        status=waited.judgements[each.workload_id].state,
        node_id=view.assigned_node_id if view is not None else "",
    )

"""`shoal apply`: make wishes from files, and see them come true."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands import waiting
from shoal.cli.commands.specs import LocatedDocument, read_specs
from shoal.cli.commands.waiting import Goal, Waited
from shoal.cli.connection import session
from shoal.cli.connection.options import START, Json, OptionalTimeout, client_command, duration
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column
from shoal.core.errors import NotFoundError, ShoalError
from shoal.model.documents import GroupDocument, WorkloadDocument
from shoal.model.views import PlannedPlacement

if TYPE_CHECKING:
    from shoal.client import ControlPlane

NO_ROOM = 3
UNCHANGED = "unchanged"

_APPLIED = (
    Column("WORKLOAD"),
    Column("CHANGE"),
    Column("STATE"),
    Column("NODE"),
    Column("GROUP", rank=2),
    Column("REVISION", rank=1, least=8),
)
_PLANNED = (
    Column("WORKLOAD"),
    Column("CHANGE"),
    Column("NODE"),
    Column("GROUP", rank=1),
    Column("WHY", least=24),
)


@dataclass(frozen=True, slots=True)
class Applied:
    """One workload that was wished for."""

    workload_id: str
    group_id: str
    #: created | updated | unchanged; of a member, what became of its group.
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
        typer.Option("--file", "-f", metavar="FILE", help="YAML or JSON with one or several documents; - is stdin"),
    ],
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", metavar="", help="Show what would change, where it would go and why; store nothing"),
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

    Exit codes: 0 all is as requested, 1 one failed, 2 a file is wrong, 3 no node has room for one, 4 timed out.
    """
    documents = read_specs(files)
    if dry_run:
        return await _preview(control, documents, as_json=as_json)
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
        output.words("not waiting any longer; what was applied stays applied")
        raise
    _report(applied, waited, as_json=as_json)
    waiting.explain(waited)
    return waited.exit_code


async def _apply_one(control: ControlPlane, located: LocatedDocument) -> list[Applied]:
    document = located.document
    if isinstance(document, WorkloadDocument):
        outcome = await control.apply(document)
        return [Applied(document.id, "", outcome.outcome, outcome.revision_id, outcome.generation)]
    group = await control.apply_group(document)
    return [
        Applied(view.workload_id, document.id, group.outcome, view.revision_id, view.generation)
        for view in group.members
    ]


async def _as_stored(control: ControlPlane, each: Applied) -> Applied:
    """What was not changed is in some state already, which says more than that the wish was taken."""
    if each.outcome != UNCHANGED:
        return each
    try:
        view = await control.get_workload(each.workload_id)
    except NotFoundError:
        return each  # somebody has deleted it in this very moment
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
            output.state(each.status or "Accepted"),
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


# ---------------------------------------------------------------------------------------------------------
# --dry-run


async def _preview(control: ControlPlane, documents: Sequence[LocatedDocument], *, as_json: bool) -> int:
    alone = [each.document for each in documents if isinstance(each.document, WorkloadDocument)]
    groups = [each.document for each in documents if isinstance(each.document, GroupDocument)]
    planned: list[tuple[str, PlannedPlacement]] = []
    placeable = True
    if alone:
        preview = await control.plan(alone)
        placeable = preview.placeable
        planned.extend(("", each) for each in preview.placements)
    for group in groups:
        preview = await control.plan(group.members, together=True)
        placeable = placeable and preview.placeable
        planned.extend((group.id, each) for each in preview.placements)
    if as_json:
        placements = [{"group_id": group, **output.to_plain(each)} for group, each in planned]
        output.json_document({"placeable": placeable, "placements": placements})
    else:
        _show_preview(planned)
    return 0 if placeable else NO_ROOM


def _show_preview(planned: Sequence[tuple[str, PlannedPlacement]]) -> None:
    rows: list[list[str | Cell]] = [
        [each.workload_id, each.change, each.node_id or Cell("none", "red"), group, _why(each)]
        for group, each in planned
    ]
    output.table(_PLANNED, rows)
    output.words("nothing was stored: this is what would happen now")
    for _, each in planned:
        if not each.node_id:
            output.fail_with(
                f"no node can take workload {each.workload_id}",
                rejections=[(rejection.node_id, rejection.message) for rejection in each.rejections],
            )


def _why(planned: PlannedPlacement) -> str:
    """Why there: the best few nodes with their scores, and how many were out of the question."""
    if not planned.node_id:
        return (
            f"refused by {len(planned.rejections)} of {len(planned.rejections)} nodes"
            if planned.rejections
            else "no nodes"
        )
    if planned.change == UNCHANGED:
        return "it is there already"
    scores = ", ".join(f"{each.node_id} {each.score:.2f}" for each in planned.scores[:3])
    refused = f"; {len(planned.rejections)} refused" if planned.rejections else ""
    return f"{scores or 'the only one that fits'}{refused}"

"""`shoal events`: what happened in the fleet, and why."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.connection import completion
from shoal.cli.connection.options import FLEET, Json, SelectorText, client_command
from shoal.cli.output.tables import Column, clean, pad
from shoal.core.errors import InvalidError, problem
from shoal.model.events import Event
from shoal.model.selectors import parse_selector

if TYPE_CHECKING:
    from shoal.client import ControlPlane

_COLUMNS = (
    Column("TIME", rank=1),
    Column("EVENT"),
    Column("SUBJECT"),
    Column("MESSAGE", least=12),
    Column("BECAUSE", rank=2, least=16),
)

#: The revision of a spec without one of its own.
_SHA256 = re.compile(r"\b[0-9a-f]{64}\b")


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "events", panel=FLEET)(events)


async def events(
    control: ControlPlane,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Wait for more; reconnects by itself")
    ] = False,
    node: Annotated[
        str,
        typer.Option("--node", metavar="NODE", help="Only about this node", autocompletion=completion.complete_nodes),
    ] = "",
    workload: Annotated[
        str,
        typer.Option(
            "--workload", metavar="WORKLOAD", help="Only about this one", autocompletion=completion.complete_workloads
        ),
    ] = "",
    group: Annotated[
        str,
        typer.Option(
            "--group", metavar="GROUP", help="Only about this group", autocompletion=completion.complete_groups
        ),
    ] = "",
    job: Annotated[
        str,
        typer.Option("--job", metavar="JOB", help="Only about this job", autocompletion=completion.complete_jobs),
    ] = "",
    selector: SelectorText = "",
    after: Annotated[
        int | None, typer.Option("--after", min=0, metavar="CURSOR", help="Only what came after this cursor")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="At most so many")] = 50,
    as_json: Json = False,
) -> None:
    """List the newest events, oldest first; with --after, the first ones after a cursor.

    With -l, the events of workloads that had these labels when it happened, also of those that are deleted by now. With
    --json the answer has the cursor to continue from as `next`; with --follow each event is a line of its own.
    """
    kinds = (("node", node), ("workload", workload), ("group", group), ("job", job), ("selector", selector))
    given = {kind: name for kind, name in kinds if name}
    if len(given) > 1:
        flags = " and ".join(f"--{kind}" for kind in given)
        raise InvalidError([problem(flags, None, "only one of them can be given")])
    parse_selector(selector, field="-l")
    kind, name = ("workload", "") if selector else next(iter(given.items()), ("", ""))
    page = await control.list_events(
        after=after or 0, limit=limit, subject_kind=kind, subject_id=name, newest=after is None, selector=selector
    )
    if not follow:
        if as_json:
            output.json_document(page)
        else:
            nothing = "no event of a workload that matches" if selector else "nothing has happened yet"
            empty = f"nothing after {after}" if after else nothing
            output.table(_COLUMNS, [_row(event) for event in page.events], empty=empty)
        return
    for event in page.events:
        show(event, as_json=as_json)
    cursor = page.events[-1].cursor if page.events else page.next
    watch = control.watch_events(after=cursor, subject_kind=kind, subject_id=name, selector=selector)
    async with contextlib.aclosing(watch) as happening:
        async for event in happening:
            show(event, as_json=as_json)


def show(event: Event, *, as_json: bool = False) -> None:
    """Print one event as a line."""
    if as_json:
        output.json_line(event)
    else:
        output.data(line_of(event))


def line_of(event: Event) -> str:
    """An event in one line, as it is shown while it happens."""
    time, kind, subject, message, cause = _row(event)
    because = f" (because {cause})" if cause else ""
    return clean(f"{time}  {pad(kind, 20)}  {pad(subject, 16)}  {message}{because}")


def _row(event: Event) -> list[str]:
    message = _SHA256.sub(lambda found: output.short(found[0]), event.message)
    return [output.local_time(event.time), event.kind, event.subject_id, message, event.cause]

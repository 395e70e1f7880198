"""`shoal describe`: one workload whole: parts, spec, place and reason, probes, last events, last output."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands import events, workloads
from shoal.cli.commands.common import preview
from shoal.cli.commands.common.parts import show_parts
from shoal.cli.commands.common.specs import document_of
from shoal.cli.connection import session
from shoal.cli.connection.options import START, WorkloadName, client_command
from shoal.cli.output.tables import clean
from shoal.core.durations import format_duration
from shoal.core.errors import ShoalError
from shoal.model.documents import write_document
from shoal.model.events import Event
from shoal.model.views import WorkloadView
from shoal.model.workloads import DesiredState, Liveness, Readiness

if TYPE_CHECKING:
    from shoal.client import ControlPlane

_PLACED = ("WorkloadPlaced", "WorkloadMoved")
_INDENT = "  "


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "describe", panel=START)(describe)


async def describe(
    control: ControlPlane,
    workload: WorkloadName,
    *,
    lines: Annotated[int, typer.Option("--lines", min=0, max=1000, metavar="N", help="Lines of output to show")] = 10,
    count: Annotated[int, typer.Option("--events", min=0, max=1000, metavar="N", help="Events to show")] = 10,
) -> None:
    """Show one workload whole: state, parts, node and why, probes, spec, last events and last output."""
    view = await control.get_workload(workload)
    now = session.clock().wall()
    page = await control.list_events(limit=max(1, count), subject_kind="workload", subject_id=workload, newest=True)
    happened = page.events[-count:] if count else ()
    workloads.show_facts(view, now)
    show_parts(view)
    await _show_placement(control, view, page.events, now)
    _show_probes(view)
    if view.spec is not None:
        output.data("\nspec")
        for line in output.yaml_text([write_document(document_of(view))]).splitlines():
            output.data(f"{_INDENT}{line}")
    if happened:
        output.data("\nlast events")
        for event in happened:
            output.data(f"{_INDENT}{events.line_of(event)}")
    if lines:
        await _show_output(control, view, lines)


async def _show_placement(control: ControlPlane, view: WorkloadView, known: tuple[Event, ...], now: datetime) -> None:
    """Where it is, since when and why; or why it is nowhere."""
    output.data("\nplacement")
    placed = next((event for event in reversed(known) if event.kind in _PLACED), None)
    rows = [("node", view.assigned_node_id or "none")]
    if placed is not None and view.assigned_node_id:
        rows.append(("since", output.ago_words(placed.time, now)))
        rows.append(("placed because", placed.cause))
    if view.spec is not None and view.desired_state == DesiredState.RUNNING:
        with contextlib.suppress(ShoalError):
            (planned,) = (await control.plan([document_of(view)])).placements
            if planned.node_id and planned.node_id == view.assigned_node_id:
                rows.append(("why", preview.why_node(planned)))
            rows.append(("nodes that fit", ", ".join(each.node_id for each in planned.scores) or "none"))
            rows += [(f"not {each.node_id}", each.message) for each in planned.rejections]
    if view.spec is not None:
        rules = view.spec.placement
        rows += [("constraint", f"{each.key} {each.operator} {', '.join(each.values)}") for each in rules.constraints]
        rows += [
            (each.direction, f"{', '.join(f'{k}={v}' for k, v in sorted(each.workloads.items()))} by {each.scope}")
            for each in rules.affinities
        ]
    output.facts([(f"{_INDENT}{name}", value) for name, value in rows])


def _show_probes(view: WorkloadView) -> None:
    if view.spec is None:
        return
    output.data("\nprobes")
    found = [("readiness", view.spec.body.readiness), ("liveness", view.spec.body.liveness)]
    rows = [(f"{_INDENT}{name}", describe_probe(probe)) for name, probe in found if probe is not None]
    ready = ("yes" if view.run.ready else "no") if view.run is not None else "not known"
    output.facts([*(rows or [(f"{_INDENT}readiness", "none: ready as soon as it runs")]), (f"{_INDENT}ready", ready)])


def describe_probe(probe: Readiness | Liveness) -> str:
    """A probe in words."""
    if probe.http is not None:
        what = f"GET {probe.http.path} at port {probe.http.port}"
    elif probe.command is not None:
        what = f"command {' '.join(probe.command.command)}"
    else:
        what = f"connect to port {probe.tcp_port}"
    return f"{what} every {format_duration(probe.interval)}, within {format_duration(probe.timeout)}"


async def _show_output(control: ControlPlane, view: WorkloadView, lines: int) -> None:
    """The end of its output, from its node; what was reported last when the node does not answer."""
    text = b""
    try:
        async with contextlib.aclosing(control.logs(view.workload_id, tail=lines)) as pieces:
            async for piece in pieces:
                text += piece.data
    except ShoalError:
        text = view.run.last_output.encode() if view.run is not None else b""
    if text:
        output.data("\nlast output")
        for line in text.decode(errors="replace").splitlines()[-lines:]:
            output.data(f"{_INDENT}{clean(line)}")

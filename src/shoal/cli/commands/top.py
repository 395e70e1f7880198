"""`shoal top`: the usage of nodes and workloads, live."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.connection.options import FLEET, Json, client_command, duration
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column
from shoal.cli.output.units import cores, megabytes, size
from shoal.core.errors import DeadlineError, UnavailableError
from shoal.model.nodes import NodeState
from shoal.model.phases import ContractStatus
from shoal.model.views import NodeView, WorkloadView

if TYPE_CHECKING:
    from rich.text import Text

    from shoal.client import ControlPlane

_NODES = (
    Column("NODE"),
    Column("STATE"),
    Column("CPU", right=True),
    Column("RESERVED", right=True, rank=2),
    Column("MEMORY", right=True),
    Column("RESERVED", right=True, rank=2),
    Column("SLOTS", right=True, rank=1),
    Column("WORKLOADS", right=True, rank=3),
)
_WORKLOADS = (
    Column("WORKLOAD"),
    Column("STATE"),
    Column("NODE"),
    Column("CPU", right=True),
    Column("MEMORY", right=True),
    Column("RESTARTS", right=True, rank=1),
    Column("AGE", right=True, rank=2),
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fleet at one moment."""

    nodes: tuple[NodeView, ...]
    workloads: tuple[WorkloadView, ...]


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "top", panel=FLEET)(top)


async def top(
    control: ControlPlane,
    *,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="Print the tables once and end, as without a terminal")
    ] = False,
    interval: Annotated[
        timedelta,
        typer.Option("--interval", parser=duration, metavar="DURATION", help="Time between two updates"),
    ] = timedelta(seconds=1),
    as_json: Json = False,
) -> None:
    """Show the usage of nodes and workloads, the busiest first, until Ctrl-C."""
    snapshot = await _take(control)
    if as_json:
        output.json_document(snapshot)
        return
    if once or not output.stdout_is_lively():
        output.table(_NODES, _node_rows(snapshot), empty="no node has registered yet")
        if snapshot.workloads:
            output.data("")
            output.table(_WORKLOADS, _workload_rows(snapshot, session.clock().wall()))
        return
    await _watch(control, snapshot, max(0.1, interval.total_seconds()))


async def _watch(control: ControlPlane, snapshot: Snapshot, interval: float) -> None:
    clock = session.clock()
    note = ""
    with output.screen() as draw:
        try:
            while True:
                shown, said = snapshot, note
                draw(lambda width: _lines(shown, said, clock.wall(), width))  # noqa: B023  drawn before the next round
                await clock.sleep(interval)
                try:
                    snapshot, note = await _take(control), ""
                except (UnavailableError, DeadlineError) as error:
                    note = f"{error.message}; showing the last answer"
        except asyncio.CancelledError:
            return  # Ctrl-C ends it


async def _take(control: ControlPlane) -> Snapshot:
    nodes = sorted(await control.list_nodes(), key=lambda node: node.node_id)
    workloads = sorted(
        await control.list_workloads(),
        key=lambda view: (-(view.usage.cpu_percent if view.usage else -1.0), view.workload_id),
    )
    return Snapshot(tuple(nodes), tuple(workloads))


def _lines(snapshot: Snapshot, note: str, now: datetime, width: int) -> Sequence[Text]:
    from rich.text import Text

    ready = sum(node.status == NodeState.READY for node in snapshot.nodes)
    running = sum(view.status == ContractStatus.RUNNING for view in snapshot.workloads)
    head = (
        f"{output.local_time(now)}   nodes {ready}/{len(snapshot.nodes)} ready"
        f"   workloads {running}/{len(snapshot.workloads)} running"
    )
    return [
        Text(head, style="bold"),
        Text(note, style="yellow"),
        *output.table_lines(_NODES, _node_rows(snapshot), width=width),
        Text(""),
        *output.table_lines(_WORKLOADS, _workload_rows(snapshot, now), width=width),
    ]


def _node_rows(snapshot: Snapshot) -> list[list[str | Cell]]:
    rows: list[list[str | Cell]] = []
    for node in snapshot.nodes:
        used = node.usage
        rows.append(
            [
                node.node_id,
                output.state(node.status),
                f"{used.cpu_used_millicores / 1000:.2f}/{cores(node.total.cpu_millicores)}" if used else "?",
                cores(node.total.cpu_millicores - node.available.cpu_millicores),
                f"{megabytes(used.memory_used_mb)}/{megabytes(node.total.memory_mb)}" if used else "?",
                megabytes(node.total.memory_mb - node.available.memory_mb),
                f"{node.total.slots - node.available.slots}/{node.total.slots}" if node.total.slots else "-",
                str(node.workload_count),
            ]
        )
    return rows


def _workload_rows(snapshot: Snapshot, now: datetime) -> list[list[str | Cell]]:
    return [
        [
            view.workload_id,
            output.state(view.state),
            view.assigned_node_id or "-",
            f"{view.usage.cpu_percent:.0f}%" if view.usage else _unused(view),
            size(view.usage.memory_bytes) if view.usage else _unused(view),
            str(view.run.restarts if view.run else 0),
            output.ago(view.created_at, now) or "-",
        ]
        for view in snapshot.workloads
    ]


def _unused(view: WorkloadView) -> str:
    """Stands for a missing usage: ? for a workload that runs, - for one that does not."""
    return "?" if view.status == ContractStatus.RUNNING else "-"

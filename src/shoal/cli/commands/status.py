"""`shoal status`: the fleet in numbers, and every node and workload that is unhealthy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from shoal.cli import output
from shoal.cli.commands.common import waiting
from shoal.cli.connection.options import START, Json, client_command
from shoal.cli.output.tables import Column
from shoal.model.nodes import NodeState
from shoal.model.phases import AS_REQUESTED
from shoal.model.views import ClusterSummary, NodeView

if TYPE_CHECKING:
    from shoal.client import ControlPlane

_COLUMNS = (Column("UNHEALTHY"), Column("STATE"), Column("REASON", least=16))
_MOST = 20
_NODE_WORDS = {
    NodeState.SUSPECT: "suspect",
    NodeState.DRAINING: "draining",
    NodeState.DRAINED: "drained",
    NodeState.NOT_READY: "not ready",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "status", panel=START)(status)


async def status(control: ControlPlane, *, as_json: Json = False) -> None:
    """Show the fleet in numbers, and every node and workload that is unhealthy."""
    summary = await control.summary()
    every_node = await control.list_nodes()
    nodes = [node for node in every_node if node.status not in (NodeState.READY, NodeState.DRAINED)]
    poor = [view for view in await control.list_workloads() if view.status not in AS_REQUESTED]
    if as_json:
        unwell = {
            "nodes": [{"id": node.node_id, "status": node.status, "reason": node.status_reason} for node in nodes],
            "workloads": [
                {"id": view.workload_id, "status": view.status, "state": view.state, "reason": waiting.why(view)}
                for view in poor
            ],
        }
        output.json_document({"summary": summary, "unwell": unwell})
        return
    output.facts(
        [
            ("cluster", summary.cluster_id),
            ("nodes", _nodes(every_node)),
            ("workloads", _workloads(summary)),
            ("groups", str(summary.groups) if summary.groups else ""),
        ]
    )
    rows: list[list[str | output.Cell]] = []
    rows += [[node.node_id, output.state(node.status), node.status_reason] for node in nodes]
    rows += [[view.workload_id, output.state(view.state), waiting.why(view)] for view in poor]
    if rows:
        output.data("")
        output.table(_COLUMNS, rows[:_MOST])
    if len(rows) > _MOST:
        output.words(f"… and {len(rows) - _MOST} more; `shoal node list` and `shoal workload list` show all")


def _nodes(nodes: Sequence[NodeView]) -> str:
    if not nodes:
        return "none yet; start one with `shoal agent`"
    counts = Counter(node.status for node in nodes)
    rest = "".join(f", {counts[state]} {word}" for state, word in _NODE_WORDS.items() if counts[state])
    return f"{counts[NodeState.READY]} of {len(nodes)} ready{rest}"


def _workloads(summary: ClusterSummary) -> str:
    parts = [
        (summary.running_workloads, "running"),
        (summary.completed_workloads, "completed"),
        (summary.stopped_workloads, "stopped"),
        (summary.pending_workloads, "pending"),
        (summary.failed_workloads, "failed"),
        (summary.lost_workloads, "lost"),
        (summary.deleting_workloads, "deleting"),
    ]
    words = ", ".join(f"{count} {word}" for count, word in parts if count)
    return f"{summary.total_workloads}{f' ({words})' if words else ''}" if summary.total_workloads else "none"

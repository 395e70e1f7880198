"""`shoal node …`: the machines of the fleet."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output, session
from shoal.cli.options import Json, NodeName, client_command
from shoal.cli.output import Cell
from shoal.cli.tables import Column
from shoal.model.views import NodeView

if TYPE_CHECKING:
    from shoal.client import ControlPlane

app = typer.Typer(name="node", help="The machines of the fleet.", no_args_is_help=True)

_COLUMNS = (
    Column("NODE"),
    Column("STATE"),
    Column("CPU FREE", right=True),
    Column("MEMORY FREE", right=True),
    Column("SLOTS", right=True, rank=3),
    Column("WORKLOADS", right=True, rank=2),
    Column("BEAT", right=True, rank=4),
    Column("ENDPOINT", rank=5),
    Column("VERSION", rank=6),
    Column("REASON", rank=1, least=16),
)


@client_command(app, "list")
async def list_nodes(
    control: ControlPlane,
    *,
    status: Annotated[str, typer.Option("--status", metavar="STATE", help="Only nodes in this state")] = "",
    as_json: Json = False,
) -> None:
    """List the nodes with what is free on each."""
    nodes = sorted(await control.list_nodes(status=status), key=lambda node: node.node_id)
    if as_json:
        output.json_document({"nodes": nodes})
        return
    now = session.clock().wall()
    empty = f"no node is {status}" if status else "no node has registered yet; start one with `shoal agent`"
    output.table(_COLUMNS, [_row(node, now) for node in nodes], empty=empty)


@client_command(app, "get")
async def get_node(control: ControlPlane, node: NodeName, *, as_json: Json = False) -> None:
    """Show everything about one node."""
    view = await control.get_node(node)
    if as_json:
        output.json_document({"node": view})
        return
    now = session.clock().wall()
    used = view.usage
    output.facts(
        [
            ("node", view.node_id),
            ("state", output.state(view.status)),
            ("reason", _reason(view)),
            ("since", output.ago(view.status_updated_at, now)),
            ("last beat", output.ago_words(view.last_heartbeat, now)),
            ("lease ends", output.in_words(view.lease_expires_at, now)),
            ("endpoint", view.grpc_endpoint),
            ("cpu", f"{cores(view.available.cpu_millicores)} of {cores(view.total.cpu_millicores)} cores free"),
            ("memory", f"{megabytes(view.available.memory_mb)} of {megabytes(view.total.memory_mb)} free"),
            ("disk", f"{view.available.disk_gb} of {view.total.disk_gb} GB free" if view.total.disk_gb else ""),
            ("slots", f"{view.available.slots} of {view.total.slots} free" if view.total.slots else ""),
            (
                "in use",
                f"{used.cpu_used_millicores / 1000:.2f} cores, {megabytes(used.memory_used_mb)}" if used else "",
            ),
            ("workloads", str(view.workload_count)),
            ("types", ", ".join(view.supported_workload_types)),
            ("storage", ", ".join(view.storage_drivers)),
            ("labels", ", ".join(f"{key}={value}" for key, value in sorted(view.labels.items()))),
            ("host", view.host_id),
            ("cluster", view.cluster_id),
            ("agent", view.agent_version),
            ("features", ", ".join(view.features)),
            ("clock skew", f"{view.clock_skew_ms} ms" if abs(view.clock_skew_ms) >= 1000 else ""),
            ("unknown work", ", ".join(view.orphans)),
        ]
    )


@client_command(app, "remove")
async def remove_node(control: ControlPlane, node: NodeName) -> None:
    """Forget a node that is gone for good.

    Its workloads are placed elsewhere. A node that still beats is refused: stop its agent first.
    """
    await control.remove_node(node)
    output.words(f"node {node} is removed")


def _row(node: NodeView, now: datetime) -> list[str | Cell]:
    return [
        node.node_id,
        output.state(node.status),
        f"{cores(node.available.cpu_millicores)}/{cores(node.total.cpu_millicores)}",
        f"{megabytes(node.available.memory_mb)}/{megabytes(node.total.memory_mb)}",
        f"{node.available.slots}/{node.total.slots}" if node.total.slots else "-",
        str(node.workload_count),
        output.ago(node.last_heartbeat, now) or "-",
        node.grpc_endpoint,
        node.agent_version,
        _reason(node) if node.status != "Ready" else "",
    ]


def _reason(node: NodeView) -> str:
    return node.status_reason


def cores(millicores: int) -> str:
    """A number of cores without needless zeros."""
    return f"{millicores / 1000:.2f}".rstrip("0").rstrip(".")


def megabytes(value: int) -> str:
    """An amount of memory in the unit that fits."""
    if value >= 10 * 1024:
        return f"{value / 1024:.0f}G"
    return f"{value / 1024:.1f}G" if value >= 1024 else f"{value}M"


def size(count: int) -> str:
    """A number of bytes in the unit that fits."""
    return megabytes(count // 2**20) if count >= 2**20 else f"{count // 1024}K"

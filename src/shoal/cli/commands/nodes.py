"""`shoal node …`: the machines of the fleet."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.connection.options import Detach, Json, NodeName, OptionalTimeout, client_command, duration
from shoal.cli.output import Cell, hints
from shoal.cli.output.tables import Column
from shoal.cli.output.units import cores, megabytes
from shoal.core.errors import InvalidError
from shoal.model.views import NodeView, WorkloadView

if TYPE_CHECKING:
    from shoal.client import ControlPlane

#: Seconds between two looks at a node that is being drained.
LOOK_EVERY = 1.0

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
    try:
        nodes = sorted(await control.list_nodes(status=status), key=lambda node: node.node_id)
    except InvalidError as error:
        raise hints.renamed(error, {"status": "--status"}) from None
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
            ("wished", _request(view, now)),
            ("to leave", str(view.leaving) if view.leaving else ""),
            ("its work", _FAILOVER_WORDS.get(view.failover, view.failover)),
            ("last beat", output.ago_words(view.last_heartbeat, now) or "?"),
            ("lease ends", output.in_words(view.lease_expires_at, now) or "?"),
            ("endpoint", view.grpc_endpoint),
            ("cpu", f"{cores(view.available.cpu_millicores)} of {cores(view.total.cpu_millicores)} cores free"),
            ("memory", f"{megabytes(view.available.memory_mb)} of {megabytes(view.total.memory_mb)} free"),
            ("disk", f"{view.available.disk_gb} of {view.total.disk_gb} GB free" if view.total.disk_gb else ""),
            ("slots", f"{view.available.slots} of {view.total.slots} free" if view.total.slots else ""),
            (
                "in use",
                f"{used.cpu_used_millicores / 1000:.2f} cores, {megabytes(used.memory_used_mb)}" if used else "?",
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
            *((each.type, f"{each.message} (since {output.ago(each.since, now)})") for each in view.conditions),
        ]
    )


@client_command(app, "cordon")
async def cordon(control: ControlPlane, node: NodeName) -> None:
    """Let no new work go to a node; what is there stays."""
    view = await control.cordon_node(node)
    output.words(f"node {node} is {view.desired}: it gets no new work")


@client_command(app, "uncordon")
async def uncordon(control: ControlPlane, node: NodeName) -> None:
    """Let a node take work again, after `cordon` or `drain`.

    What has left it does not come back by itself.
    """
    view = await control.uncordon_node(node)
    output.words(f"node {node} takes work again" + ("" if view.status == "Ready" else f"; it is {view.status}"))


@client_command(app, "drain")
async def drain(
    control: ControlPlane,
    node: NodeName,
    *,
    deadline: Annotated[
        timedelta | None,
        typer.Option(
            "--deadline",
            parser=duration,
            metavar="DURATION",
            help="After this long, what is left is moved by force; without it, never",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Move everything by force at once")] = False,
    detach: Detach = False,
    timeout: OptionalTimeout = None,
) -> int:
    """Empty a node: its workloads move one by one, each replaced before it is stopped if it may be.

    The wish is kept until `uncordon`, through restarts of the node and of the control plane. Work that runs to an end
    is waited for, work for which no other node has room stays; both are moved by force past the deadline.
    """
    try:
        await control.drain_node(node, deadline=deadline, force=force)
    except InvalidError as error:
        raise hints.renamed(error, {"deadline_ms": "--deadline"}) from None
    if detach:
        output.words(f"node {node} will be drained")
        return 0
    return await _wait_until_drained(control, node, timeout.total_seconds() if timeout is not None else None)


@client_command(app, "dead")
async def dead(
    control: ControlPlane,
    node: NodeName,
    *,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Also when it is not NotReady yet")] = False,
) -> None:
    """Say that nothing runs on a node any more: everything that it owned moves now.

    That goes for work that is kept on its node, and for work of which there may be only one copy: be sure.
    """
    await control.mark_node_dead(node, force=force)
    output.words(f"node {node} is declared dead; its work moves")


@client_command(app, "remove")
async def remove_node(control: ControlPlane, node: NodeName) -> None:
    """Forget a node that is gone for good.

    Its workloads are placed elsewhere. A node that still beats is refused: stop its agent first.
    """
    await control.remove_node(node)
    output.words(f"node {node} is removed")


async def _wait_until_drained(control: ControlPlane, node: str, timeout: float | None) -> int:
    clock = session.clock()
    ends_at = clock.monotonic() + timeout if timeout is not None else math.inf
    with output.progress() as display:
        while True:
            view = await control.get_node(node)
            if view.desired == "drained":
                break
            if view.desired != "draining":
                output.fail_with(f"the drain of node {node} was taken back", hint="`shoal node get` shows its state")
                return 1
            leaving = await control.list_workloads(node_id=node)
            rows = [_leaving_row(each) for each in leaving if each.desired_state == "Running"]
            display.show([output.ProgressRow(node, view.status, f"{view.leaving} to leave"), *rows])
            if clock.monotonic() >= ends_at:
                output.fail_with(
                    f"node {node} is still {view.status}: {view.leaving} to leave",
                    hint="nothing was undone: it goes on by itself; a --deadline moves the rest by force",
                )
                return 4
            await clock.sleep(min(LOOK_EVERY, max(0.001, ends_at - clock.monotonic())))
    output.words(f"node {node} is drained")
    return 0


def _leaving_row(view: WorkloadView) -> output.ProgressRow:
    why = view.reason.message if view.reason is not None and view.reason.code == "NODE_DRAINING" else ""
    return output.ProgressRow(view.workload_id, view.status, why)


_FAILOVER_WORDS = {
    "held": "is not moved yet",
    "moving": "is started elsewhere",
    "dead": "is started elsewhere: an operator said that the node is dead",
}


def _request(view: NodeView, now: datetime) -> str:
    if not view.desired:
        return ""
    until = f", by force {output.in_words(view.drain_deadline, now)}" if view.drain_deadline is not None else ""
    return f"{view.desired}{until}"


def _row(node: NodeView, now: datetime) -> list[str | Cell]:
    return [
        node.node_id,
        output.state(node.status),
        f"{cores(node.available.cpu_millicores)}/{cores(node.total.cpu_millicores)}",
        f"{megabytes(node.available.memory_mb)}/{megabytes(node.total.memory_mb)}",
        f"{node.available.slots}/{node.total.slots}" if node.total.slots else "-",
        str(node.workload_count),
        output.ago(node.last_heartbeat, now) or "?",
        node.grpc_endpoint,
        node.agent_version,
        _reason(node) if node.status != "Ready" or node.desired else "",
    ]


def _reason(node: NodeView) -> str:
    if node.desired == "cordoned" and node.status == "Ready":
        return "cordoned"
    return node.status_reason

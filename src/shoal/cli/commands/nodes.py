"""`shoal node …`: lists, shows, labels, cordons, drains and removes nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands.common import waiting
from shoal.cli.commands.common.listing import Listing, show
from shoal.cli.connection import session
from shoal.cli.connection.options import (
    Detach,
    Json,
    NodeName,
    OptionalTimeout,
    SelectorText,
    Watch,
    client_command,
    duration,
)
from shoal.cli.output import Cell, hints
from shoal.cli.output.tables import Column
from shoal.cli.output.units import cores, megabytes
from shoal.core.errors import InvalidError, problem
from shoal.model.nodes import DesiredNodeState, NodeState
from shoal.model.phases import WorkloadPhase
from shoal.model.selectors import parse_selector
from shoal.model.views import NodeView, WorkloadView
from shoal.model.workloads import DesiredState

if TYPE_CHECKING:
    from shoal.client import ControlPlane

LOOK_EVERY = 1.0
"""Seconds between two looks at a node that is being drained."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

app = typer.Typer(name="node", help="The nodes of the fleet: machines with an agent.", no_args_is_help=True)

_CONDITIONS = (Column("CONDITION"), Column("STATUS"), Column("SINCE", right=True), Column("MESSAGE", least=16))
_HEARTBEAT = Column("HEARTBEAT", right=True, rank=4)
_COLUMNS = (
    Column("NODE"),
    Column("STATE"),
    Column("CPU FREE", right=True),
    Column("MEMORY FREE", right=True),
    Column("SLOTS", right=True, rank=3),
    Column("WORKLOADS", right=True, rank=2),
    _HEARTBEAT,
    Column("ENDPOINT", rank=5),
    Column("VERSION", rank=6),
    Column("REASON", rank=1, least=16),
    Column("LABELS", rank=7, least=16),
)


@client_command(app, "list")
async def list_nodes(
    control: ControlPlane,
    *,
    selector: SelectorText = "",
    status: Annotated[str, typer.Option("--status", metavar="STATE", help="Only nodes in this state")] = "",
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """List the nodes with their free capacity."""
    chosen = parse_selector(selector, field="-l")

    async def fetch() -> list[NodeView]:
        try:
            nodes = await control.list_nodes(status=status)
        except InvalidError as error:
            raise hints.renamed(error, {"status": "--status"}) from None
        return sorted((node for node in nodes if chosen.matches(node.labels)), key=lambda node: node.node_id)

    listing = Listing(
        noun="nodes",
        columns=_COLUMNS,
        fetch=fetch,
        row=_row,
        name=lambda node: node.node_id,
        state=lambda node: [
            cell for column, cell in zip(_COLUMNS, _row(node, EPOCH), strict=True) if column is not _HEARTBEAT
        ],
        empty="no node matches" if status or selector else "no node has registered yet; start one with `shoal agent`",
    )
    await show(control, listing, as_json=as_json, watch=watch)


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
            ("node_id", view.node_id),
            ("host_id", view.host_id),
            ("state", output.state(view.status)),
            ("reason", _reason(view)),
            ("since", output.ago(view.status_updated_at, now)),
            ("requested", _request(view, now)),
            ("still to leave", str(view.leaving) if view.leaving else ""),
            ("its workloads", _FAILOVER_WORDS.get(view.failover, view.failover)),
            ("last heartbeat", output.ago_words(view.last_heartbeat, now) or "?"),
            ("lease ends", output.in_words(view.lease_expires_at, now) or "?"),
            ("endpoint", view.grpc_endpoint),
            ("cpu", f"{cores(view.available.cpu_millicores)} of {cores(view.total.cpu_millicores)} cores free"),
            ("memory", f"{megabytes(view.available.memory_mb)} of {megabytes(view.total.memory_mb)} free"),
            ("disk", f"{view.available.disk_gb} of {view.total.disk_gb} GB free" if view.total.disk_gb else ""),
            ("slots", f"{view.available.slots} of {view.total.slots} free" if view.total.slots else ""),
            (
                "usage",
                f"{used.cpu_used_millicores / 1000:.2f} cores, {megabytes(used.memory_used_mb)}" if used else "?",
            ),
            ("workloads", str(view.workload_count)),
            ("types", ", ".join(view.supported_workload_types)),
            ("storage", ", ".join(view.storage_drivers)),
            (
                "pools",
                ", ".join(
                    f"{each.name}: {each.available_gb} of {each.total_gb} GB free" for each in view.storage_pools
                ),
            ),
            ("labels", ", ".join(f"{key}={value}" for key, value in sorted(view.labels.items()))),
            ("cluster", view.cluster_id),
            ("agent", view.agent_version),
            ("features", ", ".join(view.features)),
            ("clock skew", f"{view.clock_skew_ms} ms" if abs(view.clock_skew_ms) >= 1000 else ""),
            ("orphans", ", ".join(view.orphans)),
        ]
    )
    output.data("\nconditions")
    output.table(_CONDITIONS, [[each.type, each.status, each.since, each.message] for each in conditions(view, now)])


@dataclass(frozen=True, slots=True)
class Condition:
    """One line about how a node is."""

    type: str
    status: str
    since: str
    message: str


def conditions(view: NodeView, now: datetime) -> list[Condition]:
    """How a node is: what the control plane knows of it, and what its agent reports."""
    since = output.ago(view.status_updated_at, now)
    found = [
        Condition("Ready", str(view.status == NodeState.READY), since, view.status_reason),
        Condition(
            "Schedulable",
            str(not view.desired and view.status == NodeState.READY),
            output.ago(view.desired_updated_at, now),
            f"{view.desired} by an operator" if view.desired else "",
        ),
    ]
    if abs(view.clock_skew_ms) >= 1000:
        found.append(Condition("ClockSkew", "True", "", f"its clock is {view.clock_skew_ms} ms ahead of ours"))
    if view.orphans:
        message = f"workloads that the control plane does not know: {', '.join(view.orphans)}"
        found.append(Condition("Orphans", "True", "", message))
    found += [Condition(each.type, "True", output.ago(each.since, now), each.message) for each in view.conditions]
    return found


@client_command(app, "label")
async def label(
    control: ControlPlane,
    node: NodeName,
    labels: Annotated[list[str], typer.Argument(metavar="KEY=VALUE|KEY-…", help="KEY=VALUE sets, KEY- removes")],
) -> None:
    """Set and remove labels of a node, for the constraints of workloads.

    They are kept when the agent restarts, and win over the labels it was started with (`shoal agent --label`).
    """
    set_to: dict[str, str] = {}
    remove: list[str] = []
    problems = []
    for word in labels:
        key, separator, value = word.partition("=")
        if separator and key:
            set_to[key] = value
        elif word.endswith("-") and len(word) > 1:
            remove.append(word[:-1])
        else:
            problems.append(problem("KEY=VALUE", word, "must be KEY=VALUE, or KEY- to remove a label"))
    if problems:
        raise InvalidError(problems)
    view = await control.label_node(node, set_to=set_to, remove=remove)
    shown = ", ".join(f"{key}={value}" for key, value in sorted(view.labels.items()))
    output.words(f"node {node} has the labels {shown}" if shown else f"node {node} has no labels")


@client_command(app, "cordon")
async def cordon(control: ControlPlane, node: NodeName) -> None:
    """Give a node no new work; what runs there stays."""
    view = await control.cordon_node(node)
    output.words(f"node {node} is {view.desired}: it gets no new work")


@client_command(app, "uncordon")
async def uncordon(control: ControlPlane, node: NodeName) -> None:
    """Give a node work again, after `cordon` or `drain`.

    Workloads that have left it do not come back by themselves.
    """
    view = await control.uncordon_node(node)
    output.words(f"node {node} takes work again" + ("" if view.status == NodeState.READY else f"; it is {view.status}"))


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
    """Move all workloads off a node, one by one; each is replaced before it is stopped, if that is allowed.

    The request is kept until `uncordon`, also when the node or the control plane restarts. Workloads that run to an end
    are waited for, and workloads for which no other node has room stay. After the deadline both are moved by force.
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
    """Declare a node dead: nothing runs on it, and all its workloads move now.

    That includes workloads that stay on their node, and at-most-one workloads: be sure that the node is gone.
    """
    await control.mark_node_dead(node, force=force)
    output.words(f"node {node} is declared dead; its work moves")


@client_command(app, "remove")
async def remove_node(control: ControlPlane, node: NodeName) -> None:
    """Remove a node that is gone for good.

    Its workloads are placed elsewhere. A node that still sends heartbeats is refused: stop its agent first.
    """
    await control.remove_node(node)
    output.words(f"node {node} is removed")


async def _wait_until_drained(control: ControlPlane, node: str, timeout: float | None) -> int:
    clock = session.clock()
    ends_at = clock.monotonic() + timeout if timeout is not None else math.inf
    with output.progress() as display:
        while True:
            view = await control.get_node(node)
            if view.desired == DesiredNodeState.DRAINED:
                break
            if view.desired != DesiredNodeState.DRAINING:
                output.fail_with(f"the drain of node {node} was canceled", hint="`shoal node get` shows its state")
                return 1
            leaving = await control.list_workloads(node_id=node)
            rows = [_leaving_row(each) for each in leaving if _has_to_leave(each)]
            display.show([output.ProgressRow(node, view.status, _to_leave(view)), *rows])
            if clock.monotonic() >= ends_at:
                output.fail_with(
                    f"node {node} is still {view.status}: {_to_leave(view)}",
                    rejections=[(row.name, row.detail or row.state) for row in rows],
                    hint="nothing was undone: the drain continues; a --deadline moves the rest by force",
                )
                return 4
            await clock.sleep(min(LOOK_EVERY, max(0.001, ends_at - clock.monotonic())))
    output.words(f"node {node} is drained")
    return 0


def _has_to_leave(view: WorkloadView) -> bool:
    """Whether a drain waits for it: what has ended may stay."""
    has_ended = (view.state or view.status) in (WorkloadPhase.FAILED.value, WorkloadPhase.COMPLETED.value)
    return view.desired_state == DesiredState.RUNNING and not has_ended


def _leaving_row(view: WorkloadView) -> output.ProgressRow:
    """A workload that has not left yet, and why: the drain waits for it, or no other node can take it."""
    why = waiting.why(view)
    if why.lower() in ("", view.status.lower()):
        why = "no other node can take it" if view.rejections else "waits for its turn"
    return output.ProgressRow(view.workload_id, view.status, why)


def _to_leave(view: NodeView) -> str:
    return f"{view.leaving} workload{'' if view.leaving == 1 else 's'} still to leave"


_FAILOVER_WORDS = {
    "held": "not moved yet",
    "moving": "started on other nodes",
    "dead": "started on other nodes: an operator declared the node dead",
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
        _reason(node) if node.status != NodeState.READY or node.desired else "",
        ",".join(f"{key}={value}" for key, value in sorted(node.labels.items())),
    ]


def _reason(node: NodeView) -> str:
    if node.desired == DesiredNodeState.CORDONED and node.status == NodeState.READY:
        return "cordoned"
    return node.status_reason

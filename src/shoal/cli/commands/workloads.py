"""`shoal workload …`: lists, shows, stops, starts and deletes workloads."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands.common import acting, selecting, waiting
from shoal.cli.commands.common.listing import Listing, show
from shoal.cli.commands.common.parts import show_parts
from shoal.cli.commands.common.specs import document_of
from shoal.cli.commands.common.waiting import Goal
from shoal.cli.commands.delete import delete
from shoal.cli.connection import completion, session
from shoal.cli.connection.options import (
    Detach,
    GroupFilter,
    Json,
    NodeName,
    SelectorText,
    Timeout,
    Watch,
    WorkloadName,
    WorkloadNames,
    client_command,
)
from shoal.cli.output import Cell, hints
from shoal.cli.output.tables import Column, clean
from shoal.core.errors import InvalidError
from shoal.model.documents import write_document
from shoal.model.phases import AS_REQUESTED, ContractStatus
from shoal.model.views import WorkloadView
from shoal.model.workloads import DesiredState

if TYPE_CHECKING:
    from shoal.client import ControlPlane

app = typer.Typer(name="workload", help="The workloads of the fleet.", no_args_is_help=True)

MINUTE = timedelta(minutes=1)
ACCEPTED = "Accepted"
"""The state that `apply --detach` shows: stored, and not started yet."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_AGE = Column("AGE", right=True, rank=2)
COLUMNS = (
    Column("WORKLOAD"),
    Column("STATE"),
    Column("NODE"),
    Column("TYPE", rank=5),
    Column("RESTARTS", right=True, rank=4),
    _AGE,
    Column("GROUP", rank=3),
    Column("REVISION", rank=6, least=8),
    Column("REASON", rank=1, least=24),
    Column("LABELS", rank=7, least=16),
)


class Until(enum.StrEnum):
    """What `wait` waits for."""

    SETTLED = "settled"
    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED = "stopped"
    GONE = "gone"


@client_command(app, "list")
async def list_workloads(
    control: ControlPlane,
    *,
    selector: SelectorText = "",
    node: Annotated[
        str,
        typer.Option(
            "--node", metavar="NODE", help="Only those on this node", autocompletion=completion.complete_nodes
        ),
    ] = "",
    status: Annotated[
        str, typer.Option("--status", metavar="STATE", help="Only those in this state, such as NotReady or Accepted")
    ] = "",
    group: GroupFilter = "",
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """List the workloads with their states and nodes.

    The state Accepted selects those that are stored and that no agent has started yet.
    """
    is_accepted = status.lower() == ACCEPTED.lower()

    async def fetch() -> list[WorkloadView]:
        try:
            found = await selecting.select(
                control, selector=selector, group=group, node=node, status="" if is_accepted else status
            )
        except InvalidError as error:
            raise hints.renamed(error, {"status": "--status"}) from None
        if not found and node:
            await control.get_node(node)  # a mistyped name must not look like an empty node
        if not found and group:
            await control.get_group(group)
        return [view for view in found if not is_accepted or is_only_accepted(view)]

    filtered = node or status or group or selector
    listing = Listing(
        noun="workloads",
        columns=COLUMNS,
        fetch=fetch,
        row=row,
        name=lambda view: view.workload_id,
        state=lambda view: [cell for column, cell in zip(COLUMNS, row(view, EPOCH), strict=True) if column is not _AGE],
        empty="no workload matches" if filtered else "no workload yet; make one with `shoal apply -f`",
    )
    await show(control, listing, as_json=as_json, watch=watch)


@client_command(app, "get")
async def get_workload(
    control: ControlPlane, workload: WorkloadName, *, as_json: Json = False, as_yaml: bool = False
) -> None:
    """Show everything about one workload. `-o yaml` prints its spec, to be changed and applied again."""
    view = await control.get_workload(workload)
    if as_json:
        output.json_document({"workload": view})
        return
    if as_yaml:
        output.yaml_documents([write_document(document_of(view))])
        return
    show_facts(view, session.clock().wall())
    show_parts(view)
    if view.rejections:
        output.data("\nrejected by")
        output.facts([(f"  {each.node_id}", each.message) for each in view.rejections])
    if view.run and view.run.last_output and view.status != ContractStatus.RUNNING:
        output.data("\nlast output")
        for line in view.run.last_output.splitlines():
            output.data(f"  {clean(line)}")


def show_facts(view: WorkloadView, now: datetime) -> None:
    """Everything about a workload that is one line."""
    run, used = view.run, view.usage
    output.facts(
        [
            ("workload", view.workload_id),
            ("state", output.state(view.state)),
            ("desired", view.desired_state),
            ("reason", _reason(view)),
            ("node", view.assigned_node_id),
            ("moving from", view.moving_from),
            ("older copies", ", ".join(f"maybe on {each}" for each in view.left_on if each != view.moving_from)),
            ("type", view.type),
            ("group", view.group_id),
            ("labels", ", ".join(f"{key}={value}" for key, value in sorted(view.labels.items()))),
            ("revision", view.revision_id),
            ("reported revision", view.observed_revision_id if view.observed_revision_id != view.revision_id else ""),
            ("generation", str(view.generation)),
            ("age", output.ago(view.created_at, now)),
            ("running for", output.ago(run.started_at, now) if run and view.status == ContractStatus.RUNNING else ""),
            ("pid", str(run.pid) if run and run.pid else ""),
            ("ports", ", ".join(f"{name} {port}" for name, port in sorted(run.ports.items())) if run else ""),
            ("restarts", str(run.restarts) if run and run.restarts else ""),
            ("next restart", output.in_words(run.next_restart_at, now) if run else ""),
            ("attempts", f"{view.retry_attempts} of {view.retry_max_attempts}" if view.retry_attempts else ""),
            ("next attempt", output.in_words(view.retry_next_at, now)),
            ("usage", f"{used.cpu_percent:.0f}% cpu, {output.size(used.memory_bytes)}" if used else ""),
        ]
    )


@client_command(app, "stop")
async def stop(
    control: ControlPlane, workloads: WorkloadNames, *, detach: Detach = False, timeout: Timeout = MINUTE
) -> int:
    """Stop workloads and keep them; `start` brings them back."""
    return await _set(control, workloads, DesiredState.STOPPED, detach=detach, timeout=timeout)


@client_command(app, "start")
async def start(
    control: ControlPlane, workloads: WorkloadNames, *, detach: Detach = False, timeout: Timeout = MINUTE
) -> int:
    """Start workloads that were stopped."""
    return await _set(control, workloads, DesiredState.RUNNING, detach=detach, timeout=timeout)


@client_command(app, "retry")
async def retry(
    control: ControlPlane, workloads: WorkloadNames, *, detach: Detach = False, timeout: Timeout = MINUTE
) -> int:
    """Start failed workloads again at once, with all their attempts."""
    return await acting.for_each(
        control, workloads, control.retry, done="tried again", goal=Goal.SETTLED, detach=detach, timeout=timeout
    )


client_command(app, "delete")(delete)


@client_command(app, "adopt")
async def adopt(control: ControlPlane, node: NodeName, workload: WorkloadName) -> None:
    """Take over a workload that runs on a node and that the control plane does not know.

    `shoal node get` lists such workloads. Nothing is restarted. Only processes of Shoal's own agents can be adopted.
    For others, apply the same spec under the same id, with a constraint on node_id.
    """
    view = await control.adopt(node, workload)
    output.words(f"{workload}: adopted as it runs on {view.assigned_node_id}, revision {view.revision_id}")


@client_command(app, "wait")
async def wait(
    control: ControlPlane,
    workloads: WorkloadNames,
    *,
    until: Annotated[
        Until,
        typer.Option("--for", help="What to wait for; settled is Running or Completed, or Stopped if that is desired"),
    ] = Until.SETTLED,
    timeout: Timeout = timedelta(seconds=waiting.DEFAULT_TIMEOUT),
) -> int:
    """Wait until workloads are in a state."""
    for name in workloads:
        if until is not Until.GONE:
            await control.get_workload(name)
    return await acting.wait_for(control, workloads, Goal(until.value), timeout, done=until.value)


async def _set(
    control: ControlPlane, names: Sequence[str], desired: DesiredState, *, detach: bool, timeout: timedelta
) -> int:
    async def request(name: str) -> None:
        await control.set_desired_state(name, desired)

    stopping = desired is DesiredState.STOPPED
    goal, done = (Goal.STOPPED, "stopped") if stopping else (Goal.SETTLED, "started")
    return await acting.for_each(control, names, request, done=done, goal=goal, detach=detach, timeout=timeout)


def is_only_accepted(view: WorkloadView) -> bool:
    """Whether a workload is to run, and no agent has reported it yet."""
    ending = (ContractStatus.COMPLETED, ContractStatus.DELETING)
    return view.desired_state == DesiredState.RUNNING and view.run is None and view.status not in ending


def _reason(view: WorkloadView) -> str:
    """The reason, unless the state or the list of nodes below says it already."""
    words = waiting.why(view)
    if view.rejections:
        return words.partition(" (")[0]
    return words if words.lower() != view.status.lower() else ""


def row(view: WorkloadView, now: datetime) -> list[str | Cell]:
    """A row of a table with `COLUMNS`."""
    return [
        view.workload_id,
        output.state(view.state),
        view.assigned_node_id or "-",
        view.type,
        str(view.run.restarts if view.run else 0),
        output.ago(view.created_at, now) or "-",
        view.group_id,
        output.short(view.revision_id),
        waiting.why(view) if view.status not in AS_REQUESTED else "",
        ",".join(f"{key}={value}" for key, value in sorted(view.labels.items())),
    ]

"""`shoal workload …`: what runs on the fleet, one by one."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands import waiting
from shoal.cli.commands.waiting import Goal
from shoal.cli.connection import completion, session
from shoal.cli.connection.options import Detach, Json, NodeName, Timeout, WorkloadName, WorkloadNames, client_command
from shoal.cli.output import Cell, hints
from shoal.cli.output.tables import Column, clean
from shoal.core.errors import InvalidError, ShoalError
from shoal.model.views import WorkloadView
from shoal.model.workloads import DesiredState

if TYPE_CHECKING:
    from shoal.client import ControlPlane

app = typer.Typer(name="workload", help="What runs on the fleet.", no_args_is_help=True)

MINUTE = timedelta(minutes=1)

COLUMNS = (
    Column("WORKLOAD"),
    Column("STATE"),
    Column("NODE"),
    Column("TYPE", rank=5),
    Column("RESTARTS", right=True, rank=4),
    Column("AGE", right=True, rank=2),
    Column("GROUP", rank=3),
    Column("REVISION", rank=6, least=8),
    Column("REASON", rank=1, least=24),
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
    node: Annotated[
        str,
        typer.Option(
            "--node", metavar="NODE", help="Only those on this node", autocompletion=completion.complete_nodes
        ),
    ] = "",
    status: Annotated[str, typer.Option("--status", metavar="STATE", help="Only those in this state")] = "",
    group: Annotated[
        str,
        typer.Option(
            "--group", metavar="GROUP", help="Only members of this group", autocompletion=completion.complete_groups
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """List the workloads with their state and where they are."""
    try:
        found = await control.list_workloads(node_id=node, status=status, group_id=group)
    except InvalidError as error:
        raise hints.renamed(error, {"status": "--status"}) from None
    if not found and node:
        await control.get_node(node)  # a name that is wrong is no empty node
    if not found and group:
        await control.get_group(group)
    views = sorted(found, key=lambda view: view.workload_id)
    if as_json:
        output.json_document({"workloads": views})
        return
    empty = "no workload matches" if node or status or group else "no workload yet; make one with `shoal apply -f`"
    output.table(COLUMNS, rows(views, session.clock().wall()), empty=empty)


@client_command(app, "get")
async def get_workload(control: ControlPlane, workload: WorkloadName, *, as_json: Json = False) -> None:
    """Show everything about one workload."""
    view = await control.get_workload(workload)
    if as_json:
        output.json_document({"workload": view})
        return
    now = session.clock().wall()
    run, used = view.run, view.usage
    output.facts(
        [
            ("workload", view.workload_id),
            ("state", output.state(view.status)),
            ("desired", view.desired_state),
            ("reason", _reason(view)),
            ("node", view.assigned_node_id),
            ("moving from", view.moving_from),
            ("older copies", ", ".join(f"maybe on {each}" for each in view.left_on if each != view.moving_from)),
            ("type", view.type),
            ("group", view.group_id),
            ("revision", view.revision_id),
            ("seen revision", view.observed_revision_id if view.observed_revision_id != view.revision_id else ""),
            ("generation", str(view.generation)),
            ("age", output.ago(view.created_at, now)),
            ("running for", output.ago(run.started_at, now) if run and view.status == "Running" else ""),
            ("pid", str(run.pid) if run and run.pid else ""),
            ("ports", ", ".join(f"{name} {port}" for name, port in sorted(run.ports.items())) if run else ""),
            ("restarts", str(run.restarts) if run and run.restarts else ""),
            ("next restart", output.in_words(run.next_restart_at, now) if run else ""),
            ("attempts", f"{view.retry_attempts} of {view.retry_max_attempts}" if view.retry_attempts else ""),
            ("next attempt", output.in_words(view.retry_next_at, now)),
            ("uses", f"{used.cpu_percent:.0f}% cpu, {output.size(used.memory_bytes)}" if used else ""),
        ]
    )
    if view.rejections:
        output.data("\nrefused by")
        output.facts([(f"  {each.node_id}", each.message) for each in view.rejections])
    if run and run.last_output and view.status != "Running":
        output.data("\nlast output")
        for line in run.last_output.splitlines():
            output.data(f"  {clean(line)}")


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
    """Try failed workloads again at once, with a full count of attempts."""
    return await _each(
        control, workloads, control.retry, said="tried again", goal=Goal.SETTLED, detach=detach, timeout=timeout
    )


@client_command(app, "delete")
async def delete(
    control: ControlPlane, workloads: WorkloadNames, *, detach: Detach = False, timeout: Timeout = MINUTE
) -> int:
    """Stop workloads and remove them with everything that was kept for them."""
    return await _each(
        control, workloads, control.delete, said="deleted", goal=Goal.GONE, detach=detach, timeout=timeout
    )


@client_command(app, "adopt")
async def adopt(control: ControlPlane, node: NodeName, workload: WorkloadName) -> None:
    """Take over a workload that runs on a node and that the control plane does not know.

    `shoal node get` lists such workloads. Nothing is restarted; from then on it is one like any other. Only processes
    of our own agents can be taken over so. For others, apply the same spec under the same id, with a constraint to the
    node.
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
        typer.Option("--for", help="What to wait for; settled is Running or Completed, or Stopped if that is the wish"),
    ] = Until.SETTLED,
    timeout: Timeout = timedelta(seconds=waiting.DEFAULT_TIMEOUT),
) -> int:
    """Wait until workloads are in a state."""
    for name in workloads:
        if until is not Until.GONE:
            await control.get_workload(name)
    return await _wait(control, workloads, Goal(until.value), timeout, said=f"{until.value}")


async def _set(
    control: ControlPlane, names: Sequence[str], desired: DesiredState, *, detach: bool, timeout: timedelta
) -> int:
    async def wish(name: str) -> None:
        await control.set_desired_state(name, desired)

    stopping = desired is DesiredState.STOPPED
    goal, said = (Goal.STOPPED, "stopped") if stopping else (Goal.SETTLED, "started")
    return await _each(control, names, wish, said=said, goal=goal, detach=detach, timeout=timeout)


async def _each(
    control: ControlPlane,
    names: Sequence[str],
    wish: Callable[[str], Awaitable[None]],
    *,
    said: str,
    goal: Goal,
    detach: bool,
    timeout: timedelta,
) -> int:
    """Store a wish for each, however many of the others fail, and wait for those that were accepted."""
    accepted: list[str] = []
    worst = 0
    for name in dict.fromkeys(names):
        try:
            await wish(name)
            accepted.append(name)
        except ShoalError as error:
            output.fail(error)
            worst = max(worst, session.exit_code_of(error))
    if detach:
        for name in accepted:
            output.words(f"{name}: will be {said}")
        return worst
    waited = await _wait(control, accepted, goal, timeout, said=said) if accepted else 0
    return worst or waited


async def _wait(control: ControlPlane, names: Sequence[str], goal: Goal, timeout: timedelta, *, said: str) -> int:
    waited = await waiting.wait_all(
        control, dict.fromkeys(names, goal), clock=session.clock(), timeout=timeout.total_seconds(), grace=None
    )
    for name in waited.having(waiting.Verdict.DONE):
        output.words(f"{name}: {said}")
    waiting.explain(waited)
    return waited.exit_code


def _reason(view: WorkloadView) -> str:
    """What the state does not say already, nor the list of nodes below it."""
    words = waiting.why(view)
    if view.rejections:
        return words.partition(" (")[0]
    return words if words.lower() != view.status.lower() else ""


def rows(views: Sequence[WorkloadView], now: datetime) -> list[list[str | Cell]]:
    """A table's rows; the columns are `COLUMNS`."""
    return [
        [
            view.workload_id,
            output.state(view.status),
            view.assigned_node_id or "-",
            view.type,
            str(view.run.restarts if view.run else 0),
            output.ago(view.created_at, now) or "-",
            view.group_id,
            output.short(view.revision_id),
            waiting.why(view) if view.status not in ("Running", "Completed", "Stopped") else "",
        ]
        for view in views
    ]

"""`shoal group …`: workloads that are placed all or none."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import typer

from shoal.cli import output
from shoal.cli.commands import waiting, workloads
from shoal.cli.commands.waiting import Goal
from shoal.cli.connection import session
from shoal.cli.connection.options import Detach, GroupName, Json, Timeout, client_command
from shoal.cli.output.tables import Column

if TYPE_CHECKING:
    from shoal.client import ControlPlane

app = typer.Typer(name="group", help="Workloads that are placed all or none.", no_args_is_help=True)

_COLUMNS = (
    Column("GROUP"),
    Column("STATE"),
    Column("MEMBERS", right=True),
    Column("GENERATION", right=True, rank=1),
    Column("MESSAGE", rank=2, least=16),
)


@client_command(app, "list")
async def list_groups(control: ControlPlane, *, as_json: Json = False) -> None:
    """List the groups."""
    groups = sorted(await control.list_groups(), key=lambda group: group.group_id)
    if as_json:
        output.json_document({"groups": groups})
        return
    output.table(
        _COLUMNS,
        [
            [
                group.group_id,
                output.state(group.status),
                f"{sum(each.status in ('Running', 'Completed') for each in group.members)}/{len(group.members)}",
                str(group.generation),
                group.message,
            ]
            for group in groups
        ],
        empty="no group yet; make one with `shoal apply -f`",
    )


@client_command(app, "get")
async def get_group(control: ControlPlane, group: GroupName, *, as_json: Json = False) -> None:
    """Show a group and its members."""
    view = await control.get_group(group)
    if as_json:
        output.json_document({"group": view})
        return
    output.facts(
        [
            ("group", view.group_id),
            ("state", output.state(view.status)),
            ("message", view.message),
            ("generation", str(view.generation)),
        ]
    )
    output.data("")
    members = sorted(view.members, key=lambda member: member.workload_id)
    output.table(workloads.COLUMNS, workloads.rows(members, session.clock().wall()))


@client_command(app, "delete")
async def delete_group(
    control: ControlPlane,
    group: GroupName,
    *,
    detach: Detach = False,
    timeout: Timeout = timedelta(minutes=1),
) -> int:
    """Stop and remove a group and all of its members."""
    members = [member.workload_id for member in (await control.get_group(group)).members]
    await control.delete_group(group)
    if detach:
        output.words(f"{group}: will be deleted")
        return 0
    waited = await waiting.wait_all(
        control,
        dict.fromkeys(members, Goal.GONE),
        clock=session.clock(),
        timeout=timeout.total_seconds(),
        grace=None,
    )
    waiting.explain(waited)
    if waited.exit_code == 0:
        output.words(f"{group}: deleted")
    return waited.exit_code

"""`shoal group …`: lists, shows and deletes groups, whose workloads are placed all or none."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import typer

from shoal.cli import output
from shoal.cli.commands import workloads
from shoal.cli.commands.common import waiting
from shoal.cli.commands.common.listing import Listing, show
from shoal.cli.commands.common.specs import document_of
from shoal.cli.commands.common.waiting import Goal
from shoal.cli.commands.delete import delete_group as request_deletion
from shoal.cli.connection import session
from shoal.cli.connection.options import Detach, GroupName, Json, Timeout, Watch, client_command
from shoal.cli.output import Cell
from shoal.cli.output.tables import Column
from shoal.model.documents import GroupDocument, write_document
from shoal.model.views import GroupView

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
async def list_groups(control: ControlPlane, *, watch: Watch = False, as_json: Json = False) -> None:
    """List the groups."""

    async def fetch() -> list[GroupView]:
        return sorted(await control.list_groups(), key=lambda group: group.group_id)

    listing = Listing(
        noun="groups",
        columns=_COLUMNS,
        fetch=fetch,
        row=lambda group, _now: _row(group),
        name=lambda group: group.group_id,
        state=_row,
        empty="no group yet; make one with `shoal apply -f`",
    )
    await show(control, listing, as_json=as_json, watch=watch)


def _row(group: GroupView) -> list[str | Cell]:
    return [
        group.group_id,
        output.state(group.status),
        f"{sum(each.status in ('Running', 'Completed') for each in group.members)}/{len(group.members)}",
        str(group.generation),
        group.message,
    ]


@client_command(app, "get")
async def get_group(control: ControlPlane, group: GroupName, *, as_json: Json = False, as_yaml: bool = False) -> None:
    """Show a group and its members. `-o yaml` prints its spec, to be changed and applied again."""
    view = await control.get_group(group)
    if as_json:
        output.json_document({"group": view})
        return
    if as_yaml:
        documents = [document_of(await control.get_workload(each.workload_id)) for each in view.members]
        output.yaml_documents([write_document(GroupDocument(view.group_id, tuple(documents)))])
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
    now = session.clock().wall()
    members = sorted(view.members, key=lambda member: member.workload_id)
    output.table(workloads.COLUMNS, [workloads.row(member, now) for member in members])


@client_command(app, "delete")
async def delete_group(
    control: ControlPlane,
    group: GroupName,
    *,
    detach: Detach = False,
    timeout: Timeout = timedelta(minutes=1),
) -> int:
    """Stop and remove a group and all of its members."""
    members = await request_deletion(control, group)
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

"""`shoal delete` and `shoal workload delete`: by id, by label, by group or by the files that were applied."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.commands.common import acting, selecting
from shoal.cli.commands.common.specs import read_specs
from shoal.cli.commands.common.waiting import Goal
from shoal.cli.connection import session
from shoal.cli.connection.options import (
    FLEET,
    Detach,
    GroupFilter,
    OptionalWorkloadNames,
    Recursive,
    SelectorText,
    Timeout,
    client_command,
)
from shoal.core.errors import InvalidError, ShoalError, problem
from shoal.model.documents import GroupDocument

if TYPE_CHECKING:
    from shoal.client import ControlPlane


def register(app: typer.Typer) -> None:
    """Add the command."""
    client_command(app, "delete", panel=FLEET)(delete)


async def delete(
    control: ControlPlane,
    workloads: OptionalWorkloadNames = None,
    *,
    files: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="FILE", help="What these files or folders define; - is stdin"),
    ] = None,
    recursive: Recursive = False,
    selector: SelectorText = "",
    group: GroupFilter = "",
    detach: Detach = False,
    timeout: Timeout = timedelta(minutes=1),
) -> int:
    """Stop workloads and remove them with everything that was kept for them.

    Name them by id, by -l SELECTOR, by --group or by -f FILE. With -f a group is removed with all its members.
    """
    if files:
        if workloads or selector or group:
            raise InvalidError([problem("--file", None, "must not be given together with ids, -l or --group")])
        return await _delete_files(control, files, recursive=recursive, detach=detach, timeout=timeout)
    names = await selecting.choose(control, workloads or (), selector=selector, group=group)
    return await acting.for_each(
        control, names, control.delete, done="deleted", goal=Goal.GONE, detach=detach, timeout=timeout
    )


async def _delete_files(
    control: ControlPlane, files: list[str], *, recursive: bool, detach: bool, timeout: timedelta
) -> int:
    documents = [each.document for each in read_specs(files, recursive=recursive)]
    groups = [each for each in documents if isinstance(each, GroupDocument)]
    worst, members = 0, []
    for group in groups:
        try:
            members += await delete_group(control, group.id)
        except ShoalError as error:
            output.fail(error)
            worst = max(worst, session.exit_code_of(error))
    names = [each.id for each in documents if not isinstance(each, GroupDocument)]
    if detach:
        for name in members:
            output.words(f"{name}: will be deleted")
    elif members:
        worst = max(worst, await acting.wait_for(control, members, Goal.GONE, timeout, done="deleted"))
    rest = await acting.for_each(
        control, names, control.delete, done="deleted", goal=Goal.GONE, detach=detach, timeout=timeout
    )
    return max(worst, rest)


async def delete_group(control: ControlPlane, group_id: str) -> list[str]:
    """Request the deletion of a group. Returns its members."""
    members = [member.workload_id for member in (await control.get_group(group_id)).members]
    await control.delete_group(group_id)
    return members

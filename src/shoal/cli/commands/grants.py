"""`shoal grant …`: below which paths of the coordination tree agents and workloads may change nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.connection.options import Json, control_tree_command
from shoal.cli.output import hints
from shoal.cli.output.tables import Column
from shoal.core.errors import InvalidError

if TYPE_CHECKING:
    from shoal.discovery.store import CoordinationStore

app = typer.Typer(
    name="grant", help="Grants: who may change what in the control plane's coordination tree.", no_args_is_help=True
)

_COLUMNS = (Column("PATH"), Column("GRANTED TO"))
_FLAGS = {"who": "--to", "path": "PATH"}

Path = Annotated[str, typer.Argument(metavar="PATH", help="A path of the tree, such as /gip")]
To = Annotated[str, typer.Option("--to", metavar="WHO", help="agent, agent:NODE, workload or workload:JOB")]


@control_tree_command(app, "create")
async def create(store: CoordinationStore, *, path: Path, to: To, as_json: Json = False) -> None:
    """Let agents or workloads change the nodes at and below a path. Without a grant they only read.

    A job is a group: its members with `identity: true` have certificates in its name.
    """
    from shoal.discovery.grants import Grant, create_grant

    try:
        new = await create_grant(store, Grant(to, path))
    except InvalidError as error:
        raise hints.renamed(error, _FLAGS) from None
    if as_json:
        output.json_document({"path": path, "to": to, "created": new})
        return
    output.words(f"{to} may change {path} and below" if new else f"{to} already had a grant for {path}")


@control_tree_command(app, "list")
async def list_all(store: CoordinationStore, *, as_json: Json = False) -> None:
    """List the grants: what, and to which jobs."""
    from shoal.discovery.grants import list_grants

    grants = sorted(await list_grants(store), key=lambda grant: (grant.path, grant.who))
    if as_json:
        output.json_document({"grants": [{"path": grant.path, "to": grant.who} for grant in grants]})
        return
    output.table(_COLUMNS, [[grant.path, grant.who] for grant in grants], empty="nothing is granted")


@control_tree_command(app, "revoke")
async def revoke(store: CoordinationStore, *, path: Path, to: To, as_json: Json = False) -> None:
    """Take a grant back, at once. Nodes that were created stay, ephemeral ones until their session ends."""
    from shoal.discovery.grants import Grant, revoke_grant

    try:
        await revoke_grant(store, Grant(to, path))
    except InvalidError as error:
        raise hints.renamed(error, _FLAGS) from None
    if as_json:
        output.json_document({"path": path, "to": to, "revoked": True})
        return
    output.words(f"{to} no longer has a grant for {path}")

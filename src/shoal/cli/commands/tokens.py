"""`shoal token …`: makes, lists and revokes join tokens, with which agents get their certificates."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.connection.options import Json, client_command, duration
from shoal.cli.output import hints
from shoal.cli.output.tables import Column
from shoal.core.errors import InvalidError
from shoal.core.ids import TokenId
from shoal.model.trust import LONGEST_TTL, SHORTEST_TTL, TTL_RULE
from shoal.wire.addresses import Address, parse_address

if TYPE_CHECKING:
    from shoal.client import ControlPlane
    from shoal.model.trust import JoinTokenView

app = typer.Typer(name="token", help="Join tokens: how an agent gets its certificate.", no_args_is_help=True)

DEFAULT_JOIN_PORT = 8086

_FLAGS = {"ttl_ms": "--ttl", "node_id": "--node-id", "uses": "--uses"}

_COLUMNS = (
    Column("TOKEN"),
    Column("FOR"),
    Column("USED", right=True),
    Column("EXPIRES IN", right=True),
    Column("MADE BY", rank=1),
)


def _ttl(text: str | timedelta) -> timedelta:
    found = duration(text)
    if not SHORTEST_TTL <= found <= LONGEST_TTL:
        raise typer.BadParameter(f"{TTL_RULE} (got {text!r})")
    return found


@client_command(app, "create")
async def create(
    control: ControlPlane,
    *,
    ttl: Annotated[
        timedelta, typer.Option("--ttl", parser=_ttl, metavar="DURATION", help="How long it is valid, from 1s to 7d")
    ] = timedelta(minutes=10),
    node_id: Annotated[
        str, typer.Option("--node-id", metavar="ID", help="The only node that may use it [any new one]")
    ] = "",
    uses: Annotated[int, typer.Option("--uses", min=1, max=100, metavar="N", help="How many nodes may join")] = 1,
    as_json: Json = False,
) -> None:
    """Make a token with which an agent joins: `shoal agent --join TOKEN`, or SHOAL_JOIN_TOKEN in its environment.

    It is printed only once. The agent makes its own key and gets a certificate for it; the token also tells it which
    control plane is the right one.
    """
    try:
        made = await control.create_join_token(ttl=ttl.total_seconds(), node_id=node_id, uses=uses)
    except InvalidError as error:
        raise hints.renamed(error, _FLAGS) from None
    if as_json:
        where = made.join_addresses
        document = {"token": made.text, "join_address": where[0] if where else "", "join_addresses": where}
        output.json_document({**document, **_document(made.view)})
        return
    output.data(made.text)
    usual = {str(Address(parse_address(each).host, DEFAULT_JOIN_PORT)) for each in control.addresses}
    # An agent derives these by itself, and tries each until it finds the leader.
    flags = "" if set(made.join_addresses) <= usual else f" --join-address {','.join(made.join_addresses)}"
    whom = f"node {node_id}" if node_id else f"{uses} new node{'s' if uses > 1 else ''}"
    output.words(f"valid for {whom} for {output.span(ttl.total_seconds())}; on the machine that is to join:")
    output.words(f"    shoal agent --control {','.join(control.addresses)}{flags} --data-dir PATH --join TOKEN")
    output.words("or with SHOAL_JOIN_TOKEN in its environment instead of --join, which lists of processes show")


@client_command(app, "list")
async def list_tokens(control: ControlPlane, *, as_json: Json = False) -> None:
    """List the tokens that have not expired. Their secrets are not kept."""
    tokens = await control.list_join_tokens()
    if as_json:
        output.json_document({"tokens": [_document(token) for token in tokens]})
        return
    output.table(_COLUMNS, [_row(token) for token in tokens], empty="no join token")


@client_command(app, "revoke")
async def revoke(
    control: ControlPlane, *, token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, as listed")]
) -> None:
    """Revoke a token. Nodes that have joined with it stay."""
    await control.revoke_join_token(TokenId(token_id))
    output.words(f"join token {token_id} is revoked")


def _row(token: JoinTokenView) -> list[str | output.Cell]:
    left = (token.expires_at - session.clock().wall()).total_seconds() if token.expires_at is not None else 0.0
    return [
        token.token_id,
        f"node {token.node_id}" if token.node_id else f"new {token.role}s",
        f"{len(token.used_by)}/{token.uses}",
        output.span(max(0.0, left)),
        token.created_by,
    ]


def _document(token: JoinTokenView) -> dict[str, object]:
    return {
        "token_id": token.token_id,
        "role": token.role,
        "node_id": token.node_id,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "created_by": token.created_by,
        "uses": token.uses,
        "used_by": token.used_by,
    }

"""`shoal certs …`: makes the authority of a cluster and certificates for its programs and people.

Needs no control plane. An authority is one directory (`ca.pem`, `ca-key.pem`). Each certificate gets a directory with
the three files that `--ca`, `--cert` and `--key` take. Calls `shoal.wire.trust.authority` and
`shoal.wire.trust.credentials`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.connection.options import Json
from shoal.cli.output.tables import Column
from shoal.core.errors import InvalidError, NotFoundError, ShoalError, problem

if TYPE_CHECKING:
    from shoal.model.identity import Identity
    from shoal.wire.trust.certificates import CertificateFacts

app = typer.Typer(name="certs", help="Certificates of agents, control planes and operators.", no_args_is_help=True)

DEFAULT_DIR = "certs"
DEFAULT_CLUSTER = "default"
SOON = timedelta(days=30)
_MAX_FILES = 1000

_COLUMNS = (
    Column("FILE"),
    Column("ROLE"),
    Column("NAME"),
    Column("CLUSTER", rank=1),
    Column("EXPIRES"),
    Column("HOSTS", rank=2, least=16),
)


class HandIssued(enum.StrEnum):
    """Roles of certificates made by hand. Workloads get theirs from the control plane, for an hour at a time."""

    AGENT = "agent"
    CONTROL = "control"
    OPERATOR = "operator"


Directory = Annotated[
    str, typer.Option("--dir", metavar="PATH", envvar="SHOAL_CERTS_DIR", help="Where the authority is kept")
]


@app.command("init")
def init(
    *,
    directory: Directory = DEFAULT_DIR,
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="ID", help="The cluster it signs for; equal to --cluster-id")
    ] = DEFAULT_CLUSTER,
) -> None:
    """Make the authority that signs a cluster's certificates.

    Its key can sign any identity: keep it away from the fleet, or on the control plane alone. An authority that exists
    is never replaced.
    """
    from shoal.wire.trust.authority import make_authority
    from shoal.wire.trust.credentials import CA_FILE, write_authority

    path = Path(directory)
    authority = make_authority(cluster, now=session.clock().wall())
    write_authority(path, authority)
    until = authority.certificate.not_valid_after_utc
    output.words(f"authority of cluster {cluster}: {path / CA_FILE}, until {until:%Y-%m-%d}")


@app.command("issue")
def issue(
    *,
    role: Annotated[HandIssued, typer.Option("--role", metavar="ROLE", help="agent, control or operator")],
    node_id: Annotated[str | None, typer.Option("--node-id", metavar="ID", help="The node of an agent")] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Of a control plane or an operator [the role]")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME|IP", help="A host where others reach it, besides this machine; repeatable"
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="Where to write the files [DIR/ROLE-NAME]")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, metavar="N", help="How many days it is valid")] = 365,
    directory: Directory = DEFAULT_DIR,
) -> None:
    """Make a key and a certificate for an agent, a control plane or an operator.

    Issued again into the same folder, the files are replaced; programs that use them take the new ones at once.
    """
    from shoal.model.identity import Identity, Role
    from shoal.wire.trust import authority as making
    from shoal.wire.trust.credentials import load_authority, write_credentials

    given = _checked_name(role, node_id, name)
    base = Path(directory)
    authority, trusted = load_authority(base)
    identity = Identity(Role(role.value), authority.cluster, given)
    hosts = () if role is HandIssued.OPERATOR and not host else (*making.LOCAL_HOSTS, *(host or ()))
    pair = making.issue(authority, identity, now=session.clock().wall(), hosts=hosts, lifetime=timedelta(days=days))
    target = Path(out) if out is not None else base / f"{role}-{given}"
    _refuse_another(target, identity)
    paths = write_credentials(target, ca=trusted, pair=pair)
    output.words(f"{identity} of cluster {identity.cluster}, good for {days} days: {target}")
    output.words(f"    --ca {paths.ca} --cert {paths.cert} --key {paths.key}")


@app.command("show")
def show(
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="A file, or a directory with everything in it [--dir]")
    ] = None,
    *,
    directory: Directory = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Show what certificates say: whose they are, where they are good, and until when."""
    top = Path(path if path is not None else directory)
    found = list(_find(top))
    now = session.clock().wall()
    if as_json:
        output.json_document({"certificates": [_document(file, facts, now) for file, facts in found]})
        return
    output.table(_COLUMNS, [_row(top, file, facts, now) for file, facts in found], empty=f"no certificate in {top}")
    for file, facts in found:
        left = facts.not_after - now
        if left <= timedelta(0):
            output.warn(f"{file} has expired")
        elif left <= SOON and facts.not_after - facts.not_before > 2 * SOON:
            output.warn(f"{file} expires in {output.span(left.total_seconds())}")


def _checked_name(role: HandIssued, node_id: str | None, name: str | None) -> str:
    problems = []
    if role is HandIssued.AGENT:
        if not node_id:
            problems.append(problem("--node-id", None, "is required: an agent's certificate is for one node"))
        if name is not None:
            problems.append(problem("--name", name, "is not for agents; they are named by --node-id"))
    elif node_id is not None:
        problems.append(problem("--node-id", node_id, f"is for agents; a certificate of role {role} takes --name"))
    if problems:
        raise InvalidError(problems)
    return node_id or name or role.value


def _refuse_another(target: Path, identity: Identity) -> None:
    """Refuse to replace the files of another identity: the program that uses them would become somebody else."""
    from shoal.core.disk.private_files import read_private
    from shoal.wire.trust.certificates import describe, read_certificates
    from shoal.wire.trust.credentials import CERT_FILE

    cert = target / CERT_FILE
    if not cert.exists():
        return
    try:
        holder = describe(read_certificates(read_private(cert))[0]).identity
    except InvalidError:
        holder = None
    if holder != identity:
        whose = f"those of {holder}" if holder is not None else "something else"
        rule = f"must be empty, or hold the files of {identity}; there are {whose}"
        raise InvalidError([problem("--out", str(target), rule)])


def _find(top: Path) -> Iterator[tuple[Path, CertificateFacts]]:
    """Every certificate in a file or below a directory. Other files are skipped, unless the file itself was named."""
    from shoal.core.disk.private_files import read_private
    from shoal.wire.trust.certificates import describe, read_certificates

    if not top.exists():
        raise NotFoundError("file", str(top), hint="make an authority with `shoal certs init`")
    files = sorted(top.rglob("*.pem"))[:_MAX_FILES] if top.is_dir() else [top]
    for file in files:
        try:
            certificates = read_certificates(read_private(file))
        except ShoalError:
            if file == top:
                raise
            continue
        for certificate in certificates:
            facts = describe(certificate)
            # Each certificate has a copy of the authority beside it: they would be most of the list.
            if top.is_dir() and facts.is_authority and file.parent != top:
                continue
            yield file, facts


def _role(facts: CertificateFacts) -> str:
    if facts.is_authority:
        return "authority"
    return facts.identity.role.value if facts.identity is not None else ""


def _row(top: Path, file: Path, facts: CertificateFacts, now: datetime) -> list[str | output.Cell]:
    left = facts.not_after - now
    style = "red" if left <= timedelta(0) else "yellow" if left <= SOON else ""
    return [
        str(file.relative_to(top)) if top.is_dir() else file.name,
        _role(facts),
        facts.identity.name if facts.identity is not None else "",
        facts.cluster,
        output.Cell(f"{facts.not_after:%Y-%m-%d}", style),
        " ".join(facts.hosts),
    ]


def _document(file: Path, facts: CertificateFacts, now: datetime) -> dict[str, Any]:
    identity = facts.identity
    return {
        "file": str(file),
        "role": _role(facts),
        "name": identity.name if identity is not None else "",
        "cluster": facts.cluster,
        "identity": identity.uri if identity is not None else "",
        "hosts": facts.hosts,
        "not_before": facts.not_before,
        "not_after": facts.not_after,
        "expired": facts.not_after <= now,
        "issuer": facts.issuer,
        "subject": facts.subject,
        "serial": facts.serial,
        "sha256": facts.sha256,
    }

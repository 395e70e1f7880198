"""The settings by which a program proves its identity: three files, or `insecure`.

Servers and clients have the same settings and the same rules. Called by the settings
of the control plane and the agent, by their servers, and by `shoal.cli.connection.session`; what becomes of it is in
`shoal.wire.trust.security`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.errors import InvalidError, Problem, problem
from shoal.model.identity import Identity, Role

if TYPE_CHECKING:
    from shoal.wire.trust.security import Security

FILES = ("ca", "cert", "key")
TOGETHER = "must not be given together with certificates"
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - callers are identified by their certificates


@dataclass(frozen=True, slots=True)
class Access:
    """The given paths; empty where none was given."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure: bool = False

    @property
    def is_given(self) -> bool:
        """Whether anything was given."""
        return self.insecure or any(getattr(self, name) for name in FILES)

    def problems(self, at: str = "", *, otherwise: str) -> Iterator[Problem]:
        """What is wrong with it.

        Args:
            at: goes before the names of the fields.
            otherwise: what the user can do instead, for the error of a user who gave nothing.
        """
        missing = [name for name in FILES if not getattr(self, name)]
        if self.insecure and len(missing) < len(FILES):
            yield problem(f"{at}insecure", None, together([name for name in FILES if name not in missing]))
        elif not self.insecure and len(missing) == len(FILES):
            yield problem(
                f"{at}ca",
                None,
                f"is required, with cert and key: {otherwise}, or give --insecure: then nothing is encrypted",
            )
        elif not self.insecure:
            for name in missing:
                yield problem(f"{at}{name}", None, "is required: ca, cert and key go together")

    def security(self) -> Security:
        """The settings as a transport takes them. They were checked before."""
        from shoal.wire.trust.security import INSECURE, MutualTls

        return INSECURE if self.insecure else MutualTls(Path(self.ca), Path(self.cert), Path(self.key))

    def server_security(self) -> Security:
        """As `security`, for a server whose callers have no certificates."""
        from shoal.wire.trust.security import MutualTls, ServerTls

        return ServerTls(MutualTls(Path(self.ca), Path(self.cert), Path(self.key)))

    def listening_host(self, given: str | None) -> str:
        """Where to listen: as given, else on every address, but on loopback alone when insecure."""
        if given is not None:
            return given
        return LOOPBACK if self.insecure else EVERYWHERE


def together(given: Sequence[str]) -> str:
    """The rule that `insecure` breaks together with these other settings."""
    return f"{TOGETHER} ({', '.join(given)}): one or the other"


def check_own_identity(
    identity: Identity | None, role: Role, *, insecure: bool, cluster_id: str, node_id: str = ""
) -> None:
    """Raise `InvalidError` if a server's certificate is for another role, node or cluster.

    Args:
        identity: from its certificate; None without certificates.
        role: the role that it must have.
        insecure: whether it may do without certificates.
        cluster_id: from its settings; empty: the one of the certificate.
        node_id: likewise, of an agent.
    """
    if identity is None:
        if not insecure:
            raise InvalidError([problem("--insecure", None, "is required where there are no certificates")])
        return
    problems = []
    if identity.role is not role:
        rule = f"must be of role {role}; this one is {identity}'s"
        problems.append(problem("--cert", identity.uri, rule))
    elif node_id and node_id != identity.name:
        problems.append(problem("--node-id", node_id, f"must be {identity.name!r}, for which the certificate is"))
    if cluster_id and cluster_id != identity.cluster:
        problems.append(problem("--cluster-id", cluster_id, f"must be {identity.cluster!r}, as in the certificate"))
    if problems:
        raise InvalidError(problems, hint=f"`shoal certs issue --role {role}` makes one")

"""How a program was told to prove who it is: three files, or `insecure`.

Servers and clients are given the same settings and break the same rules, so the rules are here. Called by the settings
of the control plane and the agent, by their servers, and by `shoal.cli.connection.session`; what becomes of it is in
`shoal.wire.security`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.errors import InvalidError, Problem, problem
from shoal.model.identity import Identity, Role

if TYPE_CHECKING:
    from shoal.wire.security import Security

FILES = ("ca", "cert", "key")
TOGETHER = "must not be given together with certificates"
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - whoever serves here knows its callers by their certificates


@dataclass(frozen=True, slots=True)
class Access:
    """What was given: paths, empty where none was."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure: bool = False

    @property
    def is_given(self) -> bool:
        """Whether anything was said."""
        return self.insecure or any(getattr(self, name) for name in FILES)

    def problems(self, at: str = "", *, otherwise: str) -> Iterator[Problem]:
        """What is wrong with it.

        Args:
            at: goes before the names of the fields.
            otherwise: what else could have been done by somebody who said nothing.
        """
        missing = [name for name in FILES if not getattr(self, name)]
        if self.insecure and len(missing) < len(FILES):
            yield problem(f"{at}insecure", None, together([name for name in FILES if name not in missing]))
        elif not self.insecure and len(missing) == len(FILES):
            yield problem(
                f"{at}ca", None, f"is required, with cert and key: {otherwise}, or give --insecure where no one listens"
            )
        elif not self.insecure:
            for name in missing:
                yield problem(f"{at}{name}", None, "is required: ca, cert and key go together")

    def security(self) -> Security:
        """The same for a transport. What was given has been checked."""
        from shoal.wire.security import INSECURE, MutualTls

        return INSECURE if self.insecure else MutualTls(Path(self.ca), Path(self.cert), Path(self.key))

    def server_security(self) -> Security:
        """The same for a server whose callers have no certificates."""
        from shoal.wire.security import MutualTls, ServerTls

        return ServerTls(MutualTls(Path(self.ca), Path(self.cert), Path(self.key)))

    def listening_host(self, given: str | None) -> str:
        """Where to listen: as given, else everywhere, but on this machine alone when nobody is known."""
        if given is not None:
            return given
        return LOOPBACK if self.insecure else EVERYWHERE


def together(given: Sequence[str]) -> str:
    """Why `insecure` contradicts what else was given, by the names of that."""
    return f"{TOGETHER} ({', '.join(given)}): one or the other"


def check_own_identity(
    identity: Identity | None, role: Role, *, insecure: bool, cluster_id: str, node_id: str = ""
) -> None:
    """Whether a server's certificate is one for what it is. Raises `InvalidError`.

    Args:
        identity: of its transport; None without certificates.
        role: what it must be.
        insecure: whether it was told to do without.
        cluster_id: what it was told; empty for whatever the certificate says.
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

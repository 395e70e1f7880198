"""Who a program is: a role in a cluster, and a name. Written as the one URI that its certificate carries.

    shoal://<cluster>/agent/<node id>
    shoal://<cluster>/control/<name>
    shoal://<cluster>/operator/<name>
    shoal://<cluster>/workload/<job>/<node id>

Every part is an identifier, so there is one way to write an identity and nothing to escape. Made and read by
`shoal.wire.trust.certificates`; judged by `shoal.wire.trust.authorization`; handlers find it in `Call.identity`.
"""

from __future__ import annotations

import enum
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import IDENTIFIER_RULE, is_identifier

SCHEME = "shoal"
RULE = "must be shoal://<cluster>/<role>/<name>, or shoal://<cluster>/workload/<job>/<node>"

#: Names of hosts under this one are ours to give: they say who a certificate is for.
DOMAIN = "shoal"

#: A certificate is valid from this long before it is issued: the clocks of a fleet do not agree to the minute.
CLOCK_SKEW = timedelta(minutes=10)

_HASHED = "x-"
_PLAIN_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


class Role(enum.StrEnum):
    """What a program is in its cluster. Roles decide which calls are allowed."""

    AGENT = "agent"  # runs workloads on one node
    CONTROL = "control"  # decides, and tells agents
    OPERATOR = "operator"  # a person, or a program in a person's name
    WORKLOAD = "workload"  # something that an agent runs, on behalf of one job


_ROLES = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True)
class Identity:
    """A role, a cluster and a name. One that breaks a rule cannot be made."""

    role: Role
    cluster: str
    #: An agent's node id; of a workload its job and node, as in the URI.
    name: str
    #: Of a workload only.
    job: str = ""
    node: str = ""

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise InvalidError(problems, what="identity")

    def __str__(self) -> str:
        """For people: `agent n1`."""
        return f"{self.role} {self.name}"

    @property
    def uri(self) -> str:
        """The way a certificate carries it."""
        return f"{SCHEME}://{self.cluster}/{self.role}/{self.name}"

    def _problems(self) -> list[Problem]:
        parts = {"cluster": self.cluster}
        if self.role is Role.WORKLOAD:
            parts |= {"job": self.job, "node": self.node}
        else:
            parts["name"] = self.name
        found = [problem(name, text, IDENTIFIER_RULE) for name, text in parts.items() if not is_identifier(text)]
        if self.role is Role.WORKLOAD and self.name != f"{self.job}/{self.node}":
            found.append(problem("name", self.name, "must be <job>/<node>"))
        if self.role is not Role.WORKLOAD and (self.job or self.node):
            found.append(problem("job", self.job or self.node, "is for workloads only"))
        return found


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller by its certificate: its identity, and the dates between which the certificate is valid."""

    identity: Identity
    not_before: datetime
    not_after: datetime

    @property
    def issued_at(self) -> datetime:
        """When the certificate was issued, in whole seconds."""
        return self.not_before + CLOCK_SKEW

    @property
    def node(self) -> str:
        """The node of an agent or a workload; empty for others."""
        return self.identity.name if self.identity.role is Role.AGENT else self.identity.node


def workload_identity(cluster: str, *, job: str, node: str) -> Identity:
    """The identity of what runs on a node for a job."""
    return Identity(Role.WORKLOAD, cluster, f"{job}/{node}", job, node)


def parse_identity(uri: str) -> Identity:
    """Read an identity. Raises `InvalidError`."""
    broken = InvalidError([problem("identity", uri, RULE)])
    scheme, separator, rest = uri.partition("://")
    parts = rest.split("/")
    if scheme != SCHEME or not separator or len(parts) < 3:
        raise broken
    cluster, word, *names = parts
    role = _ROLES.get(word)
    if role is None or len(names) != (2 if role is Role.WORKLOAD else 1):
        raise broken
    try:
        if role is Role.WORKLOAD:
            return workload_identity(cluster, job=names[0], node=names[1])
        return Identity(role, cluster, names[0])
    except InvalidError:
        raise broken from None


@dataclass(frozen=True, slots=True)
class Peer:
    """The peer that a caller means to reach: the control plane of its own cluster, or the agent of one node.

    A client learns nothing of the other side's certificate but whether it is good for one host name. So certificates
    of servers carry a name that says who they are, beside those of their hosts, and a caller asks for that one: an
    agent that listens where the control plane should be is not taken for it, nor one node for another.
    """

    role: Role
    #: The node id of an agent; of the control plane any will do.
    name: str = ""

    def __post_init__(self) -> None:
        if self.role not in (Role.AGENT, Role.CONTROL):
            raise InvalidError([problem("peer", self.role, "must be a role that serves: agent or control")])
        if self.role is Role.AGENT and not self.name:
            raise InvalidError([problem("peer", self.name, "must name the node of an agent")])

    def __str__(self) -> str:
        """For people."""
        return "the control plane" if self.role is Role.CONTROL else f"the agent of node {self.name!r}"

    def server_name(self, cluster: str) -> str:
        """The host name that its certificate is good for."""
        if self.role is Role.CONTROL:
            return f"control.{_label(cluster)}.{DOMAIN}"
        return f"{_label(self.name)}.node.{_label(cluster)}.{DOMAIN}"

    def accepts(self, identity: Identity, *, cluster: str) -> bool:
        """Whether that is who is meant."""
        named = self.role is Role.CONTROL or identity.name == self.name
        return identity.role is self.role and named and identity.cluster == cluster


CONTROL_PLANE = Peer(Role.CONTROL)


def own_server_name(identity: Identity) -> str | None:
    """The host name that says who a server is; None for those that do not serve."""
    match identity.role:
        case Role.CONTROL:
            return CONTROL_PLANE.server_name(identity.cluster)
        case Role.AGENT:
            return Peer(Role.AGENT, identity.name).server_name(identity.cluster)
        case Role.WORKLOAD:
            # The tasks of a job serve each other, on whatever node they are.
            return f"{_label(identity.job)}.job.{_label(identity.cluster)}.{DOMAIN}"
        case _:
            return None


def _label(text: str) -> str:
    """A name as one label of a host name. Those allow less, and do not tell capitals apart; then it is hashed."""
    if _PLAIN_LABEL.fullmatch(text) and not text.startswith(_HASHED):
        return text
    return f"{_HASHED}{hashlib.sha256(text.encode()).hexdigest()[:48]}"

"""What the control plane stores about trust: join tokens, revoked certificates and sealed secrets.

A join token is shown once, when it is made:

    shoal1.<id>.<secret>.<SHA-256 of the authority's certificate>

Its last part lets an agent without any files recognize the control plane; only a hash of the secret is stored. Made by
`shoal.control.trust`; stored by `shoal.control.store`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shoal.core.errors import InvalidError, problem
from shoal.core.ids import NodeId, TokenId
from shoal.model.identity import Role

SHORTEST_TTL = timedelta(seconds=1)
LONGEST_TTL = timedelta(days=7)
TTL_RULE = "must be between 1s and 7d"

#: How long a certificate is valid that an agent gets by joining or by renewal.
JOINED_LIFETIME = timedelta(days=30)

TOKEN_ID_LENGTH = 10
SECRET_LENGTH = 40
TOKEN_RULE = "must be a token of `shoal token create`, whole and unchanged"  # noqa: S105 - a sentence

_TOKEN = re.compile(
    rf"shoal1\.(?P<id>[a-z0-9]{{{TOKEN_ID_LENGTH}}})\.(?P<secret>[a-z0-9]{{{SECRET_LENGTH}}})\.(?P<ca>[0-9a-f]{{64}})"
)


@dataclass(frozen=True, slots=True)
class TokenText:
    """A join token as it is handed over."""

    token_id: TokenId
    secret: str = field(repr=False)
    #: Of the authority's certificate, in hex.
    ca_sha256: str

    def __str__(self) -> str:
        """The text itself."""
        return f"shoal1.{self.token_id}.{self.secret}.{self.ca_sha256}"

    @property
    def secret_sha256(self) -> bytes:
        """What is stored of the secret."""
        return hashlib.sha256(self.secret.encode()).digest()


def parse_token(text: str, *, name: str = "token") -> TokenText:
    """Read a token. Raises `InvalidError`, which does not repeat it."""
    found = _TOKEN.fullmatch(text.strip())
    if found is None:
        raise InvalidError([problem(name, None, TOKEN_RULE)])
    return TokenText(TokenId(found["id"]), found["secret"], found["ca"])


@dataclass(frozen=True, slots=True)
class TokenUse:
    """One certificate that a token was good for."""

    node_id: str
    #: Of the public key. A caller that asks again with the same key gets a certificate again: an answer may be lost.
    key_sha256: bytes
    at: datetime


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A join token as it is stored."""

    token_id: TokenId
    secret_sha256: bytes
    role: Role
    #: The only node it is good for; empty: any new one.
    node_id: str
    created_at: datetime
    expires_at: datetime
    created_by: str
    #: How many different keys it is good for.
    uses: int
    used: tuple[TokenUse, ...] = ()
    version: int = 0

    def is_for(self, given: TokenText) -> bool:
        """Whether the secret is the right one, found out in the same time for each wrong one."""
        return hmac.compare_digest(self.secret_sha256, given.secret_sha256)


@dataclass(frozen=True, slots=True)
class Revocation:
    """The certificates of a node that were issued up to a moment, and are refused from then on."""

    node_id: NodeId
    revoked_at: datetime
    #: When the last of these certificates expires; the record is dropped then.
    ends_at: datetime
    reason: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """A secret as it is stored: encrypted, with a name that anyone may know."""

    name: str
    sealed: bytes = field(repr=False)
    created_at: datetime
    updated_at: datetime
    #: Grows with each new value.
    revision: int
    version: int = 0


# ---------------------------------------------------------------------------------------------------------
# What is shown of them


@dataclass(frozen=True, slots=True)
class JoinTokenView:
    """A join token without its secret."""

    token_id: TokenId
    role: str
    node_id: str
    created_at: datetime | None
    expires_at: datetime | None
    created_by: str
    uses: int
    #: The nodes that have joined with it.
    used_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SecretView:
    """Everything about a secret but its value."""

    name: str
    created_at: datetime | None
    updated_at: datetime | None
    revision: int

"""Join tokens: made by operators, used by agents to get their first certificate.

A token is valid for a number of keys until it expires; the same key may ask again, because an answer can be lost. A
token that names no node is valid for ids that no node has: its holder can become neither a node of the fleet nor one
that has a certificate and has not registered yet. So an id stays with the key that got it, even after the token has
expired, until its node registers, or its certificate expires or is revoked.

Made for each leadership; called by `shoal.control.trust.enrollment` and `shoal.control.api.enrollment_service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from shoal.control.state.ledger import Ledger
from shoal.control.store.base import Batch
from shoal.control.trust.signing import Signer
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.errors import ConflictError, DeniedError, ExhaustedError, NotFoundError
from shoal.core.ids import NodeId, TokenId
from shoal.model.events import Event, EventKind, EventSource, SubjectKind
from shoal.model.identity import Identity, Role
from shoal.model.trust import JOINED_LIFETIME, SECRET_LENGTH, TOKEN_ID_LENGTH, JoinToken, TokenText, TokenUse

DEFAULT_TTL = timedelta(minutes=10)
MOST_USES = 100
MOST_TOKENS = 1000

_TRIES = 5


class JoinTokens:
    """The join tokens of a cluster."""

    def __init__(self, ledger: Ledger, signer: Signer, *, clock: Clock, entropy: Entropy) -> None:
        self._ledger = ledger
        self._signer = signer
        self._clock = clock
        self._entropy = entropy
        # Two tokens are two records, and the store would accept both for one id at the same time.
        self._using = asyncio.Lock()

    async def create(
        self, *, ttl: timedelta, role: Role, node_id: str, uses: int, by: str
    ) -> tuple[TokenText, JoinToken]:
        """Make a token. Its text is returned and not stored."""
        fingerprint = await self._signer.fingerprint()
        now = self._clock.wall()
        stored = await self._ledger.store.tokens()
        expired = [token for token in stored if token.expires_at <= now]
        if len(stored) - len(expired) >= MOST_TOKENS:
            raise ExhaustedError(
                f"there are {MOST_TOKENS} join tokens already",
                hint="revoke some with `shoal token revoke`, or wait until they expire",
                limit=MOST_TOKENS,
            )
        text = TokenText(TokenId(self._entropy.token(TOKEN_ID_LENGTH)), self._entropy.token(SECRET_LENGTH), fingerprint)
        token = JoinToken(
            token_id=text.token_id,
            secret_sha256=text.secret_sha256,
            role=role,
            node_id=node_id,
            created_at=now,
            expires_at=now + ttl,
            created_by=by,
            uses=uses,
        )
        nodes = f"node {node_id}" if node_id else f"{uses} new node{'s' if uses > 1 else ''}"
        event = self._event(
            EventKind.JOIN_TOKEN_CREATED, token.token_id, f"for {nodes}, by {by}", cause=f"CreateJoinToken by {by}"
        )
        kept = [(each, self._pending(each, now)) for each in expired]
        shortened = [replace(each, used=pending) for each, pending in kept if pending and pending != each.used]
        over = {each.token_id: each.version for each, pending in kept if not pending}
        await self._ledger.commit(Batch(tokens=(token, *shortened), removed_tokens=over, events=(event,)))
        return text, token

    async def valid(self) -> tuple[JoinToken, ...]:
        """The tokens that have not expired."""
        now = self._clock.wall()
        return tuple(token for token in await self._ledger.store.tokens() if token.expires_at > now)

    async def revoke(self, token_id: TokenId, *, by: str) -> None:
        """End a token. Certificates that were issued for it stay valid, and their ids stay taken."""
        for _ in range(_TRIES):
            now = self._clock.wall()
            found = next((token for token in await self._ledger.store.tokens() if token.token_id == token_id), None)
            if found is None or found.expires_at <= now:
                raise NotFoundError("join token", token_id, hint="`shoal token list` shows those there are")
            event = self._event(EventKind.JOIN_TOKEN_REVOKED, token_id, f"by {by}", cause=f"RevokeJoinToken by {by}")
            pending = self._pending(found, now)
            if pending:
                batch = Batch(tokens=(replace(found, expires_at=now, used=pending),), events=(event,))
            else:
                batch = Batch(removed_tokens={token_id: found.version}, events=(event,))
            try:
                await self._ledger.commit(batch)
            except ConflictError:
                continue  # a node joined with it at the same moment
            return
        raise _contended(token_id)

    async def use(self, given: TokenText, wanted: Identity, key_sha256: bytes) -> datetime:
        """Use a token for a key, unless that was done before. Returns the time at which the certificate is issued.

        Raises `DeniedError` when the token is not valid for this identity.
        """
        async with self._using:
            for _ in range(_TRIES):
                now = self._clock.wall()
                stored = await self._ledger.store.tokens()
                token = _find(given, stored, now)
                _check_identity(wanted, token)
                if any(use.key_sha256 == key_sha256 and use.node_id == wanted.name for use in token.used):
                    return now
                self._check_free(wanted, key_sha256, token, stored, now)
                used = (*token.used, TokenUse(wanted.name, key_sha256, now))
                message = f"a certificate was issued for join token {token.token_id}"
                cause = f"Join with join token {token.token_id}"
                event = Event(
                    now, SubjectKind.NODE, wanted.name, EventKind.NODE_JOINED, message, EventSource.JOIN, cause
                )
                try:
                    await self._ledger.commit(Batch(tokens=(replace(token, used=used),), events=(event,)))
                except ConflictError:
                    continue  # it was revoked at the same moment
                return now
        raise _contended(given.token_id)

    async def is_pending(self, node_id: str) -> bool:
        """Whether a node has joined, by a certificate that is still valid, and has not registered yet."""
        now = self._clock.wall()
        uses = (use for token in await self._ledger.store.tokens() for use in self._pending(token, now))
        return any(use.node_id == node_id for use in uses)

    def _check_free(
        self, wanted: Identity, key_sha256: bytes, token: JoinToken, stored: Sequence[JoinToken], now: datetime
    ) -> None:
        if len(token.used) >= token.uses:
            raise DeniedError(
                "the join token has been used up",
                hint="make a new one with `shoal token create`, with --uses for several nodes",
            )
        if token.node_id:
            return  # an operator chose this node, even if it exists
        hint = f"choose another --node-id, or make a token with --node-id {wanted.name}"
        if NodeId(wanted.name) in self._ledger.fleet.nodes:
            raise DeniedError(
                f"there is a node {wanted.name!r} already, and this join token is for new ones",
                hint=hint,
                node_id=wanted.name,
            )
        taken = [
            use.at
            for each in stored
            for use in self._pending(each, now)
            if use.node_id == wanted.name and use.key_sha256 != key_sha256
        ]
        revocation = self._ledger.fleet.revocations.get(NodeId(wanted.name))
        if taken and (revocation is None or revocation.revoked_at < max(taken)):
            raise DeniedError(
                f"another agent has a certificate for node {wanted.name!r} already; this join token is for new ones",
                hint=hint,
                node_id=wanted.name,
            )

    def _pending(self, token: JoinToken, now: datetime) -> tuple[TokenUse, ...]:
        """The uses whose certificates are still valid and whose nodes have not registered."""
        nodes = self._ledger.fleet.nodes
        return tuple(u for u in token.used if u.at + JOINED_LIFETIME > now and NodeId(u.node_id) not in nodes)

    def _event(self, kind: EventKind, token_id: TokenId, message: str, *, cause: str) -> Event:
        return Event(self._clock.wall(), SubjectKind.CONTROL, token_id, kind, message, EventSource.API, cause)


def _find(given: TokenText, stored: Sequence[JoinToken], now: datetime) -> JoinToken:
    # Every failure has the same reason, so that a guess learns nothing.
    for token in stored:
        if token.token_id == given.token_id and token.is_for(given) and token.expires_at > now:
            return token
    raise DeniedError(
        "the join token is not known, or it has expired",
        hint="make a new one with `shoal token create`",
    )


def _check_identity(wanted: Identity, token: JoinToken) -> None:
    if wanted.role is not token.role:
        raise DeniedError(f"the join token is for the role {token.role}, not for {wanted.role}")
    if token.node_id and wanted.name != token.node_id:
        raise DeniedError(f"the join token is for node {token.node_id!r}, not for {wanted.name!r}")


def _contended(token_id: TokenId) -> ConflictError:
    return ConflictError(f"join token {token_id!r} is changed by others again and again", id=token_id)

"""Who gets a certificate: join tokens, joining with one, renewing, and the certificates of workloads.

The signing key stays in its file and is read when it is needed. A token is good for a number of keys until it expires;
the same key may ask again, because an answer can be lost. A token that names no node is good for an id that nobody has:
whoever holds it cannot become a node of the fleet that exists, nor one that another agent has a certificate for and is
about to be. So an id that was given stays with its key, also when the token is over, until the node has registered or
the certificate has run out. Made for each reign; served by `shoal.control.api.enrollment_service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.control.state.fleet import Ledger
from shoal.control.store.base import Batch, EventQuery
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.errors import (
    ConflictError,
    DeniedError,
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    problem,
)
from shoal.core.ids import NodeId, WorkloadId
from shoal.core.private_files import read_private
from shoal.model.events import Event
from shoal.model.identity import Identity, Role, workload_identity
from shoal.model.trust import SECRET_LENGTH, TOKEN_ID_LENGTH, JoinToken, TokenText, TokenUse

if TYPE_CHECKING:
    # What signs is loaded when something is signed: a control plane without certificates never does.
    from shoal.wire.authority import Authority, PublicKey

DEFAULT_TTL = timedelta(minutes=10)
MOST_USES = 100
MOST_TOKENS = 1000
LARGEST_CSR = 16 * 1024

#: Of an agent that joined. It asks for the next one when two thirds of it are over.
JOINED_LIFETIME = timedelta(days=30)

_TRIES = 5

# More than one node makes in a moment, and it is the end of its history that counts.
_LATEST_EVENTS = 100


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate, and the authorities to trust; both PEM."""

    certificate: bytes
    ca: bytes


@dataclass(frozen=True, slots=True)
class Signer:
    """Reads the signing key when it is needed, so that it is in memory no longer than that.

    Attributes:
        ca: path of the authorities' certificates.
        key: path of the key of one of them.
    """

    ca: Path
    key: Path

    def load(self) -> tuple[Authority, bytes]:
        """The authority that signs, and everything that is trusted."""
        from shoal.wire.authority import read_authority

        bundle = read_private(self.ca)
        return read_authority(bundle, read_private(self.key)), bundle


class Enrolment:
    """Decides who gets a certificate."""

    def __init__(
        self, ledger: Ledger, *, signer: Signer | None, cluster_id: str, clock: Clock, entropy: Entropy
    ) -> None:
        self._ledger = ledger
        self._signer = signer
        self._cluster = cluster_id
        self._clock = clock
        self._entropy = entropy
        # Two tokens are two records, and the store would let both be used for one id at once.
        self._joining = asyncio.Lock()

    # -----------------------------------------------------------------------------------------------------
    # Tokens

    async def create_token(
        self, *, ttl: timedelta, role: Role, node_id: str, uses: int, by: str
    ) -> tuple[TokenText, JoinToken]:
        """Make a token. Its text is known to the caller alone."""
        from shoal.wire.certificates import describe

        authority, _ = self._authority()
        now = self._clock.wall()
        stored = await self._ledger.store.tokens()
        expired = [token for token in stored if token.expires_at <= now]
        if len(stored) - len(expired) >= MOST_TOKENS:
            raise ExhaustedError(
                f"there are {MOST_TOKENS} join tokens already",
                hint="revoke some with `shoal token revoke`, or wait until they expire",
                limit=MOST_TOKENS,
            )
        text = TokenText(
            self._entropy.token(TOKEN_ID_LENGTH),
            self._entropy.token(SECRET_LENGTH),
            describe(authority.certificate).sha256,
        )
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
        whom = f"node {node_id}" if node_id else f"{uses} new node{'s' if uses > 1 else ''}"
        event = self._event(
            "control",
            token.token_id,
            "JoinTokenCreated",
            f"for {whom}, by {by}",
            source="api",
            cause=f"CreateJoinToken by {by}",
        )
        kept = [(each, self._pending(each, now)) for each in expired]
        shortened = [replace(each, used=pending) for each, pending in kept if pending and pending != each.used]
        over = {each.token_id: each.version for each, pending in kept if not pending}
        await self._ledger.commit(Batch(tokens=(token, *shortened), removed_tokens=over, events=(event,)))
        return text, token

    async def tokens(self) -> tuple[JoinToken, ...]:
        """Those that are still good for something, or were."""
        now = self._clock.wall()
        return tuple(token for token in await self._ledger.store.tokens() if token.expires_at > now)

    async def revoke_token(self, token_id: str, *, by: str) -> None:
        """Make a token worthless. Certificates that were issued for it stay good, and their ids stay given."""
        for _ in range(_TRIES):
            now = self._clock.wall()
            found = next((token for token in await self._ledger.store.tokens() if token.token_id == token_id), None)
            if found is None or found.expires_at <= now:
                raise NotFoundError("join token", token_id, hint="`shoal token list` shows those there are")
            event = self._event(
                "control", token_id, "JoinTokenRevoked", f"by {by}", source="api", cause=f"RevokeJoinToken by {by}"
            )
            pending = self._pending(found, now)
            if pending:
                batch = Batch(tokens=(replace(found, expires_at=now, used=pending),), events=(event,))
            else:
                batch = Batch(removed_tokens={token_id: found.version}, events=(event,))
            try:
                await self._ledger.commit(batch)
            except ConflictError:
                continue  # somebody joined with it in this very moment
            return
        raise ConflictError(f"join token {token_id!r} is used again and again", id=token_id)

    # -----------------------------------------------------------------------------------------------------
    # Certificates

    def trusted(self) -> bytes:
        """The authorities' certificates, for everyone."""
        return self._authority()[1]

    async def join(self, given: TokenText, csr: bytes) -> Issued:
        """A first certificate. Raises `DeniedError` for a token that is good for nothing, whatever the reason is."""
        from shoal.wire.authority import key_sha256

        authority, bundle = self._authority()
        key, wanted = self._read_request(csr)
        async with self._joining:
            now = await self._use(given, wanted, key_sha256(key))
        return self._issue(authority, bundle, key, wanted, now=now, lifetime=JOINED_LIFETIME)

    async def _use(self, given: TokenText, wanted: Identity, fingerprint: bytes) -> datetime:
        """Use a token for a key, unless it has been already. Returns from when its certificate is good."""
        for _ in range(_TRIES):
            now = self._clock.wall()
            stored = await self._ledger.store.tokens()
            token = self._find_token(given, stored, now)
            self._check_wanted(wanted, token)
            if not any(use.key_sha256 == fingerprint and use.node_id == wanted.name for use in token.used):
                await self._check_free(wanted, fingerprint, token, stored, now)
                used = (*token.used, TokenUse(wanted.name, fingerprint, now))
                why = f"a certificate was issued for join token {token.token_id}"
                event = self._event(
                    "node",
                    wanted.name,
                    "NodeJoined",
                    why,
                    source="join",
                    cause=f"Join with join token {token.token_id}",
                )
                try:
                    await self._ledger.commit(Batch(tokens=(replace(token, used=used),), events=(event,)))
                except ConflictError:
                    continue  # it was revoked in this very moment
            return now
        raise ConflictError(f"join token {given.token_id!r} is used again and again", id=given.token_id)

    async def renew(self, identity: Identity, csr: bytes) -> Issued:
        """A new certificate for whoever has one that is still good: the same identity, perhaps another key."""
        authority, bundle = self._authority()
        key, wanted = self._read_request(csr)
        if wanted != identity:
            raise DeniedError(
                f"a certificate of {identity} is renewed for {identity}, not for {wanted}",
                role=identity.role,
                name=identity.name,
            )
        return self._issue(authority, bundle, key, identity, now=self._clock.wall(), lifetime=JOINED_LIFETIME)

    async def issue_for_workload(self, agent: Identity, workload_id: WorkloadId, csr: bytes) -> Issued:
        """A certificate for an hour, for a workload that runs on the agent's node as a member of a group."""
        authority, bundle = self._authority()
        key = _checked_request(csr)[0]
        record = self._ledger.fleet.workload(workload_id)
        if record.node_id != agent.name:
            raise DeniedError(
                f"workload {workload_id!r} does not belong to node {agent.name!r}", workload_id=workload_id
            )
        if record.group_id is None:
            raise PreconditionError(
                f"workload {workload_id!r} is in no group, so there is nothing that it could be allowed to do",
                workload_id=workload_id,
            )
        if record.spec.process is None or not record.spec.process.identity:
            raise PreconditionError(
                f"workload {workload_id!r} has not asked for a certificate",
                hint="its spec asks by `identity: true`",
                workload_id=workload_id,
            )
        identity = workload_identity(self._cluster, job=record.group_id, node=agent.name)
        return self._issue(authority, bundle, key, identity, now=self._clock.wall(), lifetime=None)

    # -----------------------------------------------------------------------------------------------------

    def _authority(self) -> tuple[Authority, bytes]:
        if self._signer is None:
            raise PreconditionError(
                "this control plane has no signing key, so it cannot issue certificates",
                hint="start it with --ca-key, or make certificates by hand with `shoal certs issue`",
            )
        authority, bundle = self._signer.load()
        if authority.cluster != self._cluster:
            raise InternalError(f"the signing key is of cluster {authority.cluster!r}, not of {self._cluster!r}")
        return authority, bundle

    def _read_request(self, csr: bytes) -> tuple[PublicKey, Identity]:
        key, wanted = _checked_request(csr)
        if wanted is None or wanted.cluster != self._cluster:
            rule = f"must carry one URI that says who this wants to be: shoal://{self._cluster}/<role>/<name>"
            raise InvalidError([problem("csr", wanted.uri if wanted is not None else None, rule)])
        return key, wanted

    def _find_token(self, given: TokenText, stored: Sequence[JoinToken], now: datetime) -> JoinToken:
        # All are read, and one reason is given for every failure: a guess learns nothing.
        for token in stored:
            if token.token_id == given.token_id and token.is_for(given) and token.expires_at > now:
                return token
        raise DeniedError(
            "the join token is not known, or it has expired",
            hint="make a new one with `shoal token create`",
        )

    def _check_wanted(self, wanted: Identity, token: JoinToken) -> None:
        if wanted.role is not token.role:
            raise DeniedError(f"the join token is for the role {token.role}, not for {wanted.role}")
        if token.node_id and wanted.name != token.node_id:
            raise DeniedError(f"the join token is for node {token.node_id!r}, not for {wanted.name!r}")

    async def _check_free(
        self, wanted: Identity, fingerprint: bytes, token: JoinToken, stored: Sequence[JoinToken], now: datetime
    ) -> None:
        if len(token.used) >= token.uses:
            raise DeniedError(
                "the join token has been used up",
                hint="make a new one with `shoal token create`, with --uses for several nodes",
            )
        if token.node_id:
            return  # an operator has said that it is for this one, whoever had it
        hint = f"choose another --node-id, or make a token with --node-id {wanted.name}"
        if NodeId(wanted.name) in self._ledger.fleet.nodes:
            raise DeniedError(
                f"there is a node {wanted.name!r} already, and this join token is for new ones",
                hint=hint,
                node_id=wanted.name,
            )
        given = [
            use.at
            for each in stored
            for use in self._pending(each, now)
            if use.node_id == wanted.name and use.key_sha256 != fingerprint
        ]
        if given and not await self._was_removed_since(max(given), wanted.name):
            raise DeniedError(
                f"another agent has a certificate for node {wanted.name!r} already; this join token is for new ones",
                hint=hint,
                node_id=wanted.name,
            )

    def _pending(self, token: JoinToken, now: datetime) -> tuple[TokenUse, ...]:
        """Whom a token has given certificates that are still good, and who has not registered with them."""
        nodes = self._ledger.fleet.nodes
        return tuple(u for u in token.used if u.at + JOINED_LIFETIME > now and NodeId(u.node_id) not in nodes)

    async def _was_removed_since(self, moment: datetime, node_id: str) -> bool:
        """Whether a node has registered and was removed since then. Then its id is anybody's again."""
        query = EventQuery(subject_kind="node", subject_id=node_id, newest=True, limit=_LATEST_EVENTS)
        page = await self._ledger.store.events(query)
        return any(event.kind == "NodeRemoved" and event.time >= moment for event in page.events)

    def _issue(
        self,
        authority: Authority,
        bundle: bytes,
        key: PublicKey,
        identity: Identity,
        *,
        now: datetime,
        lifetime: timedelta | None,
    ) -> Issued:
        from shoal.wire.authority import sign

        # Hosts that a request asks for are left out: by a name of its choice a node could pass for another server.
        return Issued(sign(authority, key, identity, now=now, lifetime=lifetime), bundle)

    def _event(self, subject_kind: str, subject_id: str, kind: str, message: str, *, source: str, cause: str) -> Event:
        return Event(self._clock.wall(), subject_kind, subject_id, kind, message, source, cause)


def _checked_request(csr: bytes) -> tuple[PublicKey, Identity | None]:
    from shoal.wire.authority import read_signing_request

    if len(csr) > LARGEST_CSR:
        raise InvalidError([problem("csr", None, f"must have at most {LARGEST_CSR:,} bytes")])
    request = read_signing_request(csr)
    return request.public_key, request.identity


class RateLimit:
    """So many calls a second on average, and a few more at once. For callers that nobody knows."""

    def __init__(self, *, per_second: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._monotonic = monotonic
        self._left = float(burst)
        self._at = monotonic()

    def take(self) -> None:
        """Count one call. Raises `ExhaustedError` when there are too many."""
        now = self._monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1.0:
            raise ExhaustedError("too many nodes want to join at once", hint="it is tried again by itself")
        self._left -= 1.0


@dataclass(slots=True)
class JoinDoor:
    """Where those without a certificate come in; the same through all reigns of a control plane."""

    limit: RateLimit
    #: 0 where there is none.
    port: int = 0

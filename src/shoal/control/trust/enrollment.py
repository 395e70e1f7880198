"""Issues certificates: a first one for a join token, a new one for an agent that renews, and those of workloads.

Renewal asks the node's record: a node that was removed or declared dead gets no new certificate. Made for each
leadership; served by `shoal.control.api.enrollment_service`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.control.state.fleet import Fleet
from shoal.control.trust.join_tokens import JoinTokens
from shoal.control.trust.revocations import Revocations
from shoal.control.trust.signing import Issued, Signer
from shoal.core.clock import Clock
from shoal.core.errors import DeniedError, ExhaustedError, InvalidError, PreconditionError, problem
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.identity import Identity, workload_identity
from shoal.model.trust import JOINED_LIFETIME, TokenText
from shoal.wire.trust.authority import PublicKey, key_sha256


class Enrollment:
    """Issues certificates."""

    def __init__(
        self,
        fleet: Fleet,
        signer: Signer,
        tokens: JoinTokens,
        revocations: Revocations,
        *,
        cluster_id: str,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._signer = signer
        self._tokens = tokens
        self._revocations = revocations
        self._cluster = cluster_id
        self._clock = clock

    async def trusted(self) -> bytes:
        """The authorities' certificates, for everyone."""
        return await self._signer.trusted()

    async def join(self, given: TokenText, csr: bytes) -> Issued:
        """A first certificate. Raises `DeniedError` for a token that is not valid."""
        key, wanted = await self._read_request(csr)
        used_at = await self._tokens.use(given, wanted, key_sha256(key))
        issued_at = self._revocations.first_valid_issue(NodeId(wanted.name), used_at)
        return await self._signer.sign(key, wanted, now=issued_at, lifetime=JOINED_LIFETIME)

    async def renew(self, identity: Identity, csr: bytes) -> Issued:
        """A new certificate for a node of the fleet: the same identity, perhaps another key."""
        key, wanted = await self._read_request(csr)
        if wanted != identity:
            raise DeniedError(
                f"a certificate of {identity} is renewed for {identity}, not for {wanted}",
                role=identity.role,
                name=identity.name,
            )
        await self._check_node(identity)
        return await self._signer.sign(key, identity, now=self._clock.wall(), lifetime=JOINED_LIFETIME)

    async def issue_for_workload(self, agent: Identity, workload_id: WorkloadId, csr: bytes) -> Issued:
        """A certificate for an hour, for a workload that runs on the agent's node as a member of a group."""
        key = (await self._signer.read_request(csr)).public_key
        await self._check_node(agent)
        record = self._fleet.workload(workload_id)
        if record.node_id != agent.name:
            raise DeniedError(
                f"workload {workload_id!r} does not belong to node {agent.name!r}", workload_id=workload_id
            )
        if record.group_id is None:
            raise PreconditionError(
                f"workload {workload_id!r} is in no group, so there is nothing that it could be allowed to do",
                workload_id=workload_id,
            )
        if not record.spec.body.identity:
            raise PreconditionError(
                f"workload {workload_id!r} has not asked for a certificate",
                hint="its spec asks by `identity: true`",
                workload_id=workload_id,
            )
        identity = workload_identity(self._cluster, job=record.group_id, node=agent.name)
        return await self._signer.sign(key, identity, now=self._clock.wall())

    async def _check_node(self, agent: Identity) -> None:
        """Raise `DeniedError` unless the agent's node is one of the fleet, or has joined and is about to register."""
        node = self._fleet.nodes.get(NodeId(agent.name))
        if not node.dead if node is not None else await self._tokens.is_pending(agent.name):
            return
        state = "is not registered" if node is None else "was declared dead"
        raise DeniedError(
            f"node {agent.name!r} {state}, so it gets no certificate",
            hint=f"join again with a new token: `shoal token create --node-id {agent.name}`",
            node_id=agent.name,
        )

    async def _read_request(self, csr: bytes) -> tuple[PublicKey, Identity]:
        request = await self._signer.read_request(csr)
        wanted = request.identity
        if wanted is None or wanted.cluster != self._cluster:
            rule = f"must carry one URI with the identity to certify: shoal://{self._cluster}/<role>/<name>"
            raise InvalidError([problem("csr", wanted.uri if wanted is not None else None, rule)])
        return request.public_key, wanted


class RateLimit:
    """A token bucket for callers without a certificate: so many calls a second on average, and a burst."""

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
class JoinListener:
    """Where agents without a certificate join; it stays the same when leadership changes."""

    limit: RateLimit
    #: 0 where there is none.
    port: int = 0

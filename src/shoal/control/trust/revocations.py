"""Revokes the certificates of nodes that were removed or declared dead.

A revocation covers every certificate of a node that was issued up to then: the agent's own and those of its
workloads. A certificate that is issued later, to a node that joined again, is valid. Revocations are stored in the
batch that removes the node, so every control plane on the database reads them with everything else. The transport calls
`check` for each call and each message, and every few seconds for a silent stream.

Made for each leadership; called by `shoal.control.nodes.operations`, `shoal.control.trust.enrollment` and, through
`shoal.control.server`, by the transport.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from shoal.control.state.fleet import Fleet
from shoal.core.errors import UnauthenticatedError
from shoal.core.ids import NodeId
from shoal.model.identity import Caller
from shoal.model.trust import JOINED_LIFETIME, Revocation

log = logging.getLogger(__name__)

#: One per node id; beyond this, the revocations that end first are dropped.
MOST_REVOCATIONS = 10_000

#: How long a certificate can be valid that this control plane has not seen: as long as the authority's own.
UNSEEN_LIFETIME = timedelta(days=3650)


class Revocations:
    """The revoked certificates of a cluster."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: The last caller, and the last moment of issue and the last end of the certificates that each node has shown.
        self._seen: dict[NodeId, tuple[Caller, datetime, datetime]] = {}

    def check(self, caller: Caller) -> None:
        """Raise `UnauthenticatedError` if the caller's certificate was revoked."""
        node_id = NodeId(caller.node)
        revocation = self._fleet.revocations.get(node_id)
        if revocation is not None and caller.issued_at <= revocation.revoked_at:
            raise UnauthenticatedError(
                f"the certificate of {caller.identity} was revoked at {revocation.revoked_at:%Y-%m-%d %H:%M:%S} UTC: "
                f"{revocation.reason}",
                hint=f"join again with a new token: `shoal token create --node-id {node_id}`",
                name=caller.identity.name,
                revoked="true",
            )
        seen = self._seen.get(node_id)
        if seen is not None and seen[0] is caller:
            return  # the certificate of the call before: this is asked for every message
        if node_id in self._fleet.nodes:
            _, issued_at, ends_at = seen or (caller, caller.issued_at, caller.not_after)
            self._seen[node_id] = caller, max(issued_at, caller.issued_at), max(ends_at, caller.not_after)

    def revoke(self, node_id: NodeId, reason: str, *, at: datetime) -> tuple[Revocation, Mapping[NodeId, int]]:
        """The revocation of a node's certificates, and the stored ones that are dropped with it, by their versions."""
        # The clock of the signer may be ahead of this one; what was shown before this moment was issued before it.
        self._seen = {each: seen for each, seen in self._seen.items() if each in self._fleet.nodes}
        seen = self._seen.get(node_id)
        issued_at, ends_at = seen[1:] if seen is not None else (at, at + UNSEEN_LIFETIME)
        known = self._fleet.revocations.get(node_id)
        revocation = Revocation(
            node_id=node_id,
            revoked_at=max(at, issued_at),
            # A renewal may be on its way that was not shown yet.
            ends_at=max(ends_at, at + JOINED_LIFETIME),
            reason=reason,
            version=known.version if known is not None else 0,
        )
        others = [each for each in self._fleet.revocations.values() if each.node_id != node_id]
        dropped = [each for each in others if each.ends_at <= at]
        kept = sorted((each for each in others if each.ends_at > at), key=lambda each: each.ends_at)
        excess = kept[: max(0, len(kept) + 1 - MOST_REVOCATIONS)]
        if excess:
            log.warning("there are more than %d revocations; dropped that of node %s", len(kept), excess[0].node_id)
        return revocation, {each.node_id: each.version for each in (*dropped, *excess)}

    def first_valid_issue(self, node_id: NodeId, now: datetime) -> datetime:
        """The moment at which to date a new certificate of a node, so that no revocation covers it."""
        revocation = self._fleet.revocations.get(node_id)
        # Certificates have dates in whole seconds.
        return now if revocation is None else max(now, revocation.revoked_at + timedelta(seconds=1))

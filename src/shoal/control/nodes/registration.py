"""Registers nodes. A newer registration under the same id ends the older session.

Called by `shoal.control.api.service`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shoal.control.nodes import leases
from shoal.control.nodes.contacts import Contact, Contacts
from shoal.control.state.events import Origin, node_event
from shoal.control.state.ledger import Ledger
from shoal.control.state.lifecycle.nodes import register_node
from shoal.control.store.base import Batch
from shoal.control.workloads.dispatch import Dispatch
from shoal.core import faults
from shoal.core.clock import Clock, epoch_ms
from shoal.core.entropy import Entropy
from shoal.core.ids import NO_SESSION, NodeId, SessionId
from shoal.model.events import EventKind, EventSource
from shoal.model.nodes import Feature, NodeRecord, NodeSpec


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration."""

    accepted: bool
    reason: str = ""
    session: SessionId = SessionId("")


class Registration:
    """Takes nodes into the fleet."""

    def __init__(
        self,
        ledger: Ledger,
        dispatch: Dispatch,
        contacts: Contacts,
        *,
        clock: Clock,
        entropy: Entropy,
        cluster_id: str,
    ) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._dispatch = dispatch
        self._contacts = contacts
        self._clock = clock
        self._entropy = entropy
        self._cluster_id = cluster_id

    async def register(
        self,
        spec: NodeSpec,
        *,
        sent_at: datetime | None,
        previous_session: SessionId = NO_SESSION,
        instance: str = "",
    ) -> Registered:
        """Register a node, or register it again."""
        refusal = self._refusal(spec)
        if refusal:
            return Registered(accepted=False, reason=refusal)
        node_id = NodeId(spec.node_id)
        before: NodeRecord | None = None

        def decide() -> Batch:
            nonlocal before
            before = self._fleet.nodes.get(node_id)
            return self._registration(spec, instance)

        await self._ledger.change(decide)
        faults.reach("control.register.committed")
        session = self._fleet.node(node_id).session
        known, now = self._contacts.get(node_id), self._clock.wall()
        contact = Contact(self._contacts.renew(node_id), last_heartbeat=now, heartbeat_stored=now)
        if known is not None:
            contact.predecessor_until = known.predecessor_until
            contact.skew_logged, contact.skew_suspected = known.skew_logged, known.skew_suspected
            if (
                before is not None
                and before.session
                and before.session != previous_session
                and not leases.same_agent(before.session, session)
            ):
                # Another agent held the id before. It may live on, cut off, until the lease ends by its own count.
                ends = known.lease.ends_at + self._contacts.settings.margin(known.lease.seconds)
                contact.predecessor_until = max(contact.predecessor_until, ends)
        self._contacts.put(node_id, contact)
        contact.note_skew(node_id, sent_at, self._clock)
        self._dispatch.contact_renewed(node_id)
        return Registered(accepted=True, session=session)

    def _refusal(self, spec: NodeSpec) -> str:
        if spec.cluster_id and spec.cluster_id != self._cluster_id:
            return f"cluster_id is {spec.cluster_id!r}, and this control plane serves {self._cluster_id!r}"
        if spec.capacity.cpu_millicores <= 0:
            return f"capabilities.cpu_total_millicores must be above 0 (got {spec.capacity.cpu_millicores})"
        if spec.capacity.memory_mb <= 0:
            return f"capabilities.memory_total_mb must be above 0 (got {spec.capacity.memory_mb})"
        return ""

    def _registration(self, spec: NodeSpec, instance: str) -> Batch:
        at = self._clock.wall()
        known = self._fleet.nodes.get(NodeId(spec.node_id))
        session = NO_SESSION
        if spec.has(Feature.SESSIONS):
            agent = instance or self._entropy.token()
            session = leases.make_session(epoch_ms(at), agent, after=known.session if known else NO_SESSION)
        # An earlier lease may be longer, and not over yet.
        lease = self._contacts.renew(NodeId(spec.node_id)).seconds
        record = register_node(known, spec, session=session, lease_seconds=lease, at=at)
        kind = EventKind.NODE_REGISTERED if known is None else EventKind.NODE_REREGISTERED
        message = f"agent {spec.agent_version or 'of unknown version'} at {spec.endpoint or 'no endpoint'}"
        cause = f"it registered and was {known.state.value}" if known else "it registered for the first time"
        origin = Origin(at, EventSource.AGENT, cause)
        return Batch(
            nodes=(record,),
            events=(node_event(spec.node_id, kind, message, origin),),
        )

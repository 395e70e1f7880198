"""Stores changes of a node's state, with the event that tells of it.

Called by `heartbeats` (a node is back) and `lease_watch` (a node is late or lost).
"""

from __future__ import annotations

import dataclasses

from shoal.control.nodes.contacts import Contacts
from shoal.control.state.fleet import Ledger, node_event
from shoal.control.store.base import Batch
from shoal.control.workloads.dispatch import Dispatch
from shoal.core.clock import Clock
from shoal.core.ids import NodeId
from shoal.model.nodes import NodeRecord, NodeState

_EVENTS = {NodeState.SUSPECT: "NodeSuspect", NodeState.NOT_READY: "NodeLost"}


class NodeStates:
    """The stored state of every node."""

    def __init__(self, ledger: Ledger, dispatch: Dispatch, contacts: Contacts, *, clock: Clock) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._dispatch = dispatch
        self._contacts = contacts
        self._clock = clock

    async def returned(self, node_id: NodeId) -> None:
        """A node that was late or lost sends heartbeats again."""
        contact = self._contacts.get(node_id)
        if contact is not None:
            contact.surely_stopped, contact.lost_at = False, None
        state = state_in_contact(self._fleet.nodes.get(node_id))
        await self.set(node_id, state, "it beats again", by="heartbeat")
        self._dispatch.contact_renewed(node_id)

    async def has_returned_since(self, node_id: NodeId, heard: float) -> bool:
        """Whether a heartbeat arrived while the node's silence was being stored. If so, the node is back."""
        if not self._contacts.was_heard_since(node_id, heard):
            return False
        await self.returned(node_id)
        return True

    async def set(self, node_id: NodeId, state: NodeState, reason: str, *, by: str, heard: float | None = None) -> None:
        """Store a node's state; with `heard`, only if no heartbeat has arrived since then."""

        def decide() -> Batch | None:
            node = self._fleet.nodes.get(node_id)
            if node is None or node.state is state:
                return None
            if heard is not None and self._contacts.was_heard_since(node_id, heard):
                return None
            at = self._clock.wall()
            changed = dataclasses.replace(
                node,
                state=state,
                state_reason=reason,
                state_by=by,
                state_at=at,
                declared_lost=node.declared_lost and state is NodeState.NOT_READY,
            )
            kind = _EVENTS.get(state, "NodeReady")
            event = node_event(node_id, kind, reason, at=at, source=by, cause=f"it was {node.state.value}")
            return Batch(nodes=(changed,), events=(event,))

        await self._ledger.change(decide)
        if state is NodeState.READY:
            self._dispatch.capacity_changed()


def state_in_contact(node: NodeRecord | None) -> NodeState:
    """The state of a node that sends heartbeats: Ready, unless an operator drains it."""
    return (node.desired.state if node is not None else None) or NodeState.READY

"""Stores changes of a node's state, with the event that tells of it.

Called by `heartbeats` (a node is back) and `lease_watch` (a node is late or lost).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.control.nodes.contacts import Contacts
from shoal.control.state.events import Origin, node_event
from shoal.control.state.ledger import Ledger
from shoal.control.state.lifecycle.nodes import NodeChange, change_node, state_in_contact
from shoal.control.store.base import Batch
from shoal.control.workloads.dispatch import Dispatch
from shoal.core.clock import Clock
from shoal.core.ids import NodeId
from shoal.model.events import EventKind, EventSource
from shoal.model.nodes import NodeState

_EVENTS = {NodeState.SUSPECT: EventKind.NODE_SUSPECT, NodeState.NOT_READY: EventKind.NODE_NOT_READY}
_CHANGES = {NodeState.SUSPECT: NodeChange.LATE, NodeState.NOT_READY: NodeChange.EXPIRED}


@dataclass(frozen=True, slots=True)
class Silent:
    """A node without a heartbeat since the receipt `heard`, and the state that follows from that."""

    state: NodeState
    reason: str
    heard: float


class NodeStates:
    """The stored state of every node."""

    def __init__(self, ledger: Ledger, dispatch: Dispatch, contacts: Contacts, *, clock: Clock) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._dispatch = dispatch
        self._contacts = contacts
        self._clock = clock

    async def returned(self, node_ids: Iterable[NodeId]) -> None:
        """Nodes that were late or lost send heartbeats again."""
        node_ids = list(node_ids)
        for node_id in node_ids:
            contact = self._contacts.get(node_id)
            if contact is not None:
                contact.surely_stopped, contact.lost_at = False, None

        def decide() -> Batch | None:
            states = ((each, state_in_contact(self._fleet.nodes.get(each))) for each in node_ids)
            return self._changed(
                ((each, state, "it sends heartbeats again") for each, state in states), by=EventSource.HEARTBEAT
            )

        await self._ledger.change(decide)
        for node_id in node_ids:
            self._dispatch.contact_renewed(node_id)

    async def set_silent(self, silent: Mapping[NodeId, Silent], *, by: EventSource) -> frozenset[NodeId]:
        """Store that nodes are silent, all in one commit. Returns those that are back: a heartbeat came meanwhile."""

        def decide() -> Batch | None:
            found = ((node_id, each) for node_id, each in silent.items() if not self._was_heard(node_id, each))
            return self._changed(((node_id, each.state, each.reason) for node_id, each in found), by=by)

        if silent:
            await self._ledger.change(decide)
        returned = frozenset(node_id for node_id, each in silent.items() if self._was_heard(node_id, each))
        if returned:
            await self.returned(returned)
        return returned

    def _was_heard(self, node_id: NodeId, silent: Silent) -> bool:
        return self._contacts.was_heard_since(node_id, silent.heard)

    def _changed(self, states: Iterable[tuple[NodeId, NodeState, str]], *, by: EventSource) -> Batch | None:
        """What to store for nodes whose state changes, each with the reason. None if none does."""
        at = self._clock.wall()
        nodes, events = [], []
        for node_id, state, reason in states:
            node = self._fleet.nodes.get(node_id)
            if node is None or node.state is state:
                continue
            nodes.append(change_node(node, _CHANGES.get(state, NodeChange.HEARD), state, reason, by=by, at=at))
            kind, cause = _EVENTS.get(state, EventKind.NODE_READY), f"it was {node.state.value}"
            origin = Origin(at, by, cause)
            events.append(node_event(node_id, kind, reason, origin))
        return Batch(nodes=tuple(nodes), events=tuple(events)) if nodes else None

"""What may become of the stored record of a node. Pure.

`shoal.control.nodes.leases` decides when a node is late or lost; this table says which state may follow which. Called
by `shoal.control.nodes` (registration, node_states, operations).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shoal.core.errors import InternalError
from shoal.core.ids import SessionId
from shoal.model.described import Described
from shoal.model.events import EventSource
from shoal.model.nodes import NodeRecord, NodeSpec, NodeState


class NodeChange(Described):
    """What changes the state of a node."""

    REGISTERED = "Registered", "Its agent registered again."
    HEARD = "Heard", "Heartbeats arrive again."
    LATE = "Late", "Heartbeats are missing, or its stream broke."
    EXPIRED = "Expired", "Its lease ran out."
    DRAINED_OR_NOT = "DrainedOrNot", "An operator drains it or takes that back, or the drain is done."
    DECLARED_DEAD = "DeclaredDead", "An operator says that nothing runs there."


_N = NodeState
_IN_CONTACT = frozenset({_N.READY, _N.DRAINING, _N.DRAINED})

NODE_TRANSITIONS: Mapping[NodeChange, Mapping[NodeState, frozenset[NodeState]]] = {
    NodeChange.REGISTERED: dict.fromkeys(_N, _IN_CONTACT),
    NodeChange.HEARD: dict.fromkeys(_N, _IN_CONTACT),
    NodeChange.LATE: {_N.READY: frozenset({_N.SUSPECT})},
    NodeChange.EXPIRED: dict.fromkeys(_N, frozenset({_N.NOT_READY})),
    NodeChange.DRAINED_OR_NOT: dict.fromkeys((*_IN_CONTACT, _N.SUSPECT), _IN_CONTACT),
    NodeChange.DECLARED_DEAD: dict.fromkeys(_N, frozenset({_N.NOT_READY})),
}
"""For each change the states in which it is possible, and the states that may follow."""


def state_in_contact(node: NodeRecord | None) -> NodeState:
    """The state of a node that sends heartbeats: Ready, unless an operator drains it."""
    return (node.desired.state if node is not None else None) or NodeState.READY


def register_node(
    known: NodeRecord | None, spec: NodeSpec, *, session: SessionId, lease_seconds: float, at: datetime
) -> NodeRecord:
    """The node as it is once it has registered. What an operator decided about a known one stays."""
    reason, by = "registered", EventSource.REGISTER
    if known is None:
        return NodeRecord(spec, session, state_in_contact(None), reason, by, at, at, at, lease_seconds)
    return change_node(
        known,
        NodeChange.REGISTERED,
        state_in_contact(known),
        reason,
        by=by,
        at=at,
        spec=spec,
        session=session,
        last_heartbeat=at,
        lease_seconds=lease_seconds,
        dead=False,
        unsupported_types=(),
    )


def change_node(
    node: NodeRecord, what: NodeChange, state: NodeState, reason: str, *, by: EventSource, at: datetime, **fields: Any
) -> NodeRecord:
    """The node in another state. Raises `InternalError` when the table does not allow it."""
    if state not in NODE_TRANSITIONS[what].get(node.state, ()):
        raise InternalError(
            f"node {node.node_id!r} cannot be {what} from {node.state.value} to {state.value}",
            node_id=node.node_id,
            change=what,
            before=node,
        )
    made = dataclasses.replace(node, state=state, state_reason=reason, state_by=by, state_at=at, **fields)
    return dataclasses.replace(made, declared_lost=made.declared_lost and state is NodeState.NOT_READY)

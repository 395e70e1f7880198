"""What operators wish of nodes: cordon, drain, take both back, and the word that a node is dead.

A wish is stored beside the node's state, so that neither a beat nor a registration nor a restart takes it back; while
the node is heard of, its state shows the wish. Emptying a node that is to be drained is the business of
`shoal.control.nodes.drain`. Called by `shoal.control.api.service`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

from shoal.control.nodes.membership import Nodes
from shoal.control.state.fleet import Ledger, node_event
from shoal.control.store.base import Batch
from shoal.control.workloads.dispatch import Dispatch
from shoal.core.clock import Clock
from shoal.core.errors import PreconditionError
from shoal.core.ids import NodeId
from shoal.model.nodes import NodeRecord, NodeState, NodeWish


class NodeWishes:
    """The control plane's book of wishes about nodes."""

    def __init__(self, ledger: Ledger, nodes: Nodes, dispatch: Dispatch, *, clock: Clock) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._nodes = nodes
        self._dispatch = dispatch
        self._clock = clock

    async def cordon(self, node_id: NodeId, *, cause: str) -> NodeRecord:
        """Let no new work go to a node. One that is being drained, or was, stays so."""

        def change(node: NodeRecord) -> NodeRecord | None:
            return None if node.wish is not NodeWish.NONE else self._wished(node, NodeWish.CORDONED)

        message = "it gets no new work"
        return await self._change(node_id, change, "NodeCordoned", message, cause=cause, ends_work=True)

    async def uncordon(self, node_id: NodeId, *, cause: str) -> NodeRecord:
        """Take a cordon or a drain back. What has left already does not come back by itself."""

        def change(node: NodeRecord) -> NodeRecord | None:
            return None if node.wish is NodeWish.NONE else self._wished(node, NodeWish.NONE)

        record = await self._change(node_id, change, "NodeUncordoned", "it takes work again", cause=cause)
        self._dispatch.capacity_changed()
        self._nodes.wake()
        return record

    async def drain(self, node_id: NodeId, *, deadline: timedelta | None, cause: str) -> NodeRecord:
        """Have a node emptied. After the deadline what is left is moved by force; None: never.

        Said again, it changes the deadline. A node that is drained already has nothing left to do.
        """
        ends_at = self._clock.wall() + deadline if deadline is not None else None

        def change(node: NodeRecord) -> NodeRecord | None:
            if node.wish is NodeWish.DRAINED or (node.wish is NodeWish.DRAINING and node.drain_deadline == ends_at):
                return None
            return dataclasses.replace(self._wished(node, NodeWish.DRAINING), drain_deadline=ends_at)

        when = f"until {ends_at:%Y-%m-%d %H:%M:%S}, then by force" if ends_at is not None else "without a deadline"
        message = f"it is to be emptied {when}"
        return await self._change(node_id, change, "NodeDrainWished", message, cause=cause, ends_work=True)

    async def drained(self, node_id: NodeId) -> None:
        """A node that was to be emptied is empty."""

        def change(node: NodeRecord) -> NodeRecord | None:
            if node.wish is not NodeWish.DRAINING or self._fleet.leaving(node_id):
                return None
            return self._wished(node, NodeWish.DRAINED)

        cause = "its last workload left"
        await self._change(node_id, change, "NodeDrained", "it is empty", source="drain", cause=cause, ends_work=True)

    async def mark_dead(self, node_id: NodeId, *, force: bool, cause: str) -> NodeRecord:
        """An operator knows that nothing runs on a node any more: everything that it owned moves now."""

        def change(node: NodeRecord) -> NodeRecord | None:
            if node.dead:
                return None
            if node.state is not NodeState.NOT_READY and not force:
                raise PreconditionError(
                    f"node {node_id!r} is {node.state.value}, not NotReady: its lease lasts, and its work may run",
                    hint="stop its agent and wait until the node is NotReady, or say --force if you know better",
                    node_id=node_id,
                )
            return dataclasses.replace(
                node,
                session="",  # whoever beats for it now has to register first
                state=NodeState.NOT_READY,
                state_reason="declared dead",
                state_by="operator",
                state_at=self._clock.wall(),
                given_up=True,
                dead=True,
            )

        said = "an operator says that nothing runs there"
        record = await self._change(node_id, change, "NodeDeclaredDead", said, cause=cause)
        self._nodes.forget_contact(node_id)
        return record

    def _wished(self, node: NodeRecord, wish: NodeWish) -> NodeRecord:
        """The node with a wish, and a state that shows it as long as the node is heard of."""
        at = self._clock.wall()
        wished = dataclasses.replace(node, wish=wish, wish_at=at, drain_deadline=None)
        shows_wish = node.state in (NodeState.DRAINING, NodeState.DRAINED)
        state = wish.state if wish.state is not None and node.state is not NodeState.NOT_READY else None
        if state is None and shows_wish:
            state = NodeState.READY  # should it be silent by now, the next look at its lease says so
        if state is None or state is node.state:
            return wished
        reason = wish.value or "it takes work again"
        return dataclasses.replace(wished, state=state, state_reason=reason, state_by="operator", state_at=at)

    async def _change(
        self,
        node_id: NodeId,
        change: Callable[[NodeRecord], NodeRecord | None],
        kind: str,
        message: str,
        *,
        cause: str,
        source: str = "operator",
        ends_work: bool = False,
    ) -> NodeRecord:
        """Store what `change` makes of a node. `ends_work`: no placement that was decided before comes after it."""

        def decide() -> Batch | None:
            changed = change(self._fleet.node(node_id))
            if changed is None:
                return None
            event = node_event(node_id, kind, message, at=self._clock.wall(), source=source, cause=cause)
            return Batch(nodes=(changed,), events=(event,))

        async with self._dispatch.no_placements() if ends_work else nullcontext():
            await self._ledger.change(decide)
        return self._fleet.node(node_id)

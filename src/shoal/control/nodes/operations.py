"""What operators do with nodes: label, cordon, uncordon, drain, declare dead, remove.

The operator's decision is stored beside the node's state, so that no heartbeat, registration or restart undoes it;
while the node is in contact, its state shows it. `shoal.control.nodes.drain` empties a draining node. Called by
`shoal.control.api.service`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta

from shoal.control.nodes.contacts import Contacts
from shoal.control.placement.placer import Placer
from shoal.control.state.events import Origin, node_event
from shoal.control.state.ledger import Ledger
from shoal.control.state.lifecycle.nodes import NodeChange, change_node
from shoal.control.store.base import Batch
from shoal.control.trust.revocations import Revocations
from shoal.control.workloads.decisions import changes
from shoal.control.workloads.decisions.failover import seconds_until_move
from shoal.control.workloads.pending import Pending
from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, PreconditionError, problem
from shoal.core.ids import NO_SESSION, NodeId
from shoal.model.events import EventKind, EventSource
from shoal.model.nodes import DesiredNodeState, NodeRecord, NodeState
from shoal.model.workloads import FailoverPolicy

#: A change that keeps placements out waits this long for those that are being stored. Well below client timeouts.
NO_PLACEMENTS_WITHIN = 5.0
MAX_LABELS = 256


class NodeOperations:
    """What operators can do with nodes."""

    def __init__(
        self,
        ledger: Ledger,
        contacts: Contacts,
        placer: Placer,
        pending: Pending,
        revocations: Revocations,
        *,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._contacts = contacts
        self._placer = placer
        self._pending = pending
        self._revocations = revocations
        self._clock = clock

    async def cordon(self, node_id: NodeId, *, cause: str) -> NodeRecord:
        """Let no new work go to a node. One that is being drained, or was, stays so."""

        def change(node: NodeRecord) -> NodeRecord | None:
            return (
                None
                if node.desired is not DesiredNodeState.NONE
                else self._with_desired(node, DesiredNodeState.CORDONED)
            )

        message = "it gets no new work"
        return await self._change(node_id, change, EventKind.NODE_CORDONED, message, cause=cause, ends_work=True)

    async def uncordon(self, node_id: NodeId, *, cause: str) -> NodeRecord:
        """End a cordon or a drain. What has moved away does not come back by itself."""

        def change(node: NodeRecord) -> NodeRecord | None:
            return None if node.desired is DesiredNodeState.NONE else self._with_desired(node, DesiredNodeState.NONE)

        record = await self._change(node_id, change, EventKind.NODE_UNCORDONED, "it takes work again", cause=cause)
        self._pending.capacity_changed()
        self._contacts.changed.set()
        return record

    async def label(
        self, node_id: NodeId, *, set_to: Mapping[str, str], remove: Sequence[str], cause: str
    ) -> NodeRecord:
        """Set and remove labels. Raises `InvalidError` for a label of the agent, which only the agent can remove."""

        def change(node: NodeRecord) -> NodeRecord | None:
            problems = [
                problem("remove", key, "is set by the agent of the node; start it without that --label")
                for key in remove
                if key in node.spec.labels and key not in node.operator_labels
            ]
            labels = {key: value for key, value in {**node.operator_labels, **set_to}.items() if key not in remove}
            if len(labels) > MAX_LABELS:
                problems.append(problem("set", len(labels), f"a node can have at most {MAX_LABELS} such labels"))
            if problems:
                raise InvalidError(problems)
            return None if labels == node.operator_labels else dataclasses.replace(node, operator_labels=labels)

        words = [*(f"{key}={value}" for key, value in sorted(set_to.items())), *(f"{key} removed" for key in remove)]
        record = await self._change(node_id, change, EventKind.NODE_LABELED, ", ".join(words), cause=cause)
        self._pending.capacity_changed()  # a constraint may hold now
        return record

    async def drain(self, node_id: NodeId, *, deadline: timedelta | None, cause: str) -> NodeRecord:
        """Drain a node. After the deadline the rest is moved by force; None means never.

        Said again, it changes the deadline. A node that is drained already has nothing left to do.
        """
        ends_at = self._clock.wall() + deadline if deadline is not None else None

        def change(node: NodeRecord) -> NodeRecord | None:
            if node.desired is DesiredNodeState.DRAINED or (
                node.desired is DesiredNodeState.DRAINING and node.drain_deadline == ends_at
            ):
                return None
            return dataclasses.replace(self._with_desired(node, DesiredNodeState.DRAINING), drain_deadline=ends_at)

        when = f"until {ends_at:%Y-%m-%d %H:%M:%S}, then by force" if ends_at is not None else "without a deadline"
        message = f"drain requested {when}"
        return await self._change(node_id, change, EventKind.NODE_DRAIN_REQUESTED, message, cause=cause, ends_work=True)

    async def drained(self, node_id: NodeId) -> None:
        """A draining node is empty."""

        def change(node: NodeRecord) -> NodeRecord | None:
            if node.desired is not DesiredNodeState.DRAINING or self._fleet.leaving(node_id):
                return None
            return self._with_desired(node, DesiredNodeState.DRAINED)

        cause = "its last workload left"
        await self._change(
            node_id,
            change,
            EventKind.NODE_DRAINED,
            "it is empty",
            source=EventSource.DRAIN,
            cause=cause,
            ends_work=True,
        )

    async def mark_dead(self, node_id: NodeId, *, force: bool, cause: str) -> NodeRecord:
        """An operator says that nothing runs on a node: all of its work moves now."""

        def change(node: NodeRecord) -> NodeRecord | None:
            if node.dead:
                return None
            if node.state is not NodeState.NOT_READY and not force:
                raise PreconditionError(
                    f"node {node_id!r} is {node.state.value}, not NotReady: its lease lasts, and its work may run",
                    hint="stop its agent and wait until the node is NotReady, or say --force if you know better",
                    node_id=node_id,
                )
            # The session ends: an agent that sends heartbeats for it has to register first.
            return change_node(
                node,
                NodeChange.DECLARED_DEAD,
                NodeState.NOT_READY,
                "declared dead",
                by=EventSource.OPERATOR,
                at=self._clock.wall(),
                session=NO_SESSION,
                declared_lost=True,
                dead=True,
            )

        said = "an operator says that nothing runs there; its certificates are revoked"
        record = await self._change(
            node_id, change, EventKind.NODE_DECLARED_DEAD, said, cause=cause, revokes="the node was declared dead"
        )
        self._contacts.forget(node_id)
        return record

    async def remove(self, node_id: NodeId, *, cause: str) -> None:
        """Remove the record of a node that is gone for good. Its work is placed elsewhere."""

        def decide() -> Batch | None:
            node = self._fleet.node(node_id)
            if node.state is not NodeState.NOT_READY:
                raise PreconditionError(
                    f"node {node_id!r} is {node.state.value}",
                    hint="stop its agent and wait until it is NotReady",
                    node_id=node_id,
                )
            if self._may_still_run_what_stops_by_itself(node_id):
                raise PreconditionError(
                    f"node {node_id!r} may still run what stops by itself, until its deadline has passed",
                    hint=f"try again in a few seconds, or say that it is gone: `shoal node dead {node_id}`",
                    node_id=node_id,
                )
            at = self._clock.wall()
            said = "removed by an operator; its certificates are revoked"
            origin = Origin(at, EventSource.API, cause)
            event = node_event(node_id, EventKind.NODE_REMOVED, said, origin)
            revocation, dropped = self._revocations.revoke(node_id, "the node was removed", at=at)
            # In the same batch: no heartbeat of this node will ever report its copies as gone.
            gone = changes.copies_gone(self._fleet, node_id, self._fleet.left_on(node_id))
            without = gone.workloads if gone is not None else ()
            return Batch(
                workloads=without,
                removed_nodes={node_id: node.version},
                revocations=(revocation,),
                removed_revocations=dropped,
                events=(event,),
            )

        await self._ledger.change(decide)
        self._contacts.forget(node_id)

    def _may_still_run_what_stops_by_itself(self, node_id: NodeId) -> bool:
        if self._fleet.node(node_id).dead:
            return False
        specs = [self._fleet.workloads[owned].spec for owned in self._fleet.owned_by(node_id)]
        if any(spec.at_most_one for spec in specs) and not self._contacts.surely_stopped(node_id):
            return True
        silence, lease = self._contacts.silence(node_id), self._contacts.lease_of(node_id)
        stopping = (spec for spec in specs if spec.failover.policy == FailoverPolicy.STOP)
        return any(seconds_until_move(spec, silence=silence, lease=lease) for spec in stopping)

    def _with_desired(self, node: NodeRecord, desired: DesiredNodeState) -> NodeRecord:
        """The node with a requested state, which its own state shows while the node is in contact."""
        at = self._clock.wall()
        changed = dataclasses.replace(node, desired=desired, desired_at=at, drain_deadline=None)
        shows_desired = node.state in (NodeState.DRAINING, NodeState.DRAINED)
        state = desired.state if desired.state is not None and node.state is not NodeState.NOT_READY else None
        if state is None and shows_desired:
            state = NodeState.READY  # if it is silent, the next round over the leases marks it
        if state is None or state is node.state:
            return changed
        reason = desired.value or "it takes work again"
        return change_node(changed, NodeChange.DRAINED_OR_NOT, state, reason, by=EventSource.OPERATOR, at=at)

    async def _change(
        self,
        node_id: NodeId,
        change: Callable[[NodeRecord], NodeRecord | None],
        kind: EventKind,
        message: str,
        *,
        cause: str,
        source: EventSource = EventSource.OPERATOR,
        ends_work: bool = False,
        revokes: str = "",
    ) -> NodeRecord:
        """Store what `change` makes of a node. `ends_work`: wait for placements that are being stored."""

        def decide() -> Batch | None:
            changed = change(self._fleet.node(node_id))
            if changed is None:
                return None
            at = self._clock.wall()
            origin = Origin(at, source, cause)
            batch = Batch(nodes=(changed,), events=(node_event(node_id, kind, message, origin),))
            if revokes:
                revocation, dropped = self._revocations.revoke(node_id, revokes, at=at)
                batch = dataclasses.replace(batch, revocations=(revocation,), removed_revocations=dropped)
            return batch

        async with self._placer.exclusive(within=NO_PLACEMENTS_WITHIN) if ends_work else nullcontext():
            await self._ledger.change(decide)
        return self._fleet.node(node_id)

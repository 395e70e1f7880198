"""What this process knows about its contact with each node: the lease, the last heartbeat, the clock skew.

Nothing here is stored. A lease is counted from the receipt of the last heartbeat by this process's steady clock; when
the process starts, every node gets a full lease. Filled by `registration` and `heartbeats`, judged by `lease_watch`,
read by the dispatch (as `Liveness`) and by the views.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import KeysView, Mapping, ValuesView
from dataclasses import dataclass, field, replace
from datetime import datetime

from shoal.control.nodes import leases
from shoal.control.nodes.leases import Lease, LeaseSettings
from shoal.control.state.ledger import Ledger
from shoal.core.clock import Clock, epoch_ms
from shoal.core.ids import NodeId, SessionId, WorkloadId
from shoal.core.tasks import Signal
from shoal.model.nodes import NodeCondition, NodeUsage
from shoal.model.workloads import RunStatus
from shoal.wire.convert import Measurements

log = logging.getLogger(__name__)

SKEW_WARNING_MS = 2000
#: A clock that is off is off by the same amount in the next heartbeat too. Heartbeats that were only delayed are not:
#: several arrive together, and each is older than the next.
SKEW_AGAIN_SECONDS = 1.0
SKEW_AGREES_MS = 1000


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat as it was received."""

    node_id: NodeId
    session: SessionId
    sequence: int
    #: By their bytes.
    statuses: Mapping[bytes, RunStatus]
    usage: NodeUsage | None
    sent_at: datetime | None
    measured: Measurements | None = None
    conditions: tuple[NodeCondition, ...] = ()


@dataclass(slots=True)
class Contact:
    """Contact with one node since this process started."""

    lease: Lease
    sequence: int = 0
    usage: NodeUsage | None = None
    skew_ms: int = 0
    skew_logged: bool = False
    #: When a clock seemed to be off, on the steady clock, and by how much; None while it does not.
    skew_suspected: tuple[float, int] | None = None
    last_heartbeat: datetime | None = None
    heartbeat_stored: datetime | None = None
    orphans: tuple[WorkloadId, ...] = ()
    #: What is wrong with the node, in its own words.
    conditions: tuple[NodeCondition, ...] = ()
    #: The conditions that an event was stored for.
    told_conditions: frozenset[str] = frozenset()
    #: The statuses of the last heartbeat by their bytes, so that only new ones are parsed, and the measured usage.
    statuses: Mapping[bytes, RunStatus] = field(default_factory=dict)
    measured: Measurements | None = None
    #: The task that processes heartbeats, and the newest heartbeat that it has not started with.
    intake: asyncio.Task[None] | None = None
    waiting: Heartbeat | None = None
    #: Set when the newest heartbeat was processed, or could not be stored.
    attempted: asyncio.Event = field(default_factory=asyncio.Event)
    #: Another agent held the id before this one; it may run at-most-one work until then, on the steady clock.
    predecessor_until: float = 0.0
    #: When the node became NotReady, on the steady clock.
    lost_at: float | None = None
    #: The node is lost, and even an at-most-one copy on it must have stopped by now.
    surely_stopped: bool = False

    def note_skew(self, node_id: NodeId, sent_at: datetime | None, clock: Clock) -> None:
        """Compare the sender's clock with ours, and log once when it is off."""
        if sent_at is None:
            return
        self.skew_ms = epoch_ms(sent_at) - epoch_ms(clock.wall())
        if abs(self.skew_ms) <= SKEW_WARNING_MS:
            self.skew_suspected = None
            return
        now, suspected = clock.monotonic(), self.skew_suspected
        if suspected is None or abs(suspected[1] - self.skew_ms) > SKEW_AGREES_MS:
            self.skew_suspected = (now, self.skew_ms)
        elif now - suspected[0] >= SKEW_AGAIN_SECONDS and not self.skew_logged:
            self.skew_logged = True
            log.warning("the clock of node %s is off by %d ms; leases do not depend on it", node_id, self.skew_ms)


class Contacts:
    """Contact with every node."""

    def __init__(self, ledger: Ledger, *, clock: Clock, settings: LeaseSettings) -> None:
        self._fleet = ledger.fleet
        self._clock = clock
        self.settings = settings
        self._contacts: dict[NodeId, Contact] = {}
        #: Whether nodes send heartbeats to this process. They do not send them to a follower.
        self.receives_heartbeats = False
        #: Set when the leases are to be judged soon.
        self.changed = Signal()
        ledger.on_reload(self.sync)

    def start(self) -> None:
        """Give every known node a full lease from now."""
        self.receives_heartbeats = True
        self.sync()

    def sync(self) -> None:
        """Keep contact with exactly the stored nodes, also those whose registration got no answer.

        A node that is new here gets a full lease from now. Dead and removed nodes are not waited for.
        """
        if not self.receives_heartbeats:
            return
        now = self._clock.monotonic()
        for node_id in self._fleet.nodes.keys() - self._contacts.keys():
            node = self._fleet.nodes[node_id]
            if node.dead:
                continue
            lease = leases.first_deadline_after_restart(
                started=now, promised=node.lease_seconds, settings=self.settings
            )
            self._contacts[node_id] = Contact(
                lease, last_heartbeat=node.last_heartbeat, heartbeat_stored=node.last_heartbeat
            )
        for node_id in self._contacts.keys() - self._fleet.nodes.keys():
            self.forget(node_id)

    def get(self, node_id: NodeId) -> Contact | None:
        """The contact with one node."""
        return self._contacts.get(node_id)

    def put(self, node_id: NodeId, contact: Contact) -> None:
        """A node has registered."""
        self._contacts[node_id] = contact
        self.changed.set()

    def __len__(self) -> int:
        return len(self._contacts)

    def keys(self) -> KeysView[NodeId]:
        """Every node that there is contact with."""
        return self._contacts.keys()

    def values(self) -> ValuesView[Contact]:
        """Every contact."""
        return self._contacts.values()

    def forget(self, node_id: NodeId) -> None:
        """A node is dead or was removed: nothing it said before counts."""
        self._contacts.pop(node_id, None)
        self.changed.set()

    def renew(self, node_id: NodeId) -> Lease:
        """The lease of a node that was heard from now."""
        known = self._contacts.get(node_id)
        return leases.renew(known.lease if known else None, receipt=self._clock.monotonic(), settings=self.settings)

    def renew_all(self) -> None:
        """Give every node a full lease from now, because this process could not have received its heartbeats."""
        now = self._clock.monotonic()
        for contact in self._contacts.values():
            contact.lease = replace(contact.lease, last_receipt=now, heard=False)

    def was_heard_since(self, node_id: NodeId, heard: float) -> bool:
        """Whether a heartbeat arrived after the one that was received at `heard`."""
        contact = self._contacts.get(node_id)
        return contact is not None and contact.lease.last_receipt != heard

    # -----------------------------------------------------------------------------------------------------
    # Liveness, for the dispatch

    def surely_stopped(self, node_id: NodeId) -> bool:
        """Whether an at-most-one copy on a lost node must have stopped by now."""
        node, contact = self._fleet.nodes.get(node_id), self._contacts.get(node_id)
        return (contact is not None and contact.surely_stopped) or (node is not None and node.dead)

    def silence(self, node_id: NodeId) -> float:
        """Seconds since the last heartbeat of a node, or since it is presumed to have been."""
        contact = self._contacts.get(node_id)
        return self._clock.monotonic() - contact.lease.last_receipt if contact is not None else 0.0

    def lease_of(self, node_id: NodeId) -> float:
        """How long a node counts as alive after a heartbeat."""
        contact = self._contacts.get(node_id)
        return contact.lease.seconds if contact is not None else self.settings.lease_seconds

    def predecessor_until(self, node_id: NodeId) -> float:
        """Until when another agent that held this node id may still run at-most-one work; 0 when there is none."""
        contact = self._contacts.get(node_id)
        return contact.predecessor_until if contact is not None else 0.0

"""Nodes: registration, heartbeats, leases and loss.

A lease is counted from the moment this process received the last beat, by its own steady clock; the times that agents
send only tell how far their clocks are off. When this process starts, or finds that it was stopped itself for a
while, every node gets a full lease before anything is said about loss. Called by `shoal.control.service`.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from shoal.control import leases
from shoal.control.dispatch import Dispatch
from shoal.control.fleet import Ledger, node_event
from shoal.control.leases import BeatVerdict, Lease, LeaseSettings
from shoal.control.reports import ReportVerdict
from shoal.control.store.base import Batch
from shoal.core.clock import Clock, epoch_ms
from shoal.core.entropy import Entropy
from shoal.core.errors import (
    NotFoundError,
    PreconditionError,
    SessionSupersededError,
    UnavailableError,
)
from shoal.core.ids import NodeId, WorkloadId
from shoal.core.tasks import Signal
from shoal.model.events import Event
from shoal.model.nodes import Feature, NodeRecord, NodeSpec, NodeState, NodeUsage
from shoal.model.workloads import RunStatus

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
#: A pause of this process longer than this share of a lease counts as its own absence, not the nodes'.
OWN_ABSENCE_SHARE = 0.25
MAX_ORPHANS = 1000
SKEW_WARNING_MS = 2000


@dataclass(slots=True)
class Contact:
    """What is known about contact with a node since this process started. Not stored."""

    lease: Lease
    sequence: int = 0
    usage: NodeUsage | None = None
    skew_ms: int = 0
    skew_told: bool = False
    last_beat: datetime | None = None
    beat_stored: datetime | None = None
    orphans: tuple[WorkloadId, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration."""

    accepted: bool
    reason: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat as it came."""

    node_id: NodeId
    session: str
    sequence: int
    statuses: tuple[RunStatus, ...]
    usage: NodeUsage | None
    sent_at: datetime | None


class Nodes:
    """Keeps contact with every node."""

    def __init__(
        self,
        ledger: Ledger,
        dispatch: Dispatch,
        *,
        clock: Clock,
        entropy: Entropy,
        settings: LeaseSettings,
        cluster_id: str,
    ) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._dispatch = dispatch
        self._clock = clock
        self._entropy = entropy
        self.settings = settings
        self._cluster_id = cluster_id
        self._contacts: dict[NodeId, Contact] = {}
        self._surely_stopped: set[NodeId] = set()
        self._wake = Signal()
        self.reports_ignored = 0
        self.beats_received = 0

    def start(self) -> None:
        """Give every known node a full lease from now."""
        now = self._clock.monotonic()
        for node in self._fleet.nodes.values():
            lease = leases.first_deadline_after_restart(
                started=now, promised=node.lease_seconds, settings=self.settings
            )
            self._contacts[node.node_id] = Contact(lease, last_beat=node.last_beat, beat_stored=node.last_beat)

    def contact(self, node_id: NodeId) -> Contact | None:
        """What is known about contact with a node."""
        return self._contacts.get(node_id)

    def surely_stopped(self, node_id: NodeId) -> bool:
        """Whether an at-most-one copy on a lost node must have stopped by now."""
        return node_id in self._surely_stopped

    @property
    def _lease_seconds(self) -> float:
        return self.settings.lease_seconds

    # -----------------------------------------------------------------------------------------------------
    # Registration

    async def register(self, spec: NodeSpec, *, sent_at: datetime | None) -> Registered:
        """Take a node in, or back in. A newer registration under the same id ends the older session."""
        refusal = self._refusal(spec)
        if refusal:
            return Registered(accepted=False, reason=refusal)
        node_id = NodeId(spec.node_id)
        await self._ledger.change(lambda: self._registration(spec))
        session = self._fleet.node(node_id).session
        known = self._contacts.get(node_id)
        lease = leases.renew(known.lease if known else None, receipt=self._clock.monotonic(), settings=self.settings)
        contact = Contact(lease, last_beat=self._clock.wall(), beat_stored=self._clock.wall())
        self._contacts[node_id] = contact
        self._surely_stopped.discard(node_id)
        self._note_skew(node_id, contact, sent_at)
        self._wake.set()
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

    def _registration(self, spec: NodeSpec) -> Batch:
        at = self._clock.wall()
        known = self._fleet.nodes.get(NodeId(spec.node_id))
        session = ""
        if spec.has(Feature.SESSIONS):
            session = leases.make_session(epoch_ms(at), self._entropy.token(), after=known.session if known else "")
        record = NodeRecord(
            spec=spec,
            session=session,
            state=NodeState.READY,
            state_reason="registered",
            state_by="register",
            state_at=at,
            registered_at=known.registered_at if known else at,
            last_beat=at,
            lease_seconds=self._lease_seconds,
            version=known.version if known else 0,
        )
        kind = "NodeRegistered" if known is None else "NodeReturned"
        message = f"agent {spec.agent_version or 'of unknown version'} at {spec.endpoint or 'no endpoint'}"
        cause = f"it was {known.state.value}" if known else ""
        return Batch(
            nodes=(record,), events=(node_event(spec.node_id, kind, message, at=at, source="agent", cause=cause),)
        )

    # -----------------------------------------------------------------------------------------------------
    # Heartbeats

    async def heartbeat(self, beat: Beat) -> None:
        """Take in a beat. Raises NotFoundError for an unknown node and SessionSupersededError for an old session."""
        self.beats_received += 1
        node = self._fleet.nodes.get(beat.node_id)
        contact = self._contacts.get(beat.node_id)
        if node is None or contact is None:
            raise NotFoundError("node", beat.node_id, hint="register first")
        verdict = leases.judge_beat(node.session, beat.session, contact.sequence, beat.sequence)
        if verdict is BeatVerdict.UNKNOWN_SESSION:
            raise NotFoundError("session of node", beat.node_id, hint="register again")
        if verdict is BeatVerdict.SUPERSEDED:
            raise SessionSupersededError(beat.node_id)
        if verdict is BeatVerdict.REPEAT:
            return
        contact.sequence = beat.sequence
        contact.lease = leases.renew(contact.lease, receipt=self._clock.monotonic(), settings=self.settings)
        contact.last_beat = self._clock.wall()
        contact.usage = beat.usage or contact.usage
        self._note_skew(beat.node_id, contact, beat.sent_at)
        try:
            if node.state in (NodeState.SUSPECT, NodeState.NOT_READY):
                await self._returned(beat.node_id)
            await self._take_statuses(beat, contact)
        except UnavailableError as error:
            # The store is away: contact counts all the same, and the next beat brings the same statuses again.
            log.warning("heartbeat of %s was acknowledged and could not be stored: %s", beat.node_id, error)

    async def _take_statuses(self, beat: Beat, contact: Contact) -> None:
        verdicts = await self._dispatch.observe(beat.node_id, beat.statuses)
        orphans = tuple(sorted(w for w, verdict in verdicts.items() if verdict is ReportVerdict.ORPHAN))
        not_owned = {ReportVerdict.ORPHAN, ReportVerdict.SUPERSEDED, ReportVerdict.FOREIGN_OWNER}
        self.reports_ignored += sum(1 for verdict in verdicts.values() if verdict in not_owned)
        if orphans != contact.orphans:
            fresh = set(orphans) - set(contact.orphans)
            contact.orphans = orphans[:MAX_ORPHANS]
            await self._tell_of_orphans(beat.node_id, sorted(fresh))
        node = self._fleet.nodes.get(beat.node_id)
        if node is not None:
            present = frozenset(status.workload_id for status in beat.statuses)
            self._dispatch.listed(node, present)
            gone = self._fleet.left_on(beat.node_id) - present
            if gone:
                await self._dispatch.copies_gone(beat.node_id, gone)

    async def _tell_of_orphans(self, node_id: NodeId, orphans: Iterable[WorkloadId]) -> None:
        at = self._clock.wall()
        events = tuple(
            node_event(
                node_id, "OrphanSeen", f"workload {orphan} is not known here and is left alone", at=at, source="agent"
            )
            for orphan in orphans
        )
        await self._ledger.commit(Batch(events=events))

    async def _returned(self, node_id: NodeId) -> None:
        self._surely_stopped.discard(node_id)
        await self._set_state(node_id, NodeState.READY, "it beats again", by="heartbeat")
        self._dispatch.contact_renewed(node_id)

    def _note_skew(self, node_id: NodeId, contact: Contact, sent_at: datetime | None) -> None:
        if sent_at is None:
            return
        contact.skew_ms = epoch_ms(sent_at) - epoch_ms(self._clock.wall())
        if abs(contact.skew_ms) > SKEW_WARNING_MS and not contact.skew_told:
            contact.skew_told = True
            log.warning("the clock of node %s is off by %d ms; leases do not depend on it", node_id, contact.skew_ms)

    # -----------------------------------------------------------------------------------------------------
    # Loss

    async def watch(self) -> None:
        """Judge every lease again and again. Owned by the control plane's task scope."""
        last_look = self._clock.monotonic()
        wait = self._tick
        while True:
            await self._wake.wait(timeout=wait)
            now = self._clock.monotonic()
            if now - last_look > max(2.0 * self._tick, self._lease_seconds * OWN_ABSENCE_SHARE):
                self._forgive_own_absence(now - last_look)
            last_look = now
            try:
                wait = min(self._tick, await self._judge_all(now))
                await self._store_beats()
            except UnavailableError as error:
                log.debug("leases are judged again when the store is back: %s", error)
            last_look = self._clock.monotonic()

    @property
    def _tick(self) -> float:
        return min(TICK_SECONDS, self._lease_seconds / 10)

    def _forgive_own_absence(self, seconds: float) -> None:
        """This process was stopped, or starved: the beats it missed say nothing about the nodes."""
        log.warning("this process was away for %.1f s; every node gets a full lease", seconds)
        now = self._clock.monotonic()
        for contact in self._contacts.values():
            contact.lease = dataclasses.replace(contact.lease, last_receipt=now, heard=False)

    async def _judge_all(self, now: float) -> float:
        """Judge every lease, and say in how many seconds the next one means something else."""
        soonest = math.inf
        for node_id, contact in list(self._contacts.items()):
            node = self._fleet.nodes.get(node_id)
            if node is None:
                continue
            verdict = leases.judge(
                last_receipt=contact.lease.last_receipt,
                lease=contact.lease.seconds,
                now=now,
                settings=self.settings,
                heard=contact.lease.heard,
            )
            soonest = min(soonest, verdict.next_change_in or math.inf)
            if verdict.may_give_away_at_most_one and node_id not in self._surely_stopped:
                self._surely_stopped.add(node_id)
                self._dispatch.enqueue_all(self._fleet.owned_by(node_id))
            state = leases.next_state(node.state, verdict)
            if state is not node.state and state is not NodeState.READY:
                await self._set_state(node_id, state, verdict.reason, by="lease")
                if state is NodeState.NOT_READY:
                    self._dispatch.enqueue_all(self._fleet.owned_by(node_id))
        return soonest

    async def _set_state(self, node_id: NodeId, state: NodeState, reason: str, *, by: str) -> None:
        kinds = {NodeState.READY: "NodeReady", NodeState.SUSPECT: "NodeSuspect", NodeState.NOT_READY: "NodeLost"}

        def decide() -> Batch | None:
            node = self._fleet.nodes.get(node_id)
            if node is None or node.state is state:
                return None
            at = self._clock.wall()
            changed = dataclasses.replace(node, state=state, state_reason=reason, state_by=by, state_at=at)
            event: Event = node_event(
                node_id, kinds[state], reason, at=at, source=by, cause=f"it was {node.state.value}"
            )
            return Batch(nodes=(changed,), events=(event,))

        await self._ledger.change(decide)
        if state is NodeState.READY:
            self._dispatch.capacity_changed()

    async def _store_beats(self) -> None:
        """Write down now and then when nodes were last heard of, all at once."""
        due: dict[NodeId, int] = {}
        for node_id, contact in self._contacts.items():
            if contact.last_beat is None or node_id not in self._fleet.nodes:
                continue
            stored = contact.beat_stored
            if stored is None or (contact.last_beat - stored).total_seconds() >= 2 * self._lease_seconds:
                due[node_id] = epoch_ms(contact.last_beat)
                contact.beat_stored = contact.last_beat
        if due:
            await self._ledger.commit(Batch(beats=due))

    # -----------------------------------------------------------------------------------------------------
    # Removal

    async def remove(self, node_id: NodeId) -> None:
        """Forget a node that is gone for good. What it owned is placed elsewhere."""

        def decide() -> Batch | None:
            node = self._fleet.node(node_id)
            if node.state is not NodeState.NOT_READY:
                raise PreconditionError(
                    f"node {node_id!r} is {node.state.value}",
                    hint="stop its agent and wait until it is NotReady",
                    node_id=node_id,
                )
            if node_id not in self._surely_stopped and self._owns_at_most_one(node_id):
                raise PreconditionError(
                    f"node {node_id!r} may still run at-most-one workloads until their deadline has passed",
                    hint="try again in a few seconds",
                    node_id=node_id,
                )
            event = node_event(node_id, "NodeRemoved", "removed by an operator", at=self._clock.wall(), source="api")
            return Batch(removed_nodes={node_id: node.version}, events=(event,))

        owned = self._fleet.owned_by(node_id)
        await self._ledger.change(decide)
        await self._dispatch.copies_gone(node_id, self._fleet.left_on(node_id))
        self._contacts.pop(node_id, None)
        self._surely_stopped.discard(node_id)
        self._dispatch.enqueue_all(owned)

    def _owns_at_most_one(self, node_id: NodeId) -> bool:
        return any(self._fleet.workloads[owned].spec.at_most_one for owned in self._fleet.owned_by(node_id))

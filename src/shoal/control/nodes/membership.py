"""Nodes: registration, heartbeats, leases and loss.

A lease is counted from the moment this process received the last beat, by its own steady clock; the times that agents
send only tell how far their clocks are off. When this process starts, or finds that it was stopped itself for a
while, every node gets a full lease before anything is said about loss. Called by `shoal.control.api.service`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shoal.control.nodes import leases
from shoal.control.nodes.leases import BeatVerdict, Lease, LeaseSettings
from shoal.control.state.fleet import Ledger, node_event
from shoal.control.store.base import Batch
from shoal.control.workloads import changes
from shoal.control.workloads.dispatch import Dispatch
from shoal.control.workloads.failover import (
    Brake,
    Bucket,
    FailoverSettings,
    FleetHealth,
    LostNode,
    judge_evictions,
    seconds_until_move,
)
from shoal.control.workloads.reports import ReportVerdict
from shoal.core import faults
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
from shoal.model.nodes import BeatMark, Feature, NodeRecord, NodeSpec, NodeState, NodeUsage, NodeWish
from shoal.model.workloads import RunStatus
from shoal.wire.convert import Measurements

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
#: A pause of this process longer than this share of a lease counts as its own absence, not the nodes'.
OWN_ABSENCE_SHARE = 0.25
#: How long those are waited for who come together, as a share of a tick.
SETTLE_SHARE = 0.2
MAX_ORPHANS = 1000
SKEW_WARNING_MS = 2000
#: A clock that is off is so in the next beat, too, by the same. What was merely under way for long is not: several
#: late beats arrive together, and each is older than the next.
SKEW_AGAIN_SECONDS = 1.0
SKEW_AGREES_MS = 1000
#: A beat is acknowledged after so long, or a tenth of a lease, whether what it says is stored by then or not.
ACKNOWLEDGE_SECONDS = 1.0
#: So shortly before something is to be said about a node, it is judged as if that had to be said now.
_SOON = 0.001


@dataclass(slots=True)
class Contact:
    """What is known about contact with a node since this process started. Not stored."""

    lease: Lease
    sequence: int = 0
    usage: NodeUsage | None = None
    skew_ms: int = 0
    skew_told: bool = False
    #: When a clock seemed to be off, on the steady clock, and by how much; None while it does not.
    skew_suspected: tuple[float, int] | None = None
    last_beat: datetime | None = None
    beat_stored: datetime | None = None
    orphans: tuple[WorkloadId, ...] = ()
    #: What its last beat said: the statuses by their bytes, so that only what is new is read, and what is used.
    statuses: Mapping[bytes, RunStatus] = field(default_factory=dict)
    measured: Measurements | None = None
    #: What takes in its beats, and the newest of them that it has not begun with.
    intake: asyncio.Task[None] | None = None
    waiting: Beat | None = None
    #: Another agent held the id before this one; it may run at-most-one work until then, on the steady clock.
    predecessor_until: float = 0.0


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
    #: By their bytes.
    statuses: Mapping[bytes, RunStatus]
    usage: NodeUsage | None
    sent_at: datetime | None
    measured: Measurements | None = None


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
        failover: FailoverSettings | None = None,
        on_beat: Callable[[], None] | None = None,
        on_ignored: Callable[[int], None] | None = None,
    ) -> None:
        self._on_beat = on_beat or (lambda: None)
        self._on_ignored = on_ignored or (lambda _count: None)
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._dispatch = dispatch
        self._clock = clock
        self._entropy = entropy
        self.settings = settings
        self._cluster_id = cluster_id
        self._contacts: dict[NodeId, Contact] = {}
        self._surely_stopped: set[NodeId] = set()
        #: Whether nodes are heard here. In a control plane that does not lead they are not, and what is stored is old.
        self.hears = False
        self._failover = failover or FailoverSettings()
        self._bucket = Bucket()
        self._brake: Brake | None = None
        self._lost_at: dict[NodeId, float] = {}
        #: Why nothing is moved from lost nodes; empty when the brake is off.
        self.brake = ""
        self._wake = Signal()
        self.reports_ignored = 0
        ledger.on_reload(self._meet_all)

    async def store_promise(self) -> None:
        """Write down a lease that is longer than what nodes were promised before, before the first beat is answered.

        Whoever leads next, perhaps with a shorter setting, has to wait as long as agents may count on this one.
        """

        def decide() -> Batch | None:
            longer = [
                dataclasses.replace(node, lease_seconds=self._lease_seconds)
                for node in self._fleet.nodes.values()
                if node.lease_seconds < self._lease_seconds
            ]
            return Batch(nodes=tuple(longer)) if longer else None

        await self._ledger.change(decide)

    def start(self) -> None:
        """Give every known node a full lease from now."""
        self.hears = True
        self._meet_all()

    def _meet_all(self) -> None:
        """Keep contact with what is stored, however it came there: whoever registered may have gone before the answer.

        A node that is not known here gets a full lease from now; one that is dead or was removed is not waited for.
        """
        if not self.hears:
            return
        now = self._clock.monotonic()
        for node_id in self._fleet.nodes.keys() - self._contacts.keys():
            node = self._fleet.nodes[node_id]
            if node.dead:
                continue
            lease = leases.first_deadline_after_restart(
                started=now, promised=node.lease_seconds, settings=self.settings
            )
            self._contacts[node_id] = Contact(lease, last_beat=node.last_beat, beat_stored=node.last_beat)
        for node_id in self._contacts.keys() - self._fleet.nodes.keys():
            self.forget_contact(node_id)

    def contact(self, node_id: NodeId) -> Contact | None:
        """What is known about contact with a node."""
        return self._contacts.get(node_id)

    def surely_stopped(self, node_id: NodeId) -> bool:
        """Whether an at-most-one copy on a lost node must have stopped by now."""
        node = self._fleet.nodes.get(node_id)
        return node_id in self._surely_stopped or (node is not None and node.dead)

    def silence(self, node_id: NodeId) -> float:
        """Seconds since a node was last heard of, or since it is presumed to have been."""
        contact = self._contacts.get(node_id)
        return self._clock.monotonic() - contact.lease.last_receipt if contact is not None else 0.0

    def lease_of(self, node_id: NodeId) -> float:
        """How long a node counts as alive after a beat."""
        contact = self._contacts.get(node_id)
        return contact.lease.seconds if contact is not None else self._lease_seconds

    def wake(self) -> None:
        """Judge every lease soon."""
        self._wake.set()

    def ignored(self, count: int) -> None:
        """So many reports were left out: they are from a node that does not own the work, or cannot be read."""
        self.reports_ignored += count
        self._on_ignored(count)

    def forget_contact(self, node_id: NodeId) -> None:
        """An operator says that a node is dead, or removed it: nothing it said before counts."""
        self._contacts.pop(node_id, None)
        self._surely_stopped.discard(node_id)
        self._lost_at.pop(node_id, None)
        self._wake.set()

    def predecessor_until(self, node_id: NodeId) -> float:
        """Until when another agent that held this node id may still run at-most-one work; 0 when there is none."""
        contact = self._contacts.get(node_id)
        return contact.predecessor_until if contact is not None else 0.0

    @property
    def _lease_seconds(self) -> float:
        return self.settings.lease_seconds

    # -----------------------------------------------------------------------------------------------------
    # Registration

    async def register(
        self, spec: NodeSpec, *, sent_at: datetime | None, previous_session: str = "", instance: str = ""
    ) -> Registered:
        """Take a node in, or back in. A newer registration under the same id ends the older session."""
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
        known = self._contacts.get(node_id)
        lease = leases.renew(known.lease if known else None, receipt=self._clock.monotonic(), settings=self.settings)
        contact = Contact(lease, last_beat=self._clock.wall(), beat_stored=self._clock.wall())
        if known is not None:
            contact.predecessor_until = known.predecessor_until
            contact.skew_told, contact.skew_suspected = known.skew_told, known.skew_suspected
            if (
                before is not None
                and before.session
                and before.session != previous_session
                and not leases.same_agent(before.session, session)
            ):
                # Not the agent that held the id before: that one may live on, cut off, until its own count ends.
                ends = known.lease.ends_at + self.settings.margin(known.lease.seconds)
                contact.predecessor_until = max(contact.predecessor_until, ends)
        self._contacts[node_id] = contact
        self._surely_stopped.discard(node_id)
        self._lost_at.pop(node_id, None)
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

    def _promised(self, node_id: NodeId) -> float:
        """How long an agent may count on a beat: a lease from before may be longer, and its end not yet come."""
        known = self._contacts.get(node_id)
        lease = leases.renew(known.lease if known else None, receipt=self._clock.monotonic(), settings=self.settings)
        return lease.seconds

    def _registration(self, spec: NodeSpec, instance: str) -> Batch:
        at = self._clock.wall()
        known = self._fleet.nodes.get(NodeId(spec.node_id))
        session = ""
        if spec.has(Feature.SESSIONS):
            agent = instance or self._entropy.token()
            session = leases.make_session(epoch_ms(at), agent, after=known.session if known else "")
        record = NodeRecord(
            spec=spec,
            session=session,
            state=_state_in_contact(known),
            state_reason="registered",
            state_by="register",
            state_at=at,
            registered_at=known.registered_at if known else at,
            last_beat=at,
            lease_seconds=self._promised(NodeId(spec.node_id)),
            wish=known.wish if known else NodeWish.NONE,
            wish_at=known.wish_at if known else None,
            drain_deadline=known.drain_deadline if known else None,
            version=known.version if known else 0,
        )
        kind = "NodeRegistered" if known is None else "NodeReturned"
        message = f"agent {spec.agent_version or 'of unknown version'} at {spec.endpoint or 'no endpoint'}"
        cause = f"it registered and was {known.state.value}" if known else "it registered for the first time"
        return Batch(
            nodes=(record,), events=(node_event(spec.node_id, kind, message, at=at, source="agent", cause=cause),)
        )

    # -----------------------------------------------------------------------------------------------------
    # Heartbeats

    async def heartbeat(self, beat: Beat) -> bool:
        """Take in a beat, and say whether its node is being emptied, which only an operator's wish can make true.

        Raises NotFoundError for an unknown node and SessionSupersededError for an old session.
        """
        self._on_beat()
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
            return node.wish.state is not None
        contact.sequence = beat.sequence
        contact.lease = leases.renew(contact.lease, receipt=self._clock.monotonic(), settings=self.settings)
        contact.last_beat = self._clock.wall()
        contact.usage = beat.usage or contact.usage
        contact.statuses, contact.measured = beat.statuses, beat.measured
        self._note_skew(beat.node_id, contact, beat.sent_at)
        contact.waiting = beat
        if contact.intake is None or contact.intake.done():
            contact.intake = asyncio.ensure_future(self._take_in(contact))
            contact.intake.add_done_callback(_retrieve)
        # A store that hangs must not keep a node from being in contact: its agent would give up before the store does.
        done, _ = await asyncio.wait({contact.intake}, timeout=min(ACKNOWLEDGE_SECONDS, self._lease_seconds / 10))
        for each in done:
            each.result()
        current = self._fleet.nodes.get(beat.node_id)
        return current is not None and current.wish.state is not None

    async def _take_in(self, contact: Contact) -> None:
        """Take in what a beat says, and go on with the newest that came meanwhile: each is a full snapshot."""
        while (beat := contact.waiting) is not None:
            contact.waiting = None
            try:
                node = self._fleet.nodes.get(beat.node_id)
                if node is not None and node.state in (NodeState.SUSPECT, NodeState.NOT_READY):
                    await self._returned(beat.node_id)
                await self._take_statuses(beat, contact)
            except UnavailableError as error:
                # The store is away: contact counts all the same, and the next beat brings the same statuses again.
                log.warning("heartbeat of %s was acknowledged and could not be stored: %s", beat.node_id, error)

    def close(self) -> None:
        """Take in nothing more."""
        for contact in self._contacts.values():
            if contact.intake is not None:
                contact.intake.cancel()

    async def _take_statuses(self, beat: Beat, contact: Contact) -> None:
        verdicts = await self._dispatch.observe(beat.node_id, beat.statuses.values())
        orphans = tuple(sorted(w for w, verdict in verdicts.items() if verdict is ReportVerdict.ORPHAN))
        not_owned = {ReportVerdict.ORPHAN, ReportVerdict.SUPERSEDED, ReportVerdict.FOREIGN_OWNER}
        self.ignored(sum(1 for verdict in verdicts.values() if verdict in not_owned))
        if orphans != contact.orphans:
            fresh = set(orphans) - set(contact.orphans)
            contact.orphans = orphans[:MAX_ORPHANS]
            await self._tell_of_orphans(beat.node_id, sorted(fresh))
        node = self._fleet.nodes.get(beat.node_id)
        if node is not None:
            present = frozenset(status.workload_id for status in beat.statuses.values())
            mark = BeatMark(beat.session, beat.sequence)
            self._dispatch.listed(node, present, mark)
            gone = self._fleet.left_on(beat.node_id) - present
            if gone:
                await self._dispatch.copies.absent(beat.node_id, gone, mark)

    async def _tell_of_orphans(self, node_id: NodeId, orphans: Iterable[WorkloadId]) -> None:
        at = self._clock.wall()
        events = tuple(
            node_event(
                node_id,
                "OrphanSeen",
                f"workload {orphan} is not known here and is left alone",
                at=at,
                source="agent",
                cause="its heartbeat lists it",
            )
            for orphan in orphans
        )
        await self._ledger.commit(Batch(events=events))

    async def _returned(self, node_id: NodeId) -> None:
        self._surely_stopped.discard(node_id)
        self._lost_at.pop(node_id, None)
        state = _state_in_contact(self._fleet.nodes.get(node_id))
        await self._set_state(node_id, state, "it beats again", by="heartbeat")
        self._dispatch.contact_renewed(node_id)

    def _note_skew(self, node_id: NodeId, contact: Contact, sent_at: datetime | None) -> None:
        if sent_at is None:
            return
        contact.skew_ms = epoch_ms(sent_at) - epoch_ms(self._clock.wall())
        if abs(contact.skew_ms) <= SKEW_WARNING_MS:
            contact.skew_suspected = None
            return
        now, suspected = self._clock.monotonic(), contact.skew_suspected
        if suspected is None or abs(suspected[1] - contact.skew_ms) > SKEW_AGREES_MS:
            contact.skew_suspected = (now, contact.skew_ms)
        elif now - suspected[0] >= SKEW_AGAIN_SECONDS and not contact.skew_told:
            contact.skew_told = True
            log.warning("the clock of node %s is off by %d ms; leases do not depend on it", node_id, contact.skew_ms)

    # -----------------------------------------------------------------------------------------------------
    # Loss

    async def watch(self) -> None:
        """Judge every lease again and again. Owned by the control plane's task scope."""
        last_look = self._clock.monotonic()
        wait = self._tick
        while True:
            if await self._wake.wait(timeout=wait):
                # When a fleet comes back, each node that registers wakes this: all are judged, so not for each of them.
                await self._clock.sleep(self._tick * SETTLE_SHARE)
            now = self._clock.monotonic()
            if now - last_look > max(2.0 * self._tick, self._lease_seconds * OWN_ABSENCE_SHARE):
                self._forgive_own_absence(now - last_look)
            last_look = now
            try:
                self._meet_all()
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
        alive = suspect = 0
        for node_id, contact in list(self._contacts.items()):
            node = self._fleet.nodes.get(node_id)
            if node is None:
                continue
            if node.dead:
                self.forget_contact(node_id)
                continue
            left, heard = self._seconds_left(contact, node, now), contact.lease.last_receipt
            if left > _SOON:
                soonest, alive = min(soonest, left), alive + 1
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
            state = leases.next_state(node.state, verdict, wish=node.wish.state)
            if state is not node.state and state in (NodeState.SUSPECT, NodeState.NOT_READY):
                await self._set_state(node_id, state, verdict.reason, by="lease", heard=heard)
                if await self._has_beaten_since(node_id, heard):
                    alive += 1
                    continue
                if state is NodeState.NOT_READY:
                    self._lost_at[node_id] = now
                    self._dispatch.enqueue_all(self._fleet.owned_by(node_id))
            if state is not NodeState.NOT_READY:
                suspect += verdict.state is NodeState.SUSPECT
                alive += verdict.state is not NodeState.SUSPECT
        return min(soonest, await self._judge_evictions(now, alive=alive, suspect=suspect))

    def _seconds_left(self, contact: Contact, node: NodeRecord, now: float) -> float:
        """For how long nothing needs to be said about a node that is well. Nearly all are, each time one looks."""
        if node.state in (NodeState.SUSPECT, NodeState.NOT_READY):
            return 0.0
        return contact.lease.last_receipt + self.settings.suspect_after(contact.lease.seconds) - now

    # -----------------------------------------------------------------------------------------------------
    # Giving lost nodes up

    async def _judge_evictions(self, now: float, *, alive: int, suspect: int) -> float:
        """Let the work of lost nodes move, as fast as is good; say in how many seconds to look again."""
        health = self._health(now, alive=alive, suspect=suspect)
        verdict = judge_evictions(
            health, self._bucket, now=now, settings=self._failover, brake=self._brake, lease=self._lease_seconds
        )
        await self._note_brake(health, braked=verdict.braked)
        for node_id in verdict.give_up:
            await self._give_up(node_id)
        self._bucket, self._brake = verdict.bucket, verdict.brake
        return verdict.next_in if verdict.next_in is not None else math.inf

    def _health(self, now: float, *, alive: int, suspect: int) -> FleetHealth:
        held: list[LostNode] = []
        lately = 0
        for node_id, contact in self._contacts.items():
            node = self._fleet.nodes.get(node_id)
            if node is None or node.state is not NodeState.NOT_READY:
                continue
            since = self._lost_at.setdefault(node_id, now) if not node.given_up else self._lost_at.get(node_id)
            if not node.given_up and since is not None:
                held.append(LostNode(node_id, since, has_work=bool(self._fleet.owned_by(node_id))))
            elif since is not None and now - since < contact.lease.seconds:
                lately += 1
        return FleetHealth(alive, suspect, held, lately)

    async def _note_brake(self, health: FleetHealth, *, braked: bool) -> None:
        if braked == bool(self.brake):
            return
        share = f"{health.vanished} of {health.total} nodes vanished within a lease"
        at = self._clock.wall()
        if braked:
            message = f"{share}: the fault may be on this side, so nothing is moved until nodes return"
            event = Event(at, "control", self._cluster_id, "MovesHeld", message, "lease", share)
        else:
            message = "enough nodes are heard of again"
            event = Event(at, "control", self._cluster_id, "MovesResumed", message, "lease", share)
        await self._ledger.commit(Batch(events=(event,)))
        (log.error if braked else log.info)("%s", event.message)
        self.brake = share if braked else ""

    async def _give_up(self, node_id: NodeId) -> None:
        def decide() -> Batch | None:
            node = self._fleet.nodes.get(node_id)
            if node is None or node.given_up or node.state is not NodeState.NOT_READY:
                return None
            event = node_event(
                node_id,
                "NodeGivenUp",
                "its work is started elsewhere, as far as each workload's policy allows",
                at=self._clock.wall(),
                source="lease",
                cause=node.state_reason,
            )
            return Batch(nodes=(dataclasses.replace(node, given_up=True),), events=(event,))

        await self._ledger.change(decide)
        self._dispatch.enqueue_all(self._fleet.owned_by(node_id))

    async def stream_broke(self, node_id: NodeId) -> None:
        """The stream that a node kept open has ended: it gets no new work until it beats again."""
        contact, node = self._contacts.get(node_id), self._fleet.nodes.get(node_id)
        if contact is None or node is None or node.state is not NodeState.READY:
            return
        heard = contact.lease.last_receipt
        await self._set_state(node_id, NodeState.SUSPECT, "its stream broke", by="stream", heard=heard)
        await self._has_beaten_since(node_id, heard)

    async def _has_beaten_since(self, node_id: NodeId, heard: float) -> bool:
        """Whether a node has beaten while it was being stored that it is not heard of. It is back then."""
        if not self._is_newer(node_id, heard):
            return False
        await self._returned(node_id)
        return True

    def _is_newer(self, node_id: NodeId, heard: float) -> bool:
        contact = self._contacts.get(node_id)
        return contact is not None and contact.lease.last_receipt != heard

    async def _set_state(
        self, node_id: NodeId, state: NodeState, reason: str, *, by: str, heard: float | None = None
    ) -> None:
        """Store a node's state. `heard`: not if it has beaten since then."""
        kinds = {NodeState.SUSPECT: "NodeSuspect", NodeState.NOT_READY: "NodeLost"}

        def decide() -> Batch | None:
            node = self._fleet.nodes.get(node_id)
            if node is None or node.state is state or (heard is not None and self._is_newer(node_id, heard)):
                return None
            at = self._clock.wall()
            changed = dataclasses.replace(
                node,
                state=state,
                state_reason=reason,
                state_by=by,
                state_at=at,
                given_up=node.given_up and state is NodeState.NOT_READY,
            )
            kind = kinds.get(state, "NodeReady")
            event: Event = node_event(node_id, kind, reason, at=at, source=by, cause=f"it was {node.state.value}")
            return Batch(nodes=(changed,), events=(event,))

        await self._ledger.change(decide)
        if state is NodeState.READY:
            self._dispatch.capacity_changed()

    async def _store_beats(self) -> None:
        """Write down now and then when nodes were last heard of, all at once."""
        due: dict[NodeId, tuple[Contact, datetime]] = {}
        for node_id, contact in self._contacts.items():
            if contact.last_beat is None or node_id not in self._fleet.nodes:
                continue
            stored = contact.beat_stored
            if stored is None or (contact.last_beat - stored).total_seconds() >= 2 * self._lease_seconds:
                due[node_id] = (contact, contact.last_beat)
        if due:
            await self._ledger.commit(Batch(beats={each: epoch_ms(at) for each, (_, at) in due.items()}))
        for contact, at in due.values():
            contact.beat_stored = at

    # -----------------------------------------------------------------------------------------------------
    # Removal

    async def remove(self, node_id: NodeId, *, cause: str) -> None:
        """Forget a node that is gone for good. What it owned is placed elsewhere."""

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
            event = node_event(
                node_id, "NodeRemoved", "removed by an operator", at=self._clock.wall(), source="api", cause=cause
            )
            # With it in one: nobody is left later who could say that its copies are gone.
            gone = changes.copies_gone(self._fleet, node_id, self._fleet.left_on(node_id))
            without = gone.workloads if gone is not None else ()
            return Batch(workloads=without, removed_nodes={node_id: node.version}, events=(event,))

        await self._ledger.change(decide)
        self.forget_contact(node_id)

    def _may_still_run_what_stops_by_itself(self, node_id: NodeId) -> bool:
        if self._fleet.node(node_id).dead:
            return False
        specs = [self._fleet.workloads[owned].spec for owned in self._fleet.owned_by(node_id)]
        if any(spec.at_most_one for spec in specs) and not self.surely_stopped(node_id):
            return True
        silence, lease = self.silence(node_id), self.lease_of(node_id)
        stopping = (spec for spec in specs if spec.failover.policy == "stop")
        return any(seconds_until_move(spec, silence=silence, lease=lease) for spec in stopping)


def _state_in_contact(node: NodeRecord | None) -> NodeState:
    """The state of a node that is heard of: Ready, unless an operator wants it empty."""
    return (node.wish.state if node is not None else None) or NodeState.READY


def _retrieve(task: asyncio.Task[None]) -> None:
    """Nobody may be left to hear what became of it."""
    if not task.cancelled() and task.exception() is not None:
        log.debug("a heartbeat could not be taken in: %s", task.exception())

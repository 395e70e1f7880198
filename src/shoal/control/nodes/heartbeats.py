"""Receives heartbeats: renews the lease, stores changed statuses, and reports what a node no longer has.

A heartbeat is acknowledged soon even when the store hangs or is full. The newest heartbeat of each node then waits in
memory, in place of the one before it, until its statuses can be stored. What an acknowledgement promises is the lease
and nothing else (docs/high-availability.md). Called by `shoal.control.api.service`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

from shoal.control.nodes import leases
from shoal.control.nodes.contacts import Contact, Contacts, Heartbeat
from shoal.control.nodes.leases import HeartbeatVerdict
from shoal.control.nodes.node_states import NodeStates
from shoal.control.state.events import Origin, node_event
from shoal.control.state.ledger import Ledger
from shoal.control.state.loops import Rounds
from shoal.control.store.base import Batch
from shoal.control.store.errors import LeadershipLostError
from shoal.control.workloads.decisions.reports import ReportVerdict
from shoal.control.workloads.pending import Pending
from shoal.control.workloads.status_reports import StatusReports
from shoal.core.clock import Clock
from shoal.core.errors import NotFoundError, SessionSupersededError, ShoalError
from shoal.core.ids import NodeId, WorkloadId
from shoal.core.tasks import TaskScope
from shoal.model.events import EventKind, EventSource
from shoal.model.nodes import ConditionType, HeartbeatMark, NodeState

log = logging.getLogger(__name__)

MAX_ORPHANS = 1000
#: A heartbeat is acknowledged after this long, or a tenth of a lease, whether or not its statuses are stored by then.
ACKNOWLEDGE_SECONDS = 1.0


class Heartbeats:
    """Processes the heartbeats of every node."""

    def __init__(
        self,
        ledger: Ledger,
        contacts: Contacts,
        states: NodeStates,
        *,
        reports: StatusReports,
        pending: Pending,
        clock: Clock,
        scope: TaskScope,
        on_heartbeat: Callable[[], None] | None = None,
        on_ignored: Callable[[int], None] | None = None,
    ) -> None:
        self._on_heartbeat = on_heartbeat or (lambda: None)
        self._on_ignored = on_ignored or (lambda _count: None)
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._reports = reports
        self._pending = pending
        self._contacts = contacts
        self._states = states
        self._clock = clock
        self._scope = scope
        self._rounds = Rounds("heartbeats")
        self.reports_ignored = 0

    async def receive(self, heartbeat: Heartbeat) -> bool:
        """Process a heartbeat. Returns whether the node is being drained, which only an operator can cause.

        Raises NotFoundError for an unknown node and SessionSupersededError for an old session.
        """
        self._on_heartbeat()
        node = self._fleet.nodes.get(heartbeat.node_id)
        contact = self._contacts.get(heartbeat.node_id)
        if node is None or contact is None:
            raise NotFoundError("node", heartbeat.node_id, hint="register first")
        verdict = leases.judge_heartbeat(node.session, heartbeat.session, contact.sequence, heartbeat.sequence)
        if verdict is HeartbeatVerdict.UNKNOWN_SESSION:
            raise NotFoundError("session of node", heartbeat.node_id, hint="register again")
        if verdict is HeartbeatVerdict.SUPERSEDED:
            raise SessionSupersededError(heartbeat.node_id)
        if verdict is HeartbeatVerdict.REPEAT:
            return node.desired.state is not None
        contact.sequence = heartbeat.sequence
        contact.lease = self._contacts.renew(heartbeat.node_id)
        contact.last_heartbeat = self._clock.wall()
        contact.usage = heartbeat.usage or contact.usage
        contact.statuses, contact.measured = heartbeat.statuses, heartbeat.measured
        self._take_conditions(heartbeat, contact)
        contact.note_skew(heartbeat.node_id, heartbeat.sent_at, self._clock)
        contact.waiting = heartbeat
        contact.attempted.clear()
        if contact.intake is None or contact.intake.done():
            if self._scope.is_closing:
                raise LeadershipLostError("")
            contact.intake = self._scope.start(self._process(contact), name=f"heartbeat/{heartbeat.node_id}")
        # A store that hangs must not end contact with a node: its agent would stop waiting before the store does.
        if not self._rounds.fails(heartbeat.node_id):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await contact.attempted.wait()
        current = self._fleet.nodes.get(heartbeat.node_id)
        return current is not None and current.desired.state is not None

    def _take_conditions(self, heartbeat: Heartbeat, contact: Contact) -> None:
        """What is wrong with the node counts at once, also while it cannot be stored as events."""
        contact.conditions = heartbeat.conditions
        pressure = next((each.message for each in heartbeat.conditions if each.type == ConditionType.DISK_PRESSURE), "")
        if self._fleet.note_disk_pressure(heartbeat.node_id, pressure):
            self._pending.capacity_changed()

    @property
    def _patience(self) -> float:
        return min(ACKNOWLEDGE_SECONDS, self._contacts.settings.lease_seconds / 10)

    async def _process(self, contact: Contact) -> None:
        """Process a heartbeat, then the newest that arrived meanwhile: each is a full snapshot.

        One that cannot be stored is tried again until a newer one takes its place.
        """
        while (heartbeat := contact.waiting) is not None:
            contact.waiting = None
            try:
                await self._process_one(heartbeat, contact)
            except ShoalError as error:
                self._rounds.failed(error, heartbeat.node_id)
            except Exception:
                log.exception("the heartbeat of node %s could not be processed", heartbeat.node_id)
            else:
                self._rounds.succeeded(heartbeat.node_id)
            contact.attempted.set()
            if self._rounds.fails(heartbeat.node_id):
                contact.waiting = contact.waiting or heartbeat
                await self._clock.sleep(self._patience)

    async def _process_one(self, heartbeat: Heartbeat, contact: Contact) -> None:
        node = self._fleet.nodes.get(heartbeat.node_id)
        if node is None or self._contacts.get(heartbeat.node_id) is not contact:
            return  # removed, or registered anew since then
        if node.state in (NodeState.SUSPECT, NodeState.NOT_READY):
            await self._states.returned([heartbeat.node_id])
        await self._process_statuses(heartbeat, contact)

    def ignored(self, count: int) -> None:
        """Count reports that were ignored: of a node that does not own the workload, or not readable."""
        self.reports_ignored += count
        self._on_ignored(count)

    async def _process_statuses(self, heartbeat: Heartbeat, contact: Contact) -> None:
        verdicts = await self._reports.take_in(heartbeat.node_id, heartbeat.statuses.values())
        orphans = tuple(sorted(w for w, verdict in verdicts.items() if verdict is ReportVerdict.ORPHAN))
        not_owned = {ReportVerdict.ORPHAN, ReportVerdict.SUPERSEDED, ReportVerdict.FOREIGN_OWNER}
        self.ignored(sum(1 for verdict in verdicts.values() if verdict in not_owned))
        if orphans != contact.orphans:
            fresh = set(orphans) - set(contact.orphans)
            await self._store_orphan_events(heartbeat.node_id, sorted(fresh))
            contact.orphans = orphans[:MAX_ORPHANS]
        await self._store_condition_events(heartbeat, contact)
        node = self._fleet.nodes.get(heartbeat.node_id)
        if node is not None:
            present = frozenset(status.workload_id for status in heartbeat.statuses.values())
            mark = HeartbeatMark(heartbeat.session, heartbeat.sequence)
            await self._reports.listed(node, present, mark)

    async def _store_condition_events(self, heartbeat: Heartbeat, contact: Contact) -> None:
        # How an agent was started is no event.
        now = {each.type: each.message for each in heartbeat.conditions if each.type != ConditionType.RUNS_AS_ROOT}
        events = [
            *((EventKind.NODE_CONDITION_RAISED, kind, now[kind]) for kind in now.keys() - contact.told_conditions),
            *((EventKind.NODE_CONDITION_CLEARED, kind, "it is over") for kind in contact.told_conditions - now.keys()),
        ]
        if not events:
            return
        origin = Origin(self._clock.wall(), EventSource.AGENT, "its heartbeat says so")
        await self._ledger.commit(
            Batch(
                events=tuple(
                    node_event(heartbeat.node_id, event, f"{kind}: {message}", origin)
                    for event, kind, message in sorted(events)
                )
            )
        )
        contact.told_conditions = frozenset(now)

    async def _store_orphan_events(self, node_id: NodeId, orphans: Iterable[WorkloadId]) -> None:
        origin = Origin(self._clock.wall(), EventSource.AGENT, "its heartbeat lists it")
        events = tuple(
            node_event(node_id, EventKind.ORPHAN_FOUND, f"workload {orphan} has no record and is left alone", origin)
            for orphan in orphans
        )
        await self._ledger.commit(Batch(events=events))

"""Places workloads one batch at a time: decides, reserves and commits a batch before it decides the next one.

The scheduler is pure and sees one snapshot of the fleet. Two placements from one snapshot could both take the last free
slot. So everything that waits is placed together, committed in one transaction, and only then the next batch is decided
on a new snapshot.

Called by `shoal.control.workloads` for single workloads (placing, relocation, adoption) and for groups.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shoal.control.placement.scheduler import Memory, place
from shoal.control.state.events import Origin, workload_event
from shoal.control.state.facts import PlacementDecision, PlacementRequest, Strategy
from shoal.control.state.fleet import Fleet, format_ports, holds_reservation, parse_port
from shoal.control.state.ledger import CONFLICTS_UNTIL_RELOAD, Ledger
from shoal.control.state.lifecycle.changes import Change, owned
from shoal.control.state.moves import begun_first
from shoal.control.store.base import Batch
from shoal.control.store.errors import StoreError
from shoal.core import faults, tracing
from shoal.core.clock import Clock
from shoal.core.errors import ConflictError, ShoalError
from shoal.core.ids import NodeId, WorkloadId
from shoal.core.tasks import Signal
from shoal.model.events import Event, EventKind, EventSource
from shoal.model.workloads import DesiredState, Rejection, WorkloadRecord

MAX_BATCH = 1000
#: A batch of this size means that many wait for a place, for so many seconds.
BUSY_BATCH = 8
BUSY_SECONDS = 1.0
#: So many in a second are a backlog, for as long. Each batch is a transaction and a look at every node: with a backlog
#: the next one waits for more requests, until none comes for a moment. A workload that has a node already never waits.
BACKLOG = 256
GATHER_SECONDS = 0.5
MOMENT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A workload that fits nowhere now."""

    rejections: tuple[Rejection, ...]


@dataclass(slots=True)
class _Waiting:
    workload_id: WorkloadId
    reason: str
    away_from: NodeId | None
    refused_by: Mapping[NodeId, str]
    #: The copy on the present owner is left alone until the new one runs.
    hold: bool = False
    done: asyncio.Future[Unplaced | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def request_for(
    fleet: Fleet,
    record: WorkloadRecord,
    *,
    away_from: NodeId | None = None,
    refused_by: Mapping[NodeId, str] | None = None,
) -> PlacementRequest:
    """What the scheduler has to know about a workload that needs a place."""
    refused = dict(refused_by or {})
    if away_from is not None:
        refused.setdefault(away_from, "it moves away from there")
    current = record.node_id if record.node_id in fleet.nodes and record.node_id != away_from else None
    held = current is not None and holds_reservation(record, fleet.observations.get(record.workload_id))
    return PlacementRequest(
        workload_id=record.workload_id,
        spec=record.spec,
        needs_generations=record.group_id is not None or record.spec.at_most_one,
        refused_by=refused,
        current=current,
        current_request=record.reserved if held else None,
        current_ports=frozenset(parse_port(port) for port in record.reserved_ports) if held else frozenset(),
    )


def placed_on(record: WorkloadRecord, node_id: NodeId, *, at: datetime) -> WorkloadRecord:
    """The record with its newest generation placed.

    A change of owner is a new ownership, so it gets a generation of its own; staying only takes up the newest one.
    """
    moved = record.node_id is not None and record.node_id != node_id
    return owned(
        record,
        Change.PLACED,
        at=at,
        raises=moved and record.placed_generation == record.generation,
        node_id=node_id,
        placed_at=at,
        reserved=record.spec.request,
        reserved_ports=format_ports(record.spec.host_ports),
        left_on=_left_on(record, node_id),
        move=None if record.move is not None and record.move.away_from == node_id else record.move,
        left_without_deadline=_left_without_deadline(record, node_id),
        placed_at_most_one=record.spec.at_most_one,
    )


def _left_on(record: WorkloadRecord, node_id: NodeId) -> tuple[NodeId, ...]:
    """Where older copies may be after a placement on `node_id`, which takes over the one it may have itself."""
    before = {*record.left_on, record.node_id} if record.node_id is not None else {*record.left_on}
    return tuple(sorted(each for each in before if each is not None and each != node_id))


def _left_without_deadline(record: WorkloadRecord, node_id: NodeId) -> tuple[NodeId, ...]:
    """Those of them whose copy has no deadline."""
    before = {*record.left_without_deadline}
    if record.node_id is not None and not record.placed_at_most_one:
        before.add(record.node_id)
    return tuple(sorted(each for each in before if each != node_id))


def placement_event(before: WorkloadRecord, after: WorkloadRecord, *, at: datetime, cause: str) -> Event | None:
    """The event of a placement; None when the workload stays on its node."""
    if before.node_id == after.node_id:
        return None
    kind = EventKind.WORKLOAD_PLACED if before.node_id is None else EventKind.WORKLOAD_MOVED
    message = f"on node {after.node_id}" + (f", away from {before.node_id}" if before.node_id else "")
    origin = Origin(at, EventSource.SCHEDULER, cause)
    return workload_event(after, kind, message, origin)


class Placer:
    """Places workloads, batch by batch."""

    def __init__(self, ledger: Ledger, *, clock: Clock, strategy: Strategy) -> None:
        self._ledger = ledger
        self._clock = clock
        self.strategy = strategy
        self._memory = Memory()
        self._waiting: list[_Waiting] = []
        self._wake = Signal()
        #: One of those that wait has a node already.
        self._has_update = asyncio.Event()
        self._serial = asyncio.Lock()
        self._busy_until = 0.0
        self._backlog_until = 0.0
        #: When counting began, at most a second ago, and how many were taken since then.
        self._counted_from, self._counted = 0.0, 0
        self._conflicts = 0  # batches in a row

    async def place(
        self,
        workload_id: WorkloadId,
        *,
        reason: str,
        away_from: NodeId | None = None,
        refused_by: Mapping[NodeId, str] | None = None,
        hold: bool = False,
    ) -> Unplaced | None:
        """Place one workload durably. None when it has its place, or no longer needs one.

        `hold` leaves the copy on the node that it moves away from alone until the new one runs.
        """
        entry = _Waiting(workload_id, reason, away_from, refused_by or {}, hold)
        self._waiting.append(entry)
        known = self._ledger.fleet.workloads.get(workload_id)
        if known is not None and known.node_id is not None:
            self._has_update.set()
        self._wake.set()
        return await entry.done

    @property
    def is_busy(self) -> bool:
        """Whether many wait for a place, or did a moment ago."""
        return len(self._waiting) >= BUSY_BATCH or self._clock.monotonic() < self._busy_until

    @property
    def has_backlog(self) -> bool:
        """Whether very many are being placed, or were a moment ago."""
        return self._clock.monotonic() < self._backlog_until

    async def _gather(self) -> None:
        """Wait for more requests while they keep coming, or for one of a workload that runs somewhere."""
        ends = self._clock.monotonic() + GATHER_SECONDS
        before = -1
        while before < len(self._waiting) < MAX_BATCH and self._clock.monotonic() < ends:
            before = len(self._waiting)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MOMENT_SECONDS):
                    await self._has_update.wait()
                    return

    def _count(self, taken: int) -> None:
        now = self._clock.monotonic()
        if now - self._counted_from >= 1.0:
            self._counted_from, self._counted = now, 0
        self._counted += taken
        if self._counted >= BACKLOG:
            self._backlog_until = now + BUSY_SECONDS

    @contextlib.asynccontextmanager
    async def exclusive(self, *, within: float | None = None) -> AsyncIterator[None]:
        """Place nothing else during the block, for changes that every later placement must see.

        `within`: `StoreError` when it cannot begin in so many seconds, because the store does not answer.
        """
        try:
            async with asyncio.timeout(within):
                await self._serial.acquire()
        except TimeoutError as error:
            raise StoreError(
                f"placements that were decided before are not stored after {within:g} s; nothing was changed",
                hint="the store is slow or hangs; ask again later",
            ) from error
        try:
            yield
        except asyncio.CancelledError:
            # The caller is cancelled, its commit is not: the next batch is decided once the store has answered.
            self._ledger.call_when_answered(self._serial.release)
            raise
        except BaseException:
            self._serial.release()
            raise
        else:
            self._serial.release()

    async def run(self) -> None:
        """Place what waits, until cancelled."""
        while True:
            await self._wake.wait()
            while self._waiting:
                if len(self._waiting) < MAX_BATCH and self.has_backlog:
                    await self._gather()
                if len(self._waiting) >= BUSY_BATCH:
                    self._busy_until = self._clock.monotonic() + BUSY_SECONDS
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                self._has_update.clear()
                self._count(len(batch))
                async with self._serial:
                    with tracing.span("placement", requests=len(batch)):
                        await self._place_batch(batch)
            # Nothing waits: unless more comes within a few moments, the rush is over.
            over = self._clock.monotonic() + 3 * MOMENT_SECONDS
            self._busy_until, self._backlog_until = min(over, self._busy_until), min(over, self._backlog_until)

    async def _place_batch(self, entries: list[_Waiting]) -> None:
        try:
            await self._decide_and_commit(entries)
            self._conflicts = 0
        except ConflictError:
            # Another writer changed one of the records: their own reconciling asks again if needed.
            self._conflicts += 1
            if self._conflicts % CONFLICTS_UNTIL_RELOAD == 0:
                self._ledger.doubt()
            for entry in entries:
                if not entry.done.done():
                    entry.done.set_result(None)
        except ShoalError as error:
            for entry in entries:
                if not entry.done.done():
                    entry.done.set_exception(error)

    async def _decide_and_commit(self, entries: list[_Waiting]) -> None:
        asked = {entry.workload_id: entry for entry in entries}
        # What an earlier batch has taken is known before this one is decided, also if its answer was lost.
        await self._ledger.settle()
        picture = self._ledger.picture
        batch, unplaced = self._decide(asked)
        await self._ledger.commit(batch, picture=picture)
        if batch.workloads:
            faults.reach("control.place.committed")
        for entry in entries:
            if not entry.done.done():
                entry.done.set_result(unplaced.get(entry.workload_id))

    def _decide(self, asked: Mapping[WorkloadId, _Waiting]) -> tuple[Batch, dict[WorkloadId, Unplaced]]:
        """What to store for those that have a place, and why the others have none."""
        fleet, at = self._ledger.fleet, self._clock.wall()
        requests = [request for entry in asked.values() if (request := self._request(entry)) is not None]
        plan = place(requests, fleet.facts(), strategy=self.strategy, memory=self._memory)
        records, events = [], []
        unplaced: dict[WorkloadId, Unplaced] = {}
        for decision in plan.decisions:
            if decision.node_id is None:
                unplaced[decision.workload_id] = Unplaced(decision.rejections)
                continue
            record = fleet.workloads[decision.workload_id]
            placed = placed_on(record, decision.node_id, at=at)
            entry = asked[decision.workload_id]
            if entry.hold and entry.away_from is not None and record.node_id == entry.away_from != placed.node_id:
                placed = begun_first(record, placed, at=at)
            records.append(placed)
            event = placement_event(record, placed, at=at, cause=entry.reason)
            if event is not None:
                events.append(event)
        forgotten = tuple(each.workload_id for each in records if fleet.has_nameless_end(each.workload_id))
        return Batch(workloads=tuple(records), forgotten_observations=forgotten, events=tuple(events)), unplaced

    def _request(self, entry: _Waiting) -> PlacementRequest | None:
        """None when it no longer needs a place: deleted, stopped, or placed by somebody else meanwhile."""
        fleet = self._ledger.fleet
        record = fleet.workloads.get(entry.workload_id)
        if record is None or record.desired is not DesiredState.RUNNING:
            return None
        settled = record.node_id in fleet.nodes and record.placed_generation == record.generation
        if settled and record.node_id != entry.away_from and record.node_id not in entry.refused_by:
            return None
        return request_for(fleet, record, away_from=entry.away_from, refused_by=entry.refused_by)


def first_unplaced(decisions: tuple[PlacementDecision, ...]) -> PlacementDecision | None:
    """The first decision that found no node and says why, else the first without one: of a group none has a node."""
    unplaced = [decision for decision in decisions if decision.node_id is None]
    return next((each for each in unplaced if each.rejections), unplaced[0] if unplaced else None)

"""The working set: everything that is stored, in memory, indexed for decisions.

The store holds the truth; this holds a copy that changes only when a batch was committed, so a reader never sees
what may still be lost. `Ledger.commit` is the one way to change both. Called by every module of the control plane.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from shoal.control.state.facts import NodeFacts
from shoal.control.state.moves import is_held
from shoal.control.store.base import Batch, Settled, Snapshot, Store
from shoal.control.store.errors import LeadershipLostError, StoreError, StoreOutcome
from shoal.core.errors import ConflictError, NotFoundError, ShoalError
from shoal.core.ids import GroupId, NodeId, WorkloadId
from shoal.core.tasks import TaskScope
from shoal.model.events import Event, EventKind, SubjectKind
from shoal.model.nodes import DesiredNodeState, NodeRecord
from shoal.model.resources import Resources
from shoal.model.trust import Revocation
from shoal.model.workloads import DesiredState, GroupRecord, Observation, RunState, Usage, WorkloadRecord

log = logging.getLogger(__name__)

CONFLICT_RETRIES = 20
CONFLICTS_UNTIL_RELOAD = 5
#: How long a change waits until what is stored was read again. With the store's own patience it stays below what
#: clients wait.
SETTLE_SECONDS = 2.0
#: After this long a commit that was not answered never will be. Above the store's patience.
ANSWER_SECONDS = 10.0
#: Memory is read anew at most this often.
RELOAD_SECONDS = 1.0


def holds_reservation(record: WorkloadRecord, observation: Observation | None) -> bool:
    """Whether what was reserved for a workload on its node is still taken.

    It is given back when the owner confirms that the placed generation does not run and will not by itself: stopped as
    requested, completed, or failed. A newer generation takes what it needs when it is placed, not before.
    """
    if record.node_id is None:
        return False
    if observation is None or observation.node_id != record.node_id:
        return True
    status = observation.status
    if status.generation and status.generation < record.placed_generation:
        return True
    waits = record.desired is not DesiredState.RUNNING or record.placed_generation < record.generation
    ended = status.state is RunState.STOPPED and (waits or status.completed)
    return not (ended or status.state is RunState.FAILED)


class Fleet:
    """Nodes, workloads, groups and last reports, with what is reserved where."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.workloads: dict[WorkloadId, WorkloadRecord] = {}
        self.groups: dict[GroupId, GroupRecord] = {}
        self.observations: dict[WorkloadId, Observation] = {}
        self.revocations: dict[NodeId, Revocation] = {}
        #: No generation up to this one is used for a new workload: a name that is used again goes on counting.
        self.generation_floor = 0
        self._left_on: defaultdict[NodeId, set[WorkloadId]] = defaultdict(set)
        self._owned: defaultdict[NodeId, set[WorkloadId]] = defaultdict(set)
        #: The workloads on their way off a node that is drained.
        self._moving: set[WorkloadId] = set()
        self._facts: dict[NodeId, NodeFacts] = {}
        self._disk_pressure: dict[NodeId, str] = {}

    def owned_by(self, node_id: NodeId) -> frozenset[WorkloadId]:
        """The workloads that a node owns."""
        return frozenset(self._owned.get(node_id, ()))

    def left_on(self, node_id: NodeId) -> frozenset[WorkloadId]:
        """The workloads of which a node may hold an older copy."""
        return frozenset(self._left_on.get(node_id, ()))

    def moving_from(self, node_id: NodeId) -> frozenset[WorkloadId]:
        """The workloads on their way off a node, until they run elsewhere."""
        found = (self.workloads[each] for each in self._moving)
        return frozenset(each.workload_id for each in found if each.move and each.move.away_from == node_id)

    def leaving(self, node_id: NodeId) -> frozenset[WorkloadId]:
        """The workloads that still have to leave a node before it is empty. What has ended there may stay."""
        held = {
            each
            for each in self._owned.get(node_id, ())
            if holds_reservation(self.workloads[each], self.observations.get(each))
        }
        return frozenset(held | self._left_on.get(node_id, set()))

    def has_nameless_end(self, workload_id: WorkloadId) -> bool:
        """Whether the last report is of an end, by an agent that does not say of which generation."""
        known = self.observations.get(workload_id)
        ends = (RunState.STOPPED, RunState.FAILED)
        return known is not None and not known.status.generation and known.status.state in ends

    def node(self, node_id: str) -> NodeRecord:
        """A node, or NotFoundError."""
        record = self.nodes.get(NodeId(node_id))
        if record is None:
            raise NotFoundError("node", node_id)
        return record

    def workload(self, workload_id: str) -> WorkloadRecord:
        """A workload, or NotFoundError."""
        record = self.workloads.get(WorkloadId(workload_id))
        if record is None or self.is_buried(record):
            raise NotFoundError("workload", workload_id)
        return record

    def group(self, group_id: str) -> GroupRecord:
        """A group, or NotFoundError."""
        record = self.groups.get(GroupId(group_id))
        if record is None:
            raise NotFoundError("group", group_id)
        return record

    def is_buried(self, record: WorkloadRecord) -> bool:
        """Whether it is deleted as far as people are concerned, and only a tombstone is left for a lost node."""
        if record.desired is not DesiredState.DELETED:
            return False
        if record.node_id is None:
            return bool(record.left_on)
        owner = self.nodes.get(record.node_id)
        return owner is not None and owner.state.value == "NotReady"

    def facts(self) -> dict[NodeId, NodeFacts]:
        """Every node as the scheduler sees it."""
        for node_id in self.nodes:
            if node_id not in self._facts:
                self._facts[node_id] = self._make_facts(node_id)
        return self._facts

    def facts_of(self, node_id: NodeId) -> NodeFacts:
        """One node as the scheduler sees it."""
        found = self._facts.get(node_id)
        if found is None:
            found = self._facts[node_id] = self._make_facts(node_id)
        return found

    def take(self, batch: Batch) -> None:
        """Take over a batch that the store has committed."""
        for node in batch.nodes:
            self.nodes[node.node_id] = dataclasses.replace(node, version=node.version + 1)
            self._facts.pop(node.node_id, None)
        for workload in batch.workloads:
            self._put_workload(dataclasses.replace(workload, version=workload.version + 1))
        for group in batch.groups:
            self.groups[group.group_id] = dataclasses.replace(group, version=group.version + 1)
        for observation in batch.observations:
            self._put_observation(observation)
        for workload_id in (*batch.forgotten_observations, *batch.removed_workloads):
            self._drop_observation(workload_id)
        for workload_id in batch.removed_workloads:
            self._remove_workload(workload_id)
        for node_id in batch.removed_nodes:
            self.nodes.pop(node_id, None)
            self._facts.pop(node_id, None)
            self._disk_pressure.pop(node_id, None)
        for revoked in batch.removed_revocations:
            self.revocations.pop(revoked, None)
        for revocation in batch.revocations:
            self.revocations[revocation.node_id] = dataclasses.replace(revocation, version=revocation.version + 1)
        self.generation_floor = max(self.generation_floor, batch.generation_floor)
        for group_id in batch.removed_groups:
            self.groups.pop(group_id, None)

    def measured(self, workload_id: WorkloadId, usage: Usage) -> None:
        """Take in a measurement. It is not stored: the next heartbeat brings a newer one."""
        known = self.observations.get(workload_id)
        if known is None:
            return
        self.observations[workload_id] = dataclasses.replace(
            known, status=dataclasses.replace(known.status, usage=usage)
        )

    def note_disk_pressure(self, node_id: NodeId, why: str) -> bool:
        """Take in whether a node's disk is nearly full; whether that is over now. Every heartbeat says it again."""
        before = self._disk_pressure.pop(node_id, "")
        if why:
            self._disk_pressure[node_id] = why
        if why != before:
            self._facts.pop(node_id, None)
        return bool(before) and not why

    def load(self, stored: Snapshot) -> None:
        """Take over what is stored, in place of whatever was known."""
        self.workloads, self.observations = {}, {}
        self._moving.clear()
        for index in (self._owned, self._left_on):
            index.clear()
        self._facts.clear()
        self.nodes = {node.node_id: node for node in stored.nodes}
        self.groups = {group.group_id: group for group in stored.groups}
        self.revocations = {each.node_id: each for each in stored.revocations}
        self.generation_floor = stored.generation_floor
        for workload in stored.workloads:
            self._put_workload(workload)
        for observation in stored.observations:
            self._put_observation(observation)

    def _make_facts(self, node_id: NodeId) -> NodeFacts:
        node = self.nodes[node_id]
        owned = (self.workloads[each] for each in self._owned.get(node_id, ()))
        left = (self.workloads[each] for each in self._left_on.get(node_id, ()))
        tenants = [each for each in owned if holds_reservation(each, self.observations.get(each.workload_id))]
        tenants += [each for each in left if is_held(each, node_id)]  # two copies for a while, and room for both
        return NodeFacts(
            spec=node.labeled_spec,
            state=node.state,
            reserved=Resources.total(each.reserved for each in tenants),
            ports=frozenset(parse_port(port) for each in tenants for port in each.reserved_ports),
            tenants={each.workload_id: each.spec.labels for each in tenants},
            cordoned=node.desired is DesiredNodeState.CORDONED,
            disk_pressure=self._disk_pressure.get(node_id, ""),
            unsupported_types=node.unsupported_types,
        )

    def _put_workload(self, record: WorkloadRecord) -> None:
        before = self.workloads.get(record.workload_id)
        if before is not None and before.node_id is not None and before.node_id != record.node_id:
            _discard(self._owned, before.node_id, record.workload_id)
            self._facts.pop(before.node_id, None)
        self._index_left_on(before.left_on if before is not None else (), record)
        self._index_move(before, record)
        self.workloads[record.workload_id] = record
        if record.node_id is not None:
            self._owned[record.node_id].add(record.workload_id)
            self._recount(record.node_id, record)

    def _recount(self, node_id: NodeId, record: WorkloadRecord) -> None:
        """What is known of its owner's room after a change. To count anew takes a while, and a newcomer only adds."""
        facts = self._facts.pop(node_id, None)
        if facts is None or record.workload_id in facts.tenants:
            return
        if not holds_reservation(record, self.observations.get(record.workload_id)):
            self._facts[node_id] = facts
            return
        self._facts[node_id] = facts.with_tenant(
            record.workload_id,
            request=record.reserved,
            ports=frozenset(parse_port(port) for port in record.reserved_ports),
            labels=record.spec.labels,
        )

    def _remove_workload(self, workload_id: WorkloadId) -> None:
        record = self.workloads.pop(workload_id, None)
        if record is not None:
            self._index_left_on(record.left_on, dataclasses.replace(record, left_on=()))
            self._index_move(record, None)
        if record is not None and record.node_id is not None:
            _discard(self._owned, record.node_id, workload_id)
            self._facts.pop(record.node_id, None)

    def _index_left_on(self, before: tuple[NodeId, ...], record: WorkloadRecord) -> None:
        for node_id in before:
            _discard(self._left_on, node_id, record.workload_id)
        for node_id in record.left_on:
            self._left_on[node_id].add(record.workload_id)

    def _index_move(self, before: WorkloadRecord | None, record: WorkloadRecord | None) -> None:
        for each in (before, record):
            if each is not None and each.move is not None:
                self._facts.pop(each.move.away_from, None)
        if record is not None and record.move is not None:
            self._moving.add(record.workload_id)
        elif before is not None:
            self._moving.discard(before.workload_id)

    def _put_observation(self, observation: Observation) -> None:
        workload_id = observation.status.workload_id
        before, record = self.observations.get(workload_id), self.workloads.get(workload_id)
        if record is None:
            return  # forgotten while the report was being stored, and so it is there
        self.observations[workload_id] = observation
        # Most news change nothing about the room on a node, and to count it again takes a while.
        if holds_reservation(record, before) != holds_reservation(record, observation):
            self._facts.pop(record.node_id or observation.node_id, None)

    def _drop_observation(self, workload_id: WorkloadId) -> None:
        observation = self.observations.pop(workload_id, None)
        if observation is not None:
            self._facts.pop(observation.node_id, None)


def _discard(index: dict[NodeId, set[WorkloadId]], node_id: NodeId, workload_id: WorkloadId) -> None:
    """Take a workload off a node's set, and the set away when it was the last: nodes come and go."""
    found = index.get(node_id)
    if found is not None:
        found.discard(workload_id)
        if not found:
            del index[node_id]


def parse_port(text: str) -> tuple[int, str]:
    """`8080/tcp` as a pair."""
    number, _, protocol = text.partition("/")
    return int(number), protocol


def format_ports(ports: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    """Pairs as `8080/tcp`, in order."""
    return tuple(f"{number}/{protocol}" for number, protocol in sorted(ports))


EventListener = Callable[[tuple[Event, ...]], None]


class Ledger:
    """Commits batches to the store and, once they are durable, to the working set."""

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        *,
        term: int = 0,
        scope: TaskScope | None = None,
        on_commit: Callable[[Batch], None] | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.fleet = fleet
        self._term = term
        self._on_commit = on_commit or (lambda _batch: None)
        self._on_failure = on_failure or (lambda: None)
        self._scope = scope or TaskScope("ledger")
        self._listeners: list[EventListener] = []
        self._reload_listeners: list[Callable[[], None]] = []
        self._batch_listeners: list[Callable[[Batch], None]] = []
        #: Counts how often memory was read: a decision is good for the picture that it was made on.
        self.picture = 0
        #: Whether a commit may have happened that memory does not know of.
        self._doubtful = False
        self._settling: asyncio.Future[None] | None = None
        #: When memory was last read because of a doubt, on the event loop's clock.
        self._settled_at = -math.inf
        #: Commits that are not answered yet.
        self._under_way: set[asyncio.Future[None]] = set()

    def on_events(self, listener: EventListener) -> None:
        """Call `listener` with the events of each committed batch."""
        self._listeners.append(listener)

    def on_batch(self, listener: Callable[[Batch], None]) -> None:
        """Call `listener` with each committed batch, also when its caller is gone."""
        self._batch_listeners.append(listener)

    def on_reload(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever memory was read anew, because it could not be trusted any more."""
        self._reload_listeners.append(listener)

    async def load(self, *, again: bool = False) -> None:
        """Fill the working set from the store."""
        self.fleet.load(await self.store.load(again=again))
        self.picture += 1

    async def commit(self, batch: Batch, *, picture: int | None = None) -> None:
        """Make a batch durable. A caller that goes away meanwhile does not undo it: memory follows the store.

        `picture`: the one that it was decided on. Versions only guard the records of a batch, not what else it was
        decided by; so ConflictError when memory was read anew since then.
        """
        if batch.is_empty():
            return
        await self.settle()
        if picture is not None and picture != self.picture:
            raise ConflictError("memory was read anew after this was decided", decided_on=picture, now=self.picture)
        answered = asyncio.get_running_loop().create_future()
        self._under_way.add(answered)
        answered.add_done_callback(self._under_way.discard)
        try:
            # What follows belongs to the trace of the caller.
            mine = partial(self._settled, batch, answered)
            settled = partial(_run_in, contextvars.copy_context(), mine)
            await self.store.commit(batch, term=self._term, settled=settled)
        except Exception as error:
            _finish(answered)  # one that was refused at the door was never told of
            if isinstance(error, StoreError):
                self._on_failure()
                error.hint = error.hint or (_way_to_look(batch) if _is_unknown(error) else _LATER)
            raise

    async def change(self, decide: Callable[[], Batch | None]) -> Batch | None:
        """Decide on the present state and commit; decide again when somebody else was faster.

        `decide` returns None when there is nothing to change, or raises to refuse.
        """
        for attempt in range(CONFLICT_RETRIES):
            if attempt == CONFLICTS_UNTIL_RELOAD:
                self.doubt()  # more often than chance would have it
            await self.settle()
            picture, batch = self.picture, decide()
            if batch is None:
                return None
            try:
                await self.commit(batch, picture=picture)
            except ConflictError:
                await asyncio.sleep(0)
                continue
            return batch
        raise ConflictError("the same record was changed by others again and again", retries=CONFLICT_RETRIES)

    async def change_workload(
        self,
        workload_id: WorkloadId,
        change: Callable[[WorkloadRecord], Batch | None],
        *,
        only: WorkloadRecord | None = None,
    ) -> bool:
        """Commit what `change` makes of the newest record; with `only`, if it is still that one. True if it changed."""

        def decide() -> Batch | None:
            current = self.fleet.workloads.get(workload_id)
            if current is None or (only is not None and current.version != only.version):
                return None
            return change(current)

        return await self.change(decide) is not None

    def doubt(self) -> None:
        """Perhaps it is memory that is wrong: what is stored is read before anything else is committed."""
        self._doubtful = True

    async def settle(self) -> None:
        """After a commit whose outcome is not known, read what is stored before anything else is decided."""
        while self._doubtful:  # also when a new doubt came up before this caller had its turn
            # One reading for all who wait for it, which goes on when they do not: a store that hangs is not asked again
            # by each of them.
            if self._scope.is_closing:
                raise LeadershipLostError("")
            if self._settling is None or self._settling.done():
                self._settling = asyncio.get_running_loop().create_future()
                self._scope.start(self._settle(self._settling), name="settle")
            settling = self._settling
            await asyncio.wait({settling}, timeout=SETTLE_SECONDS)
            if not settling.done():
                raise StoreError("the store does not answer; nothing was changed", hint=_LATER)
            settling.result()

    async def answered(self) -> None:
        """Wait until every commit that is under way now has its answer. One that never gets it leaves a doubt."""
        waiting = {each for each in self._under_way if not each.done()}
        if waiting:
            _, unanswered = await asyncio.wait(waiting, timeout=ANSWER_SECONDS)
            self._doubtful = self._doubtful or bool(unanswered)

    async def _settle(self, settled: asyncio.Future[None]) -> None:
        # Those that wait for their answer now may be stored after the reading began, and would be forgotten by it.
        # Others wait until this is done. The store answers all of them within its patience.
        try:
            if self._under_way:
                await asyncio.wait(set(self._under_way), timeout=ANSWER_SECONDS)
                for each in list(self._under_way):
                    _finish(each)  # one that is answered later is a doubt again
                self._under_way.clear()
            # A store that leaves every commit unknown would be read at full speed: each reading starts new commits.
            loop = asyncio.get_running_loop()
            await asyncio.sleep(self._settled_at + RELOAD_SECONDS - loop.time())
            await self.load()
            self._settled_at = loop.time()
            self._doubtful = False
            for reloaded in self._reload_listeners:
                reloaded()
        except BaseException as error:
            settled.set_exception(error if isinstance(error, ShoalError) else LeadershipLostError(""))
            settled.exception()  # read here: those who waited for it may have gone
            if not isinstance(error, ShoalError):
                raise
        else:
            settled.set_result(None)

    def _settled(self, batch: Batch, answered: asyncio.Future[None], outcome: tuple[Event, ...] | Exception) -> None:
        """Memory follows the store, whether or not the caller still waits."""
        if answered.done():
            self.doubt()  # stored after it was said that this is not known, perhaps after memory was read anew
            return
        _finish(answered)
        if isinstance(outcome, Exception):
            self._doubtful = self._doubtful or _is_unknown(outcome)
            return
        self.fleet.take(batch)
        self._on_commit(batch)
        for told in self._batch_listeners:
            told(batch)
        for listener in self._listeners:
            listener(outcome)


def _run_in(context: contextvars.Context, told: Settled, outcome: tuple[Event, ...] | Exception) -> None:
    context.run(told, outcome)


def _finish(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)


def _is_unknown(error: Exception) -> bool:
    """Whether what it is about may have been stored all the same."""
    return isinstance(error, StoreError) and error.outcome is StoreOutcome.UNKNOWN


_LATER = "the control plane cannot write now; what runs goes on, so ask again later"


def _way_to_look(batch: Batch) -> str:
    """How somebody learns what became of a batch whose outcome is not known."""
    if batch.groups:
        command = f"shoal group get {batch.groups[0].group_id}"
    elif batch.workloads:
        command = f"shoal workload get {batch.workloads[0].workload_id}"
    elif batch.nodes:
        command = f"shoal node get {batch.nodes[0].node_id}"
    else:
        command = "shoal events"
    return f"it may have been stored: look with `{command}` before you ask again"


def node_event(node_id: str, kind: EventKind, message: str, *, at: datetime, source: str, cause: str) -> Event:
    """An event about a node."""
    return Event(at, SubjectKind.NODE, node_id, kind, message, source, cause)


def workload_event(
    record: WorkloadRecord, kind: EventKind, message: str, *, at: datetime, source: str, cause: str
) -> Event:
    """An event about a workload, with what identifies its state."""
    facts = {"revision": record.revision_id, "generation": str(record.generation)}
    if record.node_id is not None:
        facts["node"] = record.node_id
    if record.group_id is not None:
        facts["group"] = record.group_id
    return Event(at, SubjectKind.WORKLOAD, record.workload_id, kind, message, source, cause, facts)


def group_event(record: GroupRecord, kind: EventKind, message: str, *, at: datetime, source: str, cause: str) -> Event:
    """An event about a group."""
    facts = {"generation": str(record.generation), "members": str(len(record.members))}
    return Event(at, SubjectKind.GROUP, record.group_id, kind, message, source, cause, facts)

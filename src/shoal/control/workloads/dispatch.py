"""Carries out the reconciler's steps: one small task per workload that has something to do, many at once.

`enqueue` is called for every write, heartbeat and timer that may change what is to be done about a workload. Its
steps run one after another, so orders about one workload never overtake each other, and those of different workloads
run side by side, so one slow agent holds up nobody else. When to look is kept by `work_queue`, what agents were told by
`orders`, what they report goes through `sightings`, and what is left of a workload elsewhere is removed by `copies`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from shoal.control.agents.calls import Agents, is_foreign, is_unsupported
from shoal.control.agents.concurrency import FEW, MANY, Turns
from shoal.control.placement.placer import Placer, Unplaced
from shoal.control.state import moves
from shoal.control.state.fleet import Fleet, Ledger, workload_event
from shoal.control.store.base import Batch
from shoal.control.trust.secrets import SecretBook
from shoal.control.workloads import changes, retries
from shoal.control.workloads.commands import CommandBook
from shoal.control.workloads.copies import Copies
from shoal.control.workloads.reconciler import (
    FOREIGN_POLL_SECONDS,
    Command,
    CommandKind,
    ConfirmWithForeignAgent,
    Facts,
    FinishMove,
    Forget,
    LeaveNode,
    NoteFailure,
    Owner,
    Place,
    RefillBudget,
    Retry,
    SendApply,
    SendDelete,
    Settled,
    Step,
    TakeMoveBack,
    Wait,
    is_current,
    reconcile,
)
from shoal.control.workloads.status_reports import StatusReports
from shoal.control.workloads.work_queue import WorkQueue
from shoal.core import faults
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.errors import InvalidError, NotFoundError, NotLeaderError, ShoalError, StaleGenerationError
from shoal.core.ids import MAX_GENERATION, NodeId, WorkloadId
from shoal.core.tasks import TaskScope
from shoal.model.nodes import HeartbeatMark, NodeRecord, NodeState
from shoal.model.workloads import (
    DesiredState,
    FailureReason,
    Rejection,
    RunState,
    RunStatus,
    WorkloadRecord,
)

log = logging.getLogger(__name__)

BUG_RETRY_SECONDS = 15.0
#: Work that a Ready node has not answered for after so many tries is placed elsewhere, if it never ran there.
GIVE_UP_FAILURES = 6
#: An agent that claims to have seen a generation further ahead than this is not believed.
MAX_OVERTAKE = 1_000_000
#: An unplaceable workload is tried again after this long even if nothing was seen to change.
PENDING_RETRY_SECONDS = 15.0
#: What is to keep placements out waits this long for those that are being stored. Well below what clients wait.
NO_PLACEMENTS_WITHIN = 5.0
#: However much changes, everything that waits for room is tried at most this often.
CAPACITY_SETTLE_SECONDS = 0.05


class Liveness(Protocol):
    """What `shoal.control.nodes.contacts` knows about contact with nodes."""

    def surely_stopped(self, node_id: NodeId) -> bool:
        """Whether an at-most-one copy on a lost node must have stopped by now."""
        ...

    def silence(self, node_id: NodeId) -> float:
        """Seconds since a node was last heard of."""
        ...

    def lease_of(self, node_id: NodeId) -> float:
        """How long a node counts as alive after a beat."""
        ...

    def predecessor_until(self, node_id: NodeId) -> float:
        """Until when another agent that held this node id may still run at-most-one work; 0 when there is none."""
        ...


class GroupUndo(Protocol):
    """What `shoal.control.workloads.groups` does when a member cannot be placed, and when one was accepted."""

    async def member_unplaceable(self, record: WorkloadRecord, rejections: tuple[Rejection, ...]) -> bool:
        """Undo the change under way. False when there is none: the member then waits like any workload."""
        ...

    async def member_accepted(self, record: WorkloadRecord) -> None:
        """Note that an agent has taken a member."""
        ...


class Dispatch:
    """Drives every workload towards its wish."""

    def __init__(
        self,
        ledger: Ledger,
        placer: Placer,
        agents: Agents,
        *,
        clock: Clock,
        entropy: Entropy,
        scope: TaskScope,
        liveness: Liveness,
        on_step: Callable[[str, bool], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._fleet: Fleet = ledger.fleet
        self._placer = placer
        self._agents = agents
        self._clock = clock
        self._entropy = entropy
        self._liveness = liveness
        self._on_step = on_step or (lambda _action, _success: None)
        self._queue = WorkQueue(scope, self._drive)
        self.enqueue = self._queue.enqueue
        self.enqueue_all = self._queue.enqueue_all
        self._commands = CommandBook(clock=clock, entropy=entropy)
        self.copies = Copies(ledger, agents, enqueue=self.enqueue)
        self._reports = StatusReports(ledger, clock=clock, on_news=self._on_news, on_superseded=self.copies.superseded)
        self.observe = self._reports.take_in
        self._turns = Turns(lambda: FEW if placer.is_busy else MANY)
        self._place_not_before: dict[WorkloadId, float] = {}
        self._capacity_timer: asyncio.TimerHandle | None = None
        self.rejections: dict[WorkloadId, tuple[Rejection, ...]] = {}
        self.trouble: dict[WorkloadId, str] = {}
        ledger.on_reload(self._reloaded)
        ledger.on_batch(self._stored)
        self.groups: GroupUndo
        self.secrets: SecretBook

    # -----------------------------------------------------------------------------------------------------
    # What others tell

    def retry_now(self, workload_ids: list[WorkloadId]) -> None:
        """Tell agents at once what could not be told before: what was missing is there."""
        for workload_id in workload_ids:
            self._commands.hurry(workload_id)
            self.enqueue(workload_id)

    def capacity_changed(self) -> None:
        """Something was freed or became ready: whatever waits for room is tried again, soon and together."""
        if self._place_not_before and self._capacity_timer is None:
            loop = asyncio.get_running_loop()
            self._capacity_timer = loop.call_later(CAPACITY_SETTLE_SECONDS, self._try_pending)

    def listed(self, node: NodeRecord, present: frozenset[WorkloadId], heartbeat: HeartbeatMark) -> None:
        """A full list of what a node has arrived: draw conclusions about what it does not have."""
        for workload_id in self._fleet.owned_by(node.node_id) - present:
            record = self._fleet.workloads[workload_id]
            command = self._commands.get(workload_id)
            unsure = command is None or not command.accepted
            if unsure and record.desired is not DesiredState.DELETED and is_current(self._facts(record)):
                # Its answer was lost, or an earlier process told it; it was seen there all the same. Two lists
                # without it, and it is told again.
                command = Command(CommandKind.APPLY, node.node_id, record.generation, accepted=True)
            if (
                command
                and command.node_id == node.node_id
                and command.accepted
                and not heartbeat.is_before(command.first_heartbeat)
            ):
                gone = command.kind is CommandKind.DELETE and bool(node.spec.features)
                seen = dataclasses.replace(
                    command, absent_heartbeats=command.absent_heartbeats + 1, gone=command.gone or gone
                )
                self._commands.put(workload_id, seen)
            self.enqueue(workload_id)
        if is_foreign(node):
            self._commands.listed(self._fleet.owned_by(node.node_id) & present)

    def contact_renewed(self, node_id: NodeId) -> None:
        """A node registered or came back: what it was told before may be lost, so it is told again at once."""
        node = self._fleet.nodes.get(node_id)
        for workload_id in self._fleet.owned_by(node_id):
            if node is not None and is_foreign(node):
                self._commands.repeat(workload_id)
            self._commands.hurry(workload_id)
            self.enqueue(workload_id)
        self.capacity_changed()

    def node_declared_dead(self, node_id: NodeId) -> None:
        """Nothing runs there any more: what it owned moves, and what waited for a copy there goes on."""
        self.enqueue_all(self._fleet.owned_by(node_id) | self._fleet.left_on(node_id))

    def reset_backoff(self, workload_id: WorkloadId) -> None:
        """A person asked for it: no waiting."""
        self._commands.forget(workload_id)
        self._place_not_before.pop(workload_id, None)
        self.enqueue(workload_id)

    def has_accepted(self, record: WorkloadRecord) -> bool:
        """Whether its owner is known to have the newest generation."""
        command = self._commands.get(record.workload_id)
        told = command is not None and command.accepted and command.generation == record.generation
        return told or is_current(self._facts(record))

    def no_placements(self) -> AbstractAsyncContextManager[None]:
        """For a change that ends new work on a node: what was decided before it is stored before it."""
        return self._placer.exclusive(within=NO_PLACEMENTS_WITHIN)

    def _stored(self, batch: Batch) -> None:
        """What is stored is carried out, whether or not whoever wished it is still there to ask for it."""
        self.enqueue_all([record.workload_id for record in batch.workloads])
        ended = [node.node_id for node in batch.nodes if node.dead]
        for node_id in (*ended, *batch.removed_nodes):
            self.node_declared_dead(node_id)
        if any(node.state is NodeState.READY for node in batch.nodes):
            self.capacity_changed()

    def _reloaded(self) -> None:
        """Anything may have changed."""
        self.enqueue_all(list(self._fleet.workloads))
        self.capacity_changed()

    def _on_news(self, workload_ids: list[WorkloadId]) -> None:
        self.enqueue_all(workload_ids)
        self.capacity_changed()

    # -----------------------------------------------------------------------------------------------------
    # Driving one workload

    async def _drive(self, workload_id: WorkloadId) -> None:
        try:
            await self.copies.remove(workload_id)
            await self._converge(workload_id)
        except NotLeaderError:
            pass  # this reign is over
        except ShoalError as error:
            # The store is away, or two writers met too often: nothing is lost, the wish is durable. Look again.
            log.warning("workload %s: %s", workload_id, error)
            self._queue.look_again_in(workload_id, 1.0)
        except Exception:
            # A bug, or an answer nobody thought of: it must not take the other workloads down with it.
            log.exception("workload %s could not be driven on", workload_id)
            self.trouble[workload_id] = (
                "an internal error; it is tried again, and the log of the control plane says more"
            )
            self._queue.look_again_in(workload_id, BUG_RETRY_SECONDS)

    async def _converge(self, workload_id: WorkloadId) -> None:
        while True:
            record = self._fleet.workloads.get(workload_id)
            if record is None:
                self._drop(workload_id)
                return
            self._queue.begin_look(workload_id)
            step = reconcile(self._facts(record))
            if isinstance(step, Wait | Settled):
                if isinstance(step, Wait):
                    self._queue.look_again_in(workload_id, step.seconds)
                await self._note_arrival(record)
                if isinstance(step, Wait):
                    return  # what has changed meanwhile has asked for another look
            if not await self._carry_out(record, step):
                return

    async def _carry_out(self, record: WorkloadRecord, step: Step) -> bool:
        """Do it. True when the facts have changed and the next step is to be decided at once."""
        match step:
            case Place():
                return await self._place(record, step)
            case SendApply():
                return await self._send_apply(record)
            case SendDelete():
                return await self._send_delete(record)
            case ConfirmWithForeignAgent():
                return await self._confirm(record)
            case LeaveNode():
                return await self._leave_node(record, copy_left=step.copy_left)
            case FinishMove() | TakeMoveBack() | NoteFailure() | Retry() | RefillBudget():
                return await self._note(record, step)
            case Forget():
                await self._forget(record, step.reason)
                return False
            case _:
                return self._queue.has_news(record.workload_id)

    async def _note_arrival(self, record: WorkloadRecord) -> None:
        """Its group may be complete. Asked whenever it rests: the one call after the answer may have been in vain."""
        group = self._fleet.groups.get(record.group_id) if record.group_id is not None else None
        if group is None or not group.before:
            return
        if record.desired is not DesiredState.RUNNING or self.has_accepted(record):
            await self.groups.member_accepted(record)

    def _facts(self, record: WorkloadRecord) -> Facts:
        owner = None
        if record.node_id is not None and record.node_id in self._fleet.nodes:
            node = self._fleet.nodes[record.node_id]
            owner = Owner(
                node,
                surely_stopped=self._liveness.surely_stopped(record.node_id),
                silence=self._liveness.silence(record.node_id),
                lease=self._liveness.lease_of(record.node_id),
                predecessor_until=self._liveness.predecessor_until(record.node_id),
            )
        return Facts(
            record=record,
            owner=owner,
            observation=self._fleet.observations.get(record.workload_id),
            command=self._commands.get(record.workload_id),
            now=self._clock.monotonic(),
            wall=self._clock.wall(),
            older_copy_may_run=any(self._copy_may_run(record, node_id) for node_id in record.left_on),
            place_not_before=self._place_not_before.get(record.workload_id, 0.0),
            way_back=record.move is not None and self._is_heard_of(record.move.away_from),
        )

    def _is_heard_of(self, node_id: NodeId) -> bool:
        node = self._fleet.nodes.get(node_id)
        return node is not None and node.state is not NodeState.NOT_READY

    def _copy_may_run(self, record: WorkloadRecord, node_id: NodeId) -> bool:
        node = self._fleet.nodes.get(node_id)
        if node is None or node.dead:
            return False
        return node_id in record.left_without_deadline or not self._liveness.surely_stopped(node_id)

    async def _place(self, record: WorkloadRecord, step: Place) -> bool:
        away_from = record.node_id if step.away_from_owner else None
        refused = self._commands.standing_refusals(record.workload_id)
        unplaced = await self._placer.place(
            record.workload_id, reason=step.reason, away_from=away_from, refused_by=refused
        )
        self._on_step("Place", unplaced is None)
        if unplaced is None:
            self._pending_no_more(record.workload_id)
            self._leave_behind(record)
            await self.copies.remove(record.workload_id)
            return True
        await self._note_unplaced(record, unplaced)
        return False

    def _leave_behind(self, before: WorkloadRecord) -> None:
        """It has moved away from a node that can be reached: its copy is removed at once, not at its next beat."""
        after = self._fleet.workloads.get(before.workload_id)
        if after is None or before.node_id is None or after.node_id == before.node_id:
            return
        node = self._fleet.nodes.get(before.node_id)
        if node is not None and node.state is not NodeState.NOT_READY:
            self.copies.note(before.workload_id, before.node_id, before.placed_generation)

    async def _note_unplaced(self, record: WorkloadRecord, unplaced: Unplaced) -> None:
        workload_id = record.workload_id
        is_news = workload_id not in self.rejections
        self.rejections[workload_id] = unplaced.rejections
        self._place_not_before[workload_id] = self._clock.monotonic() + PENDING_RETRY_SECONDS
        self._queue.look_again_in(workload_id, PENDING_RETRY_SECONDS)
        if record.group_id is not None and await self.groups.member_unplaceable(record, unplaced.rejections):
            return
        if is_news:
            event = workload_event(
                record,
                "WorkloadUnplaceable",
                describe_rejections(unplaced.rejections),
                at=self._clock.wall(),
                source="scheduler",
                cause=f"generation {record.generation} fits on no node",
            )
            await self._ledger.commit(Batch(events=(event,)))

    def _pending_no_more(self, workload_id: WorkloadId) -> None:
        self.rejections.pop(workload_id, None)
        self._place_not_before.pop(workload_id, None)

    async def _send_apply(self, record: WorkloadRecord) -> bool:
        async with self._turns.one():
            node = self._fleet.nodes.get(_owner_of(record))
            if node is None or self._fleet.workloads.get(record.workload_id) is not record:
                return True  # the facts have changed while it waited for its turn
            return await self._tell(node, record)

    async def _tell(self, node: NodeRecord, record: WorkloadRecord) -> bool:
        command = self._commands.begin(record, CommandKind.APPLY)
        try:
            values = await self.secrets.resolve(record)
        except ShoalError as error:  # no fault of the node: it keeps its place, and is told when they are there
            self._on_step("SendApply", False)
            self._retry_later(command, record.workload_id, error)
            self.trouble[record.workload_id] = error.message
            return True
        try:
            faults.reach("control.send.before")
            status = await self._agents.apply(node, record, values)
            faults.reach("control.send.after")
        except StaleGenerationError as error:
            self._on_step("SendApply", False)
            return await self._overtake(record, node, command, error)
        except ShoalError as error:
            self._on_step("SendApply", False)
            if error.retryable and not self._gives_up_on(record, command):
                self._retry_later(command, record.workload_id, error)
                return True
            return await self._refused(record, node, command, error)
        self._on_step("SendApply", True)
        self._commands.applied(record.workload_id, command)
        self.trouble.pop(record.workload_id, None)
        if status is not None:
            await self.observe(node.node_id, [status])
        await self._note_arrival(record)
        return True

    def _gives_up_on(self, record: WorkloadRecord, command: Command) -> bool:
        """Whether a node that does not answer is given up for work that it has never reported.

        Never for at-most-one work: an order whose answer was lost may have been carried out all the same.
        """
        observation = self._fleet.observations.get(record.workload_id)
        known_there = observation is not None and observation.node_id == record.node_id
        return command.failures + 1 >= GIVE_UP_FAILURES and not known_there and not record.spec.at_most_one

    async def _send_delete(self, record: WorkloadRecord) -> bool:
        node = self._fleet.nodes[_owner_of(record)]
        command = self._commands.begin(record, CommandKind.DELETE)
        try:
            faults.reach("control.send.before")
            first_heartbeat = await self._agents.delete(node, record.workload_id, record.generation)
            faults.reach("control.send.after")
        except StaleGenerationError as error:
            self._on_step("SendDelete", False)
            return await self._overtake(record, node, command, error)
        except NotFoundError:
            self._commands.put(record.workload_id, dataclasses.replace(command, accepted=True, gone=True))
            return True
        except ShoalError as error:
            self._on_step("SendDelete", False)
            self._retry_later(command, record.workload_id, error)
            return True
        self._on_step("SendDelete", True)
        told = dataclasses.replace(command, accepted=True, failures=0, first_heartbeat=first_heartbeat)
        self._commands.put(record.workload_id, told)
        return True

    def _retry_later(self, command: Command, workload_id: WorkloadId, error: ShoalError) -> None:
        self.trouble[workload_id] = f"node {command.node_id}: {error.message}"
        self._commands.failed(workload_id, command)

    async def _overtake(
        self, record: WorkloadRecord, node: NodeRecord, command: Command, error: StaleGenerationError
    ) -> bool:
        """The agent has seen a higher generation, as after a restore of an older database: go above it."""
        claimed = error.facts.get("highest", "")
        highest = int(claimed) if claimed.isdecimal() and len(claimed) < 20 else -1
        if not record.generation <= highest <= min(record.generation + MAX_OVERTAKE, MAX_GENERATION - 1):
            self.trouble[record.workload_id] = f"node {node.node_id} claims to have seen generation {claimed!r}"
            log.warning("workload %s: %s", record.workload_id, self.trouble[record.workload_id])
            return await self._refused(record, node, command, error)

        await self._change(record.workload_id, lambda it: changes.generation_raised(it, highest, at=self._clock.wall()))
        return True

    async def _refused(self, record: WorkloadRecord, node: NodeRecord, command: Command, error: ShoalError) -> bool:
        """An agent will not take it: try the others, and without one of them let it wait or undo its group's change."""
        workload_id = record.workload_id
        self.trouble[workload_id] = f"node {node.node_id}: {error.message}"
        if is_foreign(node) and isinstance(error, InvalidError):
            self._commands.applied(workload_id, command)
            await self.observe(node.node_id, [_invalid(workload_id, error, at=self._clock.wall())])
            return True
        if is_unsupported(error.message):
            await self._type_unsupported(node.node_id, record)
        if record.desired is not DesiredState.RUNNING or self._older_copy_lives(record) or _is_behind(node, error):
            self._retry_later(command, workload_id, error)
            return True
        self._commands.refused(workload_id, node.node_id, error.message)
        unplaced = await self._placer.place(
            workload_id,
            reason=f"node {node.node_id} refused it: {error.message}",
            refused_by=self._commands.standing_refusals(workload_id),
        )
        if unplaced is None:
            self._pending_no_more(workload_id)
            return True
        if moves.can_return(record) and record.move is not None and self._is_heard_of(record.move.away_from):
            await self._take_move_back(record, f"no node takes it: {error.message}")
            return True
        await self._give_up_place(record)
        await self._note_unplaced(record, unplaced)
        return False

    async def _type_unsupported(self, node_id: NodeId, record: WorkloadRecord) -> None:
        """An agent has no runtime for a type that it registered with."""
        at, kind = self._clock.wall(), record.spec.type.value
        await self._ledger.change(lambda: changes.type_unsupported(self._fleet.nodes.get(node_id), kind, at=at))

    def _older_copy_lives(self, record: WorkloadRecord) -> bool:
        """Whether an earlier generation still runs there: it is not given up for an update that was refused."""
        observation = self._fleet.observations.get(record.workload_id)
        if observation is None or observation.node_id != record.node_id:
            return False
        older = 0 < observation.status.generation < record.generation
        return older and observation.status.state in (RunState.RUNNING, RunState.PENDING)

    async def _give_up_place(self, record: WorkloadRecord) -> None:
        at = self._clock.wall()
        await self._change(record.workload_id, lambda it: changes.place_given_up(it, record, at=at))

    async def _confirm(self, record: WorkloadRecord) -> bool:
        node = self._fleet.nodes[_owner_of(record)]
        workload_id = record.workload_id
        command = self._commands.get(workload_id)
        try:
            if command is not None and command.kind is CommandKind.DELETE:
                if self._commands.removed(workload_id, command, await self._agents.removal(node, workload_id)):
                    return True
                self._queue.look_again_in(workload_id, FOREIGN_POLL_SECONDS)
                return False
            status = await self._agents.status(node, workload_id)
            self._commands.asked(workload_id, status)
            await self.observe(node.node_id, [status])
        except ShoalError as error:
            log.debug("workload %s on foreign node %s: %s", workload_id, node.node_id, error)
        self._queue.look_again_in(workload_id, FOREIGN_POLL_SECONDS)
        return False

    async def _leave_node(self, record: WorkloadRecord, *, copy_left: bool) -> bool:
        faults.reach("control.delete.before_forget")
        leave = changes.node_lost if copy_left else changes.node_left
        await self._change(record.workload_id, lambda it: leave(it, at=self._clock.wall()), only=record)
        self.capacity_changed()
        return True

    async def _forget(self, record: WorkloadRecord, reason: str) -> None:
        at = self._clock.wall()
        forgotten = await self._change(record.workload_id, lambda it: changes.forgotten(self._fleet, it, reason, at=at))
        if forgotten:
            self._drop(record.workload_id)
            self.capacity_changed()

    async def _note(self, record: WorkloadRecord, step: Step) -> bool:
        """Steps that only change what is remembered."""
        match step:
            case FinishMove():
                await self.finish_move(record.workload_id, step.reason)
                await self.copies.remove(record.workload_id)
            case TakeMoveBack():
                await self._take_move_back(record, step.reason)
            case _:
                await self._about_failures(record, step)
        return True

    # -----------------------------------------------------------------------------------------------------
    # Moving off a node that is alive; begun by `shoal.control.nodes.drain`

    async def move_first(self, workload_id: WorkloadId, *, reason: str) -> Unplaced | None:
        """Place a workload elsewhere and leave its present copy alone until the new one runs."""
        record = self._fleet.workloads.get(workload_id)
        if record is None or record.node_id is None:
            return None
        unplaced = await self._placer.place(
            workload_id,
            reason=reason,
            away_from=record.node_id,
            refused_by=self._commands.standing_refusals(workload_id),
            hold=True,
        )
        if unplaced is None:
            self.enqueue(workload_id)
        return unplaced

    async def move_after(self, workload_id: WorkloadId, node_id: NodeId, *, reason: str) -> None:
        """Have a workload removed from a node, and placed elsewhere once it is gone there."""
        at = self._clock.wall()
        await self._change(workload_id, lambda it: changes.move_begun(it, node_id, reason, at=at))
        self.enqueue(workload_id)

    async def finish_move(self, workload_id: WorkloadId, reason: str) -> None:
        """It has arrived, or must do without the copy that it left."""
        record = self._fleet.workloads.get(workload_id)
        at = self._clock.wall()
        if record is None or not await self._change(workload_id, lambda it: changes.move_finished(it, reason, at=at)):
            return
        if record.move is not None and record.move.away_from in record.left_on:
            self.copies.superseded(workload_id, record.move.away_from, record.generation - 1)
        self.capacity_changed()

    async def _take_move_back(self, record: WorkloadRecord, reason: str) -> None:
        at = self._clock.wall()
        await self._change(record.workload_id, lambda it: changes.move_taken_back(it, reason, at=at), only=record)

    # -----------------------------------------------------------------------------------------------------
    # Failures of the workload itself

    async def _about_failures(self, record: WorkloadRecord, step: Step) -> None:
        chance, at = self._entropy.uniform(0.0, 1.0), self._clock.wall()

        def change(current: WorkloadRecord) -> Batch:
            match step:
                case NoteFailure():
                    return changes.failure_noted(current, step.failure, at=at, chance=chance)
                case Retry():
                    return changes.tried_again(current, at=at)
                case _:
                    return changes.budget_refilled(current)

        observation = self._fleet.observations.get(record.workload_id)
        await self._change(record.workload_id, change, only=record)
        if isinstance(step, NoteFailure) and observation is not None and is_unsupported(observation.status.message):
            await self._type_unsupported(observation.node_id, record)
        if isinstance(step, Retry):
            self._on_step("Retry", True)
        if isinstance(step, NoteFailure) and not retries.is_charged(step.failure) and record.node_id is not None:
            # It is the node's fault rather than the workload's: another one is better, if there is one.
            self._commands.refused(record.workload_id, record.node_id, f"it failed there: {step.failure.value}")

    # -----------------------------------------------------------------------------------------------------
    # Small parts

    async def _change(
        self,
        workload_id: WorkloadId,
        change: Callable[[WorkloadRecord], Batch | None],
        *,
        only: WorkloadRecord | None = None,
    ) -> bool:
        """Commit what `change` makes of the newest record; with `only`, if it is still that one."""

        def decide() -> Batch | None:
            current = self._fleet.workloads.get(workload_id)
            if current is None or (only is not None and current.version != only.version):
                return None
            return change(current)

        return await self._ledger.change(decide) is not None

    def _try_pending(self) -> None:
        self._capacity_timer = None
        waiting = list(self._place_not_before)
        self._place_not_before.clear()
        self.enqueue_all(waiting)

    def _drop(self, workload_id: WorkloadId) -> None:
        for kept in (self._place_not_before, self.rejections, self.trouble):
            kept.pop(workload_id, None)
        self._commands.forget(workload_id)
        self.copies.forget(workload_id)
        self._queue.forget(workload_id)

    def close(self) -> None:
        """Stop every timer; the tasks end with their scope."""
        self._queue.close()
        if self._capacity_timer is not None:
            self._capacity_timer.cancel()


def _invalid(workload_id: WorkloadId, error: InvalidError, *, at: datetime) -> RunStatus:
    """The status of a workload whose spec a foreign agent calls invalid: another try cannot help."""
    return RunStatus(
        workload_id,
        RunState.FAILED,
        failure=FailureReason.INVALID_SPEC,
        message=error.message,
        last_transition=at,
    )


def _is_behind(node: NodeRecord, error: ShoalError) -> bool:
    """Whether an agent refuses because it is drained, and has not heard yet that it is not any more."""
    return error.facts.get("reason") == "draining" and node.desired.state is None


def _owner_of(record: WorkloadRecord) -> NodeId:
    assert record.node_id is not None  # noqa: S101 the reconciler sends only what is placed
    return record.node_id


def describe_rejections(rejections: tuple[Rejection, ...]) -> str:
    """Every node with its reason, in one line."""
    if not rejections:
        return "no suitable node available (no node has registered)"
    reasons = "; ".join(f"{each.node_id}: {each.message}" for each in rejections[:20])
    more = f"; and {len(rejections) - 20} more" if len(rejections) > 20 else ""
    return f"no suitable node available ({reasons}{more})"

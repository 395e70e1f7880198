"""Drives every workload towards its desired state: asks the reconciler for the next step and carries it out.

`shoal.control.workloads.work_queue` says which workloads are due. A look at one is quick and does no I/O: commands go
to the command pump, placements and stored changes run as tasks, and their end is a reason for the next look. What is
stored makes its workloads due, so that it is carried out even if its caller is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from shoal.control.agents.calls import is_foreign, is_unsupported
from shoal.control.agents.pump import Pump
from shoal.control.state.fleet import Fleet
from shoal.control.state.ledger import Ledger
from shoal.control.state.loops import Rounds
from shoal.control.store.base import Batch
from shoal.control.trust.secrets import named_by
from shoal.control.workloads.commands import CommandLog
from shoal.control.workloads.copies import Copies
from shoal.control.workloads.decisions import changes, retries
from shoal.control.workloads.decisions.reconciler import (
    FOREIGN_POLL_SECONDS,
    ConfirmWithForeignAgent,
    FinishMove,
    Forget,
    LeaveNode,
    NextStep,
    NoteFailure,
    Place,
    Retry,
    SendApply,
    SendDelete,
    Settled,
    TakeMoveBack,
    Wait,
    reconcile,
)
from shoal.control.workloads.groups import Groups
from shoal.control.workloads.pending import Pending
from shoal.control.workloads.placing import Placing
from shoal.control.workloads.relocation import Relocation
from shoal.control.workloads.sender import Sender
from shoal.control.workloads.work_queue import WorkQueue
from shoal.control.workloads.workload_facts import WorkloadFacts
from shoal.core import faults
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.errors import ShoalError
from shoal.core.ids import NodeId, WorkloadId
from shoal.core.tasks import TaskScope
from shoal.model.nodes import NodeState
from shoal.model.workloads import RunState, WorkloadRecord

log = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 1.0
BUG_RETRY_SECONDS = 15.0


class Dispatch:
    """Looks at the workloads that are due."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        queue: WorkQueue,
        pump: Pump,
        commands: CommandLog,
        pending: Pending,
        facts: WorkloadFacts,
        copies: Copies,
        groups: Groups,
        placing: Placing,
        relocation: Relocation,
        sender: Sender,
        clock: Clock,
        entropy: Entropy,
        scope: TaskScope,
        on_step: Callable[[str, bool], None],
    ) -> None:
        self._ledger = ledger
        self._fleet: Fleet = ledger.fleet
        self._queue = queue
        self._pump = pump
        self._commands = commands
        self._pending = pending
        self._facts = facts
        self._copies = copies
        self._groups = groups
        self._placing = placing
        self._relocation = relocation
        self._sender = sender
        self._clock = clock
        self._entropy = entropy
        self._scope = scope
        self._on_step = on_step
        self._rounds = Rounds("workloads")
        ledger.on_reload(self._reloaded)
        ledger.on_batch(self._stored)

    # -----------------------------------------------------------------------------------------------------
    # What makes workloads due

    def contact_renewed(self, node_id: NodeId) -> None:
        """A node registered or came back: what it was told before may be lost, so it is told again at once."""
        node = self._fleet.nodes.get(node_id)
        for workload_id in self._fleet.owned_by(node_id):
            if node is not None and is_foreign(node):
                self._commands.repeat(workload_id)
            self._commands.hurry(workload_id)
            self._queue.enqueue(workload_id)
        self._pending.capacity_changed()

    def _stored(self, batch: Batch) -> None:
        self._queue.enqueue_all(record.workload_id for record in batch.workloads)
        self._queue.enqueue_all(each.status.workload_id for each in batch.observations)
        ended = [node.node_id for node in batch.nodes if node.dead]
        for node_id in (*ended, *batch.removed_nodes):  # nothing runs there: its work moves, and who waited goes on
            self._queue.enqueue_all(self._fleet.owned_by(node_id) | self._fleet.left_on(node_id))
        if batch.secrets:
            self._secrets_set({secret.name for secret in batch.secrets})
        if _frees_room(batch):
            self._pending.capacity_changed()

    def _secrets_set(self, names: set[str]) -> None:
        """Commands that failed without these secrets are sent at once, and again where files of a run hold one."""
        for record in self._fleet.workloads.values():
            if not names.isdisjoint(named_by(record)):
                if not names.isdisjoint(file.secret for file in record.spec.body.files):
                    self._commands.renew_secret(record)
                self._commands.hurry(record.workload_id)
                self._queue.enqueue(record.workload_id)

    def look_at_all(self) -> None:
        """Look at every workload. Which secrets an agent has is not stored, so files get the newest values again."""
        for record in self._fleet.workloads.values():
            if any(file.secret for file in record.spec.body.files):
                self._commands.renew_secret(record)
        self._queue.enqueue_all(self._fleet.workloads)

    def _reloaded(self) -> None:
        """Anything may have changed."""
        self.look_at_all()
        self._pending.capacity_changed()

    # -----------------------------------------------------------------------------------------------------
    # Looking

    async def run(self) -> None:
        """Look at what is due. Runs while this process leads."""
        while True:
            for workload_id, context in await self._queue.take():
                try:
                    context.run(self._look, workload_id)
                except Exception:  # noqa: BLE001 logged there
                    self._failed_by_bug(workload_id)
            await asyncio.sleep(0)

    def _look(self, workload_id: WorkloadId) -> None:
        record = self._fleet.workloads.get(workload_id)
        if record is None:
            self._drop(workload_id)
            return
        self._copies.remove(workload_id)
        step = reconcile(self._facts.of(record))
        match step:
            case SendApply():
                self._send(record, self._sender.apply)
            case SendDelete():
                self._send(record, self._sender.delete)
            case ConfirmWithForeignAgent():
                self._send(record, self._confirm)
            case Wait() | Settled():
                if isinstance(step, Wait):
                    self._queue.look_again_in(workload_id, step.seconds)
                if self._groups.is_complete_with(record):
                    self._start(workload_id, self._settle_group(record))
            case _:
                self._start(workload_id, self._carry_out(record, step))

    def _send(self, record: WorkloadRecord, send: Callable[[WorkloadRecord], Awaitable[bool]]) -> None:
        """Have a command sent to the owner. If one is in flight there, its end brings the next look."""
        assert record.node_id is not None  # noqa: S101 the reconciler sends only what is placed
        workload_id = record.workload_id
        is_new = workload_id not in self._fleet.observations and self._commands.get(workload_id) is None
        self._pump.submit(record.node_id, workload_id, partial(self._sent, record, send), can_wait=is_new)

    async def _sent(self, record: WorkloadRecord, send: Callable[[WorkloadRecord], Awaitable[bool]]) -> None:
        await self._attempt(record.workload_id, send(record))

    def _start(self, workload_id: WorkloadId, work: Coroutine[Any, Any, bool]) -> None:
        """Begin work that takes a while. The workload is not looked at before it has ended."""
        self._queue.begin(workload_id)
        self._scope.start(self._work(workload_id, work), name=f"workload/{workload_id}")

    async def _work(self, workload_id: WorkloadId, work: Coroutine[Any, Any, bool]) -> None:
        try:
            await self._attempt(workload_id, work)
        finally:
            self._queue.end(workload_id)

    async def _attempt(self, workload_id: WorkloadId, work: Awaitable[bool]) -> None:
        """Do some work for a workload. When it says so, look again at once; when it fails, later."""
        try:
            if await work:
                self._queue.enqueue(workload_id)
        except ShoalError as error:
            # The store cannot be reached, or two writers met too often: nothing is lost, the request is durable. A
            # lost leadership looks again too: it ends this object, unless it was confirmed after all.
            self._rounds.failed(error, workload_id)
            self._queue.look_again_in(workload_id, STORE_RETRY_SECONDS)
        except Exception:  # noqa: BLE001 logged there
            self._failed_by_bug(workload_id)
        else:
            self._rounds.succeeded(workload_id)

    def _failed_by_bug(self, workload_id: WorkloadId) -> None:
        """A bug, or an answer nobody thought of: it must not stop the other workloads."""
        log.exception("workload %s: internal error", workload_id)
        self._commands.errors[workload_id] = (
            "an internal error; it is tried again, and the log of the control plane says more"
        )
        self._queue.look_again_in(workload_id, BUG_RETRY_SECONDS)

    # -----------------------------------------------------------------------------------------------------
    # Steps that take a while. Each returns whether to look again at once.

    async def _confirm(self, record: WorkloadRecord) -> bool:
        if await self._sender.confirm(record):
            return True
        self._queue.look_again_in(record.workload_id, FOREIGN_POLL_SECONDS)
        return False

    async def _settle_group(self, record: WorkloadRecord) -> bool:
        await self._groups.member_accepted(record)
        return False

    async def _carry_out(self, record: WorkloadRecord, step: NextStep) -> bool:
        match step:
            case Place():
                return await self._place(record, step)
            case LeaveNode():
                faults.reach("control.delete.before_forget")
                leave = changes.node_lost if step.copy_left else changes.node_left
                await self._change(record, lambda it: leave(it, at=self._clock.wall()))
            case FinishMove():
                await self._relocation.finish(record.workload_id, step.reason)
                self._pending.capacity_changed()
            case TakeMoveBack():
                await self._relocation.take_back(record, step.reason)
            case Forget():
                await self._forget(record, step.reason)
            case _:
                await self._about_failures(record, step)
        return True

    async def _place(self, record: WorkloadRecord, step: Place) -> bool:
        away_from = record.node_id if step.away_from_owner else None
        unplaced = await self._placing.place(record, reason=step.reason, away_from=away_from)
        self._on_step("Place", unplaced is None)
        if unplaced is not None:
            await self._placing.note_unplaced(record, unplaced)
        return unplaced is None

    async def _forget(self, record: WorkloadRecord, reason: str) -> None:
        at = self._clock.wall()
        await self._ledger.change_workload(
            record.workload_id, lambda it: changes.forgotten(self._fleet, it, reason, at=at)
        )

    async def _about_failures(self, record: WorkloadRecord, step: NextStep) -> None:
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
        await self._change(record, change)
        if isinstance(step, NoteFailure) and observation is not None and is_unsupported(observation.status.message):
            await self._sender.type_unsupported(observation.node_id, record)
        if isinstance(step, Retry):
            self._on_step("Retry", True)
        if isinstance(step, NoteFailure) and not retries.is_charged(step.failure) and record.node_id is not None:
            # It is the node's fault rather than the workload's: another one is better, if there is one.
            self._commands.refused(record.workload_id, record.node_id, f"it failed there: {step.failure.value}")

    async def _change(self, record: WorkloadRecord, change: Callable[[WorkloadRecord], Batch | None]) -> None:
        await self._ledger.change_workload(record.workload_id, change, only=record)

    def _drop(self, workload_id: WorkloadId) -> None:
        self._commands.forget(workload_id)
        self._rounds.forget(workload_id)
        for part in (self._pending, self._copies, self._queue):
            part.forget(workload_id)


def _frees_room(batch: Batch) -> bool:
    ends = (RunState.STOPPED, RunState.FAILED)
    return bool(
        batch.removed_workloads
        or batch.forgotten_observations
        or any(node.state is NodeState.READY for node in batch.nodes)
        or any(each.status.state in ends for each in batch.observations)
    )

"""Sends commands about workloads to agents, and handles the answers.

Called by `shoal.control.workloads.dispatch` through the command pump, which has at most one command in flight for each
node and workload. The record may have changed while a command was in flight, so each answer is checked against it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from shoal.control.agents.calls import Agents, is_foreign, is_unsupported
from shoal.control.state import moves
from shoal.control.state.events import Origin, workload_event
from shoal.control.state.facts import Removal
from shoal.control.state.fleet import Fleet
from shoal.control.state.ledger import Ledger
from shoal.control.state.loops import Rounds
from shoal.control.store.base import Batch
from shoal.control.trust.secrets import ClusterSecrets
from shoal.control.workloads.commands import CommandLog
from shoal.control.workloads.decisions import changes
from shoal.control.workloads.decisions.reconciler import Command, CommandKind, is_lost
from shoal.control.workloads.placing import Placing
from shoal.control.workloads.relocation import Relocation
from shoal.control.workloads.status_reports import StatusReports
from shoal.control.workloads.workload_facts import WorkloadFacts
from shoal.core import faults
from shoal.core.clock import Clock
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, ShoalError, StaleGenerationError
from shoal.core.ids import MAX_GENERATION, NodeId
from shoal.model.events import EventKind, EventSource
from shoal.model.nodes import NodeRecord, RefusalCode
from shoal.model.workloads import DesiredState, FailureReason, RunState, RunStatus, WorkloadRecord

log = logging.getLogger(__name__)

#: Work that a Ready node has not answered for after so many tries is placed elsewhere, if it never ran there.
MAX_FAILURES = 6
#: An agent that claims to have seen a generation further ahead than this is not believed.
MAX_OVERTAKE = 1_000_000


class Sender:
    """Tells the owner of a workload what is desired of it."""

    def __init__(
        self,
        ledger: Ledger,
        agents: Agents,
        *,
        commands: CommandLog,
        facts: WorkloadFacts,
        reports: StatusReports,
        secrets: ClusterSecrets,
        placing: Placing,
        relocation: Relocation,
        clock: Clock,
        on_step: Callable[[str, bool], None],
    ) -> None:
        self._ledger = ledger
        self._fleet: Fleet = ledger.fleet
        self._agents = agents
        self._commands = commands
        self._facts = facts
        self._reports = reports
        self._secrets = secrets
        self._placing = placing
        self._relocation = relocation
        self._clock = clock
        self._on_step = on_step
        self._questions = Rounds("questions to foreign agents")

    def _owner(self, record: WorkloadRecord) -> NodeRecord | None:
        """Its node, unless the record has changed since it was decided to send this."""
        if self._fleet.workloads.get(record.workload_id) is not record or record.node_id is None:
            return None
        return self._fleet.nodes.get(record.node_id)

    # -----------------------------------------------------------------------------------------------------
    # Apply

    async def apply(self, record: WorkloadRecord) -> bool:
        """Tell the owner about the newest generation. True: look again at once."""
        node = self._owner(record)
        if node is not None:
            await self._apply(node, record)
        return True

    async def _apply(self, node: NodeRecord, record: WorkloadRecord) -> None:
        workload_id = record.workload_id
        command = self._commands.begin(record, CommandKind.APPLY)
        try:
            values = await self._secrets.resolve(record)
        except ShoalError as error:  # no fault of the node: it keeps its place, and is told when they are there
            self._on_step("SendApply", False)
            missing = isinstance(error, NotFoundError | PreconditionError)
            self._commands.failed(workload_id, command, error.message, without_secret=missing)
            return
        try:
            faults.reach("control.send.before")
            status = await self._agents.apply(node, record, values)
            faults.reach("control.send.after")
        except ShoalError as error:
            self._on_step("SendApply", False)
            if self._is_owner(node, record):
                await self._apply_failed(record, node, command, error)
            return
        self._on_step("SendApply", True)
        self._commands.applied(workload_id, command)
        if status is not None:
            self._reports.answered(node.node_id, status)

    def _is_owner(self, node: NodeRecord, record: WorkloadRecord) -> bool:
        """Whether a node still owns the generation that it was told about."""
        current = self._fleet.workloads.get(record.workload_id)
        return current is not None and (current.node_id, current.generation) == (node.node_id, record.generation)

    async def _apply_failed(
        self, record: WorkloadRecord, node: NodeRecord, command: Command, error: ShoalError
    ) -> None:
        if isinstance(error, StaleGenerationError):
            await self._overtake(record, node, command, error)
        elif error.retryable and not self._is_hopeless(record, command):
            self._retry_later(record, command, error)
        else:
            await self._refused(record, node, command, error)

    def _is_hopeless(self, record: WorkloadRecord, command: Command) -> bool:
        """Whether a node that does not answer is passed over for work that it has never reported.

        Never for at-most-one work: a command whose answer was lost may have been carried out all the same.
        """
        observation = self._fleet.observations.get(record.workload_id)
        known_there = observation is not None and observation.node_id == record.node_id
        return command.failures + 1 >= MAX_FAILURES and not known_there and not record.spec.at_most_one

    def _retry_later(self, record: WorkloadRecord, command: Command, error: ShoalError) -> None:
        self._commands.failed(record.workload_id, command, f"node {command.node_id}: {error.message}")

    async def _overtake(
        self, record: WorkloadRecord, node: NodeRecord, command: Command, error: StaleGenerationError
    ) -> None:
        """The agent has seen a higher generation, as after a restore of an older database: go above it."""
        claimed = error.facts.get("highest", "")
        highest = int(claimed) if claimed.isdecimal() and len(claimed) < 20 else -1
        if not record.generation <= highest <= min(record.generation + MAX_OVERTAKE, MAX_GENERATION - 1):
            log.warning("workload %s: node %s claims generation %r", record.workload_id, node.node_id, claimed)
            await self._refused(record, node, command, error)
            self._commands.errors[record.workload_id] = (
                f"node {node.node_id} claims to have seen generation {claimed!r}"
            )
            return
        at = self._clock.wall()
        await self._ledger.change_workload(record.workload_id, lambda it: changes.generation_raised(it, highest, at=at))

    async def _refused(self, record: WorkloadRecord, node: NodeRecord, command: Command, error: ShoalError) -> None:
        """An agent does not take it: try the others. Without one it waits, or the change of its group is undone."""
        workload_id = record.workload_id
        if is_foreign(node) and isinstance(error, InvalidError) and record.desired is DesiredState.RUNNING:
            await self._called_invalid(record, node, command, error)
            return
        if is_unsupported(error.message):
            await self.type_unsupported(node.node_id, record)
        if record.desired is not DesiredState.RUNNING or self._older_copy_lives(record) or _is_behind(node, error):
            self._retry_later(record, command, error)
            return
        self._commands.errors[workload_id] = f"node {node.node_id}: {error.message}"
        self._commands.refused(workload_id, node.node_id, error.message)
        unplaced = await self._placing.place(record, reason=f"node {node.node_id} refused it: {error.message}")
        if unplaced is None:
            return
        if moves.can_return(record) and record.move and self._facts.is_in_contact(record.move.away_from):
            await self._relocation.take_back(record, f"no node takes it: {error.message}")
            return
        at = self._clock.wall()
        await self._ledger.change_workload(workload_id, lambda it: changes.place_given_up(it, record, at=at))
        await self._placing.note_unplaced(record, unplaced)

    async def _called_invalid(
        self, record: WorkloadRecord, node: NodeRecord, command: Command, error: InvalidError
    ) -> None:
        """A foreign agent calls the spec invalid: another try cannot help. What it runs from before goes on."""
        self._commands.called_invalid(record.workload_id, command, f"node {node.node_id}: {error.message}")
        at = self._clock.wall()
        if self._copy_lives(record):
            cause = f"node {node.node_id} calls its spec invalid"
            kind, source = EventKind.WORKLOAD_FAILED, EventSource.AGENT
            origin = Origin(at, source, cause)
            event = workload_event(record, kind, error.message, origin)
            await self._ledger.commit(Batch(events=(event,)))
            return
        failure = FailureReason.INVALID_SPEC
        status = RunStatus(
            record.workload_id, RunState.FAILED, failure=failure, message=error.message, last_transition=at
        )
        await self._reports.take_in(node.node_id, [status])

    async def type_unsupported(self, node_id: NodeId, record: WorkloadRecord) -> None:
        """An agent has no runtime for a type that it registered with."""
        at, kind = self._clock.wall(), record.spec.type.value
        await self._ledger.change(lambda: changes.type_unsupported(self._fleet.nodes.get(node_id), kind, at=at))

    def _older_copy_lives(self, record: WorkloadRecord) -> bool:
        """Whether an earlier generation still runs there: it is not dropped for an update that was refused."""
        observation = self._fleet.observations.get(record.workload_id)
        older = observation is not None and 0 < observation.status.generation < record.generation
        return older and self._copy_lives(record)

    def _copy_lives(self, record: WorkloadRecord) -> bool:
        """Whether its owner last reported that it runs, of whatever generation."""
        observation = self._fleet.observations.get(record.workload_id)
        mine = observation is not None and observation.node_id == record.node_id
        return observation is not None and mine and observation.status.state in (RunState.RUNNING, RunState.PENDING)

    # -----------------------------------------------------------------------------------------------------
    # Delete

    async def delete(self, record: WorkloadRecord) -> bool:
        """Tell the owner to remove a workload. True: look again at once."""
        node = self._owner(record)
        if node is not None:
            await self._delete(node, record)
        return True

    async def _delete(self, node: NodeRecord, record: WorkloadRecord) -> None:
        workload_id = record.workload_id
        command = self._commands.begin(record, CommandKind.DELETE)
        try:
            faults.reach("control.send.before")
            moves = record.desired is not DesiredState.DELETED
            first_heartbeat = await self._agents.delete(node, workload_id, record.generation, keep_data=moves)
            faults.reach("control.send.after")
        except NotFoundError:
            self._commands.put(workload_id, dataclasses.replace(command, accepted=True, gone=True))
            return
        except ShoalError as error:
            self._on_step("SendDelete", False)
            if isinstance(error, StaleGenerationError) and self._is_owner(node, record):
                await self._overtake(record, node, command, error)
            else:
                self._retry_later(record, command, error)
            return
        self._on_step("SendDelete", True)
        told = dataclasses.replace(command, accepted=True, failures=0, first_heartbeat=first_heartbeat)
        self._commands.put(workload_id, told)

    # -----------------------------------------------------------------------------------------------------
    # Agents that do not push

    async def confirm(self, record: WorkloadRecord) -> bool:
        """Ask a foreign agent what became of a command. True: look again at once."""
        node = self._owner(record)
        if node is None:
            return True
        workload_id = record.workload_id
        command = self._commands.get(workload_id)
        try:
            if command is not None and command.kind is CommandKind.DELETE:
                return self._commands.removed(workload_id, command, await self._agents.removal(node, workload_id))
            status = await self._agents.status(node, workload_id)
            if is_lost(record, status) and await self._agents.removal(node, workload_id) is not Removal.BUSY:
                self._commands.lost(workload_id)
                return True
            await self._reports.take_in(node.node_id, [status])
            self._commands.asked(workload_id, status)
        except ShoalError as error:
            self._questions.failed(error, node.node_id)
        else:
            self._questions.succeeded(node.node_id)
        return False


def _is_behind(node: NodeRecord, error: ShoalError) -> bool:
    """Whether an agent refuses because it was drained, and has not heard yet that the drain is over."""
    return error.facts.get("reason") == RefusalCode.DRAINING and node.desired.state is None

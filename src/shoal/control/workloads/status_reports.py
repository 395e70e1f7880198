"""Takes in what agents report about workloads: judges each report and stores what is news.

Called by `shoal.control.nodes.heartbeats` with the statuses of heartbeats, and by `shoal.control.workloads.sender` with
the answers to commands. What is stored reaches `shoal.control.workloads.dispatch` through the ledger.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping

from shoal.control.agents.calls import is_foreign
from shoal.control.state.causes import cause_of_status
from shoal.control.state.events import Origin, workload_event
from shoal.control.state.fleet import Fleet
from shoal.control.state.ledger import Ledger
from shoal.control.state.lifecycle.phases import has_crashed
from shoal.control.state.loops import Rounds
from shoal.control.store.base import Batch
from shoal.control.workloads.commands import CommandLog
from shoal.control.workloads.copies import Copies
from shoal.control.workloads.decisions.reconciler import Command, CommandKind
from shoal.control.workloads.decisions.reports import ReportVerdict, judge_report
from shoal.control.workloads.work_queue import WorkQueue
from shoal.control.workloads.workload_facts import WorkloadFacts
from shoal.core.clock import Clock
from shoal.core.ids import NodeId, WorkloadId
from shoal.core.tasks import Signal
from shoal.model.events import Event, EventKind, EventSource
from shoal.model.nodes import HeartbeatMark, NodeRecord
from shoal.model.workloads import DesiredState, Observation, RunState, RunStatus

log = logging.getLogger(__name__)

Report = tuple[NodeId, RunStatus]


_KINDS = {
    RunState.PENDING: EventKind.WORKLOAD_STARTING,
    RunState.RUNNING: EventKind.WORKLOAD_RUNNING,
    RunState.STOPPED: EventKind.WORKLOAD_STOPPED,
    RunState.FAILED: EventKind.WORKLOAD_FAILED,
    RunState.UNKNOWN: EventKind.WORKLOAD_UNKNOWN,
}


def _kind_of(status: RunStatus, before: RunStatus | None) -> EventKind:
    """The kind of event that tells of a new status. `before` is the last one of the same node."""
    if status.completed:
        return EventKind.WORKLOAD_COMPLETED
    if has_crashed(status):
        return EventKind.WORKLOAD_CRASHED
    was_ready = before is not None and before.state is RunState.RUNNING and before.generation == status.generation
    if status.state is RunState.PENDING and status.pid and was_ready:
        return EventKind.WORKLOAD_NOT_READY
    return _KINDS[status.state]


class StatusReports:
    """Judges and stores status reports."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        commands: CommandLog,
        facts: WorkloadFacts,
        copies: Copies,
        queue: WorkQueue,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._fleet: Fleet = ledger.fleet
        self._commands = commands
        self._facts = facts
        self._copies = copies
        self._queue = queue
        self._clock = clock
        self._arriving: dict[WorkloadId, Observation] = {}
        #: Answers to commands that are not stored yet.
        self._answers: dict[WorkloadId, Report] = {}
        self._answered = Signal()

    # -----------------------------------------------------------------------------------------------------
    # Heartbeats

    async def take_in(self, node_id: NodeId, statuses: Iterable[RunStatus]) -> Mapping[WorkloadId, ReportVerdict]:
        """Take in the statuses of a heartbeat and store what is news."""
        reports = [(node_id, status) for status in statuses]
        for _, status in reports if self._answers else ():
            answer = self._answers.get(status.workload_id)
            if answer is not None and answer[0] == node_id and answer[1].generation <= status.generation:
                del self._answers[status.workload_id]  # this is the newer report
        return await self._take(reports)

    async def listed(self, node: NodeRecord, present: frozenset[WorkloadId], heartbeat: HeartbeatMark) -> None:
        """A heartbeat listed everything that a node has: draw conclusions about what it does not have."""
        for workload_id in self._fleet.owned_by(node.node_id) - present:
            record = self._fleet.workloads[workload_id]
            command = self._commands.get(workload_id)
            unsure = command is None or not command.accepted
            if unsure and record.desired is not DesiredState.DELETED and self._facts.is_current(record):
                # Its answer was lost, or an earlier process sent it; a report proves that it arrived all the same. It
                # is sent again after two lists without the workload.
                command = Command(CommandKind.APPLY, node.node_id, record.generation, accepted=True)
            told = command is not None and command.accepted and command.node_id == node.node_id
            if told and command is not None and not heartbeat.is_before(command.first_heartbeat):
                gone = command.kind is CommandKind.DELETE and bool(node.spec.features)
                heartbeats = command.absent_heartbeats + 1
                seen = dataclasses.replace(command, absent_heartbeats=heartbeats, gone=command.gone or gone)
                self._commands.put(workload_id, seen)
            self._queue.enqueue(workload_id)
        if is_foreign(node):
            self._commands.listed(self._fleet.owned_by(node.node_id) & present)
        gone_copies = self._fleet.left_on(node.node_id) - present
        if gone_copies:
            await self._copies.absent(node.node_id, gone_copies, heartbeat)

    # -----------------------------------------------------------------------------------------------------
    # Answers to commands

    def answered(self, node_id: NodeId, status: RunStatus) -> None:
        """An agent answered a command with a status. It is stored with others, soon."""
        self._answers[status.workload_id] = (node_id, status)
        self._answered.set()

    async def run(self) -> None:
        """Store answers, all that have come while the last ones were stored. Runs while this process leads."""
        rounds = Rounds("answers of agents")
        while True:
            await self._answered.wait()
            answers, self._answers = list(self._answers.values()), {}
            with rounds.attempt():  # what is not stored comes again with the next heartbeat
                await self._take(answers)

    # -----------------------------------------------------------------------------------------------------
    # Both

    async def _take(self, reports: list[Report]) -> Mapping[WorkloadId, ReportVerdict]:
        picture = self._ledger.picture
        verdicts, news = self._judge(reports)
        if news:
            await self._ledger.settle()
            if picture != self._ledger.picture:  # others may own by now what it reports
                verdicts, news = self._judge(reports)
        if news:
            await self._store(news)
        return verdicts

    def _judge(self, reports: list[Report]) -> tuple[dict[WorkloadId, ReportVerdict], list[Observation]]:
        verdicts: dict[WorkloadId, ReportVerdict] = {}
        news: dict[WorkloadId, Observation] = {}
        at = self._clock.wall()
        for node_id, status in reports:
            workload_id = status.workload_id
            record = self._fleet.workloads.get(workload_id)
            known = news.get(workload_id) or self._last_known(workload_id)
            verdict = judge_report(record, known, node_id, status)
            verdicts[workload_id] = verdict
            if verdict is ReportVerdict.NEWS:
                news[workload_id] = Observation(node_id, status, at)
            elif verdict is ReportVerdict.KNOWN and status.usage is not None:
                self._fleet.measured(workload_id, status.usage)
            elif verdict is ReportVerdict.SUPERSEDED:
                self._copies.superseded(workload_id, node_id, status.generation)
        return verdicts, list(news.values())

    def _last_known(self, workload_id: WorkloadId) -> Observation | None:
        """What is being stored is known too: an answer and a heartbeat may bring the same news at once."""
        return self._arriving.get(workload_id) or self._fleet.observations.get(workload_id)

    async def _store(self, news: list[Observation]) -> None:
        events = tuple(event for each in news if (event := self._state_event(each)) is not None)
        arriving = {each.status.workload_id: each for each in news}
        self._arriving.update(arriving)
        try:
            await self._ledger.commit(Batch(observations=tuple(news), events=events))
        finally:
            for workload_id, each in arriving.items():
                if self._arriving.get(workload_id) is each:
                    del self._arriving[workload_id]

    def _state_event(self, observation: Observation) -> Event | None:
        status = observation.status
        record = self._fleet.workloads[status.workload_id]
        known = self._last_known(status.workload_id)
        unchanged = (
            known is not None
            and known.node_id == observation.node_id
            and known.status.state is status.state
            and known.status.generation == status.generation
            and known.status.completed == status.completed
            and known.status.restarts == status.restarts
            and has_crashed(known.status) == has_crashed(status)
        )
        if unchanged:
            return None
        before = known.status if known is not None and known.node_id == observation.node_id else None
        origin = Origin(
            observation.observed_at,
            EventSource.AGENT,
            f"{cause_of_status(status, before)}, on node {observation.node_id}",
        )
        return workload_event(record, _kind_of(status, before), status.message, origin)

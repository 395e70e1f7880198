"""Takes in what agents report of workloads: judges each report, stores what is news, and tells whom it concerns.

Owned by `shoal.control.workloads.dispatch`; called with the statuses of heartbeats and of answers to orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from shoal.control.state.causes import cause_of_status
from shoal.control.state.fleet import Fleet, Ledger, workload_event
from shoal.control.store.base import Batch
from shoal.control.workloads.reports import ReportVerdict, judge_report
from shoal.core.clock import Clock
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.events import Event
from shoal.model.workloads import Observation, RunStatus


class StatusReports:
    """What was last seen of each workload gets here."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Clock,
        on_news: Callable[[list[WorkloadId]], None],
        on_superseded: Callable[[WorkloadId, NodeId, int], None],
    ) -> None:
        self._ledger = ledger
        self._fleet: Fleet = ledger.fleet
        self._clock = clock
        self._on_news = on_news
        self._on_superseded = on_superseded
        self._arriving: dict[WorkloadId, Observation] = {}

    async def take_in(self, node_id: NodeId, statuses: Iterable[RunStatus]) -> Mapping[WorkloadId, ReportVerdict]:
        """Take in reports of a node: store what is news, and look at what it concerns."""
        statuses, picture = tuple(statuses), self._ledger.picture
        verdicts, news = self._judge(node_id, statuses)
        if news:
            await self._ledger.settle()
            if picture != self._ledger.picture:  # others may own by now what it reports
                verdicts, news = self._judge(node_id, statuses)
        if news:
            await self._store(news)
            self._on_news([each.status.workload_id for each in news])
        return verdicts

    def _judge(
        self, node_id: NodeId, statuses: Iterable[RunStatus]
    ) -> tuple[dict[WorkloadId, ReportVerdict], list[Observation]]:
        verdicts: dict[WorkloadId, ReportVerdict] = {}
        news: list[Observation] = []
        at = self._clock.wall()
        for status in statuses:
            record = self._fleet.workloads.get(status.workload_id)
            verdict = judge_report(record, self._last_known(status.workload_id), node_id, status)
            verdicts[status.workload_id] = verdict
            if verdict is ReportVerdict.NEWS:
                news.append(Observation(node_id, status, at))
            elif verdict is ReportVerdict.KNOWN and status.usage is not None:
                self._fleet.measured(status.workload_id, status.usage)
            elif verdict is ReportVerdict.SUPERSEDED:
                self._on_superseded(status.workload_id, node_id, status.generation)
        return verdicts, news

    def _last_known(self, workload_id: WorkloadId) -> Observation | None:
        """What is on its way into the store is known too: an answer and a beat may bring the same news at once."""
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
        )
        if unchanged:
            return None
        kind = "WorkloadCompleted" if status.completed else f"Workload{status.state.value}"
        before = known.status if known is not None and known.node_id == observation.node_id else None
        return workload_event(
            record,
            kind,
            status.message,
            at=observation.observed_at,
            source="agent",
            cause=f"{cause_of_status(status, before)}, on node {observation.node_id}",
        )

"""Lists the workloads of one agent, with what they hold and what is reported of them.

Filled by `shoal.agent.workloads.intake` (commands) and `shoal.agent.workloads.executor` (workloads of an earlier
process); read by everything that answers calls. Nothing here waits.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from shoal.agent.facts import RUNNING_STAGES, RunOutcome, WorkloadReport, WorkloadState
from shoal.agent.workloads.actor import WorkloadActor
from shoal.agent.workloads.admission import claim_of
from shoal.agent.workloads.slots import Claim, reserved
from shoal.agent.workloads.views import brief, text_room
from shoal.core.errors import NotFoundError
from shoal.core.ids import WorkloadId
from shoal.model.resources import Resources
from shoal.runtimes.base import RunInfo

log = logging.getLogger(__name__)


class Roster:
    """The workloads of one agent."""

    def __init__(self) -> None:
        self.actors: dict[WorkloadId, WorkloadActor] = {}
        #: Runs that belong to no workload known here, by their ids: left alone.
        self.orphans: dict[str, RunInfo] = {}
        #: Whether new work is refused because the node is being emptied.
        self.draining = False
        #: Why the node's disk is nearly full, so that no new workload is taken; empty when it is not.
        self.disk_pressure = ""

    def set_draining(self, draining: bool) -> None:
        """Set by the control plane, never by an error."""
        if draining != self.draining:
            log.warning("the node is %s", "draining: no new work is taken" if draining else "taking work again")
        self.draining = draining

    def actor(self, workload_id: WorkloadId) -> WorkloadActor:
        """The actor of a workload. Raises `NotFoundError`."""
        actor = self.actors.get(workload_id)
        if actor is None:
            raise NotFoundError("workload", workload_id)
        return actor

    def latest(self, workload_id: WorkloadId) -> WorkloadState | None:
        """The state of a workload with the newest stored intent, also when its actor has not taken that in yet."""
        actor = self.actors.get(workload_id)
        if actor is None:
            return None
        pending = actor.newest_intent()
        if pending is None:
            return actor.state
        return replace(actor.state, intent=pending.intent, rules=pending.rules, spec=pending.spec)

    def claims(self) -> dict[WorkloadId, Claim]:
        """What each workload holds that runs or may run again by itself."""
        held = {}
        for workload_id in self.actors:
            state = self.latest(workload_id)
            if state is None or state.spec is None:
                continue
            may_run = state.intent.wanted and state.progress.outcome is RunOutcome.NONE
            if may_run or state.stage in RUNNING_STAGES:
                held[workload_id] = claim_of(state.spec)
        return held

    def reserved(self) -> Resources:
        """The sum of what is held."""
        return reserved(self.claims())

    def add_orphan(self, info: RunInfo) -> None:
        """Note a run that belongs to no workload known here."""
        log.warning("run %s of workload %s belongs to no workload: left alone", info.run_id, info.workload_id)
        self.orphans[info.run_id] = info

    def take_orphans(self, workload_id: WorkloadId) -> tuple[RunInfo, ...]:
        """The orphaned runs of a workload that is known from now on."""
        taken = tuple(info for info in self.orphans.values() if info.workload_id == workload_id)
        for info in taken:
            del self.orphans[info.run_id]
        return taken

    def reports(self) -> tuple[WorkloadReport, ...]:
        """Everything there is to report, in order of the ids; the more there is, the shorter are its texts."""
        room = text_room(len(self.actors))
        reports = (_report(self.actors[workload_id]) for workload_id in sorted(self.actors))
        return tuple(replace(report, status=brief(report.status, room)) for report in reports)

    def report(self, workload_id: WorkloadId) -> WorkloadReport:
        """One workload. Raises `NotFoundError`."""
        return _report(self.actor(workload_id))


def _report(actor: WorkloadActor) -> WorkloadReport:
    intent = actor.state.intent
    return WorkloadReport(
        status=actor.status(),
        type=intent.type,
        desired=intent.desired,
        created_at=intent.created_at,
        updated_at=intent.updated_at,
    )

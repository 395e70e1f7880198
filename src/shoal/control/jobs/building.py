"""Joins the parts that run the jobs of one leadership. Called by `shoal.control.leadership.leader`."""

from __future__ import annotations

from shoal.control.api.event_feed import EventFeed
from shoal.control.jobs.board import ReportBoard
from shoal.control.jobs.job_facts import JobFacts
from shoal.control.jobs.loop import JobLoop
from shoal.control.jobs.requests import JobRequests
from shoal.control.jobs.service import JobService
from shoal.control.jobs.steps import TransitionSteps
from shoal.control.state.ledger import Ledger
from shoal.control.trust.job_keys import JobKeys
from shoal.control.workloads.groups import Groups
from shoal.control.workloads.pending import Pending
from shoal.control.workloads.requests import Workloads
from shoal.core.clock import Clock
from shoal.core.entropy import Entropy
from shoal.core.tasks import TaskScope
from shoal.jobs.engine import Engines
from shoal.jobs.workflows import Workflows


def make_jobs(
    ledger: Ledger,
    workloads: Workloads,
    groups: Groups,
    pending: Pending,
    feed: EventFeed,
    *,
    keys: JobKeys,
    engines: Engines,
    workflows: Workflows,
    scope: TaskScope,
    clock: Clock,
    entropy: Entropy,
) -> tuple[JobLoop, JobService]:
    """What drives jobs, and what answers requests about them."""
    steps = TransitionSteps(ledger, workloads, groups, engines, clock=clock)
    board = ReportBoard(ledger.fleet, clock=clock)
    facts = JobFacts(ledger.fleet, lambda: pending.waiting, board, clock=clock)
    loop = JobLoop(ledger, facts, engines, workflows, steps, scope=scope, clock=clock)
    board.on_report(loop.look_at)
    requests = JobRequests(ledger, engines, clock=clock, entropy=entropy)
    return loop, JobService(ledger.fleet, requests, feed, board, keys)

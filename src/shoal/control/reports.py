"""What a report about a workload means, by who sent it and of which generation. Pure.

Called for each status of a heartbeat and for each answer of an agent. Only the owner's word about its own generation
counts; everything else is counted, and nothing is deleted that no wish stands behind.
"""

from __future__ import annotations

import dataclasses
import enum

from shoal.core.ids import NodeId
from shoal.model.workloads import Observation, RunStatus, WorkloadRecord


class ReportVerdict(enum.Enum):
    """What to do with a report."""

    NEWS = "news"  # from the owner, and something changed
    KNOWN = "known"  # from the owner, as it was
    ORPHAN = "orphan"  # nobody knows the workload: shown, and left alone
    SUPERSEDED = "superseded"  # a copy that lost its ownership by a newer placement: to be removed there
    FOREIGN_OWNER = "foreign owner"  # from a node that does not own it, and no newer placement stands against it


def judge_report(
    record: WorkloadRecord | None, known: Observation | None, node_id: NodeId, status: RunStatus
) -> ReportVerdict:
    """The verdict on one report."""
    if record is None:
        return ReportVerdict.ORPHAN
    if record.node_id != node_id:
        placed_elsewhere = record.node_id is not None and record.placed_generation > status.generation
        return ReportVerdict.SUPERSEDED if placed_elsewhere else ReportVerdict.FOREIGN_OWNER
    if known is not None and known.node_id == node_id and _same(known.status, status):
        return ReportVerdict.KNOWN
    return ReportVerdict.NEWS


def _same(one: RunStatus, other: RunStatus) -> bool:
    """Whether two reports say the same; what is only measured does not count."""
    return dataclasses.replace(one, usage=None) == dataclasses.replace(other, usage=None)

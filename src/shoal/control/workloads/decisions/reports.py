"""What a report about a workload means, by who sent it and of which generation. Pure.

Called for each status of a heartbeat and for each answer of an agent. Only the owner's word about its own generation
counts. Everything else is counted, and nothing is removed that nobody asked to remove.
"""

from __future__ import annotations

import dataclasses
import enum

from shoal.control.state.moves import is_held
from shoal.core.ids import NodeId
from shoal.model.workloads import DesiredState, FailureReason, Observation, RunStatus, WorkloadRecord


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
        superseded = is_superseded(record, node_id, status.generation)
        return ReportVerdict.SUPERSEDED if superseded else ReportVerdict.FOREIGN_OWNER
    if known is not None and known.node_id == node_id and _same(known.status, status):
        return ReportVerdict.KNOWN
    return ReportVerdict.NEWS


def is_superseded(record: WorkloadRecord, node_id: NodeId, generation: int) -> bool:
    """Whether a copy of this generation on a node that does not own the workload is to be removed there.

    The workload was deleted, or placed elsewhere since. A copy whose replacement does not run
    yet is left alone: its node is being drained, and it goes when the replacement is there.
    """
    if record.desired is DesiredState.DELETED:
        return generation <= record.generation
    if is_held(record, node_id):
        return False
    return record.node_id is not None and record.placed_generation > generation


def _same(one: RunStatus, other: RunStatus) -> bool:
    """Whether two reports say the same; what is only measured does not count.

    Called for every workload with every heartbeat; most of the time the report is the very same object.
    """
    if one is other or one == other:
        return True
    if not other.generation:
        return _foreign_same(one, other)
    if one.usage is None and other.usage is None:
        return False
    return dataclasses.replace(one, usage=None) == dataclasses.replace(other, usage=None)


def _foreign_same(known: RunStatus, status: RunStatus) -> bool:
    """Whether a foreign agent says no more than is known.

    Its heartbeats have no revision and call every failure the same, and its times change whenever it looks.
    """
    vague = status.failure is FailureReason.RUNTIME_ERROR and known.failure is not FailureReason.NONE
    filled = dataclasses.replace(
        status,
        failure=known.failure if vague else status.failure,
        revision_id=status.revision_id or known.revision_id,
        last_transition=known.last_transition,
        usage=known.usage,
    )
    return filled == known

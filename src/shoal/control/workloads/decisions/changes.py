"""Makes the batch that each step of a workload stores: a record in, a batch out. Pure.

Called within `Ledger.change`, on the newest record. Returns None when nothing is left to change, because another writer
was faster. Called by `shoal.control.workloads` (dispatch, sender, copies, relocation) and
`shoal.control.nodes.operations`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime

from shoal.control.state import moves
from shoal.control.state.events import Origin, group_event, node_event, workload_event
from shoal.control.state.fleet import Fleet
from shoal.control.state.lifecycle.changes import Change, change, overtake, retry
from shoal.control.store.base import Batch
from shoal.control.workloads.decisions import retries
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.events import EventKind, EventSource
from shoal.model.nodes import NodeRecord
from shoal.model.workloads import DesiredState, FailureReason, RetryState, WorkloadRecord

# ---------------------------------------------------------------------------------------------------------
# Ownership


def generation_raised(record: WorkloadRecord, highest: int, *, at: datetime) -> Batch | None:
    """Above a generation that an agent has seen already."""
    if record.generation > highest:
        return None
    raised = overtake(record, highest, at=at)
    message = f"above {highest}, which its agent had accepted already"
    cause = f"node {record.node_id} refused generation {record.generation}"
    origin = Origin(at, EventSource.RECONCILER, cause)
    event = workload_event(raised, EventKind.WORKLOAD_GENERATION_RAISED, message, origin)
    return Batch(workloads=(raised,), events=(event,))


def place_given_up(record: WorkloadRecord, refused: WorkloadRecord, *, at: datetime) -> Batch | None:
    """The node that a generation was placed on does not take it, and no other can: it has no place.

    That generation may have been told to the node all the same, and taken before an answer was lost; so the next place
    is a new ownership, and the node counts as one that may hold a copy.
    """
    if record.generation != refused.generation or record.node_id != refused.node_id or record.node_id is None:
        return None
    unbounded = () if record.placed_at_most_one else (record.node_id,)
    homeless = change(
        record,
        Change.PLACE_REFUSED,
        at=at,
        node_id=None,
        placed_generation=0,
        left_on=tuple(sorted({*record.left_on, record.node_id})),
        left_without_deadline=tuple(sorted({*record.left_without_deadline, *unbounded})),
    )
    return Batch(workloads=(homeless,))


def node_left(record: WorkloadRecord, *, at: datetime) -> Batch | None:
    """Its owner has it no more: it is deleted, or on its way elsewhere."""
    if record.desired is DesiredState.DELETED:
        gone = dataclasses.replace(record, node_id=None)
    elif moves.is_leaving(record):
        gone = moves.left(record, at=at)
    else:
        return None
    return Batch(workloads=(gone,), forgotten_observations=(record.workload_id,))


def type_unsupported(node: NodeRecord | None, kind: str, *, at: datetime) -> Batch | None:
    """An agent refused a type of workload that it registered with."""
    if node is None or kind in node.unsupported_types:
        return None
    changed = dataclasses.replace(node, unsupported_types=tuple(sorted({*node.unsupported_types, kind})))
    message = f"its agent has no runtime for {kind}; it gets no more of it until it registers again"
    cause = f"it refused a {kind} as unsupported"
    origin = Origin(at, EventSource.AGENT, cause)
    event = node_event(node.node_id, EventKind.NODE_TYPE_UNSUPPORTED, message, origin)
    return Batch(nodes=(changed,), events=(event,))


def node_lost(record: WorkloadRecord, *, at: datetime) -> Batch | None:
    """The node of a deleted workload is lost: nothing is left but a copy, which is removed when the node returns."""
    if record.desired is not DesiredState.DELETED or record.node_id is None:
        return None
    unbounded = () if record.placed_at_most_one else (record.node_id,)
    buried = dataclasses.replace(
        record,
        node_id=None,
        updated_at=at,
        left_on=tuple(sorted({*record.left_on, record.node_id})),
        left_without_deadline=tuple(sorted({*record.left_without_deadline, *unbounded})),
    )
    return Batch(workloads=(buried,), forgotten_observations=(record.workload_id,))


def copies_gone(fleet: Fleet, node_id: NodeId, workload_ids: Iterable[WorkloadId]) -> Batch | None:
    """A node no longer holds older copies of these."""
    records = [fleet.workloads[each] for each in workload_ids if each in fleet.workloads]
    changed = tuple(
        dataclasses.replace(
            each,
            left_on=tuple(left for left in each.left_on if left != node_id),
            left_without_deadline=tuple(left for left in each.left_without_deadline if left != node_id),
        )
        for each in records
        if node_id in each.left_on
    )
    return Batch(workloads=changed) if changed else None


def forgotten(fleet: Fleet, record: WorkloadRecord, reason: str, *, at: datetime) -> Batch | None:
    """A delete was carried out; with the last member of a deleted group the group goes too."""
    if record.desired is not DesiredState.DELETED or record.node_id is not None or record.left_on:
        return None
    origin = Origin(at, EventSource.RECONCILER, "deletion requested")
    event = workload_event(record, EventKind.WORKLOAD_DELETED, reason, origin)
    batch = Batch(
        removed_workloads={record.workload_id: record.version}, generation_floor=record.generation, events=(event,)
    )
    group = fleet.groups.get(record.group_id) if record.group_id is not None else None
    if group is None or group.desired is not DesiredState.DELETED:
        return batch
    # The group changes with each member that goes, so that two that go at once cannot overlook each other.
    left = tuple(each for each in group.members if each != record.workload_id)
    if any(each in fleet.workloads for each in left):
        return dataclasses.replace(batch, groups=(dataclasses.replace(group, members=left),))
    ended = group_event(group, EventKind.GROUP_DELETED, "all members are gone", origin)
    return dataclasses.replace(batch, removed_groups={group.group_id: group.version}, events=(event, ended))


# ---------------------------------------------------------------------------------------------------------
# Moves


def move_begun(record: WorkloadRecord, node_id: NodeId, reason: str, *, at: datetime) -> Batch | None:
    """Its owner is to remove its copy before it is begun elsewhere."""
    if record.node_id != node_id or record.desired is not DesiredState.RUNNING or moves.is_leaving(record):
        return None
    leaving = moves.begun_after(record, at=at)
    origin = Origin(at, EventSource.DRAIN, reason)
    event = workload_event(leaving, EventKind.WORKLOAD_MOVE_STARTED, f"it leaves node {node_id}", origin)
    return Batch(workloads=(leaving,), events=(event,))


def move_finished(record: WorkloadRecord, reason: str, *, at: datetime) -> Batch | None:
    """It runs elsewhere, or has to do without the copy that it left."""
    if record.move is None:
        return None
    message = f"away from node {record.move.away_from}"
    origin = Origin(at, EventSource.RECONCILER, reason)
    event = workload_event(record, EventKind.WORKLOAD_MOVE_FINISHED, message, origin)
    return Batch(workloads=(moves.finished(record),), events=(event,))


def move_taken_back(record: WorkloadRecord, reason: str, *, at: datetime) -> Batch | None:
    """It does not run elsewhere: the copy that it was to leave counts again."""
    if not moves.can_return(record):
        return None
    back = moves.returned(record, at=at)
    message = f"it stays on node {back.node_id}"
    origin = Origin(at, EventSource.RECONCILER, reason)
    event = workload_event(back, EventKind.WORKLOAD_MOVE_CANCELED, message, origin)
    return Batch(workloads=(back,), events=(event,))


# ---------------------------------------------------------------------------------------------------------
# Failures of the workload itself


def failure_noted(record: WorkloadRecord, failure: FailureReason, *, at: datetime, chance: float) -> Batch:
    """A failure is counted, and the next try planned if there is one."""
    budget = retries.after_failure(record, failure, at=at, chance=chance)
    if budget.next_at is None:
        kind, message = (
            EventKind.WORKLOAD_RETRIES_EXHAUSTED,
            f"it failed {budget.failures} times and ends here",
        )
    else:
        kind, message = EventKind.WORKLOAD_RETRY_SCHEDULED, f"in {(budget.next_at - at).total_seconds():.1f} s"
    origin = Origin(at, EventSource.RECONCILER, failure.value)
    event = workload_event(record, kind, message, origin)
    return Batch(workloads=(dataclasses.replace(record, retry=budget),), events=(event,))


def tried_again(record: WorkloadRecord, *, at: datetime) -> Batch:
    """A workload that failed gets a new generation, and is placed and told anew."""
    again = retry(record, at=at, budget=dataclasses.replace(record.retry, next_at=None))
    message = f"attempt {record.retry.attempts} of {record.retry.max_attempts}"
    origin = Origin(at, EventSource.RECONCILER, "it had failed")
    event = workload_event(again, EventKind.WORKLOAD_RETRIED, message, origin)
    return Batch(workloads=(again,), events=(event,))


def budget_refilled(record: WorkloadRecord) -> Batch:
    """Its failures are forgotten."""
    return Batch(workloads=(dataclasses.replace(record, retry=RetryState()),))

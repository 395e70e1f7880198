"""What may become of the stored record of a workload. The only module that raises a generation. Pure.

A generation numbers one ownership of one content: an agent refuses commands of an older one. So every change of what is
to run, and every change of the node that is to run it, gets a new number here. `TRANSITIONS` says which change is
possible in which state; another one is a bug and raises.

Called by `shoal.control.workloads` (requests, groups, changes), `shoal.control.placement.placer` and
`shoal.control.state.moves`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shoal.core.errors import InternalError
from shoal.model.described import Described
from shoal.model.workloads import DesiredState, GroupRecord, MoveKind, RetryState, WorkloadRecord


class RecordState(Described):
    """Where the record of a workload is."""

    UNPLACED = "Unplaced", "It should run, and its newest generation has no node."
    PLACED = "Placed", "A node owns its newest generation."
    LEAVING = "Leaving", "Its owner removes its copy before another node gets it."
    STOPPED = "Stopped", "It should not run."
    DELETING = "Deleting", "Its deletion was requested, and a node owns it."
    BURIED = "Buried", "Its deletion was requested, and no node owns it. Older copies may be left."


class Change(Described):
    """What can happen to the record of a workload. Each one raises its generation."""

    UPDATED = "Updated", "A user changed its spec, its revision or its desired state."
    RECREATED = "Recreated", "A user applied it again while it was being deleted."
    STARTED = "Started", "A user started it."
    STOPPED = "Stopped", "A user stopped it."
    DELETED = "Deleted", "A user deleted it, or its group without it."
    RETRIED = "Retried", "It is run once more although it has ended or failed."
    REVERTED = "Reverted", "The change of its group could not be placed and is undone."
    PLACED = "Placed", "The scheduler found a node."
    PLACE_REFUSED = "PlaceRefused", "Its node refused it, and no other node can take it."
    MOVE_STARTED = "MoveStarted", "It leaves a drained node, and its copy there goes first."
    NODE_LEFT = "NodeLeft", "Its owner has removed its copy."
    MOVE_CANCELED = "MoveCanceled", "Its replacement failed, so the copy on the old node counts again."
    OVERTAKEN = "Overtaken", "An agent has accepted a higher generation, as after a restore."


_S = RecordState
_WANTED = frozenset({_S.UNPLACED, _S.PLACED, _S.LEAVING})
_UNSTARTED = frozenset({_S.UNPLACED, _S.LEAVING})

TRANSITIONS: Mapping[Change, Mapping[RecordState, frozenset[RecordState]]] = {
    Change.UPDATED: dict.fromkeys((*_WANTED, _S.STOPPED), frozenset({*_UNSTARTED, _S.STOPPED})),
    Change.RECREATED: dict.fromkeys((_S.DELETING, _S.BURIED), frozenset({_S.UNPLACED, _S.STOPPED})),
    Change.STARTED: {_S.STOPPED: frozenset({_S.UNPLACED})},
    Change.STOPPED: dict.fromkeys(_WANTED, frozenset({_S.STOPPED})),
    Change.DELETED: dict.fromkeys(_S, frozenset({_S.DELETING, _S.BURIED})),
    Change.RETRIED: dict.fromkeys(_WANTED, _UNSTARTED),
    Change.REVERTED: dict.fromkeys(_S, frozenset({*_UNSTARTED, _S.STOPPED})),
    # One that was adopted may be stopped, and has its node all the same.
    Change.PLACED: {**dict.fromkeys(_WANTED, frozenset({_S.PLACED})), _S.STOPPED: frozenset({_S.STOPPED})},
    Change.PLACE_REFUSED: {_S.PLACED: frozenset({_S.UNPLACED})},
    Change.MOVE_STARTED: dict.fromkeys((_S.UNPLACED, _S.PLACED), frozenset({_S.LEAVING})),
    Change.NODE_LEFT: {_S.LEAVING: frozenset({_S.UNPLACED})},
    Change.MOVE_CANCELED: {_S.PLACED: frozenset({_S.PLACED})},
    Change.OVERTAKEN: {state: frozenset({state}) for state in _S},
}
"""For each change the states in which it is possible, and the states that may follow."""


def state_of(record: WorkloadRecord) -> RecordState:
    """The state of a record."""
    if record.desired is DesiredState.DELETED:
        return RecordState.DELETING if record.node_id is not None else RecordState.BURIED
    if record.desired is DesiredState.STOPPED:
        return RecordState.STOPPED
    if record.move is not None and record.move.kind is MoveKind.AFTER and record.node_id == record.move.away_from:
        return RecordState.LEAVING
    placed = record.node_id is not None and record.placed_generation == record.generation
    return RecordState.PLACED if placed else RecordState.UNPLACED


def first_generation(*seen: int) -> int:
    """The generation of a new record: above all that were ever used under its name."""
    return max(seen) + 1


def change(record: WorkloadRecord, what: Change, *, at: datetime, **fields: Any) -> WorkloadRecord:
    """The record under a new generation with these fields. Raises `InternalError` when the table does not allow it."""
    return _changed(record, what, at=at, generation=record.generation + 1, **fields)


def raised(record: WorkloadRecord) -> int:
    """The generation after that of a record."""
    return record.generation + 1


def owned(record: WorkloadRecord, what: Change, *, at: datetime, raises: bool = True, **fields: Any) -> WorkloadRecord:
    """The same for a change of ownership: the new generation is the placed one."""
    generation = raised(record) if raises else record.generation
    return _changed(record, what, at=at, generation=generation, placed_generation=generation, **fields)


def retry(record: WorkloadRecord, *, at: datetime, budget: RetryState) -> WorkloadRecord:
    """The record with another attempt."""
    return change(record, Change.RETRIED, at=at, attempt=record.attempt + 1, retry=budget)


def overtake(record: WorkloadRecord, highest: int, *, at: datetime) -> WorkloadRecord:
    """The record above a generation that an agent has accepted already."""
    placed = record.placed_generation == record.generation
    fields = {"placed_generation": highest + 1} if placed else {}
    return _changed(record, Change.OVERTAKEN, at=at, generation=highest + 1, **fields)


def _changed(record: WorkloadRecord, what: Change, *, at: datetime, **fields: Any) -> WorkloadRecord:
    before, made = state_of(record), dataclasses.replace(record, updated_at=at, **fields)
    after = state_of(made)
    if after not in TRANSITIONS[what].get(before, ()):
        raise InternalError(
            f"workload {record.workload_id!r} cannot be {what} from {before} to {after}",
            workload_id=record.workload_id,
            change=what,
            before=record,
            after=made,
        )
    return made


class GroupChange(Described):
    """What can happen to the record of a group. Each one raises its generation, except that it was accepted."""

    UPDATED = "Updated", "A user changed its members."
    ACCEPTED = "Accepted", "Every agent has accepted its part."
    REVERTED = "Reverted", "A member could not be placed, so the change is undone."
    DELETED = "Deleted", "A user deleted it."


class GroupRecordState(Described):
    """Where the record of a group is."""

    SETTLED = "Settled", "Every agent has accepted its part of the last change."
    CHANGING = "Changing", "A change is under way and can still be undone."
    DELETING = "Deleting", "Its deletion was requested."


_G = GroupRecordState

GROUP_TRANSITIONS: Mapping[GroupChange, Mapping[GroupRecordState, frozenset[GroupRecordState]]] = {
    GroupChange.UPDATED: dict.fromkeys(_G, frozenset({_G.CHANGING, _G.SETTLED})),
    GroupChange.ACCEPTED: {_G.CHANGING: frozenset({_G.SETTLED})},
    GroupChange.REVERTED: {_G.CHANGING: frozenset({_G.SETTLED, _G.DELETING})},
    GroupChange.DELETED: dict.fromkeys((_G.SETTLED, _G.CHANGING), frozenset({_G.DELETING})),
}


def state_of_group(group: GroupRecord) -> GroupRecordState:
    """The state of a group's record."""
    if group.desired is DesiredState.DELETED:
        return GroupRecordState.DELETING
    return GroupRecordState.CHANGING if group.before else GroupRecordState.SETTLED


def change_group(group: GroupRecord, what: GroupChange, **fields: Any) -> GroupRecord:
    """The group after a change. Raises `InternalError` when the table does not allow it."""
    generation = group.generation + (what is not GroupChange.ACCEPTED)
    before, made = state_of_group(group), dataclasses.replace(group, generation=generation, **fields)
    after = state_of_group(made)
    if after not in GROUP_TRANSITIONS[what].get(before, ()):
        raise InternalError(
            f"group {group.group_id!r} cannot be {what} from {before} to {after}",
            group_id=group.group_id,
            before=group,
            after=made,
        )
    return made

"""Decides which workload leaves a drained node next, and makes the records of moves. Pure.

A workload has one owner at any time, known by its generation, also while it moves. With the replacement first, the new
node becomes the owner at once; the old copy is only left alone (`is_held`) until the owner's runs, and its node becomes
the owner again, under a newer generation, when the new one fails. With the replacement after, the owner is told to
remove its copy, and a place is looked for when it has confirmed.

    before   placed elsewhere ──▶ runs there ──▶ old copy removed
                       └── fails there, or that node is lost ──▶ owned by the old node again
    after    told to remove ──▶ confirmed gone ──▶ placed elsewhere ──▶ runs there

Called by `shoal.control.workloads` (decisions, dispatch) and `shoal.control.nodes.drain`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from shoal.control.state.lifecycle.changes import Change, change, owned, raised
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import DesiredState, Move, MoveKind, WorkloadRecord

# ---------------------------------------------------------------------------------------------------------
# Records


def is_held(record: WorkloadRecord, node_id: NodeId) -> bool:
    """Whether an older copy on this node is left alone, because its replacement does not run yet."""
    move = record.move
    return (
        move is not None
        and move.kind is MoveKind.BEFORE
        and move.away_from == node_id
        and record.desired is DesiredState.RUNNING
        and not record.spec.at_most_one  # it may have become one meanwhile: then the old copy has to go first
        and node_id != record.node_id
    )


def is_leaving(record: WorkloadRecord) -> bool:
    """Whether its owner is to remove its copy before it is begun elsewhere."""
    move = record.move
    return move is not None and move.kind is MoveKind.AFTER and record.node_id == move.away_from


def can_return(record: WorkloadRecord) -> bool:
    """Whether the copy on the old node is as good as the newest generation, so that the move can be canceled."""
    move = record.move
    return (
        move is not None
        and is_held(record, move.away_from)
        and record.generation == move.generation
        and move.away_from in record.left_on
        # Else there may be no room left for it: what it held there was not as much as it would need.
        and held_reservation(record) == (record.reserved, record.reserved_ports)
    )


def held_reservation(record: WorkloadRecord) -> tuple[Resources, tuple[str, ...]]:
    """What is reserved for the older copy that is held, and its ports."""
    move = record.move
    if move is None or move.reserved is None:
        return record.reserved, record.reserved_ports
    return move.reserved, move.reserved_ports


def begun_first(before: WorkloadRecord, placed: WorkloadRecord, *, at: datetime) -> WorkloadRecord:
    """A record that was placed elsewhere just now, with the copy of its owner before held."""
    assert before.node_id is not None  # noqa: S101 it leaves the node that it is on
    move = Move(MoveKind.BEFORE, before.node_id, placed.generation, at, before.reserved, before.reserved_ports)
    return dataclasses.replace(placed, move=move)


def begun_after(record: WorkloadRecord, *, at: datetime) -> WorkloadRecord:
    """A record whose owner is to remove its copy. A generation of its own: no older command brings the copy back."""
    assert record.node_id is not None  # noqa: S101 it leaves the node that it is on
    move = Move(MoveKind.AFTER, record.node_id, raised(record), at)
    return owned(record, Change.MOVE_STARTED, at=at, move=move)


def left(record: WorkloadRecord, *, at: datetime) -> WorkloadRecord:
    """A record whose owner has removed its copy: it needs a place, under a new generation."""
    return change(record, Change.NODE_LEFT, at=at, node_id=None, placed_generation=0)


def finished(record: WorkloadRecord) -> WorkloadRecord:
    """A record that has arrived."""
    return dataclasses.replace(record, move=None)


def returned(record: WorkloadRecord, *, at: datetime) -> WorkloadRecord:
    """A record whose move is canceled: the old copy is the newest generation from now on."""
    assert record.move is not None  # noqa: S101 only a move can be taken back
    back = record.move.away_from
    elsewhere = {*record.left_on, record.node_id} - {back}
    unbounded = {*record.left_without_deadline, record.node_id} - {back}
    return owned(
        record,
        Change.MOVE_CANCELED,
        at=at,
        node_id=back,
        placed_at=at,
        left_on=tuple(sorted(each for each in elsewhere if each is not None)),
        left_without_deadline=tuple(sorted(each for each in unbounded if each is not None)),
        move=None,
    )


# ---------------------------------------------------------------------------------------------------------
# Which is next


@dataclass(frozen=True, slots=True)
class Leaver:
    """A workload on a node that is being drained."""

    workload_id: WorkloadId
    kind: MoveKind
    #: It is on its way already.
    moving: bool = False
    #: It runs to an end by itself, and is waited for until the deadline.
    ends: bool = False
    #: Monotonic time before which it is not tried again.
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class DrainStep:
    """What to do about a node that is being drained."""

    #: Begin to move these, with a place for them known.
    begin: tuple[Leaver, ...] = ()
    #: Move these by force.
    force: tuple[Leaver, ...] = ()


def next_moves(leavers: Iterable[Leaver], *, on_the_way: int, parallel: int, forced: bool, now: float) -> DrainStep:
    """Which workloads leave a node now. `on_the_way` counts all that left and do not run elsewhere yet."""
    ordered = sorted(leavers, key=lambda each: each.workload_id)
    if forced:
        return DrainStep(force=tuple(ordered))
    free = max(0, parallel - on_the_way)
    able = [each for each in ordered if not each.moving and not each.ends and each.not_before <= now]
    return DrainStep(begin=tuple(able[:free]))

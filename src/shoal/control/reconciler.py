"""What to do next about one workload: facts in, one step out. No I/O, no clock.

Called by `shoal.control.dispatch` whenever anything about a workload may have changed (a write, a heartbeat, a timer).
A step is carried out there, and its outcome becomes part of the facts of the next call, until the answer is `Settled`.

    wish      owner         report                              step
    Deleted   none          no older copies / some elsewhere    Forget / Settled: a tombstone until those are gone
    Deleted   removed                                           Forget
    Deleted   lost                                              Settled: a tombstone until it returns
    Deleted   alive         not asked / asked / confirmed gone  SendDelete / Wait / Forget
    Running   any           completed, or failed for good       Settled
    Running   none, or the newest generation is not placed      Place
    Running   lost or gone                                      Place elsewhere (at-most-one: when surely stopped)
    Running   alive         order not accepted / accepted       SendApply / Settled or Wait
    Stopped   alive         order not accepted / accepted       SendApply / Settled or Wait
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shoal.core.ids import NodeId
from shoal.model.nodes import Feature, NodeRecord, NodeState
from shoal.model.workloads import DesiredState, Observation, RunState, WorkloadRecord

#: A foreign agent answers before it has acted: how often its answer is asked for, and how many heartbeats without
#: the workload it takes to believe that it is not there.
FOREIGN_POLL_SECONDS = 1.0
ABSENT_BEATS = 2


class OrderKind(enum.Enum):
    """What an agent was told."""

    APPLY = "apply"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Order:
    """The last thing that an agent was told about a workload, as far as this process knows."""

    kind: OrderKind
    node_id: NodeId
    generation: int
    accepted: bool = False
    failures: int = 0
    #: Monotonic time before which it is not tried again.
    not_before: float = 0.0
    #: Heartbeats of the owner since it was accepted that did not list the workload.
    absent_beats: int = 0
    #: The agent confirmed that the workload is gone.
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """The node that owns the workload now."""

    record: NodeRecord
    #: With loss of contact: whether even an at-most-one copy must have stopped by now.
    surely_stopped: bool = False

    @property
    def lost(self) -> bool:
        """Whether its lease has run out."""
        return self.record.state is NodeState.NOT_READY

    @property
    def foreign(self) -> bool:
        """Whether its agent knows only the published contract."""
        return not self.record.spec.has(Feature.GENERATIONS)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a step is decided from."""

    record: WorkloadRecord
    owner: Owner | None
    observation: Observation | None
    order: Order | None
    now: float
    #: Monotonic time before which a placement that failed is not tried again, unless the fleet changes.
    place_not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Place(Step):
    """Find a node and reserve on it. `away_from_owner`: the present one is lost."""

    away_from_owner: bool = False


@dataclass(frozen=True, slots=True)
class SendApply(Step):
    """Tell the owner about the newest generation."""


@dataclass(frozen=True, slots=True)
class SendDelete(Step):
    """Tell the owner to remove it."""


@dataclass(frozen=True, slots=True)
class ConfirmWithForeignAgent(Step):
    """Ask an agent that does not push its statuses what became of the order."""


@dataclass(frozen=True, slots=True)
class LeaveNode(Step):
    """Note that the owner of a deleted workload has it no more."""


@dataclass(frozen=True, slots=True)
class Forget(Step):
    """Drop the record: the wish to delete it has been carried out."""


@dataclass(frozen=True, slots=True)
class Wait(Step):
    """Look again after so many seconds, or earlier when something changes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Settled(Step):
    """Nothing to do until something changes."""


def reconcile(facts: Facts) -> Step:
    """The next step for one workload."""
    if facts.record.desired is DesiredState.DELETED:
        return _towards_gone(facts)
    if facts.record.desired is DesiredState.STOPPED:
        return _towards_stopped(facts)
    return _towards_running(facts)


def is_current(facts: Facts) -> bool:
    """Whether the last report is about the newest generation, from its owner."""
    observation, record = facts.observation, facts.record
    if observation is None or facts.owner is None or observation.node_id != record.node_id:
        return False
    if observation.status.generation:
        return observation.status.generation == record.generation
    return _accepted(facts, OrderKind.APPLY)


def _towards_gone(facts: Facts) -> Step:
    record, owner = facts.record, facts.owner
    if record.node_id is None:
        held = f"an older copy may be left on {', '.join(record.left_on)}"
        return Settled(held) if record.left_on else Forget("no node has it")
    if owner is None:
        return LeaveNode(f"its node {record.node_id} was removed")
    order = _current_order(facts, OrderKind.DELETE)
    if order is not None and order.gone:
        return LeaveNode(f"node {record.node_id} confirmed its removal")
    if owner.lost:
        return Settled(f"node {record.node_id} is lost; its copy is removed when it returns")
    if order is None:
        return SendDelete("it is to be deleted")
    if not order.accepted:
        return _send_when_due(facts, order, SendDelete(f"attempt {order.failures + 1}"))
    if owner.foreign:
        return ConfirmWithForeignAgent("its agent answers before it has acted")
    return Settled("its agent is removing it")


def _towards_stopped(facts: Facts) -> Step:
    owner = facts.owner
    if facts.record.node_id is None or owner is None:
        return Settled("it runs nowhere")
    if owner.lost:
        return Settled(f"node {facts.record.node_id} is lost; it is told when it returns")
    return _tell(facts, owner, RunState.STOPPED)


def _towards_running(facts: Facts) -> Step:
    record, owner = facts.record, facts.owner
    if record.node_id is not None and is_finished(facts):
        return Settled("it has run to its end")
    if record.node_id is None or owner is None:
        return _place_when_due(facts, Place("it has no node" if record.node_id is None else "its node was removed"))
    if owner.lost:
        return _move_from_lost(facts, owner)
    if record.placed_generation < record.generation:
        return _place_when_due(facts, Place("its newest generation has no place yet"))
    return _tell(facts, owner, RunState.RUNNING)


def is_finished(facts: Facts) -> bool:
    """Whether the newest generation has ended for good: completed, or failed beyond the agent's own retries."""
    if not is_current(facts) or facts.observation is None:
        return False
    status = facts.observation.status
    return status.completed or status.state is RunState.FAILED


def _move_from_lost(facts: Facts, owner: Owner) -> Step:
    record = facts.record
    if record.spec.at_most_one and not owner.surely_stopped:
        return Settled(f"node {record.node_id} is lost; its copy may run until its own deadline")
    return _place_when_due(facts, Place(f"node {record.node_id} is lost", away_from_owner=True))


def _place_when_due(facts: Facts, place: Place) -> Step:
    if facts.place_not_before > facts.now:
        return Wait("no node fits", seconds=facts.place_not_before - facts.now)
    return place


def _tell(facts: Facts, owner: Owner, wanted: RunState) -> Step:
    order = _current_order(facts, OrderKind.APPLY)
    if order is not None and order.accepted and order.absent_beats >= ABSENT_BEATS:
        return _send_when_due(facts, order, SendApply("its agent does not have it any more"))
    if is_current(facts) and not _contradicts(facts, wanted):
        settled = facts.observation is not None and facts.observation.status.state is wanted
        if settled or not owner.foreign:
            return Settled("its agent has it")
        return ConfirmWithForeignAgent("its agent does not push its statuses")
    if order is None:
        return SendApply("its agent does not have the newest generation")
    if not order.accepted:
        return _send_when_due(facts, order, SendApply(f"attempt {order.failures + 1}"))
    if _contradicts(facts, wanted):
        return _send_when_due(facts, order, SendApply("its agent stopped it, and nobody asked for that"))
    if owner.foreign:
        return ConfirmWithForeignAgent("its agent does not push its statuses")
    return Settled("its agent has accepted it")


def _contradicts(facts: Facts, wanted: RunState) -> bool:
    """Whether the agent reports an end that nobody asked for, of a workload it should run."""
    observation = facts.observation
    if observation is None or not is_current(facts) or wanted is not RunState.RUNNING:
        return False
    status = observation.status
    return status.state is RunState.STOPPED and not status.completed and not status.deleting


def _send_when_due(facts: Facts, order: Order, step: Step) -> Step:
    if order.not_before > facts.now:
        return Wait("waiting to try again", seconds=order.not_before - facts.now)
    return step


def _current_order(facts: Facts, kind: OrderKind) -> Order | None:
    order, record = facts.order, facts.record
    if order is None or order.kind is not kind:
        return None
    same = order.node_id == record.node_id and order.generation == record.generation
    return order if same else None


def _accepted(facts: Facts, kind: OrderKind) -> bool:
    order = _current_order(facts, kind)
    return order is not None and order.accepted

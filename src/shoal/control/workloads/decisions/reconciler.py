"""What to do next about one workload: facts in, one step out. No I/O, no clock.

Called by `shoal.control.workloads.dispatch` whenever anything about a workload may have changed (a write, a heartbeat,
a timer). A step is carried out there, and its outcome becomes part of the facts of the next call, until the answer is
`Settled`.

    desired   owner         report                              step
    Deleted   none          no older copies / some elsewhere    Forget / Settled: a tombstone until those are gone
    Deleted   removed                                           Forget
    Deleted   lost                                              LeaveNode: a tombstone until it returns
    Deleted   alive         not asked / asked / confirmed gone  SendDelete / Wait / Forget
    Running   any           completed, or failed for good       Settled
    Running   none, or the newest generation is not placed      Place
    Running   gone, or declared dead                            Place elsewhere
    Running   lost          by its policy: not yet / now        Settled or Wait / Place elsewhere
    Running   alive         failed: not counted / not due / due NoteFailure / Wait / Retry
    Running   alive         command not accepted / accepted     SendApply / Settled or Wait
    Running   alive         runs, and has for a while           RefillBudget, if there is anything to refill
    moving    the new one   runs / fails or is lost             FinishMove / TakeMoveBack
    leaving   the old one   not asked / asked / confirmed gone  SendDelete / Wait / LeaveNode
    Stopped   alive         command not accepted / accepted     SendApply / Settled or Wait
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from datetime import datetime

from shoal.control.state import moves
from shoal.control.state.facts import Removal
from shoal.control.workloads.decisions import retries
from shoal.control.workloads.decisions.failover import seconds_until_move
from shoal.core.ids import NodeId
from shoal.model.nodes import Feature, HeartbeatMark, NodeRecord, NodeState
from shoal.model.workloads import DesiredState, FailureReason, Observation, RunState, RunStatus, WorkloadRecord

#: A foreign agent answers before it has acted: how often its answer is asked for, and how many heartbeats without
#: the workload it takes to believe that it is not there.
FOREIGN_POLL_SECONDS = 1.0
ABSENT_HEARTBEATS = 2


class CommandKind(enum.Enum):
    """What an agent was told."""

    APPLY = "apply"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Command:
    """The last thing that an agent was told about a workload, as far as this process knows."""

    kind: CommandKind
    node_id: NodeId
    generation: int
    accepted: bool = False
    failures: int = 0
    #: Monotonic time before which it is not tried again.
    not_before: float = 0.0
    #: Heartbeats of the owner since it was accepted that did not list the workload.
    absent_heartbeats: int = 0
    #: Heartbeats of a foreign owner since a delete was accepted that list the workload all the same.
    present_heartbeats: int = 0
    #: The agent confirmed that the workload is gone.
    gone: bool = False
    #: The state that a foreign agent answered with when it was asked for one; heartbeats say less.
    asked: RunState | None = None
    #: The first heartbeat that was made after the answer; None when the agent did not say.
    first_heartbeat: HeartbeatMark | None = None
    #: A secret that files of the run hold has a new value since: the agent is told again.
    stale_secret: bool = False

    def is_same(self, kind: CommandKind, node_id: NodeId | None, generation: int) -> bool:
        """Whether it says the same to the same node."""
        return self.kind is kind and self.node_id == node_id and self.generation == generation


@dataclass(frozen=True, slots=True)
class Owner:
    """The node that owns the workload now."""

    record: NodeRecord
    #: With loss of contact: whether even an at-most-one copy must have stopped by now.
    surely_stopped: bool = False
    #: Seconds since it was last heard of, by the control plane's steady clock, and how long its lease is.
    silence: float = 0.0
    lease: float = 0.0
    #: Another agent held this node id before and may still run at-most-one work until then, on the steady clock.
    predecessor_until: float = 0.0

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
    command: Command | None
    now: float
    wall: datetime
    #: Whether a copy of an earlier placement may still run on another node.
    older_copy_may_run: bool = False
    #: Monotonic time before which a placement that failed is not tried again, unless the fleet changes.
    place_not_before: float = 0.0
    #: Whether a foreign owner calls the newest spec invalid.
    invalid: bool = False
    #: Whether the node that a move leaves is heard of, so that its copy can be taken back.
    way_back: bool = False


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Place(NextStep):
    """Find a node and reserve on it. `away_from_owner`: the present one is lost."""

    away_from_owner: bool = False


@dataclass(frozen=True, slots=True)
class SendApply(NextStep):
    """Tell the owner about the newest generation."""


@dataclass(frozen=True, slots=True)
class SendDelete(NextStep):
    """Tell the owner to remove it."""


@dataclass(frozen=True, slots=True)
class ConfirmWithForeignAgent(NextStep):
    """Ask an agent that does not push its statuses what became of the command."""


@dataclass(frozen=True, slots=True)
class LeaveNode(NextStep):
    """Note that its node owns it no longer: it is deleted, or it moves. `copy_left`: its copy may still be there."""

    copy_left: bool = False


@dataclass(frozen=True, slots=True)
class FinishMove(NextStep):
    """It runs elsewhere: let go of the copy on the node that it left."""


@dataclass(frozen=True, slots=True)
class TakeMoveBack(NextStep):
    """It does not run elsewhere: the copy on the node that it was to leave counts again."""


@dataclass(frozen=True, slots=True)
class NoteFailure(NextStep):
    """Count a failure, and decide when it is tried again, if at all."""

    failure: FailureReason


@dataclass(frozen=True, slots=True)
class Retry(NextStep):
    """Try a workload that has failed once more."""


@dataclass(frozen=True, slots=True)
class RefillBudget(NextStep):
    """It has been well for long enough: its failures are forgotten."""


@dataclass(frozen=True, slots=True)
class Forget(NextStep):
    """Drop the record: the workload is deleted."""


@dataclass(frozen=True, slots=True)
class Wait(NextStep):
    """Look again after so many seconds, or earlier when something changes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Settled(NextStep):
    """Nothing to do until something changes."""


def reconcile(facts: Facts) -> NextStep:
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
    return _accepted(facts, CommandKind.APPLY)


def _towards_gone(facts: Facts) -> NextStep:
    record, owner = facts.record, facts.owner
    if record.node_id is None:
        held = f"an older copy may be left on {', '.join(record.left_on)}"
        return Settled(held) if record.left_on else Forget("no node has it")
    if owner is None:
        return LeaveNode(f"its node {record.node_id} was removed")
    command = _current_command(facts, CommandKind.DELETE)
    if command is not None and command.gone:
        return LeaveNode(f"node {record.node_id} confirmed its removal")
    if owner.lost:
        return LeaveNode(f"node {record.node_id} is lost; its copy is removed when it returns", copy_left=True)
    if command is None:
        return SendDelete("deletion requested")
    if not command.accepted:
        return _send_when_due(facts, command, SendDelete(f"attempt {command.failures + 1}"))
    if owner.foreign:
        return ConfirmWithForeignAgent("its agent answers before it has acted")
    return Settled("its agent is removing it")


def after_removal(command: Command, removal: Removal) -> Command:
    """What a foreign agent's list of actions makes of a delete that it accepted.

    A delete that is neither listed nor under way was done inside the call, or was lost when the agent restarted. Two
    heartbeats without the workload prove the first, one heartbeat with it the second: then it is sent again.
    """
    unlisted = removal is Removal.UNLISTED
    if removal is Removal.DONE or (unlisted and command.absent_heartbeats >= ABSENT_HEARTBEATS):
        return dataclasses.replace(command, gone=True)
    if removal is Removal.FAILED or (unlisted and command.present_heartbeats):
        return dataclasses.replace(command, accepted=False)
    return command


def _towards_stopped(facts: Facts) -> NextStep:
    owner = facts.owner
    if facts.record.node_id is None or owner is None:
        return Settled("it runs nowhere")
    if owner.lost:
        return Settled(f"node {facts.record.node_id} is lost; it is told when it returns")
    return _tell(facts, owner, RunState.STOPPED)


def _towards_running(facts: Facts) -> NextStep:
    record, owner = facts.record, facts.owner
    if record.node_id is None or owner is None:
        return _place_when_due(facts, Place("it has no node" if record.node_id is None else "its node was removed"))
    moving = _on_the_move(facts, owner)
    if moving is not None:
        return moving
    if is_finished(facts):
        return Settled("it has run to its end")
    if owner.lost:
        return _move_from_lost(facts, owner)
    if record.placed_generation < record.generation:
        return _place_when_due(facts, Place("its newest generation has no place yet"))
    failed = _failure(facts)
    if failed is not None:
        return _after_failure(facts, owner, failed)
    step = _tell(facts, owner, RunState.RUNNING)
    if record.spec.at_most_one and isinstance(step, SendApply):
        return _wait_for_the_only_copy(facts, owner) or step
    return _until_healthy(facts, step)


def _wait_for_the_only_copy(facts: Facts, owner: Owner) -> NextStep | None:
    """Why an at-most-one workload may not be started yet; None when nothing stands against it."""
    if facts.older_copy_may_run:
        return Settled(f"an older copy may still run on {', '.join(facts.record.left_on)}")
    if owner.predecessor_until > facts.now:
        return Wait("another agent held this node before", seconds=owner.predecessor_until - facts.now)
    return None


def is_finished(facts: Facts) -> bool:
    """Whether the newest generation has ended for good: completed, or failed and not tried again."""
    if not is_current(facts) or facts.observation is None:
        return False
    failed = _failure(facts)
    return facts.observation.status.completed or (failed is not None and retries.is_final(facts.record, failed))


def _on_the_move(facts: Facts, owner: Owner) -> NextStep | None:
    """What a move asks for, beyond what is done for any workload."""
    record = facts.record
    if moves.is_leaving(record):
        return _towards_leaving(facts, owner)
    if record.move is None:
        return None
    if (owner.lost or _failure(facts) is not None) and facts.way_back and moves.can_return(record):
        return TakeMoveBack(f"node {record.node_id} is lost" if owner.lost else "its replacement failed")
    if is_finished(facts):
        return FinishMove("it has run to its end")
    placed = record.placed_generation == record.generation
    return FinishMove(f"it runs on node {record.node_id}") if placed and not owner.lost and _runs(facts) else None


def _runs(facts: Facts) -> bool:
    observation = facts.observation
    return observation is not None and is_current(facts) and observation.status.state is RunState.RUNNING


def _failure(facts: Facts) -> FailureReason | None:
    """Why the newest generation failed, if it did."""
    observation = facts.observation
    if observation is None or not is_current(facts) or observation.status.state is not RunState.FAILED:
        return None
    return observation.status.failure


def _move_from_lost(facts: Facts, owner: Owner) -> NextStep:
    """Off a node that is not heard of, by the workload's own policy."""
    record, node = facts.record, owner.record
    if node.dead:
        return _place_when_due(facts, Place(f"node {node.node_id} is dead", away_from_owner=True))
    left = seconds_until_move(record.spec, silence=owner.silence, lease=owner.lease)
    if left is None:
        return Settled(f"node {node.node_id} is lost; by its policy it is kept there")
    if not node.declared_lost:
        return Settled(f"node {node.node_id} is lost, and nothing is moved from it yet")
    if record.spec.at_most_one and not (owner.surely_stopped and record.placed_at_most_one):
        until = "until its own deadline" if record.placed_at_most_one else "until the node returns or is removed"
        return Settled(f"node {record.node_id} is lost; its copy may run {until}")
    if left > 0:
        return Wait(f"node {node.node_id} is lost; by its policy it moves later", seconds=left)
    return _place_when_due(facts, Place(f"node {node.node_id} is lost", away_from_owner=True))


def _towards_leaving(facts: Facts, owner: Owner) -> NextStep:
    """Off a node that is drained, where the old copy has to go first."""
    record = facts.record
    command = _current_command(facts, CommandKind.DELETE)
    if command is not None and command.gone:
        return LeaveNode(f"node {record.node_id} confirmed its removal")
    if owner.lost:
        return _move_from_lost(facts, owner)
    if command is None:
        return SendDelete(f"it leaves node {record.node_id}")
    if not command.accepted:
        return _send_when_due(facts, command, SendDelete(f"attempt {command.failures + 1}"))
    if owner.foreign:
        return ConfirmWithForeignAgent("its agent answers before it has acted")
    return Settled("its agent is removing it")


def _after_failure(facts: Facts, owner: Owner, failure: FailureReason) -> NextStep:
    retry, command = facts.record.retry, facts.command
    vague = failure is FailureReason.RUNTIME_ERROR and owner.foreign
    if vague and command is not None and command.asked is not RunState.FAILED:
        return ConfirmWithForeignAgent("its heartbeats do not say why it failed")
    if retry.failed_generation != facts.record.generation or retry.next_at is None:
        return NoteFailure("its agent does not start it again", failure=failure)
    left = (retry.next_at - facts.wall).total_seconds()
    if left > 0:
        return Wait("it failed, and is tried again later", seconds=left)
    return Retry(f"failure {retry.failures}")


def _until_healthy(facts: Facts, step: NextStep) -> NextStep:
    """While it runs: look again when its budget is full."""
    observation = facts.observation
    if not isinstance(step, Settled) or observation is None or not _runs(facts):
        return step
    left = retries.seconds_until_healthy(facts.record, observation.observed_at, now=facts.wall)
    if left is None:
        return step
    return Wait(step.reason, seconds=left) if left > 0 else RefillBudget("it has been well for a while")


def _place_when_due(facts: Facts, place: Place) -> NextStep:
    if facts.place_not_before > facts.now:
        return Wait("no node fits", seconds=facts.place_not_before - facts.now)
    return place


def _tell(facts: Facts, owner: Owner, wanted: RunState) -> NextStep:
    command = _current_command(facts, CommandKind.APPLY)
    if facts.invalid:
        return Settled("its agent calls its spec invalid")
    if command is not None and (why := _reason_to_repeat(command)):
        return _send_when_due(facts, command, SendApply(why))
    if is_current(facts) and not _contradicts(facts, wanted):
        if not owner.foreign or _is_verified(facts, wanted):
            return Settled("its agent has it")
        return ConfirmWithForeignAgent("its agent does not push its statuses")
    if command is None:
        return SendApply("its agent does not have the newest generation")
    if not command.accepted:
        return _send_when_due(facts, command, SendApply(f"attempt {command.failures + 1}"))
    if _contradicts(facts, wanted):
        return _send_when_due(facts, command, SendApply("its agent stopped it, and nobody asked for that"))
    confirm = ConfirmWithForeignAgent("its agent does not push its statuses")
    return confirm if owner.foreign else Settled("its agent has accepted it")


def _reason_to_repeat(command: Command) -> str:
    """Why a command is sent again although the agent accepted it; empty when there is no reason."""
    if command.accepted and command.absent_heartbeats >= ABSENT_HEARTBEATS:
        return "its agent no longer has it"
    return "a secret in its files has a new value" if command.stale_secret else ""


def _is_verified(facts: Facts, wanted: RunState) -> bool:
    """Whether a foreign agent is known to have carried out the last command: its heartbeats name no revision."""
    observation, command = facts.observation, facts.command
    if observation is None or observation.status.state is not wanted:
        return False
    same = observation.status.revision_id == facts.record.revision_id
    return same or (command is not None and command.asked is wanted)


def is_lost(record: WorkloadRecord, status: RunStatus) -> bool:
    """Whether a foreign agent's status shows that it lost a command which it accepted."""
    if status.state in (RunState.PENDING, RunState.UNKNOWN):
        return False
    another = bool(status.revision_id) and status.revision_id != record.revision_id
    return another or (record.desired is DesiredState.STOPPED and status.state is RunState.RUNNING)


def _contradicts(facts: Facts, wanted: RunState) -> bool:
    """Whether the agent reports an end that nobody asked for, of a workload it should run."""
    observation = facts.observation
    if observation is None or not is_current(facts) or wanted is not RunState.RUNNING:
        return False
    status = observation.status
    return status.state is RunState.STOPPED and not status.completed and not status.deleting


def _send_when_due(facts: Facts, command: Command, step: NextStep) -> NextStep:
    if command.not_before > facts.now:
        return Wait("waiting to try again", seconds=command.not_before - facts.now)
    return step


def _current_command(facts: Facts, kind: CommandKind) -> Command | None:
    command, record = facts.command, facts.record
    return command if command and command.is_same(kind, record.node_id, record.generation) else None


def _accepted(facts: Facts, kind: CommandKind) -> bool:
    command = _current_command(facts, kind)
    return command is not None and command.accepted

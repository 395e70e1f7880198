"""The checkpoint protocol, pure: a state and what happened go in, the next state and instructions come out.

One checkpoint at a time. Sources, and tasks that have ended, are triggered; the others hear of it by the barriers. When
every task has acknowledged, the manifest is written; only then sinks commit. When all have, that is written down, and
only then the next one may begin. One that takes too long is abandoned: nothing is lost by it, since what its sinks
prepared stays so, and goes with the next one. One that cannot be written, as on a full disk, is tried again as long as
the job runs. When all tasks are drained a last one is made, and the run is over.

Called by `shoal.dataflow.checkpoint.coordinator`. Times are seconds of a steady clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TypeAlias

from shoal.dataflow.checkpoint.messages import TaskId

Tasks: TypeAlias = frozenset[TaskId]


class Phase(enum.Enum):
    """How far the checkpoint under way is."""

    IDLE = "idle"  # there is none
    COLLECTING = "collecting"  # tasks are snapshotting
    WRITING = "writing"  # all have; the manifest is being written
    COMMITTING = "committing"  # it is complete; sinks make their output visible
    OVER = "over"  # the last one is done


@dataclass(frozen=True, slots=True)
class Members:
    """The tasks of a run."""

    everyone: Tasks
    #: Those that no barrier comes to.
    sources: Tasks
    #: Those that have something to commit.
    committing: Tasks


@dataclass(frozen=True, slots=True)
class Rules:
    """How often, and how long at most; in seconds."""

    interval: float
    min_pause: float
    timeout: float
    tolerated_failures: int


@dataclass(frozen=True, slots=True)
class State:
    """Where the protocol stands."""

    #: The number of the checkpoint under way, or of the last one.
    number: int
    phase: Phase = Phase.IDLE
    begun_at: float = 0.0
    #: When it was complete and sinks were told.
    completed_at: float = 0.0
    ended_at: float = 0.0
    #: Whose acknowledgement, or whose commit, is missing.
    missing: Tasks = frozenset()
    drained: Tasks = frozenset()
    #: How many in a row have failed that count: the last one of the run, and those that tasks did not answer in time.
    failures: int = 0
    #: A checkpoint was requested before its time.
    asked: bool = False
    #: The one under way is the last.
    final: bool = False
    #: How many have begun in this run.
    begun: int = 0


@dataclass(frozen=True, slots=True)
class SendTrigger:
    """Tell these tasks to snapshot."""

    checkpoint: int
    tasks: Tasks


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """All parts are there: make the checkpoint complete."""

    checkpoint: int
    final: bool


@dataclass(frozen=True, slots=True)
class SendCommit:
    """It is complete: commit the sinks that the coordinator commits, then tell these tasks to commit theirs."""

    checkpoint: int
    tasks: Tasks


@dataclass(frozen=True, slots=True)
class NoteCommitted:
    """Every sink has committed it: write that down."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Discard:
    """It failed: remove what was written of it."""

    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class SendFinish:
    """The last one is done: tell everyone to end."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Too many have failed: the run fails."""

    reason: str


Instruction: TypeAlias = SendTrigger | WriteManifest | SendCommit | NoteCommitted | Discard | SendFinish | GiveUp
Decision: TypeAlias = tuple[State, tuple[Instruction, ...]]

#: The first checkpoint of a run comes so soon, and each later one after twice as long, up to the interval.
_FIRST_SECONDS = 0.1
_DOUBLINGS = 20

_NOTHING: tuple[Instruction, ...] = ()


def begin_run(number: int, now: float) -> State:
    """The state at the start. `number` is the highest that was ever used for this job."""
    return State(number=number, begun_at=now, ended_at=now)


def due_at(state: State, members: Members, rules: Rules) -> float | None:
    """When `tick` has something to do, if nothing else happens before; None when it never will."""
    match state.phase:
        case Phase.IDLE:
            if state.drained == members.everyone:
                return state.ended_at + (rules.min_pause if state.failures else 0.0)
            rested = state.ended_at + rules.min_pause
            return rested if state.asked else max(rested, state.begun_at + _interval(state, rules))
        case Phase.COLLECTING:
            return state.begun_at + rules.timeout
        case Phase.COMMITTING:
            return state.completed_at + rules.timeout
        case _:
            return None


def _interval(state: State, rules: Rules) -> float:
    """At first short, then longer: what a run finds at its start is visible soon, also after a failure."""
    return min(rules.interval, _FIRST_SECONDS * 2.0 ** min(state.begun, _DOUBLINGS))


def tick(state: State, members: Members, rules: Rules, now: float) -> Decision:
    """Time has passed: begin one that is due, or abandon one that takes too long."""
    due = due_at(state, members, rules)
    if due is None or now < due:
        return state, _NOTHING
    if state.phase is Phase.IDLE:
        return _begin(state, members, now)
    if state.phase is Phase.COMMITTING:
        waiting = ", ".join(sorted(map(str, state.missing)))
        return replace(state, phase=Phase.OVER), (
            GiveUp(f"checkpoint {state.number} is complete, and tasks {waiting} did not commit it in time"),
        )
    waiting = ", ".join(sorted(map(str, state.missing)))
    return fail(state, rules, state.number, f"tasks {waiting} did not answer in time", now)


def _begin(state: State, members: Members, now: float) -> Decision:
    number = state.number + 1
    begun = replace(
        state,
        number=number,
        phase=Phase.COLLECTING,
        begun_at=now,
        missing=members.everyone,
        asked=False,
        begun=state.begun + 1,
        final=state.drained == members.everyone,
    )
    return begun, (SendTrigger(number, members.sources | state.drained),)


def acknowledge(state: State, task: TaskId, checkpoint: int) -> Decision:
    """A task has snapshotted. What comes late, or twice, changes nothing."""
    if state.phase is not Phase.COLLECTING or checkpoint != state.number or task not in state.missing:
        return state, _NOTHING
    missing = state.missing - {task}
    if missing:
        return replace(state, missing=missing), _NOTHING
    return replace(state, missing=missing, phase=Phase.WRITING), (WriteManifest(checkpoint, state.final),)


def complete(state: State, members: Members, checkpoint: int, now: float) -> Decision:
    """The manifest is written."""
    if state.phase is not Phase.WRITING or checkpoint != state.number:
        return state, _NOTHING
    state = replace(state, failures=0)
    if not members.committing:
        return _end(state, now)
    told = replace(state, phase=Phase.COMMITTING, completed_at=now, missing=members.committing)
    return told, (SendCommit(checkpoint, members.committing),)


def commit(state: State, task: TaskId, checkpoint: int, now: float) -> Decision:
    """A task has committed."""
    if state.phase is not Phase.COMMITTING or checkpoint != state.number or task not in state.missing:
        return state, _NOTHING
    missing = state.missing - {task}
    if missing:
        return replace(state, missing=missing), _NOTHING
    ended, instructions = _end(replace(state, missing=missing), now)
    return ended, (NoteCommitted(checkpoint), *instructions)


def _end(state: State, now: float) -> Decision:
    if state.final:
        return replace(state, phase=Phase.OVER, ended_at=now), (SendFinish(),)
    return replace(state, phase=Phase.IDLE, ended_at=now), _NOTHING


def drain(state: State, task: TaskId) -> Decision:
    """A task has come to its end. If a checkpoint waits for it, no barrier reaches it: it is triggered."""
    drained = replace(state, drained=state.drained | {task})
    if state.phase is Phase.COLLECTING and task in state.missing:
        return drained, (SendTrigger(state.number, frozenset({task})),)
    return drained, _NOTHING


def ask(state: State) -> Decision:
    """Request the next one soon."""
    return replace(state, asked=True), _NOTHING


def fail(
    state: State, rules: Rules, checkpoint: int, reason: str, now: float, *, is_unwritten: bool = False
) -> Decision:
    """It cannot become complete: it took too long, or, with `is_unwritten`, a part of it could not be written.

    What cannot be written does not end a job that runs: there may be room again later. The last one of a run has no
    later, so it counts however it fails.
    """
    if state.phase not in {Phase.COLLECTING, Phase.WRITING} or checkpoint != state.number:
        return state, _NOTHING
    counts = state.final or not is_unwritten
    failures = state.failures + counts
    if counts and failures > rules.tolerated_failures:
        words = f"{failures} checkpoints in a row failed, the last: {reason}"
        return replace(state, phase=Phase.OVER, failures=failures), (Discard(checkpoint, reason), GiveUp(words))
    idle = replace(state, phase=Phase.IDLE, failures=failures, missing=frozenset(), ended_at=now, final=False)
    return idle, (Discard(checkpoint, reason),)

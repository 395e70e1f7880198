"""Which checkpoint a start goes on from, and the state that each step gets from it, at whatever width. Pure.

`choose` decides: it may pass over checkpoints that no sink has committed, and refuses to pass over others, because
their output would come twice. Called by `shoal.dataflow.checkpoint.start` and `shoal.dataflow.execution.engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.core.errors import PreconditionError
from shoal.dataflow.checkpoint.handles import StepState, cut_chain
from shoal.dataflow.checkpoint.records import Checkpoint, Layout
from shoal.dataflow.connectors.markers import ALL_TASKS, Marker
from shoal.dataflow.language.keys import KeyGroups

#: Kinds of steps whose state can be dropped: rules may move what they do into other steps.
_SPARE = frozenset({"assign-time"})


# ---------------------------------------------------------------------------------------------------------
# Which checkpoint


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """What is known of one sink that commits with checkpoints, after it was fenced."""

    uid: str
    label: str
    #: What its own system says was committed, by subtask. None is a marker that is not there.
    markers: Mapping[int, Marker | None]
    #: The subtasks whose output is in the newest readable checkpoint.
    prepared: frozenset[int] = frozenset()
    #: Whether that output can be committed again without a trace.
    is_repeatable: bool = False


@dataclass(frozen=True, slots=True)
class StartFacts:
    """What a start knows when every sink is fenced."""

    job: str
    #: Where the job's checkpoints lie.
    place: str
    incarnation: int
    #: The coordinator's record: every sink has committed every checkpoint up to this. None: there is no record.
    through: int | None
    #: The newest checkpoint that can be read, or the one that was asked for; 0 when there is none.
    newest: int
    #: Those that were passed over on the way to it: why each cannot be read.
    damaged: Mapping[int, str]
    sinks: Sequence[SinkFacts] = ()
    #: Where the job was last rolled back to, and the highest number until then; see `records.Branch`.
    base: int | None = None
    highest: int = 0

    def accepted_through(self, target: int) -> int:
        """Through which checkpoint sinks may be ahead of the target. The rollback accepted that."""
        return self.highest if target == self.base else target


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What the person who starts the job asked for."""

    #: None: the newest; 0: the beginning.
    from_checkpoint: int | None = None
    accept_duplicates: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Go on from this checkpoint; 0 is the beginning."""

    checkpoint: int
    #: Through which checkpoint each subtask of each sink has committed, by the sink's uid.
    committed: Mapping[str, Mapping[int, int]]
    #: It goes back behind what sinks have committed, or to where somebody asked. That has to be written down.
    is_rollback: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """The start would lose or double output, and nobody has accepted that."""

    text: str
    hint: str

    def error(self) -> PreconditionError:
        """The refusal as an error."""
        return PreconditionError(self.text, hint=self.hint)


def choose(facts: StartFacts, request: StartRequest) -> Choice | Refusal:
    """Which checkpoint to go on from.

    An absent marker is never zero: the coordinator's record says what was committed, and output beyond the record
    whose marker is gone is in doubt.
    """
    target = 0 if request.from_checkpoint == 0 else facts.newest
    if not target and request.from_checkpoint != 0 and (facts.damaged or request.from_checkpoint):
        return _unreadable(facts, request.from_checkpoint)
    committed = {sink.uid: {task: _committed(facts, sink, task) for task in sink.markers} for sink in facts.sinks}
    refusal = _foreign(facts, target) or _passed_over(facts, committed, target)
    if not request.accept_duplicates:
        refusal = refusal or _in_doubt(facts, target)
        if refusal is not None:
            return refusal
    return Choice(target, committed, is_rollback=request.from_checkpoint is not None or refusal is not None)


def _committed(facts: StartFacts, sink: SinkFacts, task: int) -> int:
    """Through which checkpoint a subtask has committed, as far as is known."""
    marker = sink.markers[task]
    own = marker.checkpoint if marker is not None and marker.incarnation == facts.incarnation else 0
    return max(own, facts.through or 0)


def _unreadable(facts: StartFacts, asked: int | None) -> Refusal:
    if asked:
        why = facts.damaged.get(asked, "there is none with this number")
        return Refusal(
            f"job {facts.job!r} cannot go on from checkpoint {asked} in {facts.place}: {why}",
            "name one that is complete, or 0 for the beginning",
        )
    newest = max(facts.damaged)
    return Refusal(
        f"none of the checkpoints of job {facts.job!r} can be read, the newest, {newest}: {facts.damaged[newest]}",
        "start from the beginning with --from-checkpoint 0 --accept-duplicates, or give the job another name",
    )


def _foreign(facts: StartFacts, target: int) -> Refusal | None:
    """Sinks that hold output of another life of the job, whose checkpoints are not here.

    A start that was accepted may have died before it had written the markers of the new life.
    """
    accepted = facts.highest if target == facts.base else 0
    found = {
        (sink.label, marker.incarnation): max(marker.checkpoint, 0)
        for sink in facts.sinks
        for marker in sink.markers.values()
        if marker is not None and marker.incarnation != facts.incarnation and marker.checkpoint > accepted
    }
    if not found:
        return None
    named = ", ".join(f"{label} through checkpoint {number}" for (label, _), number in sorted(found.items()))
    return Refusal(
        f"sinks hold output of another incarnation of job {facts.job!r}: {named}. Its checkpoints are not in "
        f"{facts.place}, and what it has written would be written again",
        "bring its checkpoints back, give the job another name, or accept that: --accept-duplicates",
    )


def _passed_over(facts: StartFacts, committed: Mapping[str, Mapping[int, int]], target: int) -> Refusal | None:
    """Sinks that have committed more than the checkpoint to go on from."""
    ahead = {
        sink.label: most
        for sink in facts.sinks
        if (most := max(committed[sink.uid].values(), default=0)) > facts.accepted_through(target)
    }
    if not ahead:
        return None
    named = ", ".join(f"{label} has committed checkpoint {number}" for label, number in sorted(ahead.items()))
    why = "".join(f"; {number}: {reason}" for number, reason in sorted(facts.damaged.items(), reverse=True))
    origin = f"checkpoint {target}" if target else "the beginning"
    return Refusal(
        f"job {facts.job!r} would go on from {origin}, and {named}: the output since then would come twice{why}",
        f"bring the newer checkpoints back to {facts.place}, or accept that: "
        f"--from-checkpoint {target} --accept-duplicates",
    )


def _in_doubt(facts: StartFacts, target: int) -> Refusal | None:
    """Output of the checkpoint that may be visible or not, because its marker is gone."""
    if facts.through is not None and target <= facts.through:
        return None
    lost = {
        sink.label
        for sink in facts.sinks
        for task, marker in sink.markers.items()
        if marker is None and not sink.is_repeatable and _has_output(sink, task)
    }
    if not lost or not target:
        return None
    known = "nothing" if facts.through is None else f"checkpoint {facts.through}"
    return Refusal(
        f"job {facts.job!r} cannot tell whether {', '.join(sorted(lost))} has the output of checkpoint {target}: the "
        f"sink's marker is gone, and the record of the job ends with {known}",
        f"send it again, which may double it: --from-checkpoint {target} --accept-duplicates",
    )


def _has_output(sink: SinkFacts, task: int) -> bool:
    return bool(sink.prepared) if task == ALL_TASKS else task in sink.prepared


# ---------------------------------------------------------------------------------------------------------
# Which state


def check_match(
    checkpoint: Checkpoint,
    layout: Layout,
    *,
    stateful: frozenset[str],
    allow_missing: bool = False,
    allow_unknown: bool = False,
) -> None:
    """Refuse a plan whose steps do not find their state, or that has no step for a state. Says every one of them."""
    if checkpoint.key_groups != layout.key_groups:
        raise PreconditionError(
            f"checkpoint {checkpoint.number} has {checkpoint.key_groups} key groups, the plan {layout.key_groups}",
            hint="the number of key groups is fixed for the life of a job",
        )
    changed = sorted(
        uid for uid, kind in layout.kinds.items() if uid in stateful and checkpoint.kinds.get(uid, kind) != kind
    )
    missing = sorted(uid for uid in stateful if uid not in checkpoint.kinds)
    unknown = sorted(
        uid
        for uid, states in checkpoint.states.items()
        if uid not in layout.kinds and checkpoint.kinds.get(uid) not in _SPARE and _holds(states)
    )
    faults = [f"{uid!r} was {checkpoint.kinds[uid]} and is {layout.kinds[uid]}" for uid in changed]
    if not allow_missing:
        faults += [f"{uid!r} has no state in it" for uid in missing]
    if not allow_unknown:
        faults += [f"the state of {uid!r} has no operator in the plan" for uid in unknown]
    if faults:
        raise PreconditionError(
            f"checkpoint {checkpoint.number} does not fit the plan: {'; '.join(faults)}",
            hint="name operators that keep state with uid(…), or set allow_missing_state and allow_unknown_state",
            missing=", ".join(missing),
            unknown=", ".join(unknown),
        )


def _holds(states: Sequence[tuple[int, StepState]]) -> bool:
    return any(state.chain or state.shared for _subtask, state in states)


def share_states(checkpoint: Checkpoint, key_groups: KeyGroups) -> Mapping[str, Sequence[tuple[int, int, StepState]]]:
    """What each step of one task gets: (checkpoint, subtask, state), of keyed state only its own key groups."""
    return {
        uid: [(checkpoint.number, subtask, _cut(state, key_groups)) for subtask, state in states]
        for uid, states in checkpoint.states.items()
    }


def _cut(state: StepState, key_groups: KeyGroups) -> StepState:
    return StepState(state.shared, cut_chain(state.chain, key_groups.first, key_groups.end))

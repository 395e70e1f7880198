"""From a checkpoint to the states that a plan's steps go on from, at whatever width. Pure.

Called by `shoal.dataflow.execution.engine` when a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.core.errors import PreconditionError
from shoal.dataflow.checkpoint.handles import StepState, cut_chain
from shoal.dataflow.checkpoint.storage import Checkpoint, Layout
from shoal.dataflow.operators.base import KeyGroups

#: Kinds of steps whose state can be given up: rules may move what they do into other steps.
_SPARE = frozenset({"assign-time"})


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

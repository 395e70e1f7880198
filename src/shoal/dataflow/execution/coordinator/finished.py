"""What a checkpoint says about a job that had come to its end: which steps have emitted everything, which input is new.

Pure. Called by `shoal.dataflow.execution.coordinator.running`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shoal.dataflow.checkpoint.records import Checkpoint
from shoal.dataflow.connectors.base import Split
from shoal.dataflow.execution.building import stateful_uids
from shoal.dataflow.execution.chain import is_over
from shoal.dataflow.language.logical import Sink, Source, walk
from shoal.dataflow.plan.physical import PhysicalPlan, Step

#: Names that an error lists at most.
_MAX_NAMED = 5


def _read_splits(checkpoint: Checkpoint, uid: str) -> dict[str, bool]:
    """The splits of a source that a checkpoint knows, and whether each had come to its end."""
    known: dict[str, bool] = {}
    for _subtask, state in checkpoint.states.get(uid, ()):
        if state.shared:
            known |= {name: bool(entry["ended"]) for name, entry in json.loads(state.shared)["splits"].items()}
    return known


def _over_steps(plan: PhysicalPlan, checkpoint: Checkpoint) -> list[Step]:
    """The steps that had put everything out: whatever comes to them now stays in them."""
    return [
        step
        for stage in plan.stages
        for step in stage.steps
        if (states := checkpoint.states.get(step.uid)) and all(is_over(state.shared) for _subtask, state in states)
    ]


def find_lost_splits(plan: PhysicalPlan, checkpoint: Checkpoint, splits: Mapping[str, tuple[Split, ...]]) -> list[str]:
    """Splits that a checkpoint does not know, in front of a step that has put everything out.

    Where only stateless steps follow there is none: new files are read, and their rows come out.
    """
    closed = set(walk(*(step.node for step in _over_steps(plan, checkpoint))))
    sources = [step for stage in plan.stages for step in stage.steps if isinstance(step.node, Source)]
    lost: list[str] = []
    for step in sources:
        if step.node in closed and step.uid in checkpoint.states:
            known = _read_splits(checkpoint, step.uid)
            lost += [split.name for split in splits[step.uid] if split.name not in known]
    return lost


def had_ended(plan: PhysicalPlan, checkpoint: Checkpoint, splits: Mapping[str, tuple[Split, ...]]) -> bool:
    """Whether there is nothing left to read, and no step that still holds something."""
    for stage in plan.stages:
        for step in stage.steps:
            if isinstance(step.node, Source):
                known = _read_splits(checkpoint, step.uid)
                if not step.node.connector.is_bounded or not all(known.get(each.name) for each in splits[step.uid]):
                    return False
    over = {step.uid for step in _over_steps(plan, checkpoint)}
    keeping = {
        step.uid for stage in plan.stages for step in stage.steps if not isinstance(step.node, Source | Sink)
    } & stateful_uids(plan)
    return keeping <= over


def list_names(names: Sequence[str]) -> str:
    """The first few names, for an error."""
    shown = ", ".join(names[:_MAX_NAMED])
    return shown + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")

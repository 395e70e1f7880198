"""Notices that a task host dies again and again at the same place: a row ends its process, or it has too little room.

A process that died is told from one that was moved, or that came back to begin an epoch: its agent started another one
in its place. What counts are deaths without a new checkpoint between them. Pure. Called by
`shoal.dataflow.execution.remote.hosts`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from shoal.core.errors import PreconditionError
from shoal.dataflow.checkpoint.messages import TaskId
from shoal.dataflow.checkpoint.records import Checkpoint
from shoal.dataflow.execution.coordinator.finished import list_names
from shoal.dataflow.execution.hosts.control_messages import HostShare
from shoal.dataflow.language.logical import Source
from shoal.dataflow.plan.physical import PhysicalPlan


class Crashes:
    """The deaths of the task hosts of a job since its newest checkpoint."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: The checkpoint that the present epoch began from.
        self._base: int | None = None
        #: The hosts that died in it, and how often each did in epochs from this checkpoint.
        self._died: set[int] = set()
        self._counts: dict[int, int] = {}

    def died(self, number: int) -> None:
        """A host that worked in the present epoch died."""
        self._died.add(number)

    def begin(self, checkpoint: int | None) -> int | None:
        """An epoch begins from this checkpoint. Returns a host that has died too often."""
        if checkpoint != self._base:
            self._counts.clear()  # of what died before it; those of the last epoch died after it
        for number in self._died:
            self._counts[number] = self._counts.get(number, 0) + 1
        self._base = checkpoint
        self._died.clear()
        return next((number for number, count in sorted(self._counts.items()) if count >= self._most), None)

    def error(
        self,
        number: int,
        node: str,
        plan: PhysicalPlan,
        share: HostShare,
        *,
        tasks: Iterable[TaskId],
        found: Checkpoint | None,
    ) -> PreconditionError:
        """What the job fails with."""
        own = set(tasks)
        stages = sorted({task.stage for task in own})
        steps = list_names([step.name for stage in stages for step in plan.stages[stage].steps])
        since = "the beginning" if share.checkpoint is None else f"checkpoint {share.checkpoint}"
        read = _places(plan, share, own, found)
        reads = f"; it read {list_names(read)}" if read else ""
        return PreconditionError(
            f"task host {number} on node {node} died {self._counts[number]} times since {since}, and no new checkpoint "
            f"was made between. It runs {steps}{reads}",
            hint="a row ends its process, or it has too little memory: `shoal job logs` and `shoal events` say how it "
            "ended. Mend the program and submit it again; it goes on from that checkpoint",
            host=number,
            node=node,
            checkpoint=share.checkpoint,
        )


def _places(plan: PhysicalPlan, share: HostShare, own: set[TaskId], found: Checkpoint | None) -> Sequence[str]:
    """The splits that a host reads, and from where."""
    places = []
    for stage in plan.stages:
        for step in stage.steps:
            if not isinstance(step.node, Source):
                continue
            known = _positions(found, step.uid)
            for task, splits in enumerate(share.splits.get(step.uid, ())):
                if TaskId(stage.number, task) in own:
                    label = step.node.connector.label
                    places += [f"{label} split {each.name}{known.get(each.name, '')}" for each in splits]
    return places


def _positions(found: Checkpoint | None, uid: str) -> dict[str, str]:
    states = [] if found is None else [state.shared for _subtask, state in found.states.get(uid, ()) if state.shared]
    entries = {name: entry for shared in states for name, entry in json.loads(shared)["splits"].items()}
    return {
        name: f" from {json.dumps(entry['position'])} on"
        for name, entry in entries.items()
        if entry.get("position") is not None
    }

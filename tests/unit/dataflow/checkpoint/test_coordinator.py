"""The coordinator of checkpoints, with a task that answers at once."""

from __future__ import annotations

import os

import pytest

from shoal.core.clock import SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import PreconditionError
from shoal.dataflow.checkpoint.claim import claim_job
from shoal.dataflow.checkpoint.coordinator import Coordinator
from shoal.dataflow.checkpoint.messages import Acknowledged, Command, Drained, TaskId, Trigger
from shoal.dataflow.checkpoint.protocol import Members, Rules
from shoal.dataflow.checkpoint.records import Layout
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.operators.base import OperatorState
from tests.unit.dataflow.checkpoint.writing import write_task

TASK = TaskId(0, 0)
EVERYONE = frozenset({TASK})


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_coordinator_whose_job_was_claimed_writes_no_checkpoint(is_claimed):
    """Where there is no lock it would put its own in the place of the newer coordinator's, under the same number."""
    place = f"memory://coordinator-{os.getpid()}-{is_claimed}"
    claim = claim_job(place, "job", SystemEntropy(), is_new=True)
    storage = CheckpointStorage(place, "job")

    def answer(task: TaskId, command: Command) -> None:
        if isinstance(command, Trigger):
            part = write_task(storage, command.checkpoint, task, {"out": OperatorState()})
            coordinator.report(Acknowledged(task, command.checkpoint, part))

    coordinator = Coordinator(
        members=Members(EVERYONE, EVERYONE, frozenset()),
        rules=Rules(60.0, 0.0, 60.0, 0),
        storage=storage,
        claim=claim,
        committers={},
        layout=Layout(8, {"out": "sink"}, {"out": 1}),
        highest=0,
        clock=SystemClock(),
        send=answer,
        write_ahead_bytes=1,
    )
    coordinator.report(Drained(TASK))
    if is_claimed:
        claim_job(place, "job", SystemEntropy(), is_new=False)
        with pytest.raises(PreconditionError, match="was claimed under a newer epoch"):
            coordinator.run()
        assert storage.search().checkpoint is None
    else:
        coordinator.run()
        assert storage.search().checkpoint.number == 1

"""The coordinator of checkpoints, with a task that answers at once."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from shoal.core.clock import SystemClock
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import PreconditionError
from shoal.dataflow.checkpoint.claim import Claim, claim_job
from shoal.dataflow.checkpoint.coordinator import Coordinator
from shoal.dataflow.checkpoint.messages import Acknowledged, Command, Drained, TaskId, Trigger
from shoal.dataflow.checkpoint.protocol import Members, Rules
from shoal.dataflow.checkpoint.records import Layout
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.operators.base import OperatorState
from tests.unit.dataflow.checkpoint.writing import write_task

TASK = TaskId(0, 0)
EVERYONE = frozenset({TASK})
LAYOUT = Layout(8, {"out": "sink"}, {"out": 1})


def make(
    claim: Claim, storage: CheckpointStorage, rules: Rules, send: Callable[[TaskId, Command], None]
) -> Coordinator:
    return Coordinator(
        members=Members(EVERYONE, EVERYONE, frozenset()),
        rules=rules,
        storage=storage,
        claim=claim,
        committers={},
        layout=LAYOUT,
        highest=0,
        clock=SystemClock(),
        send=send,
        write_ahead_bytes=1,
    )


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

    coordinator = make(claim, storage, Rules(60.0, 0.0, 60.0, 0), answer)
    coordinator.report(Drained(TASK))
    if is_claimed:
        claim_job(place, "job", SystemEntropy(), is_new=False)
        with pytest.raises(PreconditionError, match="was claimed under a newer epoch"):
            coordinator.run()
        assert storage.search().checkpoint is None
    else:
        coordinator.run()
        assert storage.search().checkpoint.number == 1


def test_a_coordinator_whose_job_was_claimed_discards_no_checkpoint():
    """One that stood still finds that its checkpoint timed out; the newer one has made one of the same number."""
    place = f"memory://discarded-{os.getpid()}"
    claim = claim_job(place, "job", SystemEntropy(), is_new=True)
    storage = CheckpointStorage(place, "job")
    coordinator = make(claim, storage, Rules(60.0, 0.0, 0.05, 5), lambda _task, _command: None)
    claim_job(place, "job", SystemEntropy(), is_new=False)
    storage.complete(1, LAYOUT, [write_task(storage, 1, TASK, {"out": OperatorState()})])
    coordinator.report(Drained(TASK))
    with pytest.raises(PreconditionError, match="was claimed under a newer epoch"):
        coordinator.run()
    assert storage.search().checkpoint.number == 1

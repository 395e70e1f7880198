"""Writes the state of tasks in tests as tasks do."""

from __future__ import annotations

import queue
from collections.abc import Mapping

from shoal.dataflow.checkpoint.handles import TaskPart
from shoal.dataflow.checkpoint.messages import Acknowledged, Report, TaskId
from shoal.dataflow.checkpoint.statestore import StateStore
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.checkpoint.uploads import StateUploads
from shoal.dataflow.language.keys import KeyGroups
from shoal.dataflow.operators.base import OperatorState


class Task:
    """A task that writes what it is given, and waits until it is written."""

    def __init__(self, store: StateStore, task: TaskId, groups: KeyGroups, *, epoch: int = 1) -> None:
        self.reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.failures: list[BaseException] = []
        self.uploads = StateUploads(store=store, task=task, epoch=epoch, key_groups=groups, report=self.reports.put)
        self.uploads.on_failure = self.failures.append

    def write(self, checkpoint: int, state: Mapping[str, OperatorState]) -> TaskPart:
        found = self.report(checkpoint, state)
        assert isinstance(found, Acknowledged), found
        return found.part

    def report(self, checkpoint: int, state: Mapping[str, OperatorState]) -> Report:
        self.uploads.submit(checkpoint, state)
        return self.reports.get(timeout=20)


def write_task(
    storage: CheckpointStorage, checkpoint: int, task: TaskId, state: Mapping[str, OperatorState], groups: int = 8
) -> TaskPart:
    """The part of one task that keeps its state as bytes."""
    writer = Task(storage.open_store(), task, KeyGroups(0, groups, groups))
    part = writer.write(checkpoint, state)
    writer.uploads.close()
    return part

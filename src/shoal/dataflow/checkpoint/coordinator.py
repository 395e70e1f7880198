"""Runs the checkpoints of one run: carries out what `shoal.dataflow.checkpoint.protocol` decides.

One thread. Tasks report to it from theirs; it writes what they hand it, so that no task waits for a disk, and sends
them orders. Everything that is said is a plain value of `messages`.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.dataflow.checkpoint import protocol
from shoal.dataflow.checkpoint.messages import (
    Acknowledged,
    Asked,
    Commit,
    Committed,
    Drained,
    Finish,
    Order,
    Report,
    TaskId,
    Trigger,
)
from shoal.dataflow.checkpoint.protocol import (
    Decision,
    Discard,
    GiveUp,
    Instruction,
    Members,
    Rules,
    SendCommit,
    SendFinish,
    SendTrigger,
    WriteManifest,
)
from shoal.dataflow.checkpoint.storage import CheckpointStorage, Layout, TaskFile
from shoal.dataflow.language.failures import CheckpointError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """What became of the checkpoints of a run."""

    completed: int = 0
    failed: int = 0
    last_number: int = 0
    last_bytes: int = 0
    last_seconds: float = 0.0


class Coordinator:
    """The checkpoints of one run. `run` is the body of its thread; every other method may be called from anywhere."""

    def __init__(
        self,
        *,
        members: Members,
        rules: Rules,
        storage: CheckpointStorage,
        layout: Layout,
        highest: int,
        clock: Clock,
        send: Callable[[TaskId, Order], None],
    ) -> None:
        self._members = members
        self._rules = rules
        self._storage = storage
        self._layout = layout
        self._clock = clock
        self._send = send
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._state = protocol.begin_run(highest, clock.monotonic())
        self._written: dict[TaskId, TaskFile] = {}
        self._started = 0.0
        self.counts = CheckpointCounts()

    def report(self, message: Report) -> None:
        """A task says something."""
        self._reports.put(message)

    def stop(self) -> None:
        """End without another checkpoint."""
        self._reports.put(None)

    def run(self) -> None:
        """Until the last checkpoint is done, or `stop`. Raises `CheckpointError` when too many fail."""
        while self._state.phase is not protocol.Phase.OVER:
            try:
                message = self._reports.get(timeout=self._patience())
            except queue.Empty:
                self._follow(protocol.tick(self._state, self._members, self._rules, self._clock.monotonic()))
                continue
            if message is None:
                return
            self._hear(message)
            self._follow(protocol.tick(self._state, self._members, self._rules, self._clock.monotonic()))

    def _patience(self) -> float | None:
        due = protocol.due_at(self._state, self._members, self._rules)
        return None if due is None else max(0.0, due - self._clock.monotonic())

    def _hear(self, message: Report) -> None:
        now = self._clock.monotonic()
        match message:
            case Acknowledged(task, checkpoint, _state):
                if self._take_in(message):
                    self._follow(protocol.acknowledge(self._state, task, checkpoint))
            case Committed(task, checkpoint):
                self._follow(protocol.commit(self._state, task, checkpoint, now))
            case Drained(task):
                self._follow(protocol.drain(self._state, task))
            case Asked():
                self._follow(protocol.ask(self._state))

    def _take_in(self, message: Acknowledged) -> bool:
        """Write a task's part. A disk that is full fails the checkpoint, not the run."""
        if message.checkpoint != self._state.number or message.task not in self._state.missing:
            return False
        try:
            self._written[message.task] = self._storage.write_task(message.checkpoint, message.task, message.state)
        except ShoalError as error:
            self._fail(message.checkpoint, str(error))
            return False
        return True

    def _fail(self, checkpoint: int, reason: str) -> None:
        log.warning("checkpoint %d failed: %s", checkpoint, reason)
        self._follow(protocol.fail(self._state, self._rules, checkpoint, reason, self._clock.monotonic()))

    def _follow(self, decision: Decision) -> None:
        self._state, instructions = decision
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case SendTrigger(checkpoint, tasks):
                self._trigger(checkpoint, tasks)
            case WriteManifest(checkpoint):
                self._complete(checkpoint)
            case SendCommit(checkpoint, tasks):
                for task in sorted(tasks):
                    self._send(task, Commit(checkpoint))
            case Discard(checkpoint):
                self._discard(checkpoint)
            case SendFinish():
                for task in sorted(self._members.everyone):
                    self._send(task, Finish())
            case GiveUp(reason):
                raise CheckpointError(reason)

    def _trigger(self, checkpoint: int, tasks: frozenset[TaskId]) -> None:
        if self._state.missing == self._members.everyone:  # it has just begun
            self._written.clear()
            self._started = self._clock.monotonic()
        for task in sorted(tasks):
            self._send(task, Trigger(checkpoint))

    def _complete(self, checkpoint: int) -> None:
        try:
            self._storage.complete(checkpoint, self._layout, [self._written[task] for task in sorted(self._written)])
        except ShoalError as error:
            self._fail(checkpoint, str(error))
            return
        now = self._clock.monotonic()
        self.counts = CheckpointCounts(
            completed=self.counts.completed + 1,
            failed=self.counts.failed,
            last_number=checkpoint,
            last_bytes=sum(each.size for each in self._written.values()),
            last_seconds=now - self._started,
        )
        self._follow(protocol.complete(self._state, self._members, checkpoint, now))
        self._storage.prune(checkpoint)

    def _discard(self, checkpoint: int) -> None:
        self.counts = CheckpointCounts(
            completed=self.counts.completed,
            failed=self.counts.failed + 1,
            last_number=self.counts.last_number,
            last_bytes=self.counts.last_bytes,
            last_seconds=self.counts.last_seconds,
        )
        self._storage.discard(checkpoint)

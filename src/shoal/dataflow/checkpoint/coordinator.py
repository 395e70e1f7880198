"""Runs the checkpoints of one run: carries out what `shoal.dataflow.checkpoint.protocol` decides.

One thread. Tasks write their own state and report where it lies; it writes the manifests, and sends them commands.
All messages are plain values of `messages`. It commits files and SQL itself, under its claim, so that a
zombie task can publish nothing; topics are committed by their tasks. While checkpoints cannot be written the job goes
on, and a warning says how old the last complete one is; sources pause when too much output waits for one.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from shoal.core.clock import Clock
from shoal.core.errors import PreconditionError, ShoalError
from shoal.core.faults import reach
from shoal.core.threads import Mail, threads_of
from shoal.dataflow.checkpoint import protocol
from shoal.dataflow.checkpoint.claim import Claim
from shoal.dataflow.checkpoint.handles import TaskPart
from shoal.dataflow.checkpoint.messages import (
    Acknowledged,
    Command,
    Commit,
    Committed,
    Declined,
    Drained,
    Finish,
    Pause,
    Report,
    Resume,
    TaskId,
    Trigger,
    Waiting,
)
from shoal.dataflow.checkpoint.protocol import (
    Decision,
    Discard,
    GiveUp,
    Instruction,
    Members,
    NoteCommitted,
    Rules,
    SendCommit,
    SendFinish,
    SendTrigger,
    WriteManifest,
)
from shoal.dataflow.checkpoint.records import Layout
from shoal.dataflow.checkpoint.storage import CheckpointStorage
from shoal.dataflow.connectors.base import SinkCommitter
from shoal.dataflow.errors import CheckpointError

log = logging.getLogger(__name__)

#: Seconds between two warnings that checkpoints fail.
_WARN_EVERY = 60.0


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """What became of the checkpoints of a run."""

    completed: int = 0
    failed: int = 0
    last_number: int = 0
    last_bytes: int = 0
    last_seconds: float = 0.0
    #: The longest that a task stood still for it.
    last_pause: float = 0.0
    #: Seconds since the last one was complete, or since the run began while there is none. None without checkpoints.
    age: float | None = None
    #: How many have failed since then, and why the last of them did.
    failed_in_a_row: int = 0
    reason: str = ""
    #: Whether sources wait because too much output waits for a checkpoint.
    is_paused: bool = False


class Coordinator:
    """The checkpoints of one run. `run` is the body of its thread; every other method may be called from anywhere."""

    def __init__(
        self,
        *,
        members: Members,
        rules: Rules,
        storage: CheckpointStorage,
        claim: Claim,
        committers: Mapping[str, SinkCommitter],
        layout: Layout,
        highest: int,
        clock: Clock,
        send: Callable[[TaskId, Command], None],
        write_ahead_bytes: int,
    ) -> None:
        self._members = members
        self._rules = rules
        self._storage = storage
        self._claim = claim
        self._committers = committers
        #: The sinks that this coordinator commits.
        self._own = {uid: each for uid, each in committers.items() if not each.commits_in_tasks}
        self._layout = layout
        self._clock = clock
        self._send = send
        self._reports: Mail[Report | None] = threads_of(clock).mail()
        self._state = protocol.begin_run(highest, clock.monotonic())
        self._parts: dict[TaskId, TaskPart] = {}
        #: Bytes of output that each sink task holds until a checkpoint takes them, and how many there may be.
        self._waiting: dict[tuple[TaskId, str], int] = {}
        self._most_waiting = write_ahead_bytes
        self._started = 0.0
        self._completed_at = clock.monotonic()
        self._warned_at = 0.0
        self._counts = CheckpointCounts()

    @property
    def counts(self) -> CheckpointCounts:
        """What became of them up to now."""
        return replace(self._counts, age=self._clock.monotonic() - self._completed_at)

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
            case Acknowledged(task, checkpoint, part):
                if checkpoint == self._state.number:
                    self._parts[task] = part
                self._follow(protocol.acknowledge(self._state, task, checkpoint))
            case Declined(_task, checkpoint, reason):
                self._fail_to_write(checkpoint, reason)
            case Committed(task, checkpoint):
                self._follow(protocol.commit(self._state, task, checkpoint, now))
            case Drained(task):
                self._follow(protocol.drain(self._state, task))
            case Waiting(task, sink, size):
                self._note_waiting(task, sink, size)

    def _fail_to_write(self, checkpoint: int, reason: str) -> None:
        """A disk that is full fails the checkpoint, not the run."""
        now = self._clock.monotonic()
        self._follow(protocol.fail(self._state, self._rules, checkpoint, reason, now, is_unwritten=True))

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
                self._publish(checkpoint)
                for task in sorted(tasks):
                    self._send(task, Commit(checkpoint))
            case NoteCommitted(checkpoint):
                self._note_committed(checkpoint)
            case Discard(checkpoint, reason):
                self._discard(checkpoint, reason)
            case SendFinish():
                for task in sorted(self._members.everyone):
                    self._send(task, Finish())
            case GiveUp(reason):
                raise CheckpointError(reason, hint=self._way_out())

    def _trigger(self, checkpoint: int, tasks: frozenset[TaskId]) -> None:
        if self._state.missing == self._members.everyone:  # it has just begun
            self._parts.clear()
            self._started = self._clock.monotonic()
        for task in sorted(tasks):
            self._send(task, Trigger(checkpoint))

    def _complete(self, checkpoint: int) -> None:
        try:
            self._claim.check()
            self._storage.complete(checkpoint, self._layout, [self._parts[task] for task in sorted(self._parts)])
        except PreconditionError:  # another coordinator runs the job: its checkpoints have the same numbers
            raise
        except ShoalError as error:
            self._fail_to_write(checkpoint, str(error))
            return
        now = self._clock.monotonic()
        if self._counts.failed_in_a_row:
            log.warning(
                "job %s: checkpoint %d is complete, after %d that failed in %.0f s",
                self._storage.job,
                checkpoint,
                self._counts.failed_in_a_row,
                now - self._completed_at,
            )
        self._counts = replace(
            self._counts,
            completed=self._counts.completed + 1,
            last_number=checkpoint,
            last_bytes=sum(each.written for each in self._parts.values()),
            last_seconds=now - self._started,
            last_pause=max((each.pause for each in self._parts.values()), default=0.0),
            failed_in_a_row=0,
            reason="",
        )
        self._completed_at = now
        for task in sorted(self._members.sources - self._members.committing):
            self._send(task, Commit(checkpoint))  # nothing waits for them: they commit what lag tools see
        self._follow(protocol.complete(self._state, self._members, checkpoint, now))
        self._storage.prune(checkpoint)

    def _publish(self, checkpoint: int) -> None:
        """Commit the sinks that are committed here. An error ends the run: only a start finds out what is visible."""
        reach("dataflow.publish.before")
        if self._own:
            self._claim.check()
        for uid, committer in self._own.items():
            prepared = {part.subtask: part.outputs[uid] for part in self._parts.values() if uid in part.outputs}
            committer.commit(checkpoint, prepared)
        reach("dataflow.publish.after")

    def _note_committed(self, checkpoint: int) -> None:
        """Every sink has committed: the next start knows it whatever becomes of the sinks' markers."""
        reach("dataflow.record.before")
        try:
            if self._committers:
                self._claim.note_committed(checkpoint)
        except ShoalError as error:  # a full disk: the markers of the sinks still say it, and the next one tries again
            log.warning(
                "job %s: that checkpoint %d is committed is not recorded: %s", self._storage.job, checkpoint, error
            )
        reach("dataflow.record.after")

    def _discard(self, checkpoint: int, reason: str) -> None:
        counts = self._counts
        self._counts = replace(
            counts, failed=counts.failed + 1, failed_in_a_row=counts.failed_in_a_row + 1, reason=reason
        )
        if self._state.phase is not protocol.Phase.OVER:
            self._warn(checkpoint, reason)
        try:
            self._claim.check()
        except PreconditionError:  # what lies there may be the other one's
            raise
        except ShoalError as error:
            log.warning("job %s: checkpoint %d stays: %s", self._storage.job, checkpoint, error)
        else:
            self._storage.discard(checkpoint)

    # -- while they fail --------------------------------------------------------------------------------------

    def _warn(self, checkpoint: int, reason: str) -> None:
        now = self._clock.monotonic()
        if self._counts.failed_in_a_row > 1 and now - self._warned_at < _WARN_EVERY:
            return
        self._warned_at = now
        log.warning(
            "job %s: checkpoint %d failed: %s. The job goes on, and tries again; %s",
            self._storage.job,
            checkpoint,
            reason,
            self._last_complete(),
        )

    def _last_complete(self) -> str:
        """Which checkpoint a restart would go on from, and how old it is."""
        if not self._counts.completed:
            return "none of this run is complete yet"
        age = self._clock.monotonic() - self._completed_at
        return f"the last complete one is {self._counts.last_number}, {age:.0f} s old"

    def _way_out(self) -> str:
        return f"started again, the job goes on from its newest complete checkpoint: {self._last_complete()}"

    def _note_waiting(self, task: TaskId, sink: str, size: int) -> None:
        """Output in memory is bounded: half of it asks for a checkpoint, all of it pauses the sources."""
        self._waiting[task, sink] = size
        total = sum(self._waiting.values())
        if total > self._most_waiting // 2:
            self._follow(protocol.ask(self._state))
            self._pause(total > self._most_waiting or self._counts.is_paused)
        else:
            self._pause(False)

    def _pause(self, wanted: bool) -> None:
        """Let the sources wait, or go on."""
        if wanted == self._counts.is_paused:
            return
        self._counts = replace(self._counts, is_paused=wanted)
        if wanted:
            log.warning("job %s: sources wait until a checkpoint takes the output that waits for it", self._storage.job)
        for task in sorted(self._members.sources):
            self._send(task, Pause() if wanted else Resume())

"""The messages between the coordinator of a run and its tasks: plain values that cross processes.

Commands go to a task, reports come from one. `shoal.dataflow.execution.hosts.control_messages` has their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from shoal.dataflow.checkpoint.handles import TaskPart


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One parallel instance of a stage."""

    stage: int
    subtask: int

    def __str__(self) -> str:
        return f"{self.stage}.{self.subtask}"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Snapshot now, and pass the barrier on. For tasks that no barrier comes to: sources, and those that have ended."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The checkpoint is complete: commit what sinks commit in their tasks, and say so."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class StopReading:
    """Read no further. With `finish` event time comes to its end, and windows that are open are put out as they are."""

    finish: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything is done: end."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Read nothing until `Resume`: too much output waits for a checkpoint."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Read on."""


@dataclass(frozen=True, slots=True)
class AddSplits:
    """Read these splits, too: they appeared while the job runs. For source tasks."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlignTime:
    """The event time of the slowest split among all tasks of the source; None: no split holds the others back."""

    slowest: int | None


Command: TypeAlias = Trigger | Commit | StopReading | Finish | Pause | Resume | AddSplits | AlignTime


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A task has written its share of a checkpoint: here is where it lies."""

    task: TaskId
    checkpoint: int
    part: TaskPart


@dataclass(frozen=True, slots=True)
class Declined:
    """A task could not write its share of a checkpoint. What it has stays with it, and goes with the next one."""

    task: TaskId
    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A task's sinks have committed a checkpoint."""

    task: TaskId
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Drained:
    """All inputs of a task have ended and everything that came of them has left it."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many bytes of output a sink task holds in memory until a checkpoint takes them."""

    task: TaskId
    sink: str
    bytes: int


@dataclass(frozen=True, slots=True)
class SourceTime:
    """The event time of the slowest split of a source task that has still something to read; None when none has."""

    task: TaskId
    slowest: int | None


Report: TypeAlias = Acknowledged | Declined | Committed | Drained | Waiting | SourceTime

"""A job's layout, its checkpoints and its history, as plain values.

`storage` reads and writes them; `restore` and `start` decide by them. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.dataflow.checkpoint.handles import FileHandle, StepState


@dataclass(frozen=True, slots=True)
class Layout:
    """What a plan looks like to its checkpoints."""

    key_groups: int
    #: The kind of each step by its uid, and how many tasks it has.
    kinds: Mapping[str, str]
    widths: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read. For each uid: the subtask and its state, for every task that the step had."""

    number: int
    key_groups: int
    kinds: Mapping[str, str]
    states: Mapping[str, Sequence[tuple[int, StepState]]]
    #: The files that it needs, by name.
    handles: Mapping[str, FileHandle] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Search:
    """What a look for a checkpoint has found."""

    checkpoint: Checkpoint | None
    #: Newer ones that are complete and cannot be read: why, by number.
    damaged: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class History:
    """What is known of a job from before."""

    #: The highest number that any checkpoint ever had, also one that failed.
    highest: int
    #: The most tasks that each step ever had.
    widths: Mapping[str, int]

"""Handles of state: which files it lies in, and for which key groups. Plain values, so that they can cross processes.

A task acknowledges a checkpoint by a `TaskPart`; the manifest lists those of all tasks, and a restore hands each task
the links that concern it. Made by `shoal.dataflow.checkpoint.uploads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class FileHandle:
    """A state file: its name, its size, and the checksum of its header, which has those of every key group in it."""

    name: str
    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Link:
    """A file of the chain that a step's keyed state is made of, for key groups `first` up to, not including, `end`."""

    file: str
    first: int
    end: int

    def of_groups(self, first: int, end: int) -> Link | None:
        """The same for fewer key groups; None when there are none."""
        first, end = max(first, self.first), min(end, self.end)
        return replace(self, first=first, end=end) if first < end else None


#: The files of a step's keyed state: for each key group the oldest comes first.
Chain = tuple[Link, ...]


def cut_chain(chain: Sequence[Link], first: int, end: int) -> Chain:
    """The links that matter to some key groups."""
    cut = (link.of_groups(first, end) for link in chain)
    return tuple(link for link in cut if link is not None)


@dataclass(frozen=True, slots=True)
class TaskPart:
    """A task's share of a checkpoint."""

    subtask: int
    #: The file that this checkpoint wrote: it has what belongs to no key, of every step.
    file: str
    #: Every file that it needs, this one included.
    files: tuple[FileHandle, ...]
    chains: Mapping[str, Chain] = field(default_factory=dict)
    #: Bytes that this checkpoint wrote.
    written: int = 0
    #: Seconds that the task stood still for its snapshot.
    pause: float = 0.0
    #: What its sinks have prepared for the checkpoint, by uid.
    outputs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepState:
    """What a checkpoint has of one task of a step: what belongs to no key, and where the rest lies."""

    shared: bytes = b""
    chain: Chain = ()

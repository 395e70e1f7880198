"""A job's layout, its checkpoints and its history, as plain values; and the seal of the documents that say them.

`storage` reads and writes them; `restore` and `start` decide by them. No I/O, no clock.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    #: The life of the job that wrote it. None: a version wrote it that did not say.
    incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """The checkpoints that a job may go on from without being asked.

    A rollback begins a new branch at its `base`. Checkpoints between the base and the highest number that was used
    before belong to the branch that was left: no search finds them.
    """

    incarnation: int = 0
    #: What the job was last rolled back to, 0 for the beginning. None: it never was.
    base: int | None = None
    #: The highest number that was used when it was.
    highest: int = 0

    def has(self, number: int) -> bool:
        """Whether a checkpoint with this number is of the branch."""
        return number > self.highest or number == self.base

    def is_foreign(self, number: int, incarnation: int | None) -> bool:
        """Whether a later checkpoint was written by another life of the job. None is one that does not say."""
        known = incarnation is not None and self.incarnation != 0
        return known and number > self.highest and incarnation != self.incarnation


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


_CHECKSUM = "checksum"


def seal(content: Mapping[str, Any]) -> bytes:
    """A document as JSON, with a checksum of what it says."""
    return json.dumps({**content, _CHECKSUM: _checksum(content)}).encode()


def check_seal(content: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a document that does not say what it said. Those of earlier versions have no checksum."""
    rest = {name: value for name, value in content.items() if name != _CHECKSUM}
    if _CHECKSUM in content and content[_CHECKSUM] != _checksum(rest):
        raise ValueError("its checksum does not match")


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())

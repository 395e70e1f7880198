"""Which task reads which split: one rule, for the splits at the start and for those that appear while the job runs.

Splits are numbered in the order in which the coordinator finds them. Split n belongs to task n modulo the parallelism,
so no task has more than one split above any other. Pure. Called by `shoal.dataflow.execution.coordinator.running` and
`shoal.dataflow.execution.coordinator.sources`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.dataflow.connectors.base import Split


@dataclass(frozen=True, slots=True)
class Assignment:
    """The splits of one source by task."""

    parallelism: int
    #: In the order in which they were found.
    known: tuple[Split, ...] = ()

    def add(self, found: Sequence[Split]) -> Assignment:
        """The assignment with the splits that are new among those found. No split moves to another task."""
        names = {split.name for split in self.known}
        new = {split.name: split for split in found if split.name not in names}
        return Assignment(self.parallelism, (*self.known, *new.values()))

    def since(self, before: Assignment) -> tuple[tuple[Split, ...], ...]:
        """The splits of each task that an earlier form of this assignment did not have."""
        first = len(before.known)
        return tuple(
            tuple(split for number, split in enumerate(self.known) if number >= first and self._owner(number) == task)
            for task in range(self.parallelism)
        )

    @property
    def by_task(self) -> tuple[tuple[Split, ...], ...]:
        """The splits of each task."""
        return self.since(Assignment(self.parallelism))

    def _owner(self, number: int) -> int:
        return number % self.parallelism


def assign_splits(found: Sequence[Split], parallelism: int) -> Assignment:
    """The assignment at the start of a run."""
    return Assignment(parallelism).add(found)

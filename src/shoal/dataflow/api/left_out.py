"""Rows that a dataflow left out: late, skipped, or put aside as errors. Counted from what its steps count. Pure.

Called by `shoal.dataflow.api.apps.lifetime`, which tells when they begin, and by `shoal run`, which prints the totals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

#: What steps count, in the words of people.
_WORDS = {
    "skipped": "skipped",
    "put_aside": "put aside as errors",
    "late": "late",
    "late_right": "late on the right side",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of one kind at one step, over all of its tasks."""

    step: str
    kind: str
    rows: int

    def __str__(self) -> str:
        return f"{self.rows:,} {'row' if self.rows == 1 else 'rows'} {self.kind} at {self.step}"


def find_left_out(steps: Iterable[Any]) -> tuple[LeftOut, ...]:
    """The rows that were left out, by step and kind, from the counts of a run (`StepCounts`)."""
    found: dict[tuple[str, str, str], int] = {}
    for step in steps:
        for key, word in _WORDS.items():
            rows = step.statistics.get(key, 0)
            if rows:
                place = (step.uid, step.name, word)
                found[place] = found.get(place, 0) + rows
    return tuple(LeftOut(name, word, rows) for (_uid, name, word), rows in found.items())


def begun(now: Iterable[LeftOut], before: Collection[LeftOut]) -> tuple[LeftOut, ...]:
    """Those of which there were none before."""
    known = {(each.step, each.kind) for each in before}
    return tuple(each for each in now if (each.step, each.kind) not in known)

"""What a benchmark promises and what came out: bars, figures, measured values. Pure code.

An area declares `Figure`s; the runner measures and calls `judge`, which turns the values of all runs into `Measured`
rows: the median, the spread, whether the bar holds and how it compares with a peer.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shoal.core.errors import InternalError

_DIGITS = 4


class Relation(enum.Enum):
    """Which side of a bar is good."""

    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise about one figure."""

    relation: Relation
    value: float

    def holds(self, value: float) -> bool:
        """Whether a value keeps it."""
        return value <= self.value if self.relation is Relation.AT_MOST else value >= self.value

    def text(self, unit: str) -> str:
        """As people write it: `<= 500 ms`."""
        return f"{self.relation.value} {self.value:g} {unit}".rstrip()


def at_most(value: float) -> Bar:
    """A bar that lower values keep."""
    return Bar(Relation.AT_MOST, value)


def at_least(value: float) -> Bar:
    """A bar that higher values keep."""
    return Bar(Relation.AT_LEAST, value)


@dataclass(frozen=True, slots=True)
class Against:
    """What a figure is compared with: a figure of the same area that was measured on a peer."""

    peer: str
    figure: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that an area measures."""

    name: str
    unit: str
    #: What exactly was measured: one sentence.
    meaning: str
    bar: Bar | None = None
    against: Against | None = None
    #: Measured in the first run alone, because it takes long and hardly varies.
    once: bool = False
    #: Needs something that may be missing on this machine. It is left out then, with a note.
    optional: bool = False
    #: Not measured: the median of the first of these figures divided by that of the second. Left out where one is.
    quotient: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure after all runs, as it stands in the results."""

    name: str
    #: The median of the runs.
    value: float
    unit: str
    #: The highest run less the lowest; None when it was measured once.
    spread: float | None
    bar: str | None
    ok: bool | None
    #: The name of the peer that it is compared with.
    peer: str | None
    #: The median divided by the peer's median.
    ratio: float | None

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return asdict(self)


def judge(figures: Sequence[Figure], runs: Sequence[Mapping[str, float]]) -> tuple[Measured, ...]:
    """Put the values of all runs together. A figure without its values, or a value without a figure, is our mistake."""
    _check(figures, runs)
    values = {figure.name: [run[figure.name] for run in runs if figure.name in run] for figure in figures}
    return judge_values(figures, values)


def judge_values(figures: Sequence[Figure], measured: Mapping[str, Sequence[float]]) -> tuple[Measured, ...]:
    """The same for the values of each figure, run by run. Figures without values are left out."""
    values = {figure.name: list(measured.get(figure.name, ())) for figure in figures}
    medians = {name: statistics.median(each) for name, each in values.items() if each}
    for figure in figures:
        if figure.quotient is not None:
            over, under = figure.quotient
            if over in medians and medians.get(under):
                # Of each run for the spread; what counts is the ratio of the medians.
                pairs = zip(values[over], values[under], strict=False)
                values[figure.name] = [one / other for one, other in pairs if other]
                medians[figure.name] = medians[over] / medians[under]
    return tuple(_judge_one(figure, values[figure.name], medians) for figure in figures if figure.name in medians)


def _judge_one(figure: Figure, values: Sequence[float], medians: Mapping[str, float]) -> Measured:
    value = medians[figure.name]
    ratio = None
    if figure.against is not None and medians.get(figure.against.figure, 0) > 0:
        ratio = value / medians[figure.against.figure]
    return Measured(
        name=figure.name,
        value=rounded(value),
        unit=figure.unit,
        spread=rounded(max(values) - min(values)) if len(values) > 1 else None,
        bar=figure.bar.text(figure.unit) if figure.bar is not None else None,
        # The value itself is judged, not what rounding made of it.
        ok=figure.bar.holds(value) if figure.bar is not None else None,
        peer=figure.against.peer if figure.against is not None else None,
        ratio=rounded(ratio) if ratio is not None else None,
    )


def _check(figures: Sequence[Figure], runs: Sequence[Mapping[str, float]]) -> None:
    names = {figure.name for figure in figures}
    for number, run in enumerate(runs):
        measured = [figure for figure in figures if figure.quotient is None]
        expected = {figure.name for figure in measured if number == 0 or not figure.once}
        optional = {figure.name for figure in figures if figure.optional}
        if not expected - optional <= run.keys() <= expected:
            odd = ", ".join(sorted((run.keys() ^ expected) - (optional & expected)))
            raise InternalError(f"run {number + 1} has too few or too many figures: {odd}")
        endless = [name for name, value in run.items() if not math.isfinite(value)]
        if endless:
            raise InternalError(f"run {number + 1} has figures without a value: {', '.join(endless)}")
    strangers = {figure.against.figure for figure in figures if figure.against is not None}
    strangers |= {name for figure in figures for name in figure.quotient or ()}
    strangers -= names
    if strangers:
        raise InternalError(f"figures are compared with figures that do not exist: {', '.join(sorted(strangers))}")


def rounded(value: float) -> float:
    """To four significant digits: more would pretend a precision that a machine with other work does not have."""
    if value == 0:
        return 0.0
    places = _DIGITS - 1 - math.floor(math.log10(abs(value)))
    return float(round(value, max(places, 0)))


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least this share of all samples does not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

"""Learning rates over the steps of training. A slice without one uses the `learning_rate` of its optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from shoal.core.shape import Range

Rate = Annotated[float, Range(0.0, 1e6)]
Steps = Annotated[int, Range(1, 2**53)]


@dataclass(frozen=True, slots=True)
class ConstantRate:
    """The same at every step."""

    kind: ClassVar[str] = "constant"
    rate: Rate

    def at(self, _step: int) -> float:
        """The rate at a step."""
        return self.rate


@dataclass(frozen=True, slots=True)
class PolynomialRate:
    """From `start` to `end` over `steps`, then `end`. `PolynomialRate(0, 0.01, 1000)` warms up to 0.01."""

    kind: ClassVar[str] = "polynomial"
    start: Rate
    end: Rate
    steps: Steps
    power: Annotated[float, Range(0.0, 100.0)] = 1.0

    def at(self, step: int) -> float:
        """The rate at a step."""
        left = 1.0 - min(max(step, 0), self.steps) / self.steps
        return float((self.start - self.end) * left**self.power + self.end)


@dataclass(frozen=True, slots=True)
class ExponentialRate:
    """`start`, multiplied by `factor` once in `steps`; in one step at a time with `staircase`."""

    kind: ClassVar[str] = "exponential"
    start: Rate
    factor: Annotated[float, Range(0.0, 1.0)]
    steps: Steps
    staircase: bool = False

    def at(self, step: int) -> float:
        """The rate at a step."""
        times = max(step, 0) / self.steps
        return float(self.start * self.factor ** (math.floor(times) if self.staircase else times))


LearningRate = ConstantRate | PolynomialRate | ExponentialRate
LEARNING_RATES: tuple[type[LearningRate], ...] = (ConstantRate, PolynomialRate, ExponentialRate)

"""The first weights of an id. They depend on the id and the seed of the table only, so that runs repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from shoal.core.errors import Problem, problem
from shoal.core.shape import Range

_LARGE = 1e30
Weight = Annotated[float, Range(-_LARGE, _LARGE)]
Spread = Annotated[float, Range(0.0, _LARGE)]


@dataclass(frozen=True, slots=True)
class Zeros:
    """Every weight is 0."""

    kind: ClassVar[str] = "zeros"


@dataclass(frozen=True, slots=True)
class Ones:
    """Every weight is 1."""

    kind: ClassVar[str] = "ones"


@dataclass(frozen=True, slots=True)
class Constant:
    """Every weight is the same."""

    kind: ClassVar[str] = "constant"
    value: Weight


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every number from `low` up to `high` is as likely as any other."""

    kind: ClassVar[str] = "uniform"
    low: Weight = -0.05
    high: Weight = 0.05

    def extra_problems(self, at: str) -> list[Problem]:
        """The bounds are in order."""
        if self.low <= self.high:
            return []
        return [problem(f"{at}.low" if at else "low", self.low, f"must be at most high, which is {self.high}")]


@dataclass(frozen=True, slots=True)
class Normal:
    """The normal distribution."""

    kind: ClassVar[str] = "normal"
    mean: Weight = 0.0
    deviation: Spread = 0.05


@dataclass(frozen=True, slots=True)
class TruncatedNormal:
    """The normal distribution without what is more than two deviations away from the mean."""

    kind: ClassVar[str] = "truncated_normal"
    mean: Weight = 0.0
    deviation: Spread = 0.05


Initializer = Zeros | Ones | Constant | Uniform | Normal | TruncatedNormal
INITIALIZERS: tuple[type[Initializer], ...] = (Zeros, Ones, Constant, Uniform, Normal, TruncatedNormal)

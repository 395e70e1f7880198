"""How the weights of a serving table are stored. A training table keeps float32, whatever its slices say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from shoal.core.shape import Range

Positive = Annotated[float, Range(1e-30, 1e30)]


@dataclass(frozen=True, slots=True)
class Fp32:
    """Four bytes a weight, exact."""

    kind: ClassVar[str] = "fp32"


@dataclass(frozen=True, slots=True)
class Fp16:
    """Two bytes a weight: IEEE half precision, to nearest, ties to even."""

    kind: ClassVar[str] = "fp16"


@dataclass(frozen=True, slots=True)
class Int8:
    """One byte a weight: steps of `reach`/128 within ±`reach`, half away from zero; not a number is 0."""

    kind: ClassVar[str] = "int8"
    reach: Positive = 1.0


@dataclass(frozen=True, slots=True)
class OneBit:
    """One bit a weight: `amplitude` for a positive weight, -`amplitude` for any other."""

    kind: ClassVar[str] = "one_bit"
    amplitude: Positive = 0.1


Compressor = Fp32 | Fp16 | Int8 | OneBit
COMPRESSORS: tuple[type[Compressor], ...] = (Fp32, Fp16, Int8, OneBit)

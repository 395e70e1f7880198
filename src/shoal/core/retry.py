"""Backoff policies as values. The caller sleeps; this module only says how long."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.entropy import Entropy


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with a cap and jitter.

    Attributes:
        first: seconds before the second attempt.
        cap: no delay is longer than this.
        factor: how much each delay grows over the one before.
        jitter: share of a delay that is drawn at random, so that a crowd does not retry in step.
    """

    first: float = 0.5
    cap: float = 30.0
    factor: float = 2.0
    jitter: float = 0.25

    def plain_delay(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row, without jitter."""
        if failures <= 0:
            return 0.0
        try:
            return min(self.cap, self.first * float(self.factor) ** (failures - 1))
        except OverflowError:  # it has grown past every number, and so past the cap
            return self.cap

    def delay(self, failures: int, entropy: Entropy) -> float:
        """The same with jitter: between (1 - jitter) of the plain delay and all of it."""
        plain = self.plain_delay(failures)
        return plain * (1.0 - entropy.uniform(0.0, self.jitter))

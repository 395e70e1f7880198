"""The only source of randomness. Tests pass a seeded one."""

from __future__ import annotations

import random
import secrets
import string
from typing import Protocol

_ALPHABET = string.ascii_lowercase + string.digits


class Entropy(Protocol):
    """What product code may know of chance."""

    def token(self, length: int = 26) -> str:
        """An unguessable word of lower-case letters and digits."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A number between the two; for jitter only."""
        ...


class SystemEntropy:
    """The operating system's randomness."""

    def token(self, length: int = 26) -> str:
        """An unguessable word."""
        return "".join(secrets.choice(_ALPHABET) for _ in range(length))

    def uniform(self, low: float, high: float) -> float:
        """Jitter."""
        return random.uniform(low, high)


class SeededEntropy:
    """Repeatable: the same seed gives the same words and numbers."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def token(self, length: int = 26) -> str:
        """A repeatable word."""
        return "".join(self._random.choice(_ALPHABET) for _ in range(length))

    def uniform(self, low: float, high: float) -> float:
        """A repeatable number."""
        return self._random.uniform(low, high)

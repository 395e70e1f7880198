"""When keys without state are freed, so that memory follows the keys that are alive and not all that ever came.

A key that had state since the last look stays, even when it has none just now: a key that comes in every window would
else be forgotten and learned again all the time.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from shoal.dataflow.language.keys import Integers

Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

#: Fewer keys are never freed: nothing would be gained.
_FEW = 8_192


class Liveness:
    """Which keys had state since the last look, and when the next look is due."""

    def __init__(self) -> None:
        self._due_at = _FEW
        self._seen = np.zeros(0, np.bool_)

    def is_watching(self, keys: int) -> bool:
        """Whether it matters yet which keys had state."""
        return keys * 2 >= self._due_at

    def note(self, slots: Integers, keys: int) -> None:
        """These keys, of so many, had state that is gone now."""
        if len(self._seen) < keys:
            longer = np.zeros(2 * keys, np.bool_)
            longer[: len(self._seen)] = self._seen
            self._seen = longer
        self._seen[slots] = True

    def is_due(self, keys: int) -> bool:
        """Whether to look."""
        return keys >= self._due_at

    def begin(self, keys: int) -> Flags:
        """Flags for all keys, set for those that had state since the last look."""
        live = np.zeros(keys, np.bool_)
        known = min(keys, len(self._seen))
        live[:known] = self._seen[:known]
        self._seen = np.zeros(0, np.bool_)
        return live

    def decide(self, live: Flags) -> bool:
        """Whether giving up the others is worth it."""
        alive = int(live.sum())
        self._due_at = max(_FEW, 2 * alive)
        return alive * 2 <= len(live)

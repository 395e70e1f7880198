"""One policy for every background loop of the control plane: no failure of the store ends a loop.

A round that fails is logged when the failure starts and when it ends, and the next round decides anew on what is
stored. That is right for every `StoreOutcome`: what was not applied is decided again; after an unknown outcome the
ledger reads what is stored first; a full disk refuses changes until there is room; a loop whose leadership is lost
stores nothing more, because each of its changes carries its term, until the election ends it.

Called by every loop of `shoal.control`. An exception that is not a `ShoalError` is a bug and is not caught here.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterator

from shoal.core.errors import ConflictError, NotLeaderError, ShoalError

log = logging.getLogger(__name__)


class Rounds:
    """The rounds of one loop, which may look after many things.

    Args:
        name: what the loop does, for the log.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: What failed in its last round, and how. A loop that looks after one thing has the key "".
        self._failing: dict[str, str] = {}
        self._kinds: Counter[str] = Counter()

    @contextlib.contextmanager
    def attempt(self, about: str = "") -> Iterator[None]:
        """Run one round. It never raises a `ShoalError`."""
        try:
            yield
        except ShoalError as error:
            self.failed(error, about)
        else:
            self.succeeded(about)

    def failed(self, error: ShoalError, about: str = "") -> None:
        """Note a failure. Only the first of its kind is logged: a store that is away fails thousands of rounds."""
        kind = f"{type(error).__name__} {error.facts.get('outcome', '')}".strip()
        if not self._kinds[kind]:
            expected = isinstance(error, ConflictError | NotLeaderError)
            what = f"{self.name}, {about}" if about else self.name
            log.log(logging.INFO if expected else logging.WARNING, "%s: failed and is tried again: %s", what, error)
        self.forget(about)
        self._failing[about] = kind
        self._kinds[kind] += 1

    def succeeded(self, about: str = "") -> None:
        """Note a success. It is logged when nothing fails any longer."""
        if self.forget(about) and not self._failing:
            log.info("%s: succeeded again", self.name)

    def fails(self, about: str) -> bool:
        """Whether this failed in its last round."""
        return about in self._failing

    def forget(self, about: str) -> bool:
        """Drop something that is no longer looked after. Returns whether it failed in its last round."""
        kind = self._failing.pop(about, None)
        if kind is None:
            return False
        self._kinds[kind] -= 1
        return True

    def keep_only(self, looked_after: Collection[str]) -> None:
        """Drop everything else."""
        for about in self._failing.keys() - set(looked_after):
            self.forget(about)

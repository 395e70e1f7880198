"""Watches as every backend keeps them: what was delivered last, and who listens to the state of the session.

Called by the backends of `shoal.discovery.store`, on the event loop alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
_NOTHING = object()


class Follower(Generic[T]):
    """One registered function. It gets a value only if it differs from the last one, and None always.

    A value of a node has the numbers of its changes, so that an equal one is the same. A node that is missing, and was
    missing the last time, may have been there meanwhile; its owner must hear of that.
    """

    def __init__(self, changed: Callable[[T], None], ended: Callable[[Follower[T]], None]) -> None:
        self._changed = changed
        self._ended = ended
        self._last: object = _NOTHING
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it has ended: nothing more is delivered."""
        return self._closed

    def deliver(self, value: T) -> None:
        """Call the function, unless it knows the value. Its failure is logged and ends nothing."""
        if self._closed or (value is not None and value == self._last):
            return
        self._last = value
        try:
            self._changed(value)
        except Exception:  # a watch that fails must not take the others with it
            log.exception("a watch failed")

    def close(self) -> None:
        """End the registration."""
        if not self._closed:
            self._closed = True
            self._ended(self)


class Followers(Generic[T]):
    """Registered functions by what they follow. `emptied` is called when nobody follows a thing any longer."""

    def __init__(self, emptied: Callable[[Any], None] | None = None) -> None:
        self._by_key: dict[Hashable, list[Follower[T]]] = {}
        self._emptied = emptied

    def add(self, key: Hashable, changed: Callable[[T], None]) -> Follower[T]:
        """Register a function."""
        follower = Follower(changed, lambda ended: self._drop(key, ended))
        self._by_key.setdefault(key, []).append(follower)
        return follower

    def of(self, key: Hashable) -> tuple[Follower[T], ...]:
        """Who follows this."""
        return tuple(self._by_key.get(key, ()))

    def count(self) -> int:
        """How many functions are registered."""
        return sum(len(followers) for followers in self._by_key.values())

    def close(self) -> None:
        """End every registration."""
        for followers in list(self._by_key.values()):
            for follower in list(followers):
                follower.close()

    def _drop(self, key: Hashable, follower: Follower[T]) -> None:
        followers = self._by_key.get(key, [])
        if follower in followers:
            followers.remove(follower)
        if not followers and self._by_key.pop(key, None) is not None and self._emptied is not None:
            self._emptied(key)

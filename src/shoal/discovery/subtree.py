"""Follows every node below a root of the tree, with one watch for each branch and each leaf.

A node that vanishes and comes back is followed again, at every depth. Reconnects and new sessions are the business of
the store. Called by the watchers of `replicas`, `models` and `mirror`, on the event loop alone.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from functools import partial

from shoal.discovery.store import NodeValue, Watch, Watchable

Parts = tuple[str, ...]
"""The names below the root that lead to a node."""


class Kind(enum.Enum):
    """What to do with a node."""

    BRANCH = "follow its children"
    LEAF = "follow its data"
    NAME = "only its name counts"
    IGNORED = "nothing"


class Subtree:
    """Tells one function of every leaf that appears, changes or goes.

    Args:
        store: the tree.
        root: the node to begin with. It may not exist yet.
        kind_of: what a node below the root is.
        changed: called with a leaf and its data, or None when it is gone. A `NAME` has no data.
    """

    def __init__(
        self,
        store: Watchable,
        root: str,
        *,
        kind_of: Callable[[Parts], Kind],
        changed: Callable[[Parts, bytes | None], None],
    ) -> None:
        self._store = store
        self._root = root
        self._kind_of = kind_of
        self._changed = changed
        self._watches: dict[Parts, Watch] = {}
        self._names: dict[Parts, tuple[str, ...]] = {}
        self._leaves: set[Parts] = set()
        #: Nodes of which nothing is known yet.
        self._awaited: set[Parts] = set()
        self._loaded = asyncio.Event()

    @property
    def is_loaded(self) -> bool:
        """Whether everything that existed at the start has been told."""
        return self._loaded.is_set()

    async def wait_loaded(self) -> None:
        """Wait for that."""
        await self._loaded.wait()

    def start(self) -> None:
        """Begin to follow."""
        self._watch((), Kind.BRANCH)

    def close(self) -> None:
        """Follow no longer. Nothing is told of it."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def _watch(self, parts: Parts, kind: Kind) -> None:
        path = "/".join((self._root, *parts))
        self._awaited.add(parts)
        if kind is Kind.LEAF:
            self._watches[parts] = self._store.watch_data(path, partial(self._on_data, parts))
        else:
            self._watches[parts] = self._store.watch_children(path, partial(self._on_children, parts))

    def _on_children(self, parts: Parts, names: tuple[str, ...] | None) -> None:
        known, found = set(self._names.get(parts, ())), names or ()
        self._names[parts] = found
        for name in sorted(known.difference(found)):
            self._forget((*parts, name))
        for name in found:
            if name not in known:
                self._add((*parts, name))
        self._arrived(parts)

    def _add(self, parts: Parts) -> None:
        kind = self._kind_of(parts)
        if kind is Kind.NAME:
            self._leaves.add(parts)
            self._changed(parts, b"")
        elif kind is not Kind.IGNORED:
            self._watch(parts, kind)

    def _on_data(self, parts: Parts, value: NodeValue | None) -> None:
        if value is not None:
            self._leaves.add(parts)
            self._changed(parts, value.data)
        else:
            self._leave(parts)
        self._arrived(parts)

    def _forget(self, parts: Parts) -> None:
        watch = self._watches.pop(parts, None)
        if watch is not None:
            watch.close()
        for name in self._names.pop(parts, ()):
            self._forget((*parts, name))
        self._leave(parts)
        self._arrived(parts)

    def _leave(self, parts: Parts) -> None:
        if parts in self._leaves:
            self._leaves.remove(parts)
            self._changed(parts, None)

    def _arrived(self, parts: Parts) -> None:
        self._awaited.discard(parts)
        if not self._awaited:
            self._loaded.set()

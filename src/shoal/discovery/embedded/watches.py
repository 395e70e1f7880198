"""Watches on a tree in the same process: what was touched is delivered soon, as it is then.

Called by `session.py`, for the watches of one client, and by the control plane, which follows its own tree without a
session (`shoal.discovery.directory`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.discovery.embedded.owner import CHILDREN, DATA, TreeOwner
from shoal.discovery.store import NodeValue, Watch, check_path
from shoal.discovery.watching import Follower, Followers


class TreeWatches:
    """The watches of one follower. Nothing is delivered while they are paused."""

    def __init__(self, owner: TreeOwner, *, paused: bool = False) -> None:
        self._owner = owner
        self._paused = paused
        self._data: Followers[NodeValue | None] = Followers(lambda path: self._unfollow(DATA, path))
        self._children: Followers[tuple[str, ...] | None] = Followers(lambda path: self._unfollow(CHILDREN, path))
        self._wakers: dict[tuple[str, str], Follower[int]] = {}
        self._dirty: dict[tuple[str, str], None] = {}
        self._delivery: asyncio.Handle | None = None

    def watch_data(self, path: str, changed: Callable[[NodeValue | None], None]) -> Watch:
        """Follow the value of a node."""
        follower = self._data.add(check_path(path), changed)
        self._follow(DATA, path)
        return follower

    def watch_children(self, path: str, changed: Callable[[tuple[str, ...] | None], None]) -> Watch:
        """Follow the names below a node."""
        follower = self._children.add(check_path(path), changed)
        self._follow(CHILDREN, path)
        return follower

    def pause(self) -> None:
        """Deliver nothing from now on."""
        self._paused = True

    def resume(self) -> None:
        """Deliver again, and what has changed meanwhile."""
        self._paused = False
        self._dirty.update(dict.fromkeys(self._wakers))
        self._deliver_soon()

    def close(self) -> None:
        """End every watch."""
        self._data.close()
        self._children.close()

    def _follow(self, kind: str, path: str) -> None:
        """Follow a path in the tree, and deliver what it has now."""
        key = (kind, path)

        def touched(_order: int = 0) -> None:
            self._dirty[key] = None
            self._deliver_soon()

        if key not in self._wakers:
            self._wakers[key] = self._owner.followers.add(key, touched)
        touched()

    def _unfollow(self, kind: str, path: str) -> None:
        self._wakers.pop((kind, path)).close()
        self._dirty.pop((kind, path), None)

    def _deliver_soon(self) -> None:
        if self._delivery is None and not self._paused:
            self._delivery = asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        """Deliver what changed since the last time, as it is now."""
        self._delivery = None
        if self._paused:
            return
        dirty, self._dirty = self._dirty, {}
        for kind, path in dirty:
            if kind == DATA:
                for data in self._data.of(path):
                    data.deliver(self._owner.tree.find(path))
            else:
                for children in self._children.of(path):
                    children.deliver(self._owner.tree.find_children(path))

"""Follows the replicas of one model, in a tree with locations or without.

Called by serving agents, by clients of discovery and by the tools; the lookups are in `table`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from shoal.core.errors import InvalidError
from shoal.discovery.documents import read_record
from shoal.discovery.replicas.paths import (
    Task,
    parse_location,
    parse_replica_name,
    parse_task_name,
    parse_task_path,
    service_root,
)
from shoal.discovery.replicas.records import ModelState, Replica
from shoal.discovery.replicas.table import ReplicaTable
from shoal.discovery.store import Watchable
from shoal.discovery.subtree import Kind, Parts, Subtree

log = logging.getLogger(__name__)


class ReplicaWatcher:
    """The replicas of a model, as the tree has them now.

    Args:
        store: the tree.
        bzid: the business namespace.
        base_name: the model.
        changed: called after every change of `table`.
    """

    def __init__(
        self, store: Watchable, bzid: str, base_name: str, *, changed: Callable[[], None] | None = None
    ) -> None:
        self.root = service_root(bzid, base_name)
        self.table = ReplicaTable()
        self._changed = changed
        self._subtree = Subtree(store, self.root, kind_of=kind_of, changed=self._on_leaf)

    @property
    def is_loaded(self) -> bool:
        """Whether the first view of the tree is complete."""
        return self._subtree.is_loaded

    async def wait_loaded(self) -> None:
        """Wait for that."""
        await self._subtree.wait_loaded()

    def start(self) -> None:
        """Begin to follow."""
        self._subtree.start()

    def close(self) -> None:
        """Follow no longer."""
        self._subtree.close()

    def _on_leaf(self, parts: Parts, data: bytes | None) -> None:
        task = parse_task_path(parts[:-1])
        if task is None:
            return
        name = parts[-1]
        if data is None:
            self.table.remove(task, name)
        else:
            self.table.put(task, name, self._read(task, name, data))
        if self._changed is not None:
            self._changed()

    def _read(self, task: Task, name: str, data: bytes) -> Replica:
        """The value of a node; an unreadable one leaves the replica in the state UNKNOWN."""
        path = f"{self.root}/{task.key}/{name}"
        try:
            return read_record(Replica, data, at=path)
        except InvalidError as error:
            if data:
                log.warning("replica %s: unreadable: %s", path, error)
            known = self.table.get(task, name)
            return replace(known, stat=ModelState.UNKNOWN) if known is not None else Replica()


def kind_of(parts: Parts) -> Kind:
    """What a node below the root of a service is: a location, a task, a replica, or nothing of ours."""
    if parse_task_name(parts[0]) is not None:
        below = parts[1:]
    elif parse_location(parts[0]) is None:
        return Kind.IGNORED
    elif len(parts) == 1:
        return Kind.BRANCH
    elif parse_task_name(parts[1]) is None:
        return Kind.IGNORED
    else:
        below = parts[2:]
    if not below:
        return Kind.BRANCH
    return Kind.LEAF if parse_replica_name(below[0]) is not None else Kind.IGNORED

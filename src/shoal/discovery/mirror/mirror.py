"""Follows the scheduler's tree: portal, assignments, resources and replicas, with lookups over them."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from shoal.core.errors import InvalidError
from shoal.discovery.documents import read_record
from shoal.discovery.mirror.records import AgentResource, PortalModel, PublishedModel, SchedulerPaths
from shoal.discovery.mirror.selection import expected_loading, is_complete
from shoal.discovery.names import is_part
from shoal.discovery.replicas.paths import parse_replica_name, parse_task_name
from shoal.discovery.replicas.records import Replica, ServerType
from shoal.discovery.store import Watchable
from shoal.discovery.subtree import Kind, Parts, Subtree

log = logging.getLogger(__name__)

K = TypeVar("K")
R = TypeVar("R")


class MirrorEventKind(enum.StrEnum):
    """What happened in the tree."""

    PORTAL = "portal"
    PUBLISH = "publish"


@dataclass(frozen=True, slots=True)
class MirrorEvent:
    """A model came to the portal or left it, or its assignments are complete or gone."""

    kind: MirrorEventKind
    model_name: str
    portal_model: PortalModel | None = None


@dataclass(slots=True)
class _Contents:
    portal: dict[str, PortalModel] = field(default_factory=dict)
    published: dict[str, PublishedModel] = field(default_factory=dict)
    resources: dict[str, AgentResource] = field(default_factory=dict)
    replicas: dict[Parts, Replica] = field(default_factory=dict)


class Mirror:
    """The scheduler's tree of a namespace, as it is now.

    Args:
        store: the tree.
        paths: the namespace.
        on_event: called with every event; for schedulers.
    """

    def __init__(
        self,
        store: Watchable,
        paths: SchedulerPaths,
        *,
        on_event: Callable[[MirrorEvent], None] | None = None,
    ) -> None:
        self._paths = paths
        self._on_event = on_event
        self._now = _Contents()
        #: Grows with every change, so that answers can be kept.
        self.version = 0
        self._subtrees = (
            Subtree(store, paths.portal, kind_of=_one_level, changed=self._on_portal),
            Subtree(store, paths.publish, kind_of=_one_level, changed=self._on_published),
            Subtree(store, paths.resource, kind_of=_one_level, changed=self._on_resource),
            Subtree(store, paths.service, kind_of=_replica, changed=self._on_replica),
        )

    @property
    def is_loaded(self) -> bool:
        """Whether the first view of the tree is complete."""
        return all(each.is_loaded for each in self._subtrees)

    async def wait_loaded(self) -> None:
        """Wait for that."""
        for each in self._subtrees:
            await each.wait_loaded()

    def start(self) -> None:
        """Begin to follow."""
        for each in self._subtrees:
            each.start()

    def close(self) -> None:
        """Follow no longer."""
        for each in self._subtrees:
            each.close()

    # -----------------------------------------------------------------------------------------------------
    # Lookups

    def portal(self) -> dict[str, PortalModel]:
        """The models that should be loaded, by name."""
        return dict(sorted(self._now.portal.items()))

    def published(self) -> dict[str, PublishedModel]:
        """The assignments, by the name of their node."""
        return dict(sorted(self._now.published.items()))

    def resources(self) -> list[AgentResource]:
        """What agents have free, by shard and replica."""
        found = self._now.resources.values()
        return sorted(found, key=lambda each: (each.shard_id or 0, each.replica_id or 0))

    def expected_loading(self, *, shard_id: int, replica_id: int) -> dict[str, PublishedModel]:
        """What an agent should load, by model."""
        return expected_loading(self._now.published.values(), shard_id=shard_id, replica_id=replica_id)

    def all_replicas(self, server_type: ServerType) -> dict[str, list[Replica]]:
        """The available replicas of every task of a type, by `model:type:task`."""
        found: dict[str, list[Replica]] = {}
        for model, task, replica in self._available():
            if parse_task_name(task) == (server_type, replica.task):
                found.setdefault(f"{model}:{task}", []).append(replica)
        return found

    def model_replicas(self, model_name: str, server_type: ServerType) -> dict[str, list[Replica]]:
        """The same of one model."""
        every = self.all_replicas(server_type)
        return {key: replicas for key, replicas in every.items() if key.startswith(f"{model_name}:")}

    def task_replicas(self, model_name: str, server_type: ServerType, task: int) -> list[Replica]:
        """The available replicas of one task."""
        wanted = model_name, f"{server_type}:{task}"
        return [replica for _, _, replica in self._available(wanted)]

    def replica(self, model_name: str, server_type: ServerType, task: int, replica_id: int) -> Replica | None:
        """One replica, if it is available."""
        found = self.task_replicas(model_name, server_type, task)
        return next((each for each in found if each.replica == replica_id), None)

    def _available(self, wanted: Parts | None = None) -> Iterator[tuple[str, str, Replica]]:
        """The available replicas of one model and task, or of all."""
        found = [parts for parts in self._now.replicas if wanted is None or parts[:2] == wanted]
        order = sorted(found, key=lambda parts: (parts[:2], parse_replica_name(parts[2]) or 0))
        for parts in order:
            replica = self._now.replicas[parts]
            named = parse_task_name(parts[1])
            if replica.is_available and named is not None:
                # The path names the task, whatever the value says.
                task = replace(replica, task=named[1], replica=parse_replica_name(parts[2]) or 0)
                yield parts[0], parts[1], task

    # -----------------------------------------------------------------------------------------------------
    # What the tree tells

    def _on_portal(self, parts: Parts, data: bytes | None) -> None:
        name, before = parts[0], self._now.portal.get(parts[0])
        model = self._take(self._now.portal, name, PortalModel, f"{self._paths.portal}/{name}", data)
        if model is not None and before is None:
            self._tell(MirrorEvent(MirrorEventKind.PORTAL, name, replace(model, action="CREATED")))
        elif model is None and before is not None:
            self._tell(MirrorEvent(MirrorEventKind.PORTAL, name, replace(before, action="DELETED")))

    def _on_published(self, parts: Parts, data: bytes | None) -> None:
        name, before = parts[0], self._now.published.get(parts[0])
        model = self._take(self._now.published, name, PublishedModel, f"{self._paths.publish}/{name}", data)
        model_name = (model or before or PublishedModel()).model_name
        assignments = [each for each in self._now.published.values() if each.model_name == model_name]
        if model_name and (not assignments or is_complete(assignments)):
            self._tell(MirrorEvent(MirrorEventKind.PUBLISH, model_name))

    def _on_resource(self, parts: Parts, data: bytes | None) -> None:
        self._take(self._now.resources, parts[0], AgentResource, f"{self._paths.resource}/{parts[0]}", data)

    def _on_replica(self, parts: Parts, data: bytes | None) -> None:
        self._take(self._now.replicas, parts, Replica, "/".join((self._paths.service, *parts)), data)

    def _take(self, into: dict[K, R], key: K, cls: type[R], path: str, data: bytes | None) -> R | None:
        """Remember a node, and return its record: None for one that is gone or unreadable."""
        into.pop(key, None)
        self.version += 1
        if data is None:
            return None
        try:
            into[key] = read_record(cls, data, at=path)
        except InvalidError as error:
            log.warning("node %s: unreadable: %s", path, error)
            return None
        return into[key]

    def _tell(self, event: MirrorEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)


def _one_level(_parts: Parts) -> Kind:
    return Kind.LEAF


def _replica(parts: Parts) -> Kind:
    if len(parts) == 1:
        return Kind.BRANCH if is_part(parts[0]) else Kind.IGNORED
    if len(parts) == 2:
        return Kind.BRANCH if parse_task_name(parts[1]) is not None else Kind.IGNORED
    return Kind.LEAF if parse_replica_name(parts[2]) is not None else Kind.IGNORED

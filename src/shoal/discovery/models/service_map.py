"""Follows which containers serve which sub-graph, with their addresses.

Bindings and containers are followed apart and joined when a lookup asks. So a container that is announced after its
binding appears, and one that restarts with other ports is called at the new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from shoal.core.errors import InvalidError
from shoal.discovery.documents import read_record
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.records import Container, ContainerService, SavedModel, parse_binding, parse_container
from shoal.discovery.names import is_part
from shoal.discovery.replicas.records import usable_address
from shoal.discovery.store import Watchable
from shoal.discovery.subtree import Kind, Parts, Subtree

log = logging.getLogger(__name__)

Models = Collection[str]
"""Names of models."""


class ServiceMap:
    """The containers of every sub-graph in a namespace, as the tree has them now.

    Args:
        store: the tree.
        paths: the namespace.
        changed: called after every change.
    """

    def __init__(self, store: Watchable, paths: ModelPaths, *, changed: Callable[[], None] | None = None) -> None:
        self._changed = changed
        #: Grows with every change, so that answers can be kept.
        self.version = 0
        self._declared: dict[str, set[str]] = {}
        self._bindings: dict[str, dict[str, set[Container]]] = {}
        self._services: dict[Container, ContainerService] = {}
        self._subtrees = (
            Subtree(store, paths.saved_models, kind_of=_declared, changed=self._on_declared),
            Subtree(store, paths.bindings, kind_of=_binding, changed=self._on_binding),
            Subtree(store, paths.containers, kind_of=_container, changed=self._on_container),
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

    def services(self, models: Models | None = None) -> dict[str, dict[str, list[ContainerService]]]:
        """The containers by model and sub-graph, of these models or of all.

        A sub-graph that is declared but served nowhere has an empty list: a model server must learn from the first
        answer that its peers are named by model.
        """
        known = sorted({*self._declared, *self._bindings}) if models is None else sorted(set(models))
        return {
            model: {
                sub_graph: self.containers(SavedModel(model, sub_graph))
                for sub_graph in sorted({*self._declared.get(model, ()), *self._bindings.get(model, ())})
            }
            for model in known
        }

    def bound(self, model: str) -> list[tuple[str, Container, ContainerService]]:
        """Who serves each sub-graph of a model, by sub-graph and container. One without addresses is left out."""
        return [
            (sub_graph, container, self._services[container])
            for sub_graph, containers in sorted(self._bindings.get(model, {}).items())
            for container in sorted(containers)
            if container in self._services
        ]

    def containers(self, saved_model: SavedModel) -> list[ContainerService]:
        """The containers that serve a sub-graph and have addresses, by name."""
        bound = self._bindings.get(saved_model.model_name, {}).get(saved_model.sub_graph, set())
        return [self._services[each] for each in sorted(bound) if each in self._services]

    def addresses(self, models: Models | None = None, *, archon: bool = False) -> dict[str, list[str]]:
        """The addresses by `model:sub_graph`."""
        return {
            f"{model}:{sub_graph}": _addresses(services, archon=archon)
            for model, sub_graphs in self.services(models).items()
            for sub_graph, services in sub_graphs.items()
        }

    def addresses_of(self, saved_model: SavedModel, *, archon: bool = False) -> list[str]:
        """The addresses of one sub-graph."""
        return _addresses(self.containers(saved_model), archon=archon)

    def sync_targets(self, saved_model: SavedModel) -> tuple[str, list[str]]:
        """The name under which new parameters are sent, and where to."""
        return str(saved_model), self.addresses_of(saved_model)

    def _on_declared(self, parts: Parts, data: bytes | None) -> None:
        model, sub_graph = parts
        if data is not None:
            self._declared.setdefault(model, set()).add(sub_graph)
        else:
            self._declared[model].discard(sub_graph)
            if not self._declared[model]:
                del self._declared[model]
        self._tell()

    def _on_binding(self, parts: Parts, data: bytes | None) -> None:
        model, name = parts
        found = parse_binding(name)
        if found is None:
            return
        sub_graph, container = found
        bound = self._bindings.setdefault(model, {}).setdefault(sub_graph, set())
        if data is not None:
            bound.add(container)
        else:
            bound.discard(container)
            if not bound:
                del self._bindings[model][sub_graph]
            if not self._bindings[model]:
                del self._bindings[model]
        self._tell()

    def _on_container(self, parts: Parts, data: bytes | None) -> None:
        container = parse_container(parts[0])
        if container is None:
            return
        self._services.pop(container, None)
        if data is not None:
            try:
                self._services[container] = read_record(ContainerService, data, at=str(container))
            except InvalidError as error:
                log.warning("container %s: unreadable: %s", container, error)
        self._tell()

    def _tell(self) -> None:
        self.version += 1
        if self._changed is not None:
            self._changed()


def _addresses(services: Collection[ContainerService], *, archon: bool) -> list[str]:
    chosen = (usable_address(each.archon if archon else each.grpc) for each in services)
    return [address for address in chosen if address is not None]


def _declared(parts: Parts) -> Kind:
    if not is_part(parts[-1]):
        return Kind.IGNORED
    return Kind.BRANCH if len(parts) == 1 else Kind.NAME


def _binding(parts: Parts) -> Kind:
    if len(parts) == 1:
        return Kind.BRANCH if is_part(parts[0]) else Kind.IGNORED
    return Kind.NAME if parse_binding(parts[1]) is not None else Kind.IGNORED


def _container(parts: Parts) -> Kind:
    return Kind.LEAF if parse_container(parts[0]) is not None else Kind.IGNORED

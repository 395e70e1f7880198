"""What `AgentService` answers from, one view for each agent version. Pure over what the watchers know.

The names of tasks differ, and clients depend on them: `ps:0` in version 1, `model:ps:0` in version 2, `model:ps_0` in
version 3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Protocol

from shoal.core.errors import InvalidError, problem
from shoal.discovery.mirror.mirror import Mirror
from shoal.discovery.models.records import ENTRY, SavedModel, parse_saved_model
from shoal.discovery.models.service_map import ServiceMap
from shoal.discovery.replicas.paths import Location
from shoal.discovery.replicas.records import AddressFamily, Replica, ServerType
from shoal.discovery.replicas.watcher import ReplicaWatcher


class AddressView(Protocol):
    """The addresses of tasks."""

    @property
    def is_loaded(self) -> bool:
        """Whether the first view of the tree is complete. Nothing is answered before."""
        ...

    @property
    def version(self) -> Hashable:
        """Differs whenever an answer may differ."""
        ...

    def tasks(self, server_type: ServerType) -> dict[str, list[str]]:
        """The addresses of every task, by name."""
        ...

    def replicas(self, server_type: ServerType, task: int, model_name: str) -> list[str]:
        """The addresses of one task."""
        ...


class ReplicaAddresses:
    """Version 1: the replicas of one model.

    Args:
        watcher: follows them.
        location: the agent's own. Replicas elsewhere are not answered; without one, those of every location are.
        family: the preferred kind of address.
    """

    def __init__(
        self,
        watcher: ReplicaWatcher,
        *,
        location: Location | None = None,
        family: AddressFamily = AddressFamily.IPV4,
    ) -> None:
        self._watcher = watcher
        self._location = location
        self._family = family

    @property
    def is_loaded(self) -> bool:
        """Whether the first view is complete."""
        return self._watcher.is_loaded

    @property
    def version(self) -> Hashable:
        """Counts changes."""
        return self._watcher.table.version

    def tasks(self, server_type: ServerType) -> dict[str, list[str]]:
        """By `ps:0`. Tasks of that name in several locations are one."""
        found: dict[str, list[str]] = {}
        table = self._watcher.table
        for key, addresses in table.all_replicas(server_type, location=self._location, family=self._family).items():
            found.setdefault(key.rpartition("/")[2], []).extend(addresses)
        return found

    def replicas(self, server_type: ServerType, task: int, model_name: str) -> list[str]:
        """Of the one model that is followed: the request need not name it."""
        del model_name
        return self._watcher.table.task_replicas(server_type, task, location=self._location, family=self._family)


class MirrorAddresses:
    """Version 2: the replicas of every model in the scheduler's tree."""

    def __init__(self, mirror: Mirror, *, family: AddressFamily = AddressFamily.IPV4) -> None:
        self._mirror = mirror
        self._family = family

    @property
    def is_loaded(self) -> bool:
        """Whether the first view is complete."""
        return self._mirror.is_loaded

    @property
    def version(self) -> Hashable:
        """Counts changes."""
        return self._mirror.version

    def tasks(self, server_type: ServerType) -> dict[str, list[str]]:
        """By `model:ps:0`."""
        return {key: self._addresses(found) for key, found in self._mirror.all_replicas(server_type).items()}

    def replicas(self, server_type: ServerType, task: int, model_name: str) -> list[str]:
        """Of one model."""
        if not model_name:
            raise InvalidError([problem("model_name", None, "is required")])
        return self._addresses(self._mirror.task_replicas(model_name, server_type, task))

    def _addresses(self, replicas: Collection[Replica]) -> list[str]:
        chosen = (each.chosen_address(family=self._family) for each in replicas)
        return [address for address in chosen if address is not None]


class ModelAddresses:
    """Version 3: the containers of every sub-graph.

    Args:
        services: follows them.
        models: the models of the container's own layout, None while the layout is not known yet. Without the function
            every model of the namespace is answered.
        archon: whether clients call the archon addresses.
    """

    def __init__(
        self,
        services: ServiceMap,
        *,
        models: Callable[[], Collection[str] | None] | None = None,
        archon: bool = False,
    ) -> None:
        self._services = services
        self._models = models
        self._archon = archon

    @property
    def is_loaded(self) -> bool:
        """Whether the first view is complete, the layout included."""
        return self._services.is_loaded and (self._models is None or self._models() is not None)

    @property
    def version(self) -> Hashable:
        """Counts changes, and names the models."""
        models = self._models() if self._models is not None else None
        return self._services.version, frozenset(models or ())

    def tasks(self, server_type: ServerType) -> dict[str, list[str]]:
        """By `model:ps_0`: every sub-graph, whatever type is asked for."""
        del server_type
        return self._services.addresses(self._models() if self._models is not None else None, archon=self._archon)

    def replicas(self, server_type: ServerType, task: int, model_name: str) -> list[str]:
        """Of one sub-graph: `m`, or `m:ps_0`, which names it completely."""
        if not model_name:
            raise InvalidError([problem("model_name", None, "is required")])
        if ":" in model_name:
            wanted = parse_saved_model(model_name, field="model_name")
        else:
            wanted = SavedModel(model_name, ENTRY if server_type is ServerType.ENTRY else f"{server_type}_{task}")
        return self._services.addresses_of(wanted, archon=self._archon)

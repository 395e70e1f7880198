"""Finds workloads by the name of their service: the named ports that the control plane announces in the tree.

    async with …:
        for endpoint in await resolve(store, "web"):
            print(endpoint.workload_id, endpoint.ports["http"])

`follow` calls a function with all endpoints of a service, now and after every change.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from shoal.discovery.errors import NoNodeError
from shoal.discovery.store import CoordinationStore, NodeValue, Watch, join

ROOT = "/service"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One ready workload of a service, with its named ports as host:port."""

    workload_id: str
    node_id: str
    ports: Mapping[str, str] = field(default_factory=dict)


def write_endpoint(endpoint: Endpoint) -> bytes:
    """The data of the node that announces a workload."""
    return json.dumps({"node": endpoint.node_id, "ports": dict(sorted(endpoint.ports.items()))}).encode()


def read_endpoint(workload_id: str, data: bytes) -> Endpoint | None:
    """What a node announces; None when it is something else."""
    try:
        document = json.loads(data)
        ports = {str(name): str(address) for name, address in document["ports"].items()}
        return Endpoint(workload_id, str(document["node"]), ports)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


async def resolve(store: CoordinationStore, service: str) -> tuple[Endpoint, ...]:
    """The endpoints of a service, by workload id. Empty when nothing of it is ready."""
    path = join(ROOT, service)
    found: list[Endpoint | None] = []
    with contextlib.suppress(NoNodeError):
        for name in await store.children(path):
            with contextlib.suppress(NoNodeError):
                found.append(read_endpoint(name, (await store.get(join(path, name))).data))
    return tuple(each for each in found if each is not None)


def follow(store: CoordinationStore, service: str, changed: Callable[[tuple[Endpoint, ...]], None]) -> Watch:
    """Call `changed` with the endpoints of a service, when they are first known and after every change."""
    return _Following(store, join(ROOT, service), changed)


class _Following:
    """The watches of one service: its names, and the data of each."""

    def __init__(self, store: CoordinationStore, path: str, changed: Callable[[tuple[Endpoint, ...]], None]) -> None:
        self._store = store
        self._path = path
        self._changed = changed
        self._names: tuple[str, ...] | None = None
        self._watches: dict[str, Watch] = {}
        self._values: dict[str, NodeValue | None] = {}
        self._last: tuple[Endpoint, ...] | None = None
        self._watch = store.watch_children(path, self._names_changed)

    def close(self) -> None:
        """Follow it no longer."""
        self._watch.close()
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def _names_changed(self, names: tuple[str, ...] | None) -> None:
        self._names = names or ()
        for name in self._watches.keys() - set(self._names):
            self._watches.pop(name).close()
            self._values.pop(name, None)
        for name in self._names:
            if name not in self._watches:
                self._watches[name] = self._store.watch_data(join(self._path, name), partial(self._value_changed, name))
        self._tell()

    def _value_changed(self, name: str, value: NodeValue | None) -> None:
        self._values[name] = value
        self._tell()

    def _tell(self) -> None:
        """Tell of a change, once the data of every name is known."""
        if self._names is None or not self._values.keys() >= set(self._names):
            return
        read = (read_endpoint(name, value.data) for name in self._names if (value := self._values[name]) is not None)
        endpoints = tuple(each for each in read if each is not None)
        if endpoints != self._last:
            self._last = endpoints
            self._changed(endpoints)

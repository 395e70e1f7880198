"""The replicas of one tree, and the lookups over them. Pure.

A replica without a readable value counts as UNKNOWN: it stays in the table and has no address. The answer for a task
that has replicas but none AVAILABLE is an empty list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.discovery.replicas.paths import Location, Task, parse_replica_name
from shoal.discovery.replicas.records import AddressFamily, Replica, ServerType


@dataclass(frozen=True, slots=True)
class SyncTarget:
    """A replica that gets new parameters."""

    idc: str
    cluster: str
    replica_id: int


class ReplicaTable:
    """Replicas by task and by the name of their node."""

    def __init__(self) -> None:
        self._tasks: dict[Task, dict[str, Replica]] = {}
        #: Grows with every change, so that answers can be kept.
        self.version = 0

    def put(self, task: Task, name: str, replica: Replica) -> None:
        """Add or replace a replica."""
        self._tasks.setdefault(task, {})[name] = replica
        self.version += 1

    def remove(self, task: Task, name: str) -> None:
        """Remove a replica, and a task without replicas."""
        replicas = self._tasks.get(task, {})
        if replicas.pop(name, None) is None:
            return
        if not replicas:
            del self._tasks[task]
        self.version += 1

    def __len__(self) -> int:
        return sum(len(replicas) for replicas in self._tasks.values())

    def get(self, task: Task, name: str) -> Replica | None:
        """One replica, whatever its state."""
        return self._tasks.get(task, {}).get(name)

    def rows(self) -> Iterator[tuple[Task, str, Replica]]:
        """Every replica: tasks by location, type and number, replicas by number."""
        for task in sorted(self._tasks, key=_order):
            for name, replica in self._sorted(task):
                yield task, name, replica

    def all_replicas(
        self,
        server_type: ServerType,
        *,
        location: Location | None = None,
        family: AddressFamily = AddressFamily.IPV4,
    ) -> dict[str, list[str]]:
        """The available addresses of every task of a type, by `Task.key`; of one location, or of all."""
        tasks = [task for task in self._tasks if task.server_type is server_type and _is_in(task, location)]
        return {task.key: self._addresses(task, family) for task in sorted(tasks, key=_order)}

    def task_replicas(
        self,
        server_type: ServerType,
        number: int,
        *,
        location: Location | None = None,
        family: AddressFamily = AddressFamily.IPV4,
    ) -> list[str]:
        """The available addresses of one task; of one location, or of all."""
        return [
            address for task in self._of(server_type, number, location) for address in self._addresses(task, family)
        ]

    def replica(
        self,
        server_type: ServerType,
        number: int,
        replica_id: int,
        *,
        location: Location | None = None,
        family: AddressFamily = AddressFamily.IPV4,
    ) -> str | None:
        """The address of one replica, if it is available."""
        for task in self._of(server_type, number, location):
            for name, replica in self._sorted(task):
                if parse_replica_name(name) == replica_id and replica.is_available:
                    return replica.chosen_address(family=family)
        return None

    def sync_targets(
        self, server_type: ServerType, number: int, *, family: AddressFamily = AddressFamily.IPV4
    ) -> dict[str, SyncTarget]:
        """The available replicas of a task in every location, by address."""
        found = {}
        for task in self._of(server_type, number, None):
            where = task.location
            for name, replica in self._sorted(task):
                address = replica.chosen_address(family=family) if replica.is_available else None
                if address is not None:
                    idc, cluster = (where.idc, where.cluster) if where is not None else ("", "")
                    found[address] = SyncTarget(idc, cluster, _number(name))
        return found

    def _of(self, server_type: ServerType, number: int, location: Location | None) -> list[Task]:
        wanted = (server_type, number)
        found = [t for t in self._tasks if (t.server_type, t.number) == wanted and _is_in(t, location)]
        return sorted(found, key=_order)

    def _sorted(self, task: Task) -> list[tuple[str, Replica]]:
        return sorted(self._tasks[task].items(), key=lambda item: (_number(item[0]), item[0]))

    def _addresses(self, task: Task, family: AddressFamily) -> list[str]:
        available = (replica for _, replica in self._sorted(task) if replica.is_available)
        chosen = (replica.chosen_address(family=family) for replica in available)
        return [address for address in chosen if address is not None]


def _number(name: str) -> int:
    number = parse_replica_name(name)
    return -1 if number is None else number


def _is_in(task: Task, location: Location | None) -> bool:
    return location is None or task.location == location


def _order(task: Task) -> tuple[str, str, int]:
    return str(task.location or ""), task.server_type, task.number

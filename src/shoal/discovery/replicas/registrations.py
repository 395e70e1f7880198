"""Which tasks an agent of version 1 runs, and what the model of each is called. Pure."""

from __future__ import annotations

from collections.abc import Collection

from shoal.core.errors import InvalidError, problem
from shoal.discovery.replicas.paths import Location, Task
from shoal.discovery.replicas.records import ServerType


def owned_tasks(
    server_types: Collection[ServerType],
    *,
    location: Location | None = None,
    num_ps: int = 1,
    num_shard: int = 1,
    shard_id: int = 0,
) -> tuple[Task, ...]:
    """The tasks of an agent that runs servers of these types: of the PS tasks those of its shard.

    Raises `InvalidError` for a shard that does not exist, which would own nothing.
    """
    if not 0 <= shard_id < num_shard:
        raise InvalidError([problem("shard_id", shard_id, f"must be from 0 to {num_shard - 1}, below num_shard")])
    numbers = {
        ServerType.ENTRY: [0],
        ServerType.PS: [number for number in range(num_ps) if number % num_shard == shard_id],
        ServerType.DENSE: [0],
    }
    return tuple(
        Task(server_type, number, location)
        for server_type, owned in numbers.items()
        if server_type in server_types
        for number in owned
    )


def model_of(task: Task) -> str:
    """The name under which a model server serves a task: `entry`, `ps_3`, `dense_0`."""
    return str(task.server_type) if task.server_type is ServerType.ENTRY else f"{task.server_type}_{task.number}"

"""Where replicas lie: `/{bzid}/service/{base_name}/[{idc}:{cluster}/]{server_type}:{task}/{replica}`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.core.errors import InvalidError, problem
from shoal.discovery.names import check_node_name, check_part
from shoal.discovery.replicas.records import ServerType

#: Replica names of entry servers have at least so many digits, because a sequential node has them.
ENTRY_DIGITS = 11
#: The prefix of a sequential entry node; the tree adds ten digits.
SEQUENTIAL_PREFIX = "0"
MAX_NUMBER = 2**63 - 1

_TASK = re.compile(r"(ps|entry|dense):([0-9]{1,19})")
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A data center and a cluster in it."""

    idc: str
    cluster: str

    def __post_init__(self) -> None:
        check_part(self.idc, field="idc")
        check_part(self.cluster, field="cluster")

    def __str__(self) -> str:
        """The name of its node."""
        return f"{self.idc}:{self.cluster}"


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """One task of a model in one location; without a location in a tree that does not know them."""

    server_type: ServerType
    number: int
    location: Location | None = None

    @property
    def name(self) -> str:
        """The name of its node, such as `ps:3`."""
        return f"{self.server_type}:{self.number}"

    @property
    def key(self) -> str:
        """Its path below the root of the service, such as `lf:default/ps:3`."""
        return f"{self.location}/{self.name}" if self.location is not None else self.name


def service_root(bzid: str, base_name: str) -> str:
    """The node above every replica of a model. Raises `InvalidError`."""
    return f"/{check_node_name(bzid, field='bzid')}/service/{check_node_name(base_name, field='base_name')}"


def replica_path(root: str, task: Task, replica: int) -> str:
    """The node of a replica."""
    return f"{root}/{task.key}/{replica_name(task.server_type, replica)}"


def replica_name(server_type: ServerType, replica: int) -> str:
    """The name of a replica's node: at least eleven digits for an entry, as many as needed for others."""
    if not 0 <= replica <= MAX_NUMBER:
        raise InvalidError([problem("replica_id", replica, "must be a whole number from 0")])
    return f"{replica:0{ENTRY_DIGITS}d}" if server_type is ServerType.ENTRY else str(replica)


def parse_replica_name(text: str) -> int | None:
    """The number of a replica; None for a node that is none."""
    return int(text) if _NUMBER.fullmatch(text) and int(text) <= MAX_NUMBER else None


def parse_task_name(text: str) -> tuple[ServerType, int] | None:
    """Read `ps:3`; None for a node that is no task. A cluster may be called `lf:1`, which is none."""
    found = _TASK.fullmatch(text)
    if found is None or int(found[2]) > MAX_NUMBER:
        return None
    return ServerType(found[1]), int(found[2])


def parse_location(text: str) -> Location | None:
    """Read `idc:cluster`; None for a node that is no location."""
    idc, _, cluster = text.partition(":")
    try:
        return Location(idc, cluster)
    except InvalidError:
        return None


def parse_task_path(parts: tuple[str, ...]) -> Task | None:
    """Read the names below the root of a service down to a task."""
    location = parse_location(parts[0]) if len(parts) == 2 else None
    named = parse_task_name(parts[-1]) if len(parts) in {1, 2} else None
    if named is None or (len(parts) == 2 and location is None):
        return None
    return Task(*named, location)

"""What the nodes of the scheduler's tree hold, with the field names of the JSON, and where they lie. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.errors import InvalidError, problem
from shoal.discovery.names import check_node_name, check_part
from shoal.discovery.replicas.records import Replica, ServerType


class PublishType(enum.IntEnum):
    """Whether a model should be loaded."""

    LOAD = 1
    UNLOAD = 2


@dataclass(frozen=True, slots=True)
class PortalModel:
    """A model that an operator wants loaded."""

    model_name: str | None = None
    model_dir: str | None = None
    ckpt: str | None = None
    num_shard: int = -1
    action: str = "NONE"
    spec_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """The sub-graphs of a model that one agent should load, with the directory of each version."""

    shard_id: int | None = None
    replica_id: int = -1
    model_name: str | None = None
    num_ps: int | None = None
    total_publish_num: int = 1
    sub_models: Mapping[str, str] | None = field(default=None, hash=False)
    ptype: PublishType = PublishType.LOAD
    is_spec: bool = False


@dataclass(frozen=True, slots=True)
class AgentResource:
    """What an agent has free."""

    address: str | None = None
    shard_id: int | None = None
    replica_id: int | None = None
    memory: int | None = None
    cpu: float = -1.0
    network: float = -1.0
    work_load: float = -1.0


@dataclass(frozen=True, slots=True)
class SchedulerPaths:
    """The paths of one namespace."""

    bzid: str

    def __post_init__(self) -> None:
        check_node_name(self.bzid, field="bzid")

    @property
    def portal(self) -> str:
        """The node above every model that should be loaded."""
        return f"/{self.bzid}/portal"

    @property
    def publish(self) -> str:
        """The node above every assignment."""
        return f"/{self.bzid}/publish"

    @property
    def resource(self) -> str:
        """The node above every agent's resources."""
        return f"/{self.bzid}/resource"

    @property
    def service(self) -> str:
        """The node above every replica."""
        return f"/{self.bzid}/service"

    @property
    def election(self) -> str:
        """The node of the scheduler's election."""
        return f"/{self.bzid}/election"

    @property
    def locks(self) -> str:
        """The node above every lock."""
        return f"/{self.bzid}/locks"

    def portal_model(self, model_name: str) -> str:
        """The node of a model that should be loaded."""
        return f"{self.portal}/{check_part(model_name, field='model_name')}"

    def published(self, model: PublishedModel) -> str:
        """The node of an assignment."""
        name = check_part(model.model_name or "", field="model_name")
        return f"{self.publish}/{model.shard_id}:{model.replica_id}:{name}"

    def agent_resource(self, resource: AgentResource) -> str:
        """The node of an agent's resources."""
        return f"{self.resource}/{resource.shard_id}:{resource.replica_id}"

    def replica(self, replica: Replica) -> str:
        """The node of a replica, whose fields are all set in this tree. Raises `InvalidError` when one is not."""
        model = check_part(replica.model_name or "", field="model_name")
        types = ", ".join(ServerType)
        problems = [
            problem(name, value, rule)
            for name, value, rule, is_good in (
                ("server_type", replica.server_type, f"must be one of {types}", replica.server_type in [*ServerType]),
                ("task", replica.task, "must be a whole number from 0", replica.task >= 0),
                ("replica", replica.replica, "must be a whole number from 0", replica.replica >= 0),
            )
            if not is_good
        ]
        if problems:
            raise InvalidError(problems)
        return f"{self.service}/{model}/{replica.server_type}:{replica.task}/{replica.replica}"

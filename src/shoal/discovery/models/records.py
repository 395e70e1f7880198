"""Saved models, how they are deployed, and the containers that serve them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import InvalidError, problem
from shoal.discovery.names import check_node_name, check_part

ENTRY = "entry"
LATEST = "latest"
LATEST_ONCE = "latest_once"

#: What stands for an unset PSM, data center or cluster in the name of a container.
UNKNOWN_PSM = "unknown"
UNSET = "None"


@dataclass(frozen=True, slots=True, order=True)
class SavedModel:
    """One sub-graph of a model."""

    model_name: str
    sub_graph: str

    def __post_init__(self) -> None:
        check_part(self.model_name, field="model_name")
        check_part(self.sub_graph, field="sub_graph")

    def __str__(self) -> str:
        """As it stands in a layout and in answers, such as `m:ps_0`."""
        return f"{self.model_name}:{self.sub_graph}"


def parse_saved_model(text: str, *, field: str = "saved_model") -> SavedModel:
    """Read `model:sub_graph`. Raises `InvalidError` on `field`."""
    model, colon, sub_graph = text.partition(":")
    if not colon:
        raise InvalidError([problem(field, text, "must be MODEL:SUB_GRAPH, such as m:ps_0")])
    try:
        return SavedModel(model, sub_graph)
    except InvalidError as error:
        raise InvalidError([problem(field, text, error.problems[0].rule)]) from None


@dataclass(frozen=True, slots=True)
class DeployConfig:
    """How a sub-graph is served. The JSON has these names."""

    model_base_path: str | None = None
    version_policy: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Container:
    """A process that serves sub-graphs. An id may have colons, as IPv6 addresses do."""

    cluster: str
    id: str

    def __post_init__(self) -> None:
        check_part(self.cluster, field="ctx_cluster")
        check_node_name(self.id, field="ctx_id")

    def __str__(self) -> str:
        """The name of its node."""
        return f"{self.cluster}:{self.id}"


def container_cluster(*, psm: str = "", idc: str = "", cluster: str = "") -> str:
    """The name of the cluster of a container: `psm;idc;cluster`, with `unknown` and `None` for what is not set."""
    return f"{psm or UNKNOWN_PSM};{idc or UNSET};{cluster or UNSET}"


def parse_container(text: str) -> Container | None:
    """Read `cluster:id`; None for a node that is no container."""
    cluster, _, name = text.partition(":")
    try:
        return Container(cluster, name)
    except InvalidError:
        return None


@dataclass(frozen=True, slots=True)
class ContainerService:
    """The addresses of a container. The JSON has these names."""

    grpc: str | None = None
    http: str | None = None
    archon: str | None = None
    agent: str | None = None
    idc: str | None = None
    debug_info: str | None = None


def binding_name(sub_graph: str, container: Container) -> str:
    """The node that says: this container serves this sub-graph."""
    return f"{check_part(sub_graph, field='sub_graph')}:{container}"


def parse_binding(text: str) -> tuple[str, Container] | None:
    """Read `sub_graph:cluster:id`; None for a node that is no binding."""
    sub_graph, _, rest = text.partition(":")
    container = parse_container(rest)
    return (sub_graph, container) if sub_graph and container is not None else None

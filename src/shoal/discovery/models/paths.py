"""Where models, layouts, containers and bindings of a business namespace lie in the tree. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.discovery.models.records import Container, SavedModel, binding_name
from shoal.discovery.names import check_node_name, check_part
from shoal.discovery.store import check_path


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """The paths of one namespace."""

    bzid: str

    def __post_init__(self) -> None:
        check_node_name(self.bzid, field="bzid")

    @property
    def saved_models(self) -> str:
        """The node above every declared model."""
        return f"/{self.bzid}/saved_models"

    @property
    def layouts(self) -> str:
        """The node above every layout."""
        return f"/{self.bzid}/layouts"

    @property
    def containers(self) -> str:
        """The node above every container."""
        return f"/{self.bzid}/container_service"

    @property
    def bindings(self) -> str:
        """The node above every binding."""
        return f"/{self.bzid}/binding"

    def declared(self, model_name: str) -> str:
        """The node above the declared sub-graphs of a model."""
        return f"{self.saved_models}/{check_part(model_name, field='model_name')}"

    def saved_model(self, saved_model: SavedModel) -> str:
        """The node of a declared sub-graph."""
        return f"{self.declared(saved_model.model_name)}/{saved_model.sub_graph}"

    def layout(self, name: str) -> str:
        """The node of a layout: a name, or an absolute path as it is."""
        if name.startswith("/"):
            return check_path(name)
        return f"{self.layouts}/{check_node_name(name, field='layout')}"

    def container(self, container: Container) -> str:
        """The node of a container."""
        return f"{self.containers}/{container}"

    def binding(self, saved_model: SavedModel, container: Container) -> str:
        """The node of a binding."""
        return f"{self.bindings}/{saved_model.model_name}/{binding_name(saved_model.sub_graph, container)}"

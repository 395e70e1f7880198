"""The nodes that a container registers: its addresses, and one binding for each sub-graph that it serves. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.discovery.documents import write_record
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.records import Container, ContainerService, SavedModel


def registrations(
    paths: ModelPaths, container: Container, service: ContainerService, saved_models: Iterable[SavedModel]
) -> dict[str, bytes]:
    """The ephemeral nodes of a container, with their data, by path.

    The addresses come first, so that a peer that sees a binding can resolve it.
    """
    bound = {paths.binding(each, container): b"" for each in sorted(set(saved_models))}
    return {paths.container(container): write_record(service), **bound}

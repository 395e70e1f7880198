"""Declares models, and publishes and unpublishes their sub-graphs in layouts. Called by `shoal model`."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, problem
from shoal.discovery.documents import write_record
from shoal.discovery.errors import NodeExistsError, NoNodeError
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.records import ENTRY, LATEST, LATEST_ONCE, DeployConfig, SavedModel
from shoal.discovery.names import check_part, is_part
from shoal.discovery.store import CoordinationStore


@dataclass(frozen=True, slots=True)
class Catalog:
    """The declared models and layouts of a namespace."""

    store: CoordinationStore
    paths: ModelPaths

    async def sub_graphs(self, model_name: str) -> list[SavedModel]:
        """The declared sub-graphs of a model, by name; none for a model that is not declared."""
        try:
            names = await self.store.children(self.paths.declared(model_name))
        except NoNodeError:
            return []
        return [SavedModel(model_name, name) for name in names if is_part(name)]

    async def declare(self, model_name: str, base_paths: Mapping[str, str], *, overwrite: bool = False) -> None:
        """Declare the sub-graphs of a model, each with the directory of its versions.

        An entry follows the latest version; other sub-graphs load the latest one once, and get newer parameters by
        sync. Sub-graphs that are declared and not given stay as they are.

        Raises:
            PreconditionError: the model is declared already, and `overwrite` is not set.
        """
        if not base_paths:
            raise InvalidError([problem("sub_graphs", None, "must have at least one sub-graph")])
        if not overwrite and await self.sub_graphs(model_name):
            raise PreconditionError(
                f"model {model_name!r} is declared already",
                hint="--overwrite declares it again",
                model_name=model_name,
            )
        for sub_graph, base_path in sorted(base_paths.items()):
            config = DeployConfig(base_path, LATEST if sub_graph == ENTRY else LATEST_ONCE)
            await self._write(self.paths.saved_model(SavedModel(model_name, sub_graph)), write_record(config))

    async def publish(self, pattern: str, layout: str) -> list[str]:
        """Add the sub-graphs that match `model:glob` to a layout, and return their names in it."""
        found = [str(each) for each in await self._matching(pattern)]
        path = self.paths.layout(layout)
        for name in found:
            await self.store.ensure_path(f"{path}/{name}")
        return found

    async def unpublish(self, pattern: str, layout: str) -> list[str]:
        """Remove what matches `model:glob` from a layout, also what cannot be served, and return the names."""
        model_name, glob = _split(pattern)
        path = self.paths.layout(layout)
        try:
            members = await self.store.children(path)
        except NoNodeError:
            raise NotFoundError("layout", layout) from None
        mine = [name for name in members if name.startswith(f"{model_name}:")]
        found = [name for name in mine if fnmatch.fnmatchcase(name.removeprefix(f"{model_name}:"), glob)]
        if not found:
            raise NotFoundError("sub-graph", pattern, hint=f"no member of layout {layout} matches")
        for name in found:
            await self._delete(f"{path}/{name}")
        return found

    async def _matching(self, pattern: str) -> list[SavedModel]:
        model_name, glob = _split(pattern)
        declared = await self.sub_graphs(model_name)
        if not declared:
            raise NotFoundError("model", model_name, hint="declare it first: `shoal model declare`")
        found = [each for each in declared if fnmatch.fnmatchcase(each.sub_graph, glob)]
        if not found:
            names = ", ".join(each.sub_graph for each in declared)
            raise NotFoundError("sub-graph", pattern, hint=f"{model_name} has {names}")
        return found

    async def _write(self, path: str, data: bytes) -> None:
        try:
            await self.store.create(path, data, makepath=True)
        except NodeExistsError:
            await self.store.set(path, data)

    async def _delete(self, path: str) -> None:
        try:
            await self.store.delete(path)
        except NoNodeError:
            return


def _split(pattern: str) -> tuple[str, str]:
    model_name, colon, glob = pattern.partition(":")
    if not colon or not glob:
        raise InvalidError([problem("pattern", pattern, "must be MODEL:GLOB, such as m:ps_*")])
    return check_part(model_name, field="pattern"), glob

"""Everything about a namespace in one document: models, containers and layouts (Monolith's `bzid_info`).

The document is sorted, so that two of them can be compared. Called by `shoal model`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from shoal.discovery.errors import NoNodeError
from shoal.discovery.models.paths import ModelPaths
from shoal.discovery.models.records import Container, SavedModel, parse_binding, parse_container
from shoal.discovery.names import is_part
from shoal.discovery.store import CoordinationStore


async def collect_overview(store: CoordinationStore, paths: ModelPaths) -> dict[str, Any]:
    """Read the namespace. Nodes that vanish meanwhile are left out."""
    bindings = await _bindings(store, paths)
    return {
        "model_info": await _models(store, paths, bindings),
        "container_info": await _containers(store, paths, bindings),
        "layout_info": {
            layout: sorted(await _children(store, f"{paths.layouts}/{layout}"))
            for layout in await _children(store, paths.layouts)
        },
    }


async def _bindings(store: CoordinationStore, paths: ModelPaths) -> list[tuple[SavedModel, Container]]:
    found = []
    for model in await _children(store, paths.bindings):
        for name in await _children(store, f"{paths.bindings}/{model}"):
            binding = parse_binding(name)
            if binding is not None and is_part(model):
                found.append((SavedModel(model, binding[0]), binding[1]))
    return sorted(found)


async def _models(
    store: CoordinationStore, paths: ModelPaths, bindings: list[tuple[SavedModel, Container]]
) -> dict[str, dict[str, Any]]:
    bound: defaultdict[str, list[str]] = defaultdict(list)
    for saved_model, container in bindings:
        bound[str(saved_model)].append(str(container))
    models: dict[str, dict[str, Any]] = {}
    for model in await _children(store, paths.saved_models):
        names = await _children(store, f"{paths.saved_models}/{model}")
        rows: dict[str, Any] = {}
        for name in names:
            config = await _text(store, f"{paths.saved_models}/{model}/{name}")
            rows[name] = {"deploy_config": config, "bindings": bound.get(f"{model}:{name}", [])}
        available = sum(bool(row["bindings"]) for row in rows.values())
        rows["sub_graphs_total"] = len(names)
        if available:
            rows["sub_graphs_available"] = available
        models[model] = dict(sorted(rows.items()))
    return models


async def _containers(
    store: CoordinationStore, paths: ModelPaths, bindings: list[tuple[SavedModel, Container]]
) -> dict[str, dict[str, Any]]:
    announced = [parse_container(name) for name in await _children(store, paths.containers)]
    served: defaultdict[Container, list[str]] = defaultdict(list)
    for saved_model, container in bindings:
        served[container].append(str(saved_model))
    known = {each for each in announced if each is not None} | served.keys()
    containers: dict[str, dict[str, Any]] = {}
    for container in sorted(known):
        containers.setdefault(container.cluster, {})[container.id] = {
            "service_info": await _text(store, paths.container(container)),
            "saved_models": served.get(container, []),
        }
    return containers


async def _children(store: CoordinationStore, path: str) -> tuple[str, ...]:
    try:
        return await store.children(path)
    except NoNodeError:
        return ()


async def _text(store: CoordinationStore, path: str) -> str | None:
    try:
        return (await store.get(path)).data.decode(errors="replace")
    except NoNodeError:
        return None

"""Writes the assignments of a scheduler of version 2: which agent loads which model. Called by schedulers."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.discovery.documents import write_record
from shoal.discovery.errors import NodeExistsError, NoNodeError
from shoal.discovery.mirror.mirror import Mirror
from shoal.discovery.mirror.records import PublishedModel, SchedulerPaths
from shoal.discovery.store import CoordinationStore


async def write_assignments(store: CoordinationStore, paths: SchedulerPaths, models: Iterable[PublishedModel]) -> None:
    """Write assignments; those that are in the tree already are left alone."""
    for model in models:
        path, data = paths.published(model), write_record(model)
        try:
            await store.create(path, data, makepath=True)
        except NodeExistsError:
            if (await store.get(path)).data != data:
                await store.set(path, data)


async def remove_unrequested(store: CoordinationStore, paths: SchedulerPaths, mirror: Mirror) -> list[str]:
    """Delete the assignments of models that are not in the portal, and return their names."""
    requested = mirror.portal()
    gone = [name for name, each in mirror.published().items() if each.model_name not in requested]
    for name in gone:
        try:
            await store.delete(f"{paths.publish}/{name}")
        except NoNodeError:
            continue
    return gone

"""What an agent should load, from the assignments in the tree. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shoal.discovery.mirror.records import PublishedModel, PublishType

ENTRY_PREFIX = "entry"


def expected_loading(
    published: Iterable[PublishedModel], *, shard_id: int, replica_id: int
) -> dict[str, PublishedModel]:
    """The assignment of an agent for each model that is completely published, by model.

    Of a model's assignments the one with the fewest sub-graphs counts, unless one is for this very agent. An agent of
    the same shard takes it over as another replica. An agent of another shard takes the entry alone.
    """
    by_model: dict[str, list[PublishedModel]] = {}
    for each in published:
        if each.model_name:
            by_model.setdefault(each.model_name, []).append(each)
    chosen = {}
    for model_name, assignments in sorted(by_model.items()):
        if not is_complete(assignments):
            continue
        ordered = sorted(
            assignments, key=lambda each: (len(each.sub_models or {}), each.shard_id or 0, each.replica_id)
        )
        own = [each for each in ordered if (each.shard_id, each.replica_id) == (shard_id, replica_id)]
        found = (own or ordered)[0]
        if found.ptype is PublishType.LOAD:
            chosen[model_name] = _adapted(found, shard_id, replica_id)
    return chosen


def is_complete(assignments: list[PublishedModel]) -> bool:
    """Whether every assignment of a model is in the tree: each of them names their number."""
    return {each.total_publish_num for each in assignments} == {len(assignments)}


def _adapted(found: PublishedModel, shard_id: int, replica_id: int) -> PublishedModel:
    if (found.shard_id, found.replica_id) == (shard_id, replica_id):
        return found
    if found.shard_id == shard_id and not found.is_spec:
        return replace(found, replica_id=replica_id)
    entries = {name: path for name, path in (found.sub_models or {}).items() if name.startswith(ENTRY_PREFIX)}
    return replace(found, shard_id=shard_id, replica_id=replica_id, sub_models=entries)

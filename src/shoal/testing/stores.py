"""A store in memory, without threads: for tests in virtual time, where waiting for a thread would let the clock run.

It passes the same conformance suite as the real ones and survives the control plane that uses it, so a test can
restart that. It can be told to be away.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

from shoal.control.store.base import Batch, EventPage, EventQuery, Snapshot
from shoal.core import faults
from shoal.core.clock import from_epoch_ms
from shoal.core.errors import ConflictError, UnavailableError
from shoal.core.ids import GroupId, NodeId, WorkloadId
from shoal.model.events import Event
from shoal.model.nodes import NodeRecord
from shoal.model.workloads import GroupRecord, Observation, WorkloadRecord


class MemoryStore:
    """Keeps everything in dictionaries."""

    def __init__(self, *, max_events: int = 10_000) -> None:
        self._nodes: dict[NodeId, NodeRecord] = {}
        self._workloads: dict[WorkloadId, WorkloadRecord] = {}
        self._groups: dict[GroupId, GroupRecord] = {}
        self._observations: dict[WorkloadId, Observation] = {}
        self._events: deque[Event] = deque(maxlen=max_events)
        self._cursor = 0
        self._floor = 0
        #: Everything raises `UnavailableError` while this is set.
        self.away = False
        self.commits = 0

    async def open(self) -> None:
        """Nothing to do."""
        self._check()

    async def load(self) -> Snapshot:
        """Everything."""
        self._check()
        return Snapshot(
            tuple(self._nodes.values()),
            tuple(self._workloads.values()),
            tuple(self._groups.values()),
            tuple(self._observations.values()),
            self._floor,
        )

    async def commit(self, batch: Batch) -> tuple[Event, ...]:
        """Apply a batch, all or none."""
        self._check()
        self._check_versions(batch)
        faults.reach("store.commit.before")
        for node in batch.nodes:
            self._nodes[node.node_id] = dataclasses.replace(node, version=node.version + 1)
        for workload in batch.workloads:
            self._workloads[workload.workload_id] = dataclasses.replace(workload, version=workload.version + 1)
        for group in batch.groups:
            self._groups[group.group_id] = dataclasses.replace(group, version=group.version + 1)
        for node_id, at in batch.beats.items():
            if node_id in self._nodes:
                self._nodes[node_id] = dataclasses.replace(self._nodes[node_id], last_beat=from_epoch_ms(at))
        for node_id in batch.removed_nodes:
            del self._nodes[node_id]
        for workload_id in batch.removed_workloads:
            del self._workloads[workload_id]
        for group_id in batch.removed_groups:
            del self._groups[group_id]
        for observation in batch.observations:
            if observation.status.workload_id in self._workloads:
                self._observations[observation.status.workload_id] = observation
        for workload_id in (*batch.forgotten_observations, *batch.removed_workloads):
            self._observations.pop(workload_id, None)
        self._floor = max(self._floor, batch.generation_floor)
        numbered = tuple(self._number(event) for event in batch.events)
        self._events.extend(numbered)
        self.commits += 1
        faults.reach("store.commit.after")
        return numbered

    async def events(self, query: EventQuery) -> EventPage:
        """Part of the list of events."""
        self._check()
        found = [event for event in self._events if event.cursor > query.after and _matches(query, event)]
        chosen = found[-query.limit :] if query.newest else found[: query.limit]
        oldest = self._events[0].cursor if self._events else 0
        return EventPage(tuple(chosen), chosen[-1].cursor if chosen else query.after, oldest)

    async def ping(self) -> None:
        """Say whether it is there."""
        self._check()

    async def close(self) -> None:
        """Nothing to do: it outlives its users."""

    def _check(self) -> None:
        if self.away:
            raise UnavailableError("the store is away")

    def _check_versions(self, batch: Batch) -> None:
        puts: list[tuple[str, dict[Any, Any], Any, int]] = [
            *(("node", self._nodes, each.node_id, each.version) for each in batch.nodes),
            *(("workload", self._workloads, each.workload_id, each.version) for each in batch.workloads),
            *(("group", self._groups, each.group_id, each.version) for each in batch.groups),
            *(("node", self._nodes, *pair) for pair in batch.removed_nodes.items()),
            *(("workload", self._workloads, *pair) for pair in batch.removed_workloads.items()),
            *(("group", self._groups, *pair) for pair in batch.removed_groups.items()),
        ]
        for kind, table, key, version in puts:
            stored = table[key].version if key in table else 0
            if stored != version:
                raise ConflictError(f"{kind} {key!r} is at version {stored}, not {version}", kind=kind, id=key)

    def _number(self, event: Event) -> Event:
        self._cursor += 1
        return dataclasses.replace(event, cursor=self._cursor)


def _matches(query: EventQuery, event: Event) -> bool:
    kind = not query.subject_kind or query.subject_kind == event.subject_kind
    return kind and (not query.subject_id or query.subject_id == event.subject_id)

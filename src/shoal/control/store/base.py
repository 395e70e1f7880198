"""The store's protocol: what the control plane remembers, and the only way to change it.

The control plane keeps its working set in memory and the store keeps the truth. A change is a `Batch`: records with
the version they were read at, removals, observations and events, applied in one transaction or not at all. A version
that is no longer the stored one raises `ConflictError` and nothing of the batch is kept. When `commit` returns, the
batch survives the death of the process and of the machine.

Called by `shoal.control.state.ledger`; implemented by `sqlite.py` and `postgres.py`, which pass one
conformance suite (`shoal.testing.suites.store.StoreSuite`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from shoal.core.ids import GroupId, JobId, NodeId, TokenId, WorkloadId
from shoal.discovery.embedded.tree import Changes
from shoal.model.events import Event
from shoal.model.jobs import JobRecord
from shoal.model.nodes import NodeRecord
from shoal.model.selectors import Selector
from shoal.model.trust import JoinToken, Revocation, SecretRecord
from shoal.model.workloads import GroupRecord, Observation, WorkloadRecord

INSTANCE_FILE = "name"
"""The file in the data directory that holds the name of the control plane, made once its store has been opened."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that happen together or not at all.

    A record is stored if its `version` is the stored one (0: there is none yet), with the version after it. A removal
    names the version it was decided on.
    """

    nodes: tuple[NodeRecord, ...] = ()
    workloads: tuple[WorkloadRecord, ...] = ()
    groups: tuple[GroupRecord, ...] = ()
    removed_nodes: Mapping[NodeId, int] = field(default_factory=dict)
    removed_workloads: Mapping[WorkloadId, int] = field(default_factory=dict)
    removed_groups: Mapping[GroupId, int] = field(default_factory=dict)
    tokens: tuple[JoinToken, ...] = ()
    removed_tokens: Mapping[TokenId, int] = field(default_factory=dict)
    secrets: tuple[SecretRecord, ...] = ()
    removed_secrets: Mapping[str, int] = field(default_factory=dict)
    revocations: tuple[Revocation, ...] = ()
    removed_revocations: Mapping[NodeId, int] = field(default_factory=dict)
    jobs: tuple[JobRecord, ...] = ()
    removed_jobs: Mapping[JobId, int] = field(default_factory=dict)
    #: Last reports, replaced without compare-and-set: the newest accepted one counts. Dropped with their workload.
    observations: tuple[Observation, ...] = ()
    forgotten_observations: tuple[WorkloadId, ...] = ()
    #: When nodes were last heard of, in milliseconds since 1970: for views only, written now and then.
    heartbeats: Mapping[NodeId, int] = field(default_factory=dict)
    #: A change of the coordination tree, under the number after the stored one.
    coordination: Changes | None = None
    #: Raises the floor above which new workloads begin to count, if it is lower. See `Snapshot.generation_floor`.
    generation_floor: int = 0
    events: tuple[Event, ...] = ()

    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not any(_parts_of(self))


_parts_of = attrgetter(*(each.name for each in dataclasses.fields(Batch)))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is stored, at one moment."""

    nodes: tuple[NodeRecord, ...] = ()
    workloads: tuple[WorkloadRecord, ...] = ()
    groups: tuple[GroupRecord, ...] = ()
    observations: tuple[Observation, ...] = ()
    revocations: tuple[Revocation, ...] = ()
    jobs: tuple[JobRecord, ...] = ()
    #: The highest generation of any workload that was forgotten. A new one begins above it, so that no generation of
    #: a name is ever used twice, also when the name is.
    generation_floor: int = 0


@dataclass(frozen=True, slots=True)
class EventPage:
    """Part of the list of events."""

    events: tuple[Event, ...]
    #: Pass it as `after` to go on.
    next: int
    #: The oldest cursor that is still kept; 0 when there is none.
    oldest: int


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Which events to read."""

    after: int = 0
    limit: int = 100
    subject_kind: str = ""
    subject_id: str = ""
    #: The newest `limit` events instead of the first after the cursor; still in order of their cursors.
    newest: bool = False
    #: Only events about workloads whose labels matched then.
    selector: Selector = Selector()

    def matches(self, event: Event) -> bool:
        """Whether an event is about what is asked for; its cursor and `limit` do not count."""
        return (
            (not self.subject_kind or self.subject_kind == event.subject_kind)
            and (not self.subject_id or self.subject_id == event.subject_id)
            and self.selector.matches(event.labels)
        )


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, by the store's own clock."""

    term: int
    #: The name of the process that leads; empty when nobody does.
    holder: str
    #: Where it is reached.
    address: str
    #: Seconds until somebody else may take over, unless it is renewed; infinite where no other process can.
    expires_in: float


Settled = Callable[[tuple[Event, ...] | Exception], None]
"""Called with the outcome of a batch: its events, or the error."""


class Store(Protocol):
    """Where the control plane stores its state."""

    async def open(self) -> None:
        """Connect and bring the schema up to date. Raises `StoreError`."""
        ...

    async def load(self, *, again: bool = False) -> Snapshot:
        """Read everything. `again`: it will be read again soon; unchanged records are then reused."""
        ...

    async def commit(self, batch: Batch, *, term: int = 0, settled: Settled | None = None) -> tuple[Event, ...]:
        """Apply a batch durably and return its events with their cursors.

        `term` is the one under which it was decided; 0 is any. A leader that was replaced and leads again has another
        term. What it decided before does not know what others have written since, and raises `LeadershipLostError`.

        Cancelling the caller does not cancel its batch: `settled` is called with the outcome, before the caller goes
        on, and also when the caller is gone. A batch that was never begun is not settled. A batch whose outcome was
        unknown is settled again if it turns out later that it was stored.

        Raises `ConflictError` when a version moved, and `StoreError`, which says what became of the batch.
        """
        ...

    async def events(self, query: EventQuery) -> EventPage:
        """Read events."""
        ...

    async def tokens(self) -> tuple[JoinToken, ...]:
        """Every join token."""
        ...

    async def secrets(self, names: Collection[str] | None = None) -> tuple[SecretRecord, ...]:
        """Every secret, sealed; with `names`, those of them that exist."""
        ...

    async def coordination(self) -> Changes:
        """The whole coordination tree, as if it were put and opened in one change."""
        ...

    async def acquire_leadership(self, holder: str, address: str, *, seconds: float) -> Leader:
        """Lead for so many seconds from now, if nobody else does; else say who does.

        From then on every commit checks that the term is still the one that was won here, and raises
        `LeadershipLostError` when it is not. Before the first call nothing is checked.
        """
        ...

    async def leader(self) -> Leader:
        """Who leads now."""
        ...

    async def resign(self, holder: str) -> None:
        """Let somebody else lead at once."""
        ...

    async def ping(self) -> None:
        """Raise `StoreError` unless a write could be made now."""
        ...

    async def close(self) -> None:
        """Let go. Safe to call twice."""
        ...

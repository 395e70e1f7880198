"""What the client returns where the model has no value for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.model.events import Event
from shoal.model.trust import JoinTokenView
from shoal.model.views import PlannedPlacement, WorkloadView

Condition = Callable[[WorkloadView | None], bool]
"""Takes the workload as it is now, or None when it does not exist. Returns whether the wait is over."""


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    """The answer to applying one workload."""

    workload_id: str
    revision_id: str
    generation: int
    #: created | updated | unchanged; empty from a control plane that does not say.
    outcome: str


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The answer to applying a group."""

    group_id: str
    generation: int
    #: created | updated | unchanged
    outcome: str
    members: tuple[WorkloadView, ...]


@dataclass(frozen=True, slots=True)
class PlacementPreview:
    """What applying would do. Nothing was stored."""

    placements: tuple[PlannedPlacement, ...]
    placeable: bool


@dataclass(frozen=True, slots=True)
class NewJoinToken:
    """A new join token. Its text is shown only once."""

    text: str
    view: JoinTokenView
    #: The join port of the control plane that made it.
    join_port: int
    #: Where nodes may join: at the control plane that made it, and at those that could lead next.
    join_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events in order, and where to continue."""

    events: tuple[Event, ...]
    #: The cursor to pass as `after` for the next page.
    next: int
    #: The oldest cursor that is still kept.
    oldest: int

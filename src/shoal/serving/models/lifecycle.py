"""The states of a model version, and which of several versions stands for the model. Pure.

Called by `shoal.serving.models.monitor`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.discovery.replicas.records import ModelState

#: Which state may follow which; a version that cannot be loaded goes to END from anywhere.
TRANSITIONS: dict[ModelState, frozenset[ModelState]] = {
    ModelState.UNKNOWN: frozenset({ModelState.START}),
    ModelState.START: frozenset({ModelState.LOADING, ModelState.END}),
    ModelState.LOADING: frozenset({ModelState.AVAILABLE, ModelState.END}),
    ModelState.AVAILABLE: frozenset({ModelState.UNLOADING, ModelState.END}),
    ModelState.UNLOADING: frozenset({ModelState.END}),
    ModelState.END: frozenset(),
}


#: What a model server answers about a model that it does not have.
NOT_FOUND = 5


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """What a model server says of one version."""

    #: -1 when there is none.
    version: int = -1
    state: ModelState = ModelState.UNKNOWN
    #: A gRPC status code; 0 is fine.
    error_code: int = 0
    error_message: str = ""

    @property
    def was_answered(self) -> bool:
        """Whether the model server said it; otherwise the call failed."""
        return self.version >= 0 or self.error_code == NOT_FOUND

    @property
    def is_available(self) -> bool:
        """Whether calls of it are answered."""
        return self.state is ModelState.AVAILABLE


def state_of(number: int) -> ModelState:
    """The state with a number; UNKNOWN for a number that only others know."""
    return ModelState(number) if number in ModelState._value2member_map_ else ModelState.UNKNOWN


def choose_version(statuses: Iterable[VersionStatus]) -> VersionStatus | None:
    """The version that stands for its model: the highest that is available, else the highest; None without any."""
    ordered = sorted(statuses, key=lambda status: (status.is_available, status.version))
    return ordered[-1] if ordered else None

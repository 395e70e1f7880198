"""The states of a model version, and which of several versions stands for the model. Pure.

The numbers are TensorFlow Serving's; they stand in the tree as they are. Called by `shoal.serving.models.monitor`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class VersionState(enum.IntEnum):
    """Where a version is in its life."""

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


#: Which state may follow which; a version that cannot be loaded goes to END from anywhere.
TRANSITIONS: dict[VersionState, frozenset[VersionState]] = {
    VersionState.UNKNOWN: frozenset({VersionState.START}),
    VersionState.START: frozenset({VersionState.LOADING, VersionState.END}),
    VersionState.LOADING: frozenset({VersionState.AVAILABLE, VersionState.END}),
    VersionState.AVAILABLE: frozenset({VersionState.UNLOADING, VersionState.END}),
    VersionState.UNLOADING: frozenset({VersionState.END}),
    VersionState.END: frozenset(),
}


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """What a model server says of one version."""

    #: -1 when there is none.
    version: int = -1
    state: VersionState = VersionState.UNKNOWN
    #: A gRPC status code; 0 is fine.
    error_code: int = 0
    error_message: str = ""

    @property
    def is_available(self) -> bool:
        """Whether calls of it are answered."""
        return self.state is VersionState.AVAILABLE


def state_of(number: int) -> VersionState:
    """The state with a number; UNKNOWN for a number that only others know."""
    return VersionState(number) if number in VersionState._value2member_map_ else VersionState.UNKNOWN


def choose_version(statuses: Iterable[VersionStatus]) -> VersionStatus | None:
    """The version that stands for its model: the highest that is available, else the highest; None without any."""
    ordered = sorted(statuses, key=lambda status: (status.is_available, status.version))
    return ordered[-1] if ordered else None

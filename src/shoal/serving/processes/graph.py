"""Which processes run and when: the start order, restarts, and the end of all. Pure.

A node waits for the nodes that it needs. What follows an exit is a policy: `restart` starts that process again after a
pause that grows, `stop-all` ends everything, so that the platform starts the whole container again. Called by
`shoal.serving.processes.runner`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal.core.errors import InvalidError, problem
from shoal.core.retry import Backoff

RESTART_BACKOFF = Backoff(first=0.5, cap=30.0, jitter=0.0)
#: A process that ran this long before it ended begins with the shortest pause again.
STEADY_SECONDS = 60.0


class OnExit(enum.StrEnum):
    """What follows when a process ends by itself."""

    RESTART = "restart"
    STOP_ALL = "stop-all"


@dataclass(frozen=True, slots=True)
class ProcessNode:
    """One process."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: It has started when something listens here.
    port: int = 0
    #: The processes that have to be started before it.
    needs: frozenset[str] = frozenset()
    #: What it reads when it starts, and only then.
    config: str = ""


def start_order(nodes: Iterable[ProcessNode]) -> tuple[ProcessNode, ...]:
    """The processes, each after those that it needs, else in the order given. Raises `InvalidError` for a circle."""
    left = list(nodes)
    known = {node.name for node in left}
    ordered: list[ProcessNode] = []
    while left:
        started = {node.name for node in ordered}
        ready = next((node for node in left if node.needs & known <= started), None)
        if ready is None:
            names = ", ".join(node.name for node in left)
            raise InvalidError([problem("needs", names, "must not be a circle")])
        ordered.append(ready)
        left.remove(ready)
    return tuple(ordered)


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after a pause, in seconds."""

    pause: float
    failures: int


@dataclass(frozen=True, slots=True)
class StopAll:
    """End everything."""

    reason: str


def after_exit(
    policy: OnExit, name: str, *, ran: float, failures: int, how: str, backoff: Backoff = RESTART_BACKOFF
) -> Restart | StopAll:
    """What follows the exit of a process that ran so long, after so many failures in a row."""
    if policy is OnExit.STOP_ALL:
        return StopAll(f"{name} ended: {how}")
    counted = 1 if ran >= STEADY_SECONDS else failures + 1
    return Restart(backoff.plain_delay(counted), counted)

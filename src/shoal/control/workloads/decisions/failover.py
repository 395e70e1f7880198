"""When the work of a lost node may move: each workload's own policy, the rate of moves, and the brake. Pure.

When many nodes are lost, they are declared lost one after another: a bucket of tokens holds a share of the fleet and
fills again slowly, so that a small fault stays a small move. When most of the fleet vanishes at once, the fault is more
likely on this side (network, clock, host): then nothing is moved until nodes come back or an operator says which are
dead.

    NotReady, and …                  declared lost
    an operator says that it is dead at once
    it owned nothing                 at once, unless the brake is on
    a token is there                 now, the longest lost first, unless the brake is on
    else                             when there is a token

After the brake has held, nodes do not come back all at once: those that are still missing get one more lease before the
first of them is declared lost. Nodes that were declared dead get none.

A node has vanished if it is silent for more than half a lease, was lost within a lease, or is held back. The brake
compares these with the nodes that are alive: nodes lost long ago do not count.

Called by `shoal.control.nodes.loss` (nodes) and `reconciler` (workloads).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from shoal.core.ids import NodeId
from shoal.core.shape import Range
from shoal.model.nodes import LEASE_MARGIN
from shoal.model.workloads import FailoverPolicy, WorkloadSpec

#: A timer may wake a rounding error early; a shorter wait could then never end.
_SHORTEST_WAIT = 0.001


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """How fast nodes are declared lost, and when none is."""

    #: The share of the fleet that may be declared lost at once; at least one node.
    burst_share: Annotated[float, Range(0.0, 1.0)] = 0.1
    #: How many more per second.
    nodes_per_second: Annotated[float, Range(0.001, 1000.0)] = 0.1
    #: When more than this share vanishes within a lease, nothing is moved. 1 turns the brake off.
    brake_share: Annotated[float, Range(0.0, 1.0)] = 0.55
    #: Fewer nodes than this never pull the brake.
    brake_least: Annotated[int, Range(1, 1_000_000)] = 3


# ---------------------------------------------------------------------------------------------------------
# Workloads


def seconds_until_move(spec: WorkloadSpec, *, silence: float, lease: float) -> float | None:
    """In how many seconds a workload may be started elsewhere, when its node has been silent for `silence`.

    0 is now; None is never, for one that is kept. Never so early that an agent which is alive but cut off may still
    run what it was told to stop by itself: it counts a tenth less from an earlier moment, we count a tenth more.
    """
    failover = spec.failover
    if failover.policy == FailoverPolicy.KEEP:
        return None
    after = failover.after.total_seconds()
    needed = lease + after if after else 0.0
    if failover.policy == FailoverPolicy.STOP:
        needed = max(lease, after) * (1.0 + LEASE_MARGIN)
    if spec.at_most_one:
        needed = max(needed, lease * (1.0 + LEASE_MARGIN))
    left = needed - silence
    return max(left, _SHORTEST_WAIT) if left > 0 else 0.0


# ---------------------------------------------------------------------------------------------------------
# Nodes


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many nodes may be declared lost now, and when that was counted."""

    tokens: float = math.inf
    at: float = 0.0

    def filled(self, *, now: float, most: float, per_second: float) -> Bucket:
        """The bucket as it is now. A new one is full."""
        if math.isinf(self.tokens):
            return Bucket(most, now)
        return Bucket(min(most, self.tokens + max(0.0, now - self.at) * per_second), now)


@dataclass(frozen=True, slots=True)
class LostNode:
    """A NotReady node that is not declared lost."""

    node_id: NodeId
    #: When it was lost, by the steady clock.
    since: float
    #: Whether anything has to move from it.
    has_work: bool


@dataclass(frozen=True, slots=True)
class FleetHealth:
    """The fleet as its leases show it. Nodes that an operator declared dead are in none of these."""

    alive: int
    #: Silent for more than half a lease, and not lost yet.
    suspect: int
    held: Sequence[LostNode]
    #: Declared lost, and NotReady for less than a lease.
    lost_lately: int = 0

    @property
    def vanished(self) -> int:
        """How many went away lately."""
        return self.suspect + len(self.held) + self.lost_lately

    @property
    def total(self) -> int:
        """Out of how many."""
        return self.alive + self.vanished


@dataclass(frozen=True, slots=True)
class Brake:
    """The last moment at which most of the fleet was away, and how many were alive then."""

    at: float
    alive: int

    def grace(self, health: FleetHealth, *, now: float, lease: float) -> float:
        """For how many more seconds those that are still missing may come back, as others have."""
        return self.at + lease - now if health.held and health.alive > self.alive else 0.0


@dataclass(frozen=True, slots=True)
class EvictionVerdict:
    """Which nodes are declared lost now."""

    declare_lost: tuple[NodeId, ...]
    #: Most of the fleet vanished, or is just coming back: nothing is moved.
    braked: bool
    bucket: Bucket
    #: Seconds until a token is there for the next, or until the brake lets go; None when nobody waits for that.
    next_in: float | None = None
    #: To be given again with the next question.
    brake: Brake | None = None


def is_braked(health: FleetHealth, settings: FailoverSettings) -> bool:
    """Whether so much vanished that the fault is more likely ours."""
    return health.vanished >= settings.brake_least and health.vanished > settings.brake_share * health.total


def burst(total: int, settings: FailoverSettings) -> float:
    """How many nodes may be declared lost at once."""
    return float(max(1, math.ceil(settings.burst_share * total - 1e-9)))


def judge_evictions(
    health: FleetHealth,
    bucket: Bucket,
    *,
    now: float,
    settings: FailoverSettings,
    brake: Brake | None = None,
    lease: float = 0.0,
) -> EvictionVerdict:
    """Say which of the lost nodes are declared lost now. `bucket` and `brake` are those of the last verdict."""
    bucket = bucket.filled(now=now, most=burst(health.total, settings), per_second=settings.nodes_per_second)
    if is_braked(health, settings):
        return EvictionVerdict((), True, bucket, brake=Brake(now, health.alive))
    grace = brake.grace(health, now=now, lease=lease) if brake is not None else 0.0
    if grace > 0:
        return EvictionVerdict((), True, bucket, next_in=max(grace, _SHORTEST_WAIT), brake=brake)
    declared_lost: list[NodeId] = []
    tokens, waiting = bucket.tokens, False
    for node in sorted(health.held, key=lambda each: (each.since, each.node_id)):
        if not node.has_work:
            declared_lost.append(node.node_id)
        elif tokens >= 1.0:
            tokens -= 1.0
            declared_lost.append(node.node_id)
        else:
            waiting = True
    next_in = max((1.0 - tokens) / settings.nodes_per_second, _SHORTEST_WAIT) if waiting else None
    return EvictionVerdict(tuple(declared_lost), False, Bucket(tokens, now), next_in)

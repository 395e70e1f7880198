"""What a node has and what a workload asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from shoal.core.shape import MaxLength, Range

MAX_CPU_MILLICORES = 10_000_000
MAX_MEMORY_MB = 100_000_000
MAX_DISK_GB = 10_000_000
MAX_SLOTS = 100_000


@dataclass(frozen=True, slots=True)
class PoolShare:
    """Space in one storage pool of a node."""

    name: Annotated[str, MaxLength(128, 1)]
    gb: Annotated[int, Range(0, MAX_DISK_GB)] = 0


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of each kind. Requests, capacities and what is left of them are all of this type."""

    cpu_millicores: Annotated[int, Range(0, MAX_CPU_MILLICORES)] = 0
    memory_mb: Annotated[int, Range(0, MAX_MEMORY_MB)] = 0
    disk_gb: Annotated[int, Range(0, MAX_DISK_GB)] = 0
    slots: Annotated[int, Range(0, MAX_SLOTS)] = 0
    #: Space in storage pools, each pool once, by name. What a node has of them is in its `NodeSpec.storage_pools`.
    pools: tuple[PoolShare, ...] = ()

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu_millicores + other.cpu_millicores,
            self.memory_mb + other.memory_mb,
            self.disk_gb + other.disk_gb,
            self.slots + other.slots,
            _joined(self.pools, other.pools, 1),
        )

    @classmethod
    def total(cls, parts: Iterable[Resources]) -> Resources:
        """The sum of many, without an object for each step of it."""
        cpu = memory = disk = slots = 0
        pools: tuple[PoolShare, ...] = ()
        for each in parts:
            cpu += each.cpu_millicores
            memory += each.memory_mb
            disk += each.disk_gb
            slots += each.slots
            if each.pools:
                pools = _joined(pools, each.pools, 1)
        return cls(cpu, memory, disk, slots, pools)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu_millicores - other.cpu_millicores,
            self.memory_mb - other.memory_mb,
            self.disk_gb - other.disk_gb,
            self.slots - other.slots,
            _joined(self.pools, other.pools, -1),
        )

    def covers(self, request: Resources) -> bool:
        """Whether every amount of `request` is there. An amount of 0 is always covered."""
        return not self.missing(request)

    def missing(self, request: Resources) -> tuple[tuple[str, int, int], ...]:
        """(name, needed, available) for each amount of `request` that is not covered."""
        pairs = (
            ("cpu", request.cpu_millicores, self.cpu_millicores),
            ("memory", request.memory_mb, self.memory_mb),
            ("disk", request.disk_gb, self.disk_gb),
            ("slots", request.slots, self.slots),
        )
        return tuple((name, needed, have) for name, needed, have in pairs if needed > 0 and needed > have)

    def in_pool(self, name: str) -> int:
        """The space in one pool."""
        return next((share.gb for share in self.pools if share.name == name), 0)


def _joined(ours: tuple[PoolShare, ...], theirs: tuple[PoolShare, ...], sign: int) -> tuple[PoolShare, ...]:
    if not theirs:
        return ours
    sums = {share.name: share.gb for share in ours}
    for share in theirs:
        sums[share.name] = sums.get(share.name, 0) + sign * share.gb
    return tuple(PoolShare(name, gb) for name, gb in sorted(sums.items()) if gb)

"""Decides whether a workload fits on this node, by the same numbers as the scheduler of the control plane. Pure.

Requests are added up, never measured usage. Every workload that runs, or may run again by itself, holds a claim; one
that completed or failed for good holds none. So the agent's sum is never above the control plane's, and the agent
refuses a placement only if the control plane is mistaken. Called by `shoal.agent.workloads.admission`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.errors import ExhaustedError, PreconditionError, ShoalError
from shoal.core.ids import WorkloadId
from shoal.model.nodes import RefusalCode
from shoal.model.resources import Resources
from shoal.model.workloads import FailureReason

#: How many workloads an agent takes, whether they run or not: each heartbeat lists them all, in one message.
MAX_WORKLOADS = 4096


@dataclass(frozen=True, slots=True)
class Claim:
    """What one workload takes of its node."""

    request: Resources = Resources()
    #: (port, protocol) pairs that it needs for itself.
    ports: frozenset[tuple[int, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a workload is refused, with what it needs and what is free."""

    code: RefusalCode
    message: str
    need: str = ""
    have: str = ""

    def error(self, workload_id: WorkloadId) -> ShoalError:
        """The error for the caller."""
        sentence = f"workload {workload_id!r} is not taken: {self.message}"
        if self.code is RefusalCode.DRAINING:
            return PreconditionError(
                sentence, hint="apply it to another node", reason=self.code.value, workload_id=workload_id
            )
        return ExhaustedError(
            sentence,
            failure=FailureReason.INSUFFICIENT_RESOURCES.value,
            reason=self.code.value,
            need=self.need,
            have=self.have,
            workload_id=workload_id,
        )


def find_no_room(known: int, *, disk_pressure: str = "") -> Refusal | None:
    """Why no workload can be added to so many known ones; None when one can."""
    if disk_pressure:
        return Refusal(RefusalCode.DISK_PRESSURE, f"the node is under disk pressure: {disk_pressure}")
    if known < MAX_WORKLOADS:
        return None
    return Refusal(
        RefusalCode.WORKLOADS,
        f"the agent has {known:,} workloads, and takes no more than {MAX_WORKLOADS:,}; those that have ended count "
        "until they are deleted",
        need="workloads=1",
        have="workloads=0",
    )


def reserved(claims: Mapping[WorkloadId, Claim]) -> Resources:
    """The sum of all claims."""
    total = Resources()
    for claim in claims.values():
        total = total + claim.request
    return total


def find_refusal(
    capacity: Resources,
    claims: Mapping[WorkloadId, Claim],
    workload_id: WorkloadId,
    claim: Claim,
    *,
    draining: bool = False,
) -> Refusal | None:
    """Why `claim` cannot be taken beside the others; None when it can. What the workload holds now counts as free."""
    if draining and workload_id not in claims:
        return Refusal(RefusalCode.DRAINING, "the node is being drained and takes no new work")
    others = {other: held for other, held in claims.items() if other != workload_id}
    for other, held in others.items():
        taken = sorted(held.ports & claim.ports)
        if taken:
            port, protocol = taken[0]
            return Refusal(
                RefusalCode.PORT, f"port {port}/{protocol} is promised to workload {other!r}", need=f"{port}/{protocol}"
            )
    slot_memory = _slot_memory(capacity, claim.request)
    if slot_memory is not None:
        return slot_memory
    missing = (capacity - reserved(others)).missing(claim.request)
    if not missing:
        return None
    words = ", ".join(f"{name} need {need}{unit} have {have}{unit}" for name, need, have, unit in _with_units(missing))
    return Refusal(
        RefusalCode.RESOURCES,
        f"not enough is left: {words}",
        need=", ".join(f"{name}={need}" for name, need, _have in missing),
        have=", ".join(f"{name}={have}" for name, _need, have in missing),
    )


def slot_share(capacity: Resources, slots: int) -> int:
    """The memory of so many slots, in MB."""
    return capacity.memory_mb * slots // capacity.slots if capacity.slots else 0


def _slot_memory(capacity: Resources, request: Resources) -> Refusal | None:
    if request.slots < 1 or not capacity.slots or request.slots > capacity.slots:
        return None  # without slots, or with too few of them, the sum says so
    if request.memory_mb * capacity.slots <= capacity.memory_mb * request.slots:
        return None
    share = slot_share(capacity, request.slots)
    return Refusal(
        RefusalCode.SLOT_MEMORY,
        f"it asks for {request.memory_mb} MB in {request.slots} of {capacity.slots} slots, which have {share} MB "
        f"of the node's {capacity.memory_mb} MB",
        need=f"memory={request.memory_mb}",
        have=f"memory={share}",
    )


_UNITS = {"cpu": "m", "memory": " MB", "disk": " GB", "slots": ""}


def _with_units(missing: tuple[tuple[str, int, int], ...]) -> list[tuple[str, int, int, str]]:
    return [(name, need, max(have, 0), _UNITS[name]) for name, need, have in missing]

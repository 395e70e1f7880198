"""Carries out requests of users about single workloads: apply, delete, retry, start and stop.

A request is checked, stored and answered; `dispatch` then makes it true. Success means that the request is stored; the
workload's status says whether it came true. Called by `shoal.control.api.service`.

A revision is the user's name for a version of a spec. The same revision with the same spec changes nothing; the same
revision with another spec is refused; an empty revision becomes the hash of the spec.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from shoal.control.state.events import Origin, workload_event
from shoal.control.state.ledger import Ledger
from shoal.control.state.lifecycle.changes import Change, change, first_generation, retry
from shoal.control.state.lifecycle.phases import contract_status
from shoal.control.store.base import Batch
from shoal.control.workloads.pending import Pending
from shoal.core import faults
from shoal.core.clock import Clock
from shoal.core.errors import ConflictError, InvalidError, PreconditionError, problem
from shoal.core.ids import WorkloadId
from shoal.model.events import EventKind, EventSource
from shoal.model.phases import ContractStatus
from shoal.model.workloads import DesiredState, RetryState, WorkloadRecord, WorkloadSpec


class RequestOutcome(enum.Enum):
    """What an apply did."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """A checked request to have a workload."""

    workload_id: WorkloadId
    spec: WorkloadSpec
    spec_bytes: bytes
    spec_sha256: bytes
    revision_id: str
    desired: DesiredState

    @property
    def revision(self) -> str:
        """The revision to store: the given one, else the spec's hash."""
        return self.revision_id or self.spec_sha256.hex()


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to an apply."""

    record: WorkloadRecord
    outcome: RequestOutcome


def merge(requested: WorkloadRequest, known: WorkloadRecord | None, *, clock: Clock, floor: int) -> Applied:
    """What a request makes of what is known. Raises InvalidError on a revision that means another spec already.

    A new workload begins to count above `floor`, the highest generation of any that was forgotten.

    A request for a workload that is being deleted takes the deletion back: it is newer.
    """
    at = clock.wall()
    if known is None:
        record = WorkloadRecord(
            workload_id=requested.workload_id,
            spec=requested.spec,
            spec_bytes=requested.spec_bytes,
            spec_sha256=requested.spec_sha256,
            revision_id=requested.revision,
            desired=requested.desired,
            generation=first_generation(floor),
            created_at=at,
            updated_at=at,
        )
        return Applied(record, RequestOutcome.CREATED)
    same_spec = known.spec_sha256 == requested.spec_sha256
    reborn = known.desired is DesiredState.DELETED
    if known.revision_id == requested.revision and not same_spec and not reborn:
        raise InvalidError(
            [
                problem(
                    "revision_id",
                    requested.revision,
                    f"workload {requested.workload_id!r} has it with another spec; a changed spec needs a new one",
                )
            ]
        )
    if same_spec and known.revision_id == requested.revision and known.desired is requested.desired:
        return Applied(known, RequestOutcome.UNCHANGED)
    content: dict[str, Any] = {
        "spec": requested.spec,
        "spec_bytes": requested.spec_bytes,
        "spec_sha256": requested.spec_sha256,
        "revision_id": requested.revision,
        "desired": requested.desired,
        "retry": RetryState(),
    }
    if reborn:  # a new life under an old name: only the generation goes on, so that older commands stay old
        attempt = known.attempt + 1
        content |= {"move": None, "created_at": at, "group_id": None, "attempt": attempt}
        return Applied(change(known, Change.RECREATED, at=at, **content), RequestOutcome.CREATED)
    move = known.move if requested.desired is DesiredState.RUNNING else None
    return Applied(change(known, Change.UPDATED, at=at, move=move, **content), RequestOutcome.UPDATED)


_DESIRED = {
    DesiredState.RUNNING: (Change.STARTED, EventKind.WORKLOAD_START_REQUESTED),
    DesiredState.STOPPED: (Change.STOPPED, EventKind.WORKLOAD_STOP_REQUESTED),
}


class Workloads:
    """Requests about single workloads."""

    def __init__(self, ledger: Ledger, pending: Pending, *, clock: Clock) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._pending = pending
        self._clock = clock

    async def apply(self, requested: WorkloadRequest, *, cause: str, expected_revision: str = "") -> Applied:
        """Make a request durable. `cause`: who asked for it, by which call."""
        result: Applied | None = None

        def decide() -> Batch | None:
            nonlocal result
            known = self._fleet.workloads.get(requested.workload_id)
            self._check_free(requested.workload_id)
            if expected_revision and (known is None or known.revision_id != expected_revision):
                stored = known.revision_id if known else "none"
                raise ConflictError(
                    f"workload {requested.workload_id!r}: expected revision {expected_revision!r}, stored {stored!r}",
                    workload_id=requested.workload_id,
                    stored=stored,
                )
            result = merge(requested, known, clock=self._clock, floor=self._fleet.generation_floor)
            if result.outcome is RequestOutcome.UNCHANGED:
                return None
            kind = (
                EventKind.WORKLOAD_CREATED if result.outcome is RequestOutcome.CREATED else EventKind.WORKLOAD_UPDATED
            )
            message = f"revision {result.record.revision_id}, {result.record.desired.value}"
            origin = Origin(self._clock.wall(), EventSource.API, cause)
            event = workload_event(result.record, kind, message, origin)
            return Batch(workloads=(result.record,), events=(event,))

        await self._ledger.change(decide)
        assert result is not None  # noqa: S101 decide has run at least once
        if result.outcome is not RequestOutcome.UNCHANGED:
            faults.reach("control.apply.accepted")
            self._pending.start_over(requested.workload_id)
        return result

    async def delete(self, workload_id: WorkloadId, *, cause: str) -> None:
        """Request a deletion. Deleting twice is one request; an unknown workload is NotFoundError."""

        def decide() -> Batch | None:
            record = self._fleet.workload(workload_id)
            self._check_free(workload_id)
            if record.desired is DesiredState.DELETED:
                return None
            return deletion(record, clock=self._clock, cause=cause)

        await self._ledger.change(decide)

    async def set_desired(self, workload_id: WorkloadId, desired: DesiredState, *, cause: str) -> WorkloadRecord:
        """Start or stop, with spec and revision as they are."""

        def decide() -> Batch | None:
            record = self._fleet.workload(workload_id)
            self._check_free(workload_id)
            if record.desired is DesiredState.DELETED:
                raise PreconditionError(f"workload {workload_id!r} is being deleted", workload_id=workload_id)
            if record.desired is desired:
                return None
            what, kind = _DESIRED[desired]
            changed = change(record, what, at=self._clock.wall(), desired=desired, retry=RetryState(), move=None)
            message = f"requested state {desired.value}"
            origin = Origin(self._clock.wall(), EventSource.API, cause)
            event = workload_event(changed, kind, message, origin)
            return Batch(workloads=(changed,), events=(event,))

        if await self._ledger.change(decide) is not None:
            self._pending.start_over(workload_id)
        return self._fleet.workload(workload_id)

    async def retry(self, workload_id: WorkloadId, *, cause: str) -> bool:
        """Run it again now: whatever waits, waits no longer. One that runs is left alone, so it can be asked twice.

        This asks for no other workload than there is. So a member may be tried again without its group: the group, its
        generation and the other members are as before.
        """

        def decide() -> Batch | None:
            record = self._fleet.workload(workload_id)
            if record.desired is not DesiredState.RUNNING:
                raise PreconditionError(
                    f"the desired state of workload {workload_id!r} is {record.desired.value}",
                    hint=_way_to_start(record),
                    workload_id=workload_id,
                )
            if self._runs(record):
                return None
            changed = retry(record, at=self._clock.wall(), budget=RetryState())
            origin = Origin(self._clock.wall(), EventSource.API, cause)
            event = workload_event(changed, EventKind.WORKLOAD_RETRIED, "another attempt", origin)
            return Batch(workloads=(changed,), events=(event,))

        if await self._ledger.change(decide) is not None:
            self._pending.start_over(workload_id)
        return True

    def _runs(self, record: WorkloadRecord) -> bool:
        """Whether its newest generation is known to run, on a node that is heard of."""
        observation = self._fleet.observations.get(record.workload_id)
        owner, waiting = self._fleet.owner_of(record), self._pending.waiting
        return contract_status(record, observation, owner, waiting) is ContractStatus.RUNNING

    def _check_free(self, workload_id: WorkloadId) -> None:
        """A member of a group changes only with its group."""
        record = self._fleet.workloads.get(workload_id)
        if record is not None and record.group_id is not None and record.group_id in self._fleet.groups:
            raise PreconditionError(
                f"workload {workload_id!r} is a member of group {record.group_id!r}",
                hint="change the group as a whole",
                workload_id=workload_id,
                group_id=record.group_id,
            )


def _way_to_start(record: WorkloadRecord) -> str:
    return "start it first" if record.group_id is None else f"start it with its group {record.group_id!r}"


def deletion(record: WorkloadRecord, *, clock: Clock, cause: str) -> Batch:
    """The batch that requests the deletion of a workload."""
    requested = change(record, Change.DELETED, at=clock.wall(), desired=DesiredState.DELETED, move=None)
    origin = Origin(clock.wall(), EventSource.API, cause)
    event = workload_event(requested, EventKind.WORKLOAD_DELETE_REQUESTED, "deletion requested", origin)
    return Batch(workloads=(requested,), events=(event,))

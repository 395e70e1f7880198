"""Groups: workloads placed all or none.

A change of a group is placed, reserved and stored in one transaction, or nothing of it is. Starting the members is
not atomic: each agent is told on its own. Until every agent concerned has taken its part, the group remembers what its
members were; if one is refused everywhere, the change is undone. Called by `shoal.control.api.service`, and by
`shoal.control.workloads.dispatch` when a member was accepted or fits nowhere.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from shoal.control.placement.feasible import describe_rejections
from shoal.control.placement.placer import Placer, first_unplaced, placed_on, placement_event, request_for
from shoal.control.placement.scheduler import place_together
from shoal.control.state.events import Origin, group_event, workload_event
from shoal.control.state.facts import PlacementDecision, PlacementPlan
from shoal.control.state.ledger import Ledger
from shoal.control.state.lifecycle.changes import Change, GroupChange, change_group
from shoal.control.state.lifecycle.changes import change as change_record
from shoal.control.store.base import Batch
from shoal.control.trust.entitlements import check_entitled
from shoal.control.workloads.pending import Pending
from shoal.control.workloads.requests import RequestOutcome, WorkloadRequest, deletion, merge
from shoal.control.workloads.workload_facts import WorkloadFacts
from shoal.core import faults
from shoal.core.clock import Clock
from shoal.core.errors import ConflictError, ExhaustedError, InvalidError, PreconditionError, problem
from shoal.core.ids import GroupId, WorkloadId
from shoal.core.shape import find_problems
from shoal.model.events import Event, EventKind, EventSource
from shoal.model.identity import Identity, Role
from shoal.model.workloads import (
    MAX_MEMBERS,
    DesiredState,
    GroupMemberBefore,
    GroupRecord,
    MemberChanges,
    Rejection,
    WorkloadRecord,
    WorkloadSpec,
)


@dataclass(frozen=True, slots=True)
class GroupApplied:
    """The answer to a change of a group."""

    record: GroupRecord
    outcome: RequestOutcome


@dataclass(frozen=True, slots=True)
class _Change:
    """The difference between what a group is and what was requested."""

    records: tuple[WorkloadRecord, ...]
    removed: tuple[WorkloadRecord, ...]
    before: tuple[GroupMemberBefore, ...]


class Groups:
    """Carries out changes of groups."""

    def __init__(
        self,
        ledger: Ledger,
        facts: WorkloadFacts,
        pending: Pending,
        placer: Placer,
        *,
        clock: Clock,
        decode_spec: Callable[[bytes], WorkloadSpec],
    ) -> None:
        self._ledger = ledger
        self._fleet = ledger.fleet
        self._facts = facts
        self._pending = pending
        self._placer = placer
        self._clock = clock
        self._decode_spec = decode_spec
        #: Where in a change a member was last found that has not arrived.
        self._missing: dict[GroupId, int] = {}

    async def apply(
        self,
        group_id: GroupId,
        requests: tuple[WorkloadRequest, ...],
        *,
        cause: str,
        expected_generation: int | None = None,
        member_changes: MemberChanges | None = None,
        by: Identity | None = None,
    ) -> GroupApplied:
        """Give the group the requested members, all or none over the difference.

        A workload changes its own group within `member_changes`, which its operator set; without them, an operator
        allows its members nothing but replacing one by another.
        """
        _check_requests(requests, member_changes)
        result: GroupApplied | None = None
        changed: tuple[WorkloadId, ...] = ()

        def decide() -> Batch | None:
            nonlocal result, changed
            known = self._fleet.groups.get(group_id)
            check_entitled(
                by,
                group_id,
                known,
                self._members(known),
                requests,
                member_changes=member_changes,
                expected_generation=expected_generation,
            )
            _check_generation(group_id, known, expected_generation)
            change = self._difference(group_id, known, requests)
            bounds = _bounds(by, known, member_changes, len(requests))
            if known is not None and not change.records and not change.removed and known.member_changes == bounds:
                result = GroupApplied(known, RequestOutcome.UNCHANGED)
                return None
            placed, events = self._place(group_id, change, cause)
            record = self._next_record(group_id, known, requests, change, bounds)
            removals = [
                deletion(each, clock=self._clock, cause=f"left group {group_id}: {cause}") for each in change.removed
            ]
            changed = tuple(each.workload_id for each in (*placed, *change.removed))
            result = GroupApplied(record, RequestOutcome.CREATED if known is None else RequestOutcome.UPDATED)
            origin = Origin(self._clock.wall(), EventSource.API, cause)
            told = group_event(
                record,
                EventKind.GROUP_CREATED if known is None else EventKind.GROUP_UPDATED,
                f"{len(placed)} placed, {len(change.removed)} removed",
                origin,
            )
            return Batch(
                workloads=(*placed, *(each for batch in removals for each in batch.workloads)),
                groups=(record,),
                events=(told, *events, *(each for batch in removals for each in batch.events)),
            )

        async with self._placer.exclusive():
            await self._ledger.change(decide)
        assert result is not None  # noqa: S101 decide has run at least once
        if result.outcome is not RequestOutcome.UNCHANGED:
            faults.reach("control.apply.accepted")
        for workload_id in changed:
            self._pending.start_over(workload_id)
        return GroupApplied(self._fleet.groups.get(group_id, result.record), result.outcome)

    async def delete(self, group_id: GroupId, *, cause: str, expected_generation: int | None = None) -> int:
        """Request the deletion of a group and its members. Returns the group's generation."""
        generation = 0

        def decide() -> Batch | None:
            nonlocal generation
            record = self._fleet.group(group_id)
            _check_generation(group_id, record, expected_generation)
            if record.desired is DesiredState.DELETED:
                return None
            members = self._members(record)
            why = f"group {group_id} is deleted: {cause}"
            removals = [deletion(each, clock=self._clock, cause=why) for each in members]
            gone = change_group(
                record,
                GroupChange.DELETED,
                desired=DesiredState.DELETED,
                before=(),
                before_members=(),
                updated_at=self._clock.wall(),
            )
            generation = gone.generation
            origin = Origin(self._clock.wall(), EventSource.API, cause)
            event = group_event(gone, EventKind.GROUP_DELETE_REQUESTED, "deletion requested", origin)
            if not members:
                return Batch(removed_groups={group_id: record.version}, events=(event,))
            return Batch(
                workloads=tuple(each for batch in removals for each in batch.workloads),
                groups=(gone,),
                events=(event, *(each for batch in removals for each in batch.events)),
            )

        await self._ledger.change(decide)
        self._missing.pop(group_id, None)
        current = self._fleet.groups.get(group_id)
        return current.generation if current is not None else generation

    def _members(self, group: GroupRecord | None) -> list[WorkloadRecord]:
        members = group.members if group is not None else ()
        return [self._fleet.workloads[each] for each in members if each in self._fleet.workloads]

    # -----------------------------------------------------------------------------------------------------
    # Change

    def _difference(
        self, group_id: GroupId, known: GroupRecord | None, requests: tuple[WorkloadRequest, ...]
    ) -> _Change:
        records, before = [], []
        for index, requested in enumerate(requests):
            member = self._fleet.workloads.get(requested.workload_id)
            if member is not None and member.group_id != group_id and member.desired is not DesiredState.DELETED:
                owner = f"a member of group {member.group_id!r}" if member.group_id else "a workload of its own"
                raise PreconditionError(
                    f"members[{index}].workload_id: {requested.workload_id!r} is {owner} already",
                    workload_id=requested.workload_id,
                    group_id=group_id,
                )
            applied = merge(requested, member, clock=self._clock, floor=self._fleet.generation_floor)
            if applied.outcome is RequestOutcome.UNCHANGED:
                continue
            records.append(dataclasses.replace(applied.record, group_id=group_id))
            before.append(_before(requested.workload_id, None if applied.outcome is RequestOutcome.CREATED else member))
        wanted = {requested.workload_id for requested in requests}
        leaving = [
            self._fleet.workloads[each]
            for each in (known.members if known else ())
            if each not in wanted and each in self._fleet.workloads
        ]
        removed = tuple(each for each in leaving if each.desired is not DesiredState.DELETED)
        before.extend(_before(each.workload_id, each) for each in removed)
        return _Change(tuple(records), removed, tuple(before))

    def _place(self, group_id: GroupId, change: _Change, cause: str) -> tuple[list[WorkloadRecord], list[Event]]:
        """Place the members that should run; a stopped one keeps its node. Raises ExhaustedError without room."""
        running = [each for each in change.records if each.desired is DesiredState.RUNNING]
        plan = self.plan(running)
        lacking = first_unplaced(plan.decisions)
        if lacking is not None:
            raise ExhaustedError(
                f"group {group_id!r}: member {lacking.workload_id!r} cannot be placed, so nothing was: "
                f"{describe_rejections(lacking.rejections)}",
                hint="free some room or ask for less; shoal apply --dry-run shows where it would fit",
                group_id=group_id,
                workload_id=lacking.workload_id,
            )
        at = self._clock.wall()
        decisions: dict[WorkloadId, PlacementDecision] = {each.workload_id: each for each in plan.decisions}
        placed, events = [], []
        for record in change.records:
            decision = decisions.get(record.workload_id)
            if decision is None or decision.node_id is None:
                placed.append(record)
                continue
            after = placed_on(record, decision.node_id, at=at)
            placed.append(after)
            event = placement_event(record, after, at=at, cause=f"group {group_id} changed: {cause}")
            if event is not None:
                events.append(event)
        return placed, events

    def plan(self, records: list[WorkloadRecord]) -> PlacementPlan:
        """Where these would go together, all or none."""
        requests = [request_for(self._fleet, record) for record in records]
        return place_together(requests, self._fleet.facts(), strategy=self._placer.strategy)

    def _next_record(
        self,
        group_id: GroupId,
        known: GroupRecord | None,
        requests: tuple[WorkloadRequest, ...],
        change: _Change,
        member_changes: MemberChanges,
    ) -> GroupRecord:
        at = self._clock.wall()
        new = GroupRecord(group_id=group_id, generation=0, members=(), created_at=at, updated_at=at)
        return change_group(
            known or new,
            GroupChange.UPDATED,
            members=tuple(requested.workload_id for requested in requests),
            updated_at=at,
            desired=DesiredState.RUNNING,
            before=change.before,
            before_members=known.members if known else (),
            member_changes=member_changes,
            message="",
        )

    # -----------------------------------------------------------------------------------------------------
    # What becomes of a change: called by the dispatch

    def is_complete_with(self, record: WorkloadRecord) -> bool:
        """Whether a change is under way in its group, and every member has arrived. Asked whenever a member rests."""
        group = self._fleet.groups.get(record.group_id) if record.group_id is not None else None
        if group is None or not group.before:
            return False
        waits = record.desired is DesiredState.RUNNING and not self._facts.has_accepted(record)
        return not waits and not self._is_missing_one(group)

    async def member_accepted(self, record: WorkloadRecord) -> None:
        """Note that an agent has taken a member; when all have, the change can no longer be undone."""
        group_id = record.group_id

        def decide() -> Batch | None:
            group = self._fleet.groups.get(group_id) if group_id is not None else None
            if group is None or not group.before or self._is_missing_one(group):
                return None
            settled = change_group(group, GroupChange.ACCEPTED, before=(), before_members=(), message="")
            origin = Origin(
                self._clock.wall(), EventSource.RECONCILER, f"member {record.workload_id} was the last to be accepted"
            )
            event = group_event(settled, EventKind.GROUP_ACCEPTED, "every agent has its part", origin)
            return Batch(groups=(settled,), events=(event,))

        await self._ledger.change(decide)

    def _is_missing_one(self, group: GroupRecord) -> bool:
        """Whether a member has not arrived. The one that was missing last is asked first: this is asked for each."""
        first, count = self._missing.pop(group.group_id, 0), len(group.before)
        for index in itertools.chain(range(first, count), range(min(first, count))):
            if not self._has_arrived(group.before[index]):
                self._missing[group.group_id] = index
                return True
        return False

    def _has_arrived(self, before: GroupMemberBefore) -> bool:
        record = self._fleet.workloads.get(before.workload_id)
        if record is None or record.desired is DesiredState.DELETED:
            return True
        return record.desired is DesiredState.STOPPED or self._facts.has_accepted(record)

    async def member_unplaceable(self, record: WorkloadRecord, rejections: tuple[Rejection, ...]) -> bool:
        """Undo the change under way, because one of its members fits nowhere."""
        group_id = record.group_id

        def decide() -> Batch | None:
            group = self._fleet.groups.get(group_id) if group_id is not None else None
            changed = {each.workload_id for each in group.before} if group else set()
            if group is None or record.workload_id not in changed or group.desired is DesiredState.DELETED:
                return None
            why = f"undone: member {record.workload_id} was refused, {describe_rejections(rejections)}"
            restored = [each for before in group.before if (each := self._restored(before)) is not None]
            undone = change_group(
                group,
                GroupChange.REVERTED,
                # One that was new goes with the last of its members.
                members=group.before_members or group.members,
                desired=DesiredState.RUNNING if group.before_members else DesiredState.DELETED,
                before=(),
                before_members=(),
                message=why,
                updated_at=self._clock.wall(),
            )
            cause = f"member {record.workload_id} fits nowhere"
            origin = Origin(self._clock.wall(), EventSource.RECONCILER, cause)
            events = [workload_event(each, EventKind.WORKLOAD_CHANGE_REVERTED, why, origin) for each in restored]
            told = group_event(undone, EventKind.GROUP_CHANGE_REVERTED, why, origin)
            return Batch(workloads=tuple(restored), groups=(undone,), events=(told, *events))

        async with self._placer.exclusive():
            batch = await self._ledger.change(decide)
        return batch is not None

    def _restored(self, before: GroupMemberBefore) -> WorkloadRecord | None:
        """A member as it was. One that did not exist before is to be deleted again."""
        record = self._fleet.workloads.get(before.workload_id)
        if record is None:
            return None
        at = self._clock.wall()
        if before.spec_bytes is None:
            if record.desired is DesiredState.DELETED:
                return None
            return change_record(record, Change.DELETED, at=at, desired=DesiredState.DELETED, move=None)
        return change_record(
            record,
            Change.REVERTED,
            at=at,
            spec=self._decode_spec(before.spec_bytes),
            spec_bytes=before.spec_bytes,
            spec_sha256=before.spec_sha256,
            revision_id=before.revision_id,
            desired=before.desired,
        )


def _before(workload_id: WorkloadId, record: WorkloadRecord | None) -> GroupMemberBefore:
    if record is None:
        return GroupMemberBefore(workload_id, None, "", DesiredState.DELETED)
    return GroupMemberBefore(workload_id, record.spec_bytes, record.revision_id, record.desired, record.spec_sha256)


def _bounds(by: Identity | None, known: GroupRecord | None, given: MemberChanges | None, members: int) -> MemberChanges:
    """What members may change from now on: an operator sets it, a workload keeps it."""
    if by is not None and by.role is Role.WORKLOAD and known is not None:
        return known.member_changes.resolved(len(known.members))
    return (given or MemberChanges()).resolved(members)


def _check_requests(requests: tuple[WorkloadRequest, ...], member_changes: MemberChanges | None) -> None:
    problems = []
    if member_changes is not None:
        problems += find_problems(member_changes, at="member_changes")
        least, most = member_changes.min_members, member_changes.max_members
        if least > len(requests):
            rule = f"must not be above the number of members ({len(requests)})"
            problems.append(problem("member_changes.min_members", least, rule))
        if most and most < len(requests):
            rule = f"must not be below the number of members ({len(requests)})"
            problems.append(problem("member_changes.max_members", most, rule))
    if not requests:
        problems.append(problem("members", None, "must not be empty; delete the group instead"))
    if len(requests) > MAX_MEMBERS:
        problems.append(problem("members", len(requests), f"must have at most {MAX_MEMBERS:,} entries"))
    seen: set[WorkloadId] = set()
    for index, requested in enumerate(requests):
        if requested.workload_id in seen:
            problems.append(problem(f"members[{index}].workload_id", requested.workload_id, "is given twice"))
        seen.add(requested.workload_id)
    if problems:
        raise InvalidError(problems)


def _check_generation(group_id: GroupId, known: GroupRecord | None, expected: int | None) -> None:
    stored = known.generation if known is not None else 0
    if expected is not None and expected != stored:
        raise ConflictError(
            f"group {group_id!r}: expected generation {expected}, stored is {stored}",
            group_id=group_id,
            stored=stored,
        )

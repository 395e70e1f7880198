"""The lifecycle of a workload: every change is in the table, every generation is higher, every state has a name."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.control.nodes import leases
from shoal.control.placement.placer import placed_on
from shoal.control.state import moves
from shoal.control.state.lifecycle.changes import (
    GROUP_TRANSITIONS,
    TRANSITIONS,
    Change,
    GroupChange,
    GroupRecordState,
    RecordState,
    change,
    change_group,
    first_generation,
    overtake,
    retry,
    state_of,
    state_of_group,
)
from shoal.control.state.lifecycle.nodes import NODE_TRANSITIONS, NodeChange, change_node, register_node
from shoal.control.state.lifecycle.phases import (
    CONTRACT_STATUSES,
    Waiting,
    contract_status,
    group_phase,
    phase_of,
)
from shoal.core.errors import InternalError
from shoal.core.ids import NodeId, SessionId, WorkloadId
from shoal.model.events import EventSource
from shoal.model.nodes import DesiredNodeState, NodeState
from shoal.model.phases import GroupPhase, WorkloadPhase
from shoal.model.workloads import (
    DesiredState,
    Exit,
    FailureReason,
    GroupMemberBefore,
    GroupRecord,
    Observation,
    RetryState,
    RunState,
    RunStatus,
)
from shoal.testing.suites import store_records

AT = datetime(2030, 1, 1, tzinfo=UTC)
NODES = (NodeId("n1"), NodeId("n2"), NodeId("n3"))
RUNNING, STOPPED, DELETED = DesiredState.RUNNING, DesiredState.STOPPED, DesiredState.DELETED


def new_record():
    return replace(store_records.workload("w"), generation=first_generation(0), node_id=None, placed_generation=0)


class OneRecord(RuleBasedStateMachine):
    """A record to which everything happens that can happen, as the control plane does it."""

    def __init__(self):
        super().__init__()
        self.record = new_record()
        #: Which node each generation was placed on.
        self.owners = {}

    def become(self, record):
        assert record.generation >= self.record.generation
        content = ("spec_sha256", "revision_id", "desired", "attempt")
        same = all(getattr(record, name) == getattr(self.record, name) for name in content)
        assert same or record.generation > self.record.generation
        self.record = record
        if record.node_id is not None and record.placed_generation == record.generation:
            assert self.owners.setdefault(record.generation, record.node_id) == record.node_id

    @property
    def state(self):
        return state_of(self.record)

    @precondition(lambda self: self.record.desired is not DELETED)
    @rule(desired=st.sampled_from([RUNNING, STOPPED]), revision=st.text("ab", min_size=1, max_size=2))
    def update(self, desired, revision):
        move = self.record.move if desired is RUNNING else None
        self.become(change(self.record, Change.UPDATED, at=AT, desired=desired, revision_id=revision, move=move))

    @precondition(lambda self: self.record.desired is DELETED)
    @rule(desired=st.sampled_from([RUNNING, STOPPED]))
    def create_again(self, desired):
        attempt = self.record.attempt + 1
        self.become(change(self.record, Change.RECREATED, at=AT, desired=desired, attempt=attempt, move=None))

    @rule()
    def start_or_stop(self):
        if self.record.desired is STOPPED:
            self.become(change(self.record, Change.STARTED, at=AT, desired=RUNNING, move=None))
        elif self.record.desired is RUNNING:
            self.become(change(self.record, Change.STOPPED, at=AT, desired=STOPPED, move=None))

    @rule()
    def delete(self):
        self.become(change(self.record, Change.DELETED, at=AT, desired=DELETED, move=None))

    @rule(desired=st.sampled_from([RUNNING, STOPPED]))
    def revert(self, desired):
        self.become(change(self.record, Change.REVERTED, at=AT, desired=desired, revision_id="before"))

    @precondition(lambda self: self.record.desired is RUNNING)
    @rule()
    def try_again(self):
        self.become(retry(self.record, at=AT, budget=RetryState()))

    @precondition(lambda self: self.record.desired is RUNNING)
    @rule(node=st.sampled_from(NODES), hold=st.booleans())
    def place(self, node, hold):
        placed = placed_on(self.record, node, at=AT)
        if hold and self.record.node_id not in (None, node):
            placed = moves.begun_first(self.record, placed, at=AT)
        self.become(placed)
        assert self.state is RecordState.PLACED

    @precondition(lambda self: self.state is RecordState.PLACED)
    @rule()
    def refuse_its_place(self):
        left_on = tuple({*self.record.left_on, self.record.node_id})
        self.become(
            change(self.record, Change.PLACE_REFUSED, at=AT, node_id=None, placed_generation=0, left_on=left_on)
        )

    @precondition(lambda self: self.state in (RecordState.PLACED, RecordState.UNPLACED) and self.record.node_id)
    @rule()
    def leave(self):
        self.become(moves.begun_after(self.record, at=AT))
        assert moves.is_leaving(self.record)

    @precondition(lambda self: self.state is RecordState.LEAVING)
    @rule()
    def be_gone_there(self):
        self.become(moves.left(self.record, at=AT))
        assert self.record.node_id is None

    @precondition(lambda self: moves.can_return(self.record))
    @rule()
    def return_to_the_old_node(self):
        old = self.record.move.away_from
        self.become(moves.returned(self.record, at=AT))
        assert (self.record.node_id, self.state) == (old, RecordState.PLACED)

    @rule(ahead=st.integers(0, 5))
    def overtake(self, ahead):
        before = self.state
        highest = self.record.generation + ahead
        self.become(overtake(self.record, highest, at=AT))
        assert (self.record.generation, self.state) == (highest + 1, before)

    @invariant()
    def what_is_placed_is_never_ahead(self):
        assert self.record.placed_generation <= self.record.generation


OneRecord.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestOneRecord = OneRecord.TestCase


def test_the_table_names_every_change():
    assert TRANSITIONS.keys() == set(Change)
    assert GROUP_TRANSITIONS.keys() == set(GroupChange)


@pytest.mark.parametrize(
    ("desired", "what"),
    [(DELETED, Change.STARTED), (STOPPED, Change.RETRIED), (DELETED, Change.UPDATED), (RUNNING, Change.NODE_LEFT)],
)
def test_a_change_that_the_table_does_not_have_raises_with_both_records(desired, what):
    record = replace(new_record(), desired=desired)
    with pytest.raises(InternalError, match="workload 'w' cannot be") as caught:
        change(record, what, at=AT)
    assert {"workload_id", "change", "before", "after"} <= caught.value.facts.keys()


def group(*, desired=RUNNING, changing=False):
    before = (GroupMemberBefore(WorkloadId("w"), None, "", DELETED),) if changing else ()
    return GroupRecord("g", 3, (WorkloadId("w"),), AT, AT, desired=desired, before=before)


@pytest.mark.parametrize("what", GroupChange)
@pytest.mark.parametrize(
    "record", [group(), group(changing=True), group(desired=DELETED)], ids=[state.value for state in GroupRecordState]
)
def test_a_group_changes_only_as_its_table_says(what, record):
    fields = {
        GroupChange.UPDATED: {"before": group(changing=True).before, "desired": RUNNING},
        GroupChange.ACCEPTED: {"before": ()},
        GroupChange.REVERTED: {"before": ()},
        GroupChange.DELETED: {"before": (), "desired": DELETED},
    }[what]
    before = state_of_group(record)
    if before in GROUP_TRANSITIONS[what]:
        changed = change_group(record, what, **fields)
        assert changed.generation == record.generation + (what is not GroupChange.ACCEPTED)
    else:
        with pytest.raises(InternalError, match="group 'g' cannot be"):
            change_group(record, what, **fields)


# ---------------------------------------------------------------------------------------------------------
# What people see


def report(state=RunState.RUNNING, *, node="n1", generation=3, **fields):
    return Observation(NodeId(node), RunStatus(WorkloadId("w"), state, generation=generation, **fields), AT)


def placed(**fields):
    return replace(new_record(), generation=3, placed_generation=3, node_id=NodeId("n1"), **fields)


OWNER = store_records.node("n1")
LOST = replace(OWNER, state=NodeState.NOT_READY)
HOMELESS = replace(new_record(), generation=3)
CRASHED = {"exit": Exit(1), "failure": FailureReason.RUNTIME_ERROR, "next_restart_at": AT}
WITHOUT_CERTIFICATE = {"failure": FailureReason.RUNTIME_ERROR, "next_restart_at": AT}
NO_ROOM, NO_SECRET, INVALID = Waiting(unplaceable={"w"}), Waiting(without_secret={"w"}), Waiting(invalid={"w"})

P = WorkloadPhase
PHASES = [
    (HOMELESS, None, None, Waiting(), P.PENDING),
    (HOMELESS, None, None, NO_ROOM, P.UNPLACEABLE),
    (placed(), None, OWNER, Waiting(), P.STARTING),
    (placed(), None, OWNER, NO_SECRET, P.WAITING_FOR_SECRET),
    (placed(), report(RunState.PENDING), OWNER, Waiting(), P.STARTING),
    (placed(), report(RunState.PENDING, pid=7), OWNER, Waiting(), P.NOT_READY),
    (placed(), report(RunState.PENDING, **WITHOUT_CERTIFICATE), OWNER, Waiting(), P.STARTING),
    (placed(), report(RunState.PENDING, **CRASHED), OWNER, Waiting(), P.CRASH_LOOP),
    (placed(), report(generation=2), OWNER, Waiting(), P.UPDATING),
    (replace(placed(), generation=4), report(), OWNER, NO_ROOM, P.UNPLACEABLE),
    (placed(), report(), OWNER, Waiting(), P.RUNNING),
    (placed(), report(), OWNER, NO_ROOM, P.RUNNING),
    (placed(), report(), LOST, Waiting(), P.UNKNOWN),
    (placed(), report(RunState.UNKNOWN), OWNER, Waiting(), P.UNKNOWN),
    (placed(), report(RunState.FAILED), OWNER, Waiting(), P.FAILED),
    (placed(), report(generation=0), OWNER, INVALID, P.FAILED),
    (placed(desired=STOPPED), report(generation=0), OWNER, INVALID, P.STOPPING),
    (placed(), report(RunState.STOPPED, completed=True), OWNER, Waiting(), P.COMPLETED),
    (placed(desired=STOPPED), report(), OWNER, Waiting(), P.STOPPING),
    (placed(desired=STOPPED), report(RunState.STOPPED), OWNER, Waiting(), P.STOPPED),
    (placed(desired=DELETED), report(), OWNER, Waiting(), P.DELETING),
]


@pytest.mark.parametrize(("record", "observation", "owner", "waiting", "phase"), PHASES)
def test_causes_are_told_apart(record, observation, owner, waiting, phase):
    assert phase_of(record, observation, owner, waiting) is phase


def test_every_state_can_be_reached():
    assert {phase for *_, phase in PHASES} == set(P)


@given(
    desired=st.sampled_from(DesiredState),
    node=st.sampled_from([None, "n1"]),
    generations=st.tuples(st.integers(1, 3), st.integers(0, 3)),
    observation=st.none()
    | st.builds(
        report,
        st.sampled_from(RunState),
        node=st.sampled_from(["n1", "n2"]),
        generation=st.integers(0, 3),
        pid=st.integers(0, 1),
        completed=st.booleans(),
        exit=st.none() | st.just(Exit(1)),
        next_restart_at=st.none() | st.just(AT),
        failure=st.sampled_from(FailureReason),
    ),
    owner=st.sampled_from([None, OWNER, LOST]),
    waiting=st.sampled_from([Waiting(), NO_ROOM, NO_SECRET, INVALID]),
)
def test_the_finer_state_never_contradicts_the_contract(*, desired, node, generations, observation, owner, waiting):
    generation, placed_generation = generations
    record = replace(
        new_record(),
        desired=desired,
        node_id=node,
        generation=generation,
        placed_generation=min(generation, placed_generation),
    )
    phase = phase_of(record, observation, owner, waiting)
    assert contract_status(record, observation, owner, waiting) in CONTRACT_STATUSES[phase]


@pytest.mark.parametrize(
    ("members", "phase"),
    [
        ([P.RUNNING, P.COMPLETED], GroupPhase.RUNNING),
        ([P.COMPLETED, P.COMPLETED], GroupPhase.COMPLETED),
        ([P.RUNNING, P.NOT_READY], GroupPhase.PENDING),
        ([P.RUNNING, P.UNKNOWN], GroupPhase.DEGRADED),
        ([P.UNKNOWN, P.FAILED], GroupPhase.FAILED),
        ([P.STOPPED], GroupPhase.STOPPED),
        ([], GroupPhase.RUNNING),
    ],
)
def test_the_worst_member_decides_about_a_group(members, phase):
    assert group_phase(group(), members) is phase
    assert group_phase(group(desired=DELETED), members) is GroupPhase.DELETING


# ---------------------------------------------------------------------------------------------------------
# Nodes


@pytest.mark.parametrize("what", NodeChange)
@pytest.mark.parametrize("before", NodeState)
@pytest.mark.parametrize("after", NodeState)
def test_a_node_changes_only_as_its_table_says(what, before, after):
    node = replace(OWNER, state=before, declared_lost=True)
    if after in NODE_TRANSITIONS[what].get(before, ()):
        changed = change_node(node, what, after, "why", by=EventSource.LEASE, at=AT)
        assert (changed.state, changed.declared_lost) == (after, after is NodeState.NOT_READY)
    else:
        with pytest.raises(InternalError, match="node 'n1' cannot be"):
            change_node(node, what, after, "why", by=EventSource.LEASE, at=AT)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (before, after)
        for before, following in leases._NEXT.items()
        for after in dict.fromkeys(following.values())
        if after is not before
    ],
)
def test_the_table_of_nodes_allows_every_verdict_on_a_lease(before, after):
    changes = {NodeState.SUSPECT: NodeChange.LATE, NodeState.NOT_READY: NodeChange.EXPIRED}
    assert after in NODE_TRANSITIONS[changes.get(after, NodeChange.HEARD)][before]


@pytest.mark.parametrize("desired", list(DesiredNodeState))
@pytest.mark.parametrize("state", list(NodeState))
def test_a_node_that_registers_again_is_in_contact_and_keeps_what_its_operator_decided(state, desired):
    known = replace(
        store_records.node("n1"),
        state=state,
        desired=desired,
        operator_labels={"zone": "a"},
        declared_lost=state is NodeState.NOT_READY,
        dead=state is NodeState.NOT_READY,
        unsupported_types=("vm",),
        version=7,
    )
    spec = replace(known.spec, agent_version="next")
    made = register_node(known, spec, session=SessionId("s2"), lease_seconds=9.0, at=AT)
    assert made.state is (desired.state or NodeState.READY)
    assert (made.spec, made.session, made.lease_seconds, made.last_heartbeat) == (spec, "s2", 9.0, AT)
    assert (made.desired, made.operator_labels, made.registered_at) == (desired, {"zone": "a"}, known.registered_at)
    assert (made.declared_lost, made.dead, made.unsupported_types, made.version) == (False, False, (), 7)


def test_a_node_that_registers_first_is_ready():
    spec = store_records.node("n1").spec
    made = register_node(None, spec, session=SessionId("s1"), lease_seconds=9.0, at=AT)
    assert (made.state, made.desired, made.registered_at, made.version) == (
        NodeState.READY,
        DesiredNodeState.NONE,
        AT,
        0,
    )

"""The reconciler is a function: each row of its table, and what must never happen."""

import dataclasses
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.control.reconciler import (
    ABSENT_BEATS,
    ConfirmWithForeignAgent,
    Facts,
    Forget,
    LeaveNode,
    Order,
    OrderKind,
    Owner,
    Place,
    SendApply,
    SendDelete,
    Settled,
    Wait,
    reconcile,
)
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.nodes import NodeRecord, NodeSpec, NodeState
from shoal.model.resources import Resources
from shoal.model.workloads import (
    DesiredState,
    Observation,
    ProcessSpec,
    RunState,
    RunStatus,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadType,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
NODE = NodeId("n1")
SPEC = WorkloadSpec(type=WorkloadType.PROCESS, process=ProcessSpec(command=("true",)))


def record(**changes):
    values = {
        "workload_id": WorkloadId("w"),
        "spec": SPEC,
        "spec_bytes": b"spec",
        "spec_sha256": b"hash",
        "revision_id": "r1",
        "desired": DesiredState.RUNNING,
        "generation": 3,
        "created_at": AT,
        "updated_at": AT,
        "node_id": NODE,
        "placed_generation": 3,
        **changes,
    }
    return WorkloadRecord(**values)


def owner(state=NodeState.READY, *, foreign=False, surely_stopped=False):
    features = frozenset() if foreign else frozenset({"generations", "sessions", "push"})
    spec = NodeSpec(node_id=NODE, endpoint="h:1", capacity=Resources(1000, 1000), features=features)
    node = NodeRecord(spec, "", state, "", "", AT, AT, AT, 30.0)
    return Owner(node, surely_stopped=surely_stopped)


def seen(state=RunState.RUNNING, generation=3, node=NODE, **changes):
    return Observation(node, RunStatus(WorkloadId("w"), state, generation=generation, **changes), AT)


def told(kind=OrderKind.APPLY, generation=3, **changes):
    return Order(kind, NODE, generation, **changes)


def facts(**changes):
    values = {"record": record(), "owner": owner(), "observation": None, "order": None, "now": 100.0, **changes}
    return Facts(**values)


AT_MOST_ONE = dataclasses.replace(SPEC, at_most_one=True)
DELETED = DesiredState.DELETED
STOPPED = DesiredState.STOPPED

ROWS = [
    # wish: running
    ("no node", facts(record=record(node_id=None, placed_generation=0), owner=None), Place),
    ("its node was removed", facts(owner=None), Place),
    ("an update waits for its place", facts(record=record(placed_generation=2)), Place),
    ("no room lately", facts(record=record(node_id=None), owner=None, place_not_before=105.0), Wait),
    ("placed and not told", facts(), SendApply),
    ("told, no answer, not due", facts(order=told(failures=1, not_before=101.0)), Wait),
    ("told, no answer, due", facts(order=told(failures=1, not_before=99.0)), SendApply),
    ("told of an older generation", facts(order=told(generation=2, accepted=True)), SendApply),
    ("told and accepted", facts(order=told(accepted=True)), Settled),
    ("reported running", facts(observation=seen()), Settled),
    ("reported running by somebody else", facts(observation=seen(node=NodeId("n2"))), SendApply),
    ("an older generation is reported", facts(observation=seen(generation=2)), SendApply),
    ("a newer generation than ours is reported", facts(observation=seen(generation=4)), SendApply),
    ("completed", facts(observation=seen(RunState.STOPPED, completed=True)), Settled),
    ("failed for good", facts(observation=seen(RunState.FAILED)), Settled),
    ("completed, node lost", facts(owner=owner(NodeState.NOT_READY), observation=seen(completed=True)), Settled),
    (
        "an older generation completed",
        facts(observation=seen(RunState.STOPPED, generation=2, completed=True)),
        SendApply,
    ),
    ("gone from its agent", facts(observation=seen(), order=told(accepted=True, absent_beats=ABSENT_BEATS)), SendApply),
    ("absent once", facts(observation=seen(), order=told(accepted=True, absent_beats=1)), Settled),
    ("stopped behind our back", facts(observation=seen(RunState.STOPPED), order=told(accepted=True)), SendApply),
    ("suspect node", facts(owner=owner(NodeState.SUSPECT), observation=seen()), Settled),
    ("lost node", facts(owner=owner(NodeState.NOT_READY), observation=seen()), Place),
    (
        "lost node, at most one, not surely stopped",
        facts(record=record(spec=AT_MOST_ONE), owner=owner(NodeState.NOT_READY), observation=seen()),
        Settled,
    ),
    (
        "lost node, at most one, surely stopped",
        facts(record=record(spec=AT_MOST_ONE), owner=owner(NodeState.NOT_READY, surely_stopped=True)),
        Place,
    ),
    ("foreign, accepted", facts(owner=owner(foreign=True), order=told(accepted=True)), ConfirmWithForeignAgent),
    (
        "foreign, reported running",
        facts(owner=owner(foreign=True), order=told(accepted=True), observation=seen(generation=0)),
        Settled,
    ),
    ("foreign after a restart of ours", facts(owner=owner(foreign=True), observation=seen(generation=0)), SendApply),
    # wish: stopped
    ("to stop, runs nowhere", facts(record=record(desired=STOPPED, node_id=None), owner=None), Settled),
    ("to stop, still runs", facts(record=record(desired=STOPPED), observation=seen(generation=2)), SendApply),
    ("to stop, stopped", facts(record=record(desired=STOPPED), observation=seen(RunState.STOPPED)), Settled),
    ("to stop, lost", facts(record=record(desired=STOPPED), owner=owner(NodeState.NOT_READY)), Settled),
    # wish: deleted
    ("to go, never placed", facts(record=record(desired=DELETED, node_id=None), owner=None), Forget),
    (
        "to go, an older copy on a lost node",
        facts(record=record(desired=DELETED, node_id=None, left_on=(NodeId("n9"),)), owner=None),
        Settled,
    ),
    ("to go, node removed", facts(record=record(desired=DELETED), owner=None), LeaveNode),
    ("to go, not asked", facts(record=record(desired=DELETED)), SendDelete),
    ("to go, asked before in vain", facts(record=record(desired=DELETED), order=told(OrderKind.DELETE)), SendDelete),
    ("to go, on its way", facts(record=record(desired=DELETED), order=told(OrderKind.DELETE, accepted=True)), Settled),
    (
        "to go, confirmed",
        facts(record=record(desired=DELETED), order=told(OrderKind.DELETE, accepted=True, gone=True)),
        LeaveNode,
    ),
    (
        "to go, foreign, not confirmed",
        facts(
            record=record(desired=DELETED),
            owner=owner(foreign=True),
            order=told(OrderKind.DELETE, accepted=True),
        ),
        ConfirmWithForeignAgent,
    ),
    ("to go, lost", facts(record=record(desired=DELETED), owner=owner(NodeState.NOT_READY)), Settled),
]


@pytest.mark.parametrize(("given_facts", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_each_row_of_the_table(given_facts, expected):
    assert type(reconcile(given_facts)) is expected


def test_a_lost_node_is_left_for_another_one():
    step = reconcile(facts(owner=owner(NodeState.NOT_READY), observation=seen()))
    assert isinstance(step, Place)
    assert step.away_from_owner


def any_facts():
    records = st.builds(
        record,
        desired=st.sampled_from(DesiredState),
        generation=st.integers(1, 4),
        placed_generation=st.integers(0, 4),
        node_id=st.sampled_from([None, NODE]),
        spec=st.sampled_from([SPEC, AT_MOST_ONE]),
        left_on=st.sampled_from([(), (NodeId("n9"),)]),
    )
    owners = st.none() | st.builds(
        owner, st.sampled_from(NodeState), foreign=st.booleans(), surely_stopped=st.booleans()
    )
    observations = st.none() | st.builds(
        seen,
        st.sampled_from(RunState),
        st.integers(0, 4),
        st.sampled_from([NODE, NodeId("n2")]),
        completed=st.booleans(),
        deleting=st.booleans(),
    )
    orders = st.none() | st.builds(
        told,
        st.sampled_from(OrderKind),
        st.integers(1, 4),
        accepted=st.booleans(),
        gone=st.booleans(),
        failures=st.integers(0, 3),
        not_before=st.floats(90, 110),
        absent_beats=st.integers(0, 3),
    )
    return st.builds(
        facts, record=records, owner=owners, observation=observations, order=orders, place_not_before=st.floats(90, 110)
    )


@given(any_facts())
def test_nothing_is_removed_without_a_wish(given_facts):
    if given_facts.record.desired is not DELETED:
        assert not isinstance(reconcile(given_facts), SendDelete | LeaveNode | Forget)


@given(any_facts())
def test_an_owner_is_left_only_when_it_confirmed_or_was_removed(given_facts):
    step = reconcile(given_facts)
    if isinstance(step, LeaveNode) and given_facts.owner is not None:
        assert given_facts.order is not None
        assert given_facts.order.gone
        assert given_facts.order.generation == given_facts.record.generation


@given(any_facts())
def test_nothing_is_forgotten_while_a_node_may_have_it(given_facts):
    if isinstance(reconcile(given_facts), Forget):
        assert given_facts.record.node_id is None
        assert not given_facts.record.left_on


@given(any_facts())
def test_orders_go_only_to_an_owner_that_is_not_lost(given_facts):
    if isinstance(reconcile(given_facts), SendApply | SendDelete | ConfirmWithForeignAgent):
        assert given_facts.record.node_id is not None
        assert given_facts.owner is not None
        assert not given_facts.owner.lost


@given(any_facts())
def test_only_a_placed_generation_is_told_to_run(given_facts):
    step = reconcile(given_facts)
    if isinstance(step, SendApply) and given_facts.record.desired is DesiredState.RUNNING:
        assert given_facts.record.placed_generation >= given_facts.record.generation


@given(any_facts())
def test_at_most_one_work_never_leaves_an_owner_that_may_still_run_it(given_facts):
    step = reconcile(given_facts)
    held = given_facts.owner is not None and given_facts.record.node_id is not None
    if isinstance(step, Place) and given_facts.record.spec.at_most_one and held and step.away_from_owner:
        assert given_facts.owner.surely_stopped


@given(any_facts())
def test_a_wait_is_never_empty(given_facts):
    step = reconcile(given_facts)
    if isinstance(step, Wait):
        assert step.seconds > 0

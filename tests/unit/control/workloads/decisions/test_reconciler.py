"""The reconciler is a function: each row of its table, and what must never happen."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.control.state.facts import Removal
from shoal.control.state.moves import is_leaving
from shoal.control.workloads.decisions.reconciler import (
    ABSENT_HEARTBEATS,
    Command,
    CommandKind,
    ConfirmWithForeignAgent,
    Facts,
    FinishMove,
    Forget,
    LeaveNode,
    NoteFailure,
    Owner,
    Place,
    RefillBudget,
    Retry,
    SendApply,
    SendDelete,
    Settled,
    TakeMoveBack,
    Wait,
    after_removal,
    is_lost,
    reconcile,
)
from shoal.core.ids import NodeId, WorkloadId
from shoal.model.nodes import NodeRecord, NodeSpec, NodeState
from shoal.model.resources import Resources
from shoal.model.workloads import (
    DesiredState,
    Failover,
    FailureReason,
    Move,
    MoveKind,
    Observation,
    ProcessSpec,
    RestartPolicy,
    RetryState,
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


def owner(state=NodeState.READY, *, foreign=False, surely_stopped=False, declared_lost=True, dead=False, silence=100.0):
    features = frozenset() if foreign else frozenset({"generations", "sessions", "push"})
    spec = NodeSpec(node_id=NODE, endpoint="h:1", capacity=Resources(1000, 1000), features=features)
    node = NodeRecord(spec, "", state, "", "", AT, AT, AT, 30.0, declared_lost=declared_lost, dead=dead)
    return Owner(node, surely_stopped=surely_stopped, silence=silence, lease=30.0)


def seen(state=RunState.RUNNING, generation=3, node=NODE, **changes):
    return Observation(node, RunStatus(WorkloadId("w"), state, generation=generation, **changes), AT)


def told(kind=CommandKind.APPLY, generation=3, **changes):
    return Command(kind, NODE, generation, **changes)


def facts(**changes):
    values = {"record": record(), "owner": owner(), "observation": None, "command": None, "now": 100.0, "wall": AT}
    return Facts(**{**values, **changes})


AT_MOST_ONE = dataclasses.replace(SPEC, at_most_one=True)
ONE_SHOT = dataclasses.replace(SPEC, process=dataclasses.replace(SPEC.process, restart=RestartPolicy("no")))
KEPT = dataclasses.replace(SPEC, failover=Failover("keep"))
LATER = dataclasses.replace(SPEC, failover=Failover("replace", timedelta(seconds=60)))
SELF_STOPPED = dataclasses.replace(SPEC, failover=Failover("stop", timedelta(seconds=60)))
LOST = NodeState.NOT_READY
OTHER = NodeId("n9")
FIRST = Move(MoveKind.BEFORE, OTHER, 3, AT)
AFTER = Move(MoveKind.AFTER, NODE, 3, AT)
SOON = AT + timedelta(seconds=5)


def failed(reason=FailureReason.RUNTIME_ERROR, **changes):
    return seen(RunState.FAILED, failure=reason, **changes)


def moving(move=FIRST, **changes):
    return record(move=move, left_on=(OTHER,), **changes)


DELETED = DesiredState.DELETED
STOPPED = DesiredState.STOPPED

ROWS = [
    # desired: running
    ("no node", facts(record=record(node_id=None, placed_generation=0), owner=None), Place),
    ("its node was removed", facts(owner=None), Place),
    ("an update waits for its place", facts(record=record(placed_generation=2)), Place),
    ("no room lately", facts(record=record(node_id=None), owner=None, place_not_before=105.0), Wait),
    ("placed and not told", facts(), SendApply),
    ("told, no answer, not due", facts(command=told(failures=1, not_before=101.0)), Wait),
    ("told, no answer, due", facts(command=told(failures=1, not_before=99.0)), SendApply),
    ("told of an older generation", facts(command=told(generation=2, accepted=True)), SendApply),
    ("told and accepted", facts(command=told(accepted=True)), Settled),
    ("reported running", facts(observation=seen()), Settled),
    ("reported running by somebody else", facts(observation=seen(node=NodeId("n2"))), SendApply),
    ("an older generation is reported", facts(observation=seen(generation=2)), SendApply),
    ("a newer generation than ours is reported", facts(observation=seen(generation=4)), SendApply),
    ("completed", facts(observation=seen(RunState.STOPPED, completed=True)), Settled),
    ("failed, and not run again", facts(record=record(spec=ONE_SHOT), observation=failed()), Settled),
    ("its foreign agent calls an update invalid", facts(invalid=True, observation=seen(generation=0)), Settled),
    ("failed for what cannot be helped", facts(observation=failed(FailureReason.INVALID_SPEC)), Settled),
    ("failed, not counted", facts(observation=failed()), NoteFailure),
    (
        "failed, counted, not due",
        facts(record=record(retry=RetryState(1, next_at=SOON, failures=1, failed_generation=3)), observation=failed()),
        Wait,
    ),
    (
        "failed, counted, due",
        facts(record=record(retry=RetryState(1, next_at=AT, failures=1, failed_generation=3)), observation=failed()),
        Retry,
    ),
    (
        "failed for good",
        facts(record=record(retry=RetryState(5, failures=6, failed_generation=3)), observation=failed()),
        Settled,
    ),
    (
        "failed again, after a retry",
        facts(record=record(retry=RetryState(1, failures=1, failed_generation=2)), observation=failed()),
        NoteFailure,
    ),
    (
        "runs again, not for long",
        facts(record=record(retry=RetryState(1, failures=1, failed_generation=2)), observation=seen()),
        Wait,
    ),
    (
        "runs again, for long",
        facts(
            record=record(retry=RetryState(1, failures=1, failed_generation=2)),
            observation=seen(),
            wall=AT + timedelta(minutes=10),
        ),
        RefillBudget,
    ),
    ("completed, node lost", facts(owner=owner(NodeState.NOT_READY), observation=seen(completed=True)), Settled),
    (
        "an older generation completed",
        facts(observation=seen(RunState.STOPPED, generation=2, completed=True)),
        SendApply,
    ),
    (
        "gone from its agent",
        facts(observation=seen(), command=told(accepted=True, absent_heartbeats=ABSENT_HEARTBEATS)),
        SendApply,
    ),
    ("absent once", facts(observation=seen(), command=told(accepted=True, absent_heartbeats=1)), Settled),
    ("stopped behind our back", facts(observation=seen(RunState.STOPPED), command=told(accepted=True)), SendApply),
    ("suspect node", facts(owner=owner(NodeState.SUSPECT), observation=seen()), Settled),
    ("lost node", facts(owner=owner(NodeState.NOT_READY), observation=seen()), Place),
    ("lost node, not given up", facts(owner=owner(LOST, declared_lost=False), observation=seen()), Settled),
    ("dead node", facts(owner=owner(LOST, dead=True), observation=seen()), Place),
    ("lost node, kept", facts(record=record(spec=KEPT), owner=owner(LOST), observation=seen()), Settled),
    ("dead node, kept", facts(record=record(spec=KEPT), owner=owner(LOST, dead=True), observation=seen()), Place),
    ("dead node, at most one", facts(record=record(spec=AT_MOST_ONE), owner=owner(LOST, dead=True)), Place),
    ("lost node, in its grace", facts(record=record(spec=LATER), owner=owner(LOST, silence=89.0)), Wait),
    ("lost node, past its grace", facts(record=record(spec=LATER), owner=owner(LOST, silence=90.0)), Place),
    ("lost node, may not have stopped", facts(record=record(spec=SELF_STOPPED), owner=owner(LOST, silence=65.0)), Wait),
    ("lost node, must have stopped", facts(record=record(spec=SELF_STOPPED), owner=owner(LOST, silence=66.1)), Place),
    # on its way off a node that is drained, the replacement first
    ("moving, not told", facts(record=moving()), SendApply),
    ("moving, arrived", facts(record=moving(), observation=seen()), FinishMove),
    ("moving, not ready", facts(record=moving(), observation=seen(RunState.PENDING)), Settled),
    ("moving, failed", facts(record=moving(), observation=failed(), way_back=True), TakeMoveBack),
    ("moving, failed, no way back", facts(record=moving(), observation=failed()), NoteFailure),
    ("moving, the new node lost", facts(record=moving(), owner=owner(LOST), way_back=True), TakeMoveBack),
    ("moving, both lost", facts(record=moving(), owner=owner(LOST)), Place),
    (
        "moving, and updated meanwhile",
        facts(record=moving(generation=4, placed_generation=4), observation=failed(generation=4), way_back=True),
        NoteFailure,
    ),
    # the replacement after
    ("leaving, not asked", facts(record=record(move=AFTER), observation=seen()), SendDelete),
    ("leaving, asked", facts(record=record(move=AFTER), command=told(CommandKind.DELETE, accepted=True)), Settled),
    (
        "leaving, gone",
        facts(record=record(move=AFTER), command=told(CommandKind.DELETE, accepted=True, gone=True)),
        LeaveNode,
    ),
    (
        "leaving a foreign agent",
        facts(record=record(move=AFTER), owner=owner(foreign=True), command=told(CommandKind.DELETE, accepted=True)),
        ConfirmWithForeignAgent,
    ),
    ("leaving, and lost", facts(record=record(move=AFTER), owner=owner(LOST)), Place),
    ("left, and no place yet", facts(record=record(move=AFTER, node_id=None), owner=None), Place),
    (
        "lost node, at most one, not surely stopped",
        facts(record=record(spec=AT_MOST_ONE), owner=owner(NodeState.NOT_READY), observation=seen()),
        Settled,
    ),
    (
        "lost node, at most one, surely stopped",
        facts(
            record=record(spec=AT_MOST_ONE, placed_at_most_one=True),
            owner=owner(NodeState.NOT_READY, surely_stopped=True),
        ),
        Place,
    ),
    (
        "lost node, at most one now, but its copy was started without a deadline",
        facts(record=record(spec=AT_MOST_ONE), owner=owner(NodeState.NOT_READY, surely_stopped=True)),
        Settled,
    ),
    (
        "at most one, moved, the older copy may run",
        facts(record=record(spec=AT_MOST_ONE, left_on=(NodeId("n9"),)), older_copy_may_run=True),
        Settled,
    ),
    (
        "at most one, moved, the older copy is gone",
        facts(record=record(spec=AT_MOST_ONE)),
        SendApply,
    ),
    (
        "at most one, another agent held the node before",
        facts(record=record(spec=AT_MOST_ONE), owner=Owner(owner().record, predecessor_until=105.0)),
        Wait,
    ),
    ("foreign, accepted", facts(owner=owner(foreign=True), command=told(accepted=True)), ConfirmWithForeignAgent),
    (
        "foreign, reported running, its revision not known",
        facts(owner=owner(foreign=True), command=told(accepted=True), observation=seen(generation=0)),
        ConfirmWithForeignAgent,
    ),
    (
        "foreign, known to run",
        facts(owner=owner(foreign=True), command=told(accepted=True), observation=seen(generation=0, revision_id="r1")),
        Settled,
    ),
    ("foreign after a restart of ours", facts(owner=owner(foreign=True), observation=seen(generation=0)), SendApply),
    # desired: stopped
    ("to stop, runs nowhere", facts(record=record(desired=STOPPED, node_id=None), owner=None), Settled),
    ("to stop, still runs", facts(record=record(desired=STOPPED), observation=seen(generation=2)), SendApply),
    ("to stop, stopped", facts(record=record(desired=STOPPED), observation=seen(RunState.STOPPED)), Settled),
    ("to stop, lost", facts(record=record(desired=STOPPED), owner=owner(NodeState.NOT_READY)), Settled),
    # desired: deleted
    ("to go, never placed", facts(record=record(desired=DELETED, node_id=None), owner=None), Forget),
    (
        "to go, an older copy on a lost node",
        facts(record=record(desired=DELETED, node_id=None, left_on=(NodeId("n9"),)), owner=None),
        Settled,
    ),
    ("to go, node removed", facts(record=record(desired=DELETED), owner=None), LeaveNode),
    ("to go, not asked", facts(record=record(desired=DELETED)), SendDelete),
    (
        "to go, asked before in vain",
        facts(record=record(desired=DELETED), command=told(CommandKind.DELETE)),
        SendDelete,
    ),
    (
        "to go, on its way",
        facts(record=record(desired=DELETED), command=told(CommandKind.DELETE, accepted=True)),
        Settled,
    ),
    (
        "to go, confirmed",
        facts(record=record(desired=DELETED), command=told(CommandKind.DELETE, accepted=True, gone=True)),
        LeaveNode,
    ),
    (
        "to go, foreign, not confirmed",
        facts(
            record=record(desired=DELETED),
            owner=owner(foreign=True),
            command=told(CommandKind.DELETE, accepted=True),
        ),
        ConfirmWithForeignAgent,
    ),
    ("to go, lost", facts(record=record(desired=DELETED), owner=owner(NodeState.NOT_READY)), LeaveNode),
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
        spec=st.sampled_from([SPEC, AT_MOST_ONE, ONE_SHOT, KEPT, LATER, SELF_STOPPED]),
        left_on=st.sampled_from([(), (OTHER,)]),
        move=st.none()
        | st.builds(Move, st.sampled_from(MoveKind), st.sampled_from([NODE, OTHER]), st.integers(1, 4), st.just(AT)),
        retry=st.builds(
            RetryState,
            st.integers(0, 5),
            next_at=st.sampled_from([None, AT, SOON]),
            failures=st.integers(0, 6),
            failed_generation=st.integers(0, 4),
        ),
        placed_at_most_one=st.booleans(),
    )
    owners = st.none() | st.builds(
        owner,
        st.sampled_from(NodeState),
        foreign=st.booleans(),
        surely_stopped=st.booleans(),
        declared_lost=st.booleans(),
        dead=st.booleans(),
        silence=st.floats(0, 200),
    )
    observations = st.none() | st.builds(
        seen,
        st.sampled_from(RunState),
        st.integers(0, 4),
        st.sampled_from([NODE, NodeId("n2")]),
        completed=st.booleans(),
        deleting=st.booleans(),
        failure=st.sampled_from(FailureReason),
    )
    commands = st.none() | st.builds(
        told,
        st.sampled_from(CommandKind),
        st.integers(1, 4),
        accepted=st.booleans(),
        gone=st.booleans(),
        failures=st.integers(0, 3),
        not_before=st.floats(90, 110),
        absent_heartbeats=st.integers(0, 3),
    )
    return st.builds(
        facts,
        record=records,
        owner=owners,
        observation=observations,
        command=commands,
        older_copy_may_run=st.booleans(),
        place_not_before=st.floats(90, 110),
        way_back=st.booleans(),
        wall=st.sampled_from([AT, AT + timedelta(hours=1)]),
    )


@given(any_facts())
def test_nothing_is_removed_without_a_request(given_facts):
    if given_facts.record.desired is not DELETED and not is_leaving(given_facts.record):
        assert not isinstance(reconcile(given_facts), SendDelete | LeaveNode | Forget)
    if given_facts.record.desired is not DELETED:
        assert not isinstance(reconcile(given_facts), Forget)


@given(any_facts())
def test_an_owner_is_left_only_when_it_confirmed_or_was_removed(given_facts):
    step = reconcile(given_facts)
    if not isinstance(step, LeaveNode) or given_facts.owner is None:
        return
    if step.copy_left:  # a tombstone keeps track of the copy
        assert given_facts.owner.lost
        assert given_facts.record.desired is DesiredState.DELETED
    else:
        assert given_facts.command is not None
        assert given_facts.command.gone
        assert given_facts.command.generation == given_facts.record.generation


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
    if not given_facts.record.spec.at_most_one or given_facts.owner is None:
        return
    if isinstance(step, Place) and step.away_from_owner and not given_facts.owner.record.dead:
        assert given_facts.owner.surely_stopped
        assert given_facts.record.placed_at_most_one
    if isinstance(step, SendApply) and given_facts.record.desired is DesiredState.RUNNING:
        assert not given_facts.older_copy_may_run
        assert given_facts.owner.predecessor_until <= given_facts.now


@given(any_facts())
def test_a_lost_node_is_left_only_as_each_policy_allows(given_facts):
    step, owner_ = reconcile(given_facts), given_facts.owner
    if not isinstance(step, Place) or not step.away_from_owner or owner_.record.dead:
        return
    policy = given_facts.record.spec.failover
    assert owner_.record.declared_lost
    assert policy.policy != "keep"
    if policy.policy == "stop":
        assert owner_.silence >= 66.0
    elif policy.after:
        assert owner_.silence >= 90.0


@given(any_facts())
def test_a_move_ends_where_a_copy_runs(given_facts):
    step, known = reconcile(given_facts), given_facts.observation
    if isinstance(step, FinishMove):
        assert known.node_id == given_facts.record.node_id
        assert known.status.state in (RunState.RUNNING, RunState.FAILED) or known.status.completed
    if isinstance(step, TakeMoveBack):
        assert given_facts.way_back
        assert given_facts.record.move.away_from in given_facts.record.left_on
        assert given_facts.record.generation == given_facts.record.move.generation


@given(any_facts())
def test_only_what_failed_is_retried_and_only_when_it_may_be(given_facts):
    step = reconcile(given_facts)
    if isinstance(step, NoteFailure | Retry):
        assert given_facts.record.desired is DesiredState.RUNNING
        assert given_facts.observation.status.state is RunState.FAILED
        assert given_facts.record.spec is not ONE_SHOT
    if isinstance(step, Retry):
        assert given_facts.record.retry.next_at <= given_facts.wall


@given(any_facts())
def test_a_wait_is_never_empty(given_facts):
    step = reconcile(given_facts)
    if isinstance(step, Wait):
        assert step.seconds > 0


class TestForeignAgents:
    @pytest.mark.parametrize(
        ("removal", "absent", "present", "gone", "accepted"),
        [
            (Removal.DONE, 0, 3, True, True),  # it may go on reporting what it has removed
            (Removal.BUSY, 5, 0, False, True),  # an apply may wait before the delete
            (Removal.BUSY, 0, 5, False, True),
            (Removal.FAILED, 0, 0, False, False),
            (Removal.UNLISTED, 0, 0, False, True),
            (Removal.UNLISTED, ABSENT_HEARTBEATS - 1, 0, False, True),
            (Removal.UNLISTED, ABSENT_HEARTBEATS, 0, True, True),  # it was done inside the call
            (Removal.UNLISTED, 0, 1, False, False),  # it was lost
        ],
    )
    def test_what_its_list_of_actions_makes_of_a_delete(self, removal, absent, present, gone, accepted):
        command = Command(
            CommandKind.DELETE, NODE, 3, accepted=True, absent_heartbeats=absent, present_heartbeats=present
        )
        after = after_removal(command, removal)
        assert (after.gone, after.accepted) == (gone, accepted)

    @pytest.mark.parametrize(
        ("desired", "state", "revision", "lost"),
        [
            (DesiredState.RUNNING, RunState.RUNNING, "r1", False),
            (DesiredState.RUNNING, RunState.RUNNING, "", False),
            (DesiredState.RUNNING, RunState.RUNNING, "r0", True),
            (DesiredState.RUNNING, RunState.PENDING, "r0", False),
            (DesiredState.RUNNING, RunState.UNKNOWN, "r0", False),
            (DesiredState.STOPPED, RunState.RUNNING, "r1", True),
            (DesiredState.STOPPED, RunState.STOPPED, "r1", False),
            (DesiredState.STOPPED, RunState.FAILED, "r1", False),
        ],
    )
    def test_a_command_that_it_accepted_and_lost(self, desired, state, revision, lost):
        status = RunStatus(WorkloadId("w"), state, revision_id=revision)
        assert is_lost(record(desired=desired), status) is lost

    @pytest.mark.parametrize(
        ("revision", "asked", "step"),
        [
            ("r1", None, Settled),
            ("", RunState.RUNNING, Settled),
            ("", None, ConfirmWithForeignAgent),
            ("r0", None, ConfirmWithForeignAgent),
        ],
    )
    def test_it_has_a_command_once_a_status_says_so(self, revision, asked, step):
        command = Command(CommandKind.APPLY, NODE, 3, accepted=True, asked=asked)
        observed = seen(generation=0, revision_id=revision)
        given_facts = facts(owner=owner(foreign=True), observation=observed, command=command)
        assert type(reconcile(given_facts)) is step

    @pytest.mark.parametrize(
        ("failure", "asked", "step"),
        [
            (FailureReason.RUNTIME_ERROR, None, ConfirmWithForeignAgent),
            (FailureReason.RUNTIME_ERROR, RunState.RUNNING, ConfirmWithForeignAgent),
            (FailureReason.RUNTIME_ERROR, RunState.FAILED, NoteFailure),
            (FailureReason.IMAGE_PULL_FAILED, None, NoteFailure),
            (FailureReason.INVALID_SPEC, None, Settled),
        ],
    )
    def test_it_is_asked_why_something_failed(self, failure, asked, step):
        command = Command(CommandKind.APPLY, NODE, 3, accepted=True, asked=asked)
        observed = seen(RunState.FAILED, generation=0, failure=failure)
        given_facts = facts(owner=owner(foreign=True), observation=observed, command=command)
        assert type(reconcile(given_facts)) is step

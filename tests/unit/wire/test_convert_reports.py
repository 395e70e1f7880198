"""Statuses, nodes, views and events cross the wire unharmed, and nothing but InvalidError comes of bad ones."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.errors import InvalidError, problem
from shoal.core.ids import IDENTIFIER
from shoal.core.shape import find_problems
from shoal.model import views
from shoal.model.events import Event
from shoal.model.nodes import Feature, NodeCondition, NodeSpec, NodeUsage, StoragePool
from shoal.model.resources import Resources
from shoal.model.workloads import (
    DesiredState,
    Exit,
    FailureReason,
    ProcessSpec,
    Rejection,
    RunState,
    RunStatus,
    Usage,
    WorkloadSpec,
    WorkloadType,
)
from shoal.testing.messages import messages
from shoal.wire import convert
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as control

slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
slower = settings(slow, max_examples=30)

text = st.text(st.characters(codec="utf-8"), max_size=12)
identifiers = st.from_regex(IDENTIFIER, fullmatch=True).filter(lambda each: ".." not in each and each.isascii())
moments = st.datetimes(datetime(1970, 1, 2), datetime(2999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
exact_moments = moments.map(lambda each: each.replace(microsecond=each.microsecond // 1000 * 1000))
whole_moments = moments.map(lambda each: each.replace(microsecond=0))
counts = st.integers(0, 2**31 - 1)
large_counts = st.integers(0, 2**63 - 1)
sizes = st.integers(-(2**31), 2**31 - 1)


def maybe(each):
    return st.none() | each


def tuples(each):
    return st.lists(each, max_size=3).map(tuple)


def usages(collected_at):
    return st.builds(
        Usage,
        cpu_percent=st.floats(0, 1e9),
        memory_bytes=large_counts,
        disk_read_bytes=large_counts,
        disk_write_bytes=large_counts,
        net_rx_bytes=large_counts,
        net_tx_bytes=large_counts,
        collected_at=maybe(collected_at),
        source=text,
    )


def statuses(moved, collected_at):
    return st.builds(
        RunStatus,
        workload_id=identifiers,
        state=st.sampled_from(RunState),
        failure=st.sampled_from(FailureReason),
        message=text,
        last_transition=maybe(moved),
        generation=large_counts,
        revision_id=text,
        exit=maybe(st.builds(Exit, sizes, counts, st.booleans(), maybe(exact_moments), st.booleans())),
        ports=st.dictionaries(text.filter(bool), st.integers(0, 65535), max_size=3),
        restarts=counts,
        ready=st.booleans(),
        completed=st.booleans(),
        deleting=st.booleans(),
        last_output=text,
        pid=counts,
        started_at=maybe(exact_moments),
        next_restart_at=maybe(exact_moments),
        spec_sha256=st.just(b"") | st.binary(min_size=32, max_size=32),
        usage=maybe(usages(collected_at)),
    )


def parsed(message):
    return type(message).FromString(message.SerializeToString())


# ---------------------------------------------------------------------------------------------------------
# Statuses


@slow
@given(statuses(moments, moments), st.sampled_from(WorkloadType))
def test_a_status_comes_back_as_it_went_in_a_heartbeat(status, kind):
    pb = parsed(convert.run_status_to_control(status, kind.value))
    assert convert.run_status_from_control(pb) == status
    if status.usage is not None:
        assert (pb.usage.workload_id, pb.usage.type) == (status.workload_id, kind.value)


@slow
@given(
    statuses(whole_moments, whole_moments),
    st.sampled_from(WorkloadType),
    st.sampled_from((DesiredState.RUNNING, DesiredState.STOPPED)),
)
def test_a_status_comes_back_as_an_agent_sent_it(status, kind, desired):
    pb = parsed(convert.run_status_to_agent(status, kind, desired))
    assert convert.run_status_from_agent(pb) == status
    assert convert.workload_type_from_agent(pb.type) is kind
    assert convert.desired_state_from_agent(pb.desired_state) is desired
    assert pb.revision_id == status.revision_id


@slow
@given(messages(control.WorkloadStatus))
def test_any_status_of_a_heartbeat_is_read_or_invalid(pb):
    try:
        status = convert.run_status_from_control(pb)
    except InvalidError:
        return
    convert.run_status_to_control(status, "process")
    assert status.state.value == pb.state or status.state is RunState.UNKNOWN


@slow
@given(messages(agent.WorkloadStatus))
def test_any_status_of_an_agent_is_read_or_invalid(pb):
    try:
        status = convert.run_status_from_agent(pb)
    except InvalidError:
        return
    convert.run_status_to_agent(status, WorkloadType.PROCESS, DesiredState.RUNNING)


@pytest.mark.parametrize("word", ["", "running", "Completed", "Scheduled", "Running (ip=10.0.0.5)", "x" * 1000])
def test_a_state_is_one_of_five_names_or_unknown(word):
    pb = control.WorkloadStatus(workload_id="web", state=word)
    assert convert.run_status_from_control(pb).state is RunState.UNKNOWN
    for state in RunState:
        assert convert.state_from_text(state.value) is state


@pytest.mark.parametrize("workload_id", ["", "../x", "a/b", "a b", "-a", "a..b", "a\n", "x" * 129])
def test_an_id_that_is_none_is_invalid(workload_id):
    with pytest.raises(InvalidError, match=r"workload_statuses\[3\]\.workload_id"):
        convert.run_status_from_control(
            control.WorkloadStatus(workload_id=workload_id, state="Running"), at="workload_statuses[3]"
        )
    with pytest.raises(InvalidError, match="id"):
        convert.run_status_from_agent(agent.WorkloadStatus(id=workload_id))


def test_a_foreign_status_has_no_generation():
    pb = control.WorkloadStatus(workload_id="web", state="Running", message="up")
    assert convert.run_status_from_control(pb) == RunStatus("web", RunState.RUNNING, message="up")


def test_a_foreign_agent_fails_in_its_own_words():
    def failure(**fields):
        return convert.run_status_from_agent(agent.WorkloadStatus(id="w", **fields)).failure

    failed = agent.ACTUAL_STATE_FAILED
    assert failure(actual_state=failed) is FailureReason.RUNTIME_ERROR
    assert failure(actual_state=agent.ACTUAL_STATE_RUNNING) is FailureReason.NONE
    words = {
        "IMAGE_PULL_AUTH_FAILED": FailureReason.IMAGE_PULL_FAILED,
        "PORT_BIND_CONFLICT": FailureReason.NETWORK_ERROR,
        "STORAGE_FULL": FailureReason.STORAGE_ERROR,
        "INSUFFICIENT_RESOURCES": FailureReason.INSUFFICIENT_RESOURCES,
        "SOMETHING_NEW": FailureReason.RUNTIME_ERROR,
    }
    for word, reason in words.items():
        assert failure(actual_state=failed, metadata={"failure_reason": word}) is reason


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("INVALID_SPECIFICATION", FailureReason.INVALID_SPEC),
        ("INVALID_SPEC", FailureReason.INVALID_SPEC),
        ("STORAGE_FULL", FailureReason.STORAGE_ERROR),
        ("NEVER_HEARD_OF", FailureReason.RUNTIME_ERROR),
    ],
)
def test_the_reason_of_a_foreign_status_is_read(code, failure):
    """It calls every failure RUNTIME_ERROR, and says more in its reason."""
    retry_at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    reason = control.ReasonDetail(code=code, message="no such pool")
    reason.next_retry_at.FromDatetime(retry_at)
    status = convert.run_status_from_control(
        control.WorkloadStatus(workload_id="web", state="Failed", failure_reason=control.RUNTIME_ERROR, reason=reason)
    )
    assert (status.failure, status.message, status.next_restart_at) == (failure, "no such pool", retry_at)


def test_the_message_of_a_foreign_status_comes_before_that_of_its_reason():
    reason = control.ReasonDetail(code="RUNTIME_ERROR", message="in short")
    status = convert.run_status_from_control(
        control.WorkloadStatus(workload_id="web", state="Failed", message="at length", reason=reason)
    )
    assert status.message == "at length"


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        ("[RESOURCE_QUOTA_EXCEEDED] cpu at 91 %", FailureReason.INSUFFICIENT_RESOURCES),
        ("ERROR: INVALID_SPECIFICATION: no pool", FailureReason.INVALID_SPEC),
        ("runtime not available", FailureReason.RUNTIME_ERROR),
        ("", FailureReason.RUNTIME_ERROR),
    ],
)
def test_the_error_of_a_failed_action_becomes_a_status(error, failure):
    status = convert.failed_status("web", error)
    assert (status.state, status.failure, status.message) == (RunState.FAILED, failure, error)


def test_a_reason_without_a_failure_makes_none():
    reason = control.ReasonDetail(code="INVALID_SPECIFICATION", message="it was so")
    status = convert.run_status_from_control(control.WorkloadStatus(workload_id="web", state="Running", reason=reason))
    assert (status.state, status.failure) == (RunState.RUNNING, FailureReason.NONE)


def test_a_foreign_agents_times_that_never_were_are_none():
    status = agent.WorkloadStatus(id="w", updated_at=-62135596800, revision_id="r7")
    status.usage.collected_at = -62135596800
    read = convert.run_status_from_agent(status)
    assert (read.last_transition, read.usage.collected_at, read.revision_id) == (None, None, "r7")


def test_the_reason_says_why_and_when_next():
    moved, due = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    status = RunStatus(
        "web",
        RunState.PENDING,
        failure=FailureReason.RUNTIME_ERROR,
        message="exit code 1",
        last_transition=moved,
        next_restart_at=due,
    )
    reason = convert.run_status_to_control(status, "process").reason
    assert (reason.code, reason.message, reason.retryable) == ("RUNTIME_ERROR", "exit code 1", True)
    assert reason.last_transition.ToDatetime(tzinfo=UTC) == moved
    assert reason.next_retry_at.ToDatetime(tzinfo=UTC) == due
    permanent = dataclasses.replace(status, failure=FailureReason.INVALID_SPEC)
    assert not convert.run_status_to_control(permanent, "process").reason.retryable
    well = RunStatus("web", RunState.RUNNING)
    assert not convert.run_status_to_control(well, "process").HasField("reason")


def test_texts_for_people_are_cut_not_refused():
    pb = control.WorkloadStatus(workload_id="web", state="Failed", message="m" * 100_000)
    pb.run.last_output = "a" * 100_000 + "the end"
    pb.run.revision_id = "r" * 1000
    status = convert.run_status_from_control(pb)
    assert len(status.message) == 4096
    assert len(status.last_output) == 16 * 1024
    assert status.last_output.endswith("the end")
    assert len(status.revision_id) == 256


def test_numbers_that_cannot_be_are_named():
    pb = control.WorkloadStatus(workload_id="web", state="Running")
    pb.run.generation = -1
    pb.run.ports["web"] = 70000
    pb.run.spec_sha256 = b"short"
    pb.run.started_at_ms = 2**62
    pb.usage.cpu_percent = math.nan
    pb.usage.memory_bytes = -5
    pb.last_transition.seconds = 2**60
    with pytest.raises(InvalidError) as caught:
        convert.run_status_from_control(pb)
    assert {each.field for each in caught.value.problems} == {
        "run.generation",
        "run.ports",
        "run.spec_sha256",
        "run.started_at_ms",
        "usage.cpu_percent",
        "usage.memory_bytes",
        "last_transition",
    }


def test_a_heartbeat_is_read_around_its_bad_entries(caplog):
    heartbeat = control.HeartbeatRequest(
        node_id="n1",
        workload_statuses=[
            control.WorkloadStatus(workload_id="a", state="Running"),
            control.WorkloadStatus(workload_id="../b", state="Running"),
            control.WorkloadStatus(workload_id="c", state="wat"),
        ],
        workload_usage=[
            control.WorkloadUsageSnapshot(workload_id="a", memory_bytes=7),
            control.WorkloadUsageSnapshot(workload_id="c", memory_bytes=-7),
            control.WorkloadUsageSnapshot(workload_id="z", memory_bytes=9),
        ],
    )
    a, c = convert.run_statuses_from_heartbeat(heartbeat, {}).values()
    assert (a.workload_id, c.workload_id, c.state) == ("a", "c", RunState.UNKNOWN)
    assert "workload_statuses[1].workload_id" in caplog.text
    measured = convert.Measurements(heartbeat)
    assert measured.of("a").memory_bytes == 7
    assert measured.of("b") is measured.of("c") is None


def test_what_a_heartbeat_repeats_to_the_byte_is_not_read_again():
    same, other = (control.WorkloadStatus(workload_id=each, state="Running") for each in ("a", "b"))
    before = convert.run_statuses_from_heartbeat(control.HeartbeatRequest(workload_statuses=[same, other]), {})
    other.state = "Failed"
    other.run.exit.code = 3
    after = convert.run_statuses_from_heartbeat(control.HeartbeatRequest(workload_statuses=[same, other]), before)
    (a_before, b_before), (a, b) = before.values(), after.values()
    assert a is a_before
    assert b != b_before
    assert (b.state, b.exit.code) == (RunState.FAILED, 3)


@slow
@given(messages(control.HeartbeatRequest), messages(control.HeartbeatRequest))
def test_what_is_known_changes_nothing_about_what_is_read(first, second):
    known = convert.run_statuses_from_heartbeat(first, {})
    assert convert.run_statuses_from_heartbeat(second, known) == convert.run_statuses_from_heartbeat(second, {})


@slow
@given(messages(control.HeartbeatRequest))
def test_any_heartbeat_can_be_read(pb):
    assert len(convert.run_statuses_from_heartbeat(pb, {})) <= len(pb.workload_statuses)
    assert convert.Measurements(pb).of("../nobody") is None


# ---------------------------------------------------------------------------------------------------------
# Nodes

pools = st.builds(StoragePool, text.filter(lambda each: each.replace("\x00", "")), st.just("nfs"), st.integers(0, 1000))


@st.composite
def node_specs(draw):
    listed = draw(tuples(pools.filter(lambda each: "\x00" not in each.name)))
    plain = text.filter(lambda each: "\x00" not in each)
    words = tuples(plain.filter(bool))
    return NodeSpec(
        node_id=draw(identifiers),
        endpoint=draw(st.sampled_from(("127.0.0.1:50051", "[::1]:1", "node-1.example.org:65535"))),
        capacity=Resources(
            draw(st.integers(0, 10_000_000)),
            draw(st.integers(0, 100_000_000)),
            sum(pool.total_gb for pool in listed),
            draw(st.integers(0, 100_000)),
        ),
        workload_types=draw(st.lists(st.sampled_from([each.value for each in WorkloadType]), unique=True).map(tuple)),
        storage_drivers=draw(words),
        storage_pools=listed,
        labels=draw(st.dictionaries(st.sampled_from(("os", "arch", "a/b.c")), plain)),
        agent_version=draw(plain),
        host_id=draw(plain),
        cluster_id=draw(plain),
        features=draw(st.frozensets(st.sampled_from([each.value for each in Feature]))),
    )


@slow
@given(node_specs(), maybe(moments))
def test_a_node_comes_back_as_it_went(spec, moment):
    assert find_problems(spec) == []
    pb = parsed(convert.node_spec_to_proto(spec, timestamp=moment, previous_session="s1"))
    assert convert.node_spec_from_proto(pb) == spec
    assert pb.previous_session == "s1"
    if moment is not None:
        assert convert.timestamp_from_proto(pb.timestamp) == moment
    assert pb.HasField("timestamp") == (moment is not None)


@slow
@given(messages(control.RegisterNodeRequest))
def test_any_registration_is_read_or_invalid(pb):
    try:
        spec = convert.node_spec_from_proto(pb)
    except InvalidError:
        return
    assert find_problems(spec) == []
    assert convert.node_spec_from_proto(convert.node_spec_to_proto(spec)) == spec


def test_a_foreign_registration_leaves_out_what_is_ours():
    pb = control.RegisterNodeRequest(
        node_id="n1",
        capabilities=control.NodeCapabilities(
            cpu_total_millicores=4000,
            memory_total_mb=2048,
            storage_pools=[control.StoragePool(name="root", type="local", total_gb=50)],
            supported_workload_types=["container"],
            supported_storage_drivers=["local"],
        ),
        labels={"os": "linux", "arch": "amd64"},
        grpc_endpoint=":50051",
    )
    spec = convert.node_spec_from_proto(pb)
    assert spec.capacity == Resources(4000, 2048, 50, 0)
    assert (spec.endpoint, spec.cluster_id, spec.host_id, spec.features) == ("127.0.0.1:50051", "", "", frozenset())


def test_a_node_without_anything_is_the_callers_to_refuse():
    spec = convert.node_spec_from_proto(control.RegisterNodeRequest(node_id="n1", grpc_endpoint="h:1"))
    assert spec.capacity == Resources()


def test_only_an_agent_that_calls_out_may_have_no_endpoint():
    with pytest.raises(InvalidError, match="grpc_endpoint: is required"):
        convert.node_spec_from_proto(control.RegisterNodeRequest(node_id="n1", features=["generations"]))
    spec = convert.node_spec_from_proto(control.RegisterNodeRequest(node_id="n1", features=["stream"]))
    assert spec.endpoint == ""


def test_a_registration_is_wrong_by_the_names_it_was_sent_with():
    pb = control.RegisterNodeRequest(
        node_id="../n",
        grpc_endpoint="host:99999",
        slots=-1,
        features=["x" * 100],
        capabilities=control.NodeCapabilities(
            cpu_total_millicores=-1,
            memory_total_mb=-1,
            storage_pools=[control.StoragePool(name="", total_gb=-4)],
            supported_workload_types=["", "job"],
            supported_storage_drivers=[""],
        ),
        labels={"bad key": "v"},
    )
    with pytest.raises(InvalidError) as caught:
        convert.node_spec_from_proto(pb)
    assert {each.field for each in caught.value.problems} == {
        "node_id",
        "grpc_endpoint",
        "slots",
        "features",
        "capabilities.cpu_total_millicores",
        "capabilities.memory_total_mb",
        "capabilities.storage_pools[0].name",
        "capabilities.storage_pools[0].total_gb",
        "capabilities.supported_workload_types[1]",
        "capabilities.supported_storage_drivers[0]",
        "labels.bad key",
    }


def test_a_disk_without_a_pool_is_in_one():
    spec = NodeSpec("n1", "h:1", Resources(1, 1, 70))
    assert convert.node_spec_from_proto(convert.node_spec_to_proto(spec)).capacity.disk_gb == 70


node_usages = st.builds(
    NodeUsage, large_counts, large_counts, large_counts, large_counts, large_counts, large_counts, counts
)


@given(node_usages)
def test_the_use_of_a_node_comes_back_as_it_went(usage):
    assert convert.node_usage_from_proto(parsed(convert.node_usage_to_proto(usage))) == usage


@given(messages(control.NodeUsage))
def test_any_use_of_a_node_is_read_or_invalid(pb):
    negative = any(value < 0 for _, value in pb.ListFields())
    if negative:
        with pytest.raises(InvalidError, match="usage"):
            convert.node_usage_from_proto(pb)
    else:
        convert.node_usage_from_proto(pb)


# ---------------------------------------------------------------------------------------------------------
# Views and events

rejections = st.builds(Rejection, text, text, text)
amounts = st.builds(Resources, *([st.integers(-10_000_000, 10_000_000)] * 4))
reasons = st.builds(views.Reason, text, text, maybe(moments), maybe(moments), st.booleans())
SPEC = WorkloadSpec(WorkloadType.PROCESS, process=ProcessSpec(("true",)))


@st.composite
def workload_views(draw):
    """Views whose report says what the view says: the wire carries both once."""
    status = draw(maybe(statuses(moments, moments)))
    workload_id = draw(identifiers)
    usage = draw(maybe(usages(moments)))
    reason = None
    state = draw(text)
    if status is not None:
        state = status.state.value
        known = status.failure is not FailureReason.NONE
        reason = views.Reason(status.failure.value if known else "", status.message, status.last_transition)
        completed = status.completed and status.state is RunState.STOPPED
        status = dataclasses.replace(status, workload_id=workload_id, usage=usage, completed=completed)
    else:
        reason = draw(maybe(reasons))
    return views.WorkloadView(
        workload_id=workload_id,
        type=draw(text),
        desired_state=draw(text),
        status=state,
        state=draw(text) or state,  # an empty one is read as the status
        assigned_node_id=draw(text),
        revision_id=draw(text),
        observed_revision_id=draw(text),
        generation=draw(large_counts),
        group_id=draw(text),
        retry_attempts=draw(counts),
        retry_max_attempts=draw(counts),
        retry_next_at=draw(maybe(moments)),
        failure_reason=draw(text),
        created_at=draw(maybe(moments)),
        last_updated=draw(maybe(moments)),
        reason=reason,
        usage=usage,
        run=status,
        rejections=draw(tuples(rejections)),
        spec=draw(st.sampled_from((None, SPEC))),
        spec_sha256=draw(st.binary(max_size=32)),
    )


node_conditions = st.builds(
    NodeCondition, text.filter(bool), text, maybe(moments.map(lambda at: at.replace(microsecond=0)))
)
node_views = st.builds(
    views.NodeView,
    node_id=text,
    status=text,
    status_reason=text,
    status_updated_by=text,
    status_updated_at=maybe(moments),
    last_heartbeat=maybe(moments),
    lease_expires_at=maybe(moments),
    grpc_endpoint=text,
    total=amounts,
    available=amounts,
    supported_workload_types=tuples(text),
    storage_drivers=tuples(text),
    labels=st.dictionaries(text, text, max_size=3),
    host_id=text,
    session=text,
    agent_version=text,
    features=tuples(text),
    clock_skew_ms=st.integers(-(2**63), 2**63 - 1),
    usage=maybe(node_usages),
    workload_count=counts,
    orphans=tuples(text),
    conditions=st.lists(node_conditions, max_size=3, unique_by=lambda each: each.type).map(tuple),
    cluster_id=text,
)
summaries = st.builds(
    views.ClusterSummary,
    **{
        field.name: {"int": counts, "str": text, "datetime | None": maybe(moments)}[field.type]
        for field in dataclasses.fields(views.ClusterSummary)
    },
)
placements = st.builds(
    views.PlannedPlacement,
    workload_id=text,
    node_id=text,
    change=text,
    rejections=tuples(rejections),
    scores=tuples(
        st.builds(
            views.NodeScore,
            text,
            st.floats(allow_nan=False),
            st.dictionaries(text, st.floats(allow_nan=False), max_size=2),
        )
    ),
)
events = st.builds(
    Event,
    time=moments,
    subject_kind=text,
    subject_id=text,
    kind=text,
    message=text,
    source=text,
    cause=text,
    facts=st.dictionaries(text, text, max_size=3),
    cursor=large_counts,
)


@slower
@given(workload_views())
def test_a_view_of_a_workload_comes_back_as_it_went(view):
    assert convert.workload_view_from_proto(parsed(convert.workload_view_to_proto(view))) == view


@slower
@given(node_views)
def test_a_view_of_a_node_comes_back_as_it_went(view):
    assert convert.node_view_from_proto(parsed(convert.node_view_to_proto(view))) == view


@slower
@given(st.builds(views.GroupView, text, large_counts, text, text, tuples(workload_views())))
def test_a_view_of_a_group_comes_back_as_it_went(view):
    assert convert.group_view_from_proto(parsed(convert.group_view_to_proto(view))) == view


@slow
@given(summaries, placements, events)
def test_summaries_placements_and_events_come_back_as_they_went(summary, placement, event):
    assert convert.cluster_summary_from_proto(parsed(convert.cluster_summary_to_proto(summary))) == summary
    assert convert.planned_placement_from_proto(parsed(convert.planned_placement_to_proto(placement))) == placement
    assert convert.event_from_proto(parsed(convert.event_to_proto(event))) == event


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (control.NodeView, convert.node_view_from_proto),
        (control.WorkloadView, convert.workload_view_from_proto),
        (control.GroupView, convert.group_view_from_proto),
        (control.ClusterSummary, convert.cluster_summary_from_proto),
        (control.PlannedPlacement, convert.planned_placement_from_proto),
        (control.Event, convert.event_from_proto),
    ],
)
def test_any_answer_is_read_or_invalid(message, read):
    @slower
    @given(messages(message))
    def any_answer(pb):
        try:
            read(pb)
        except InvalidError:
            return

    any_answer()


def test_a_view_with_a_spec_of_tomorrow_is_still_worth_showing():
    pb = control.WorkloadView(workload_id="w", type="dream", spec=control.WorkloadSpec(type="dream"))
    view = convert.workload_view_from_proto(pb)
    assert (view.workload_id, view.type, view.spec) == ("w", "dream", None)


def test_the_moment_that_never_was_is_none():
    pb = control.Event()
    pb.time.seconds = -62135596800
    assert convert.timestamp_from_proto(pb.time) is None
    with pytest.raises(InvalidError, match="time: is required"):
        convert.event_from_proto(pb)
    assert convert.timestamp_to_proto(None) is None
    pb.time.seconds = 2**61
    with pytest.raises(InvalidError, match="sent_at"):
        convert.timestamp_from_proto(pb.time, field="sent_at")
    late = datetime(9999, 12, 31, tzinfo=UTC) + timedelta(hours=23)
    assert convert.timestamp_from_proto(convert.timestamp_to_proto(late)) == late


def test_problems_cross_the_wire():
    problems = (problem("a", 1, "must be 2"), problem("b", None, "is required"))
    assert convert.problems_from_proto(convert.problems_to_proto(problems)) == problems

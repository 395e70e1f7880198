"""The table of what each role may see is complete, and an answer holds what the table lists for its caller."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from shoal.model.identity import Identity, Role, workload_identity
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import run_pb2 as run
from shoal.wire.trust import disclosure
from shoal.wire.trust.disclosure import FIELDS, OWN_PACKAGES, Audience, disclose
from tests.unit.wire.test_authorization import every_method

OPERATOR = Identity(Role.OPERATOR, "blue", "ada")
OWNER = Identity(Role.AGENT, "blue", "n1")
OTHER = Identity(Role.AGENT, "blue", "n2")
MEMBER = workload_identity("blue", job="clicks", node="n1")


def reachable() -> dict[str, Descriptor]:
    """Every message that an answer can hold."""
    found: dict[str, Descriptor] = {}
    waiting = [method.response.DESCRIPTOR for method in every_method()]
    while waiting:
        message = waiting.pop()
        if message.full_name in found or not message.full_name.startswith(OWN_PACKAGES):
            continue
        if not message.GetOptions().map_entry:
            found[message.full_name] = message
        waiting.extend(field.message_type for field in message.fields if field.message_type is not None)
    return found


@pytest.mark.parametrize("name", sorted(reachable()))
def test_every_field_of_every_answer_is_in_the_table(name):
    assert set(FIELDS.get(name, {})) == {field.name for field in reachable()[name].fields}


def test_the_table_has_no_message_that_no_answer_holds():
    assert set(FIELDS) == set(reachable())


def test_no_map_holds_messages():
    for message in reachable().values():
        for field in message.fields:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                assert field.message_type.fields_by_name["value"].type != FieldDescriptor.TYPE_MESSAGE, field.full_name


VIEW = pb.WorkloadView(
    workload_id="web",
    type="process",
    desired_state="Running",
    status="Running",
    assigned_node_id="n1",
    revision_id="7",
    retry_attempts=1,
    failure_reason="RUNTIME_ERROR",
    reason=pb.ReasonDetail(code="x", message="its last words"),
    usage=pb.WorkloadUsageSnapshot(workload_id="web", cpu_percent=3.0),
    generation=4,
    group_id="clicks",
    run=run.RunDetail(last_output="password: hunter2", pid=7, ports={"http": 80}),
    rejections=[pb.NodeRejection(node_id="n3", code="cpu", message="full")],
    spec=pb.WorkloadSpec(type="process", process=run.ProcessSpec(command=["run"], env={"A": "b"})),
    spec_sha256=b"x",
    moving_from="n3",
    left_on=["n4"],
)


def names(message) -> set[str]:
    return {field.name for field, _ in message.ListFields()}


def test_an_operator_sees_everything():
    answer = pb.GetWorkloadResponse(workload=VIEW)
    assert disclose(answer, OPERATOR) is answer


def test_the_agent_of_the_owner_sees_the_workload_and_nothing_of_other_nodes():
    seen = disclose(pb.GetWorkloadResponse(workload=VIEW), OWNER).workload
    assert names(VIEW) - names(seen) == {"rejections", "moving_from", "left_on"}
    assert seen.run == VIEW.run
    assert seen.spec == VIEW.spec


def test_another_agent_learns_who_the_owner_is_and_nothing_else():
    seen = disclose(pb.GetWorkloadResponse(workload=VIEW), OTHER).workload
    assert names(seen) == {"workload_id", "desired_state", "assigned_node_id", "generation"}
    assert seen.assigned_node_id == "n1"


def test_an_agent_does_not_own_a_workload_that_has_no_node():
    waiting = pb.WorkloadView(workload_id="web", rejections=VIEW.rejections, spec=VIEW.spec)
    assert names(disclose(waiting, OWNER)) == {"workload_id"}


def test_a_member_learns_where_the_members_of_its_group_are():
    answer = pb.ApplyGroupResponse(generation=3, outcome="updated", members=[VIEW, VIEW])
    seen = disclose(answer, MEMBER)
    assert (seen.generation, seen.outcome) == (3, "updated")
    assert [names(each) for each in seen.members] == 2 * [
        {"workload_id", "desired_state", "assigned_node_id", "generation", "type", "status", "revision_id", "group_id"}
    ]


@pytest.mark.parametrize(
    "answer",
    [
        pb.ListWorkloadsResponse(workloads=[VIEW], next_page_token="x"),
        pb.GetGroupResponse(group=pb.GroupView(group_id="clicks", members=[VIEW])),
        pb.ListNodesResponse(nodes=[pb.NodeView(node_id="n1")]),
        pb.Event(cursor=1, subject_id="n1", message="words"),
        pb.ListEventsResponse(events=[pb.Event(cursor=1)], next=1),
        pb.LogChunk(data=b"words", stream="stdout"),
    ],
    ids=lambda answer: answer.DESCRIPTOR.name,
)
@pytest.mark.parametrize("identity", [OWNER, OTHER, MEMBER], ids=["owner", "other agent", "member"])
def test_lists_events_and_logs_are_for_operators_alone(answer, identity):
    assert names(disclose(answer, identity)) == set()


def test_a_stream_carries_commands_to_its_agent():
    call = pb.ControlMessage(message_id=1, call=pb.CallRequest(method="ApplyWorkload", request=b"x"))
    assert disclose(call, OTHER) is call
    assert names(disclose(pb.ControlMessage(heartbeat=pb.HeartbeatRequest(node_id="n1")), OTHER)) == set()


@pytest.fixture
def other_table(monkeypatch):
    """A table without the fields of one answer. What was derived from the real one is forgotten, before and after."""
    monkeypatch.setitem(FIELDS, "persys.control.v1.GetWorkloadResponse", {})
    disclosure._is_always_open.cache_clear()
    yield
    disclosure._is_always_open.cache_clear()


@pytest.mark.usefixtures("other_table")
def test_a_field_that_nobody_listed_is_shown_to_nobody():
    answer = pb.GetWorkloadResponse(workload=VIEW)
    assert names(disclose(answer, OPERATOR)) == set()


def test_operators_may_see_every_answer_to_a_method_that_they_may_call():
    for message, fields in FIELDS.items():
        if message == "persys.control.v1.ControlMessage":
            continue
        hidden = [name for name, audiences in fields.items() if Audience.OPERATOR not in audiences]
        assert hidden == [] or len(hidden) == len(fields), message
    assert AgentControl.GET_WORKLOAD.response.DESCRIPTOR.full_name in FIELDS

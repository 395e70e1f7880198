"""What a workload may change with its certificate: its own group, within the bounds that its operator set."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import fields, replace

import pytest
from hypothesis import given

from shoal.control.trust.entitlements import TABLE, Rule, check_entitled
from shoal.control.workloads.requests import WorkloadRequest
from shoal.core.errors import ConflictError, DeniedError, InvalidError, PreconditionError
from shoal.core.ids import GroupId, NodeId, WorkloadId
from shoal.model.identity import Identity, Role, workload_identity
from shoal.model.workloads import (
    ComposeSpec,
    ContainerSpec,
    DesiredState,
    MemberChanges,
    ProcessSpec,
    VmSpec,
    WorkloadSpec,
    WorkloadType,
)
from shoal.testing.control import process_spec
from shoal.testing.suites.store_records import group, workload
from shoal.wire.methods import AgentControl, Secrets, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import run_pb2 as run
from shoal.wire.pb.shoal.v1 import secrets_pb2
from tests.strategies import workload_specs
from tests.unit.control.trusting import CLUSTER, trusting_fleet

pytestmark = pytest.mark.looptime

SECRET = {"env_from_secrets": {"PASSWORD": "db"}}


@asynccontextmanager
async def scene(tmp_path):
    """Two groups, `clicks` with `a` and `b`, and `views` with `c`. Not a fixture: those are made in real time."""
    async with trusting_fleet(tmp_path) as fleet:
        await fleet.start("n1")
        await fleet.start("n2")
        for name in ("db", "other"):
            await fleet.channel.call(Secrets.SET_SECRET, secrets_pb2.SetSecretRequest(name=name, value=b"x"))
        await fleet.apply_trusted(members=("a", "b"), env_from_secrets={"PASSWORD": "db"})
        await fleet.apply_trusted("views", members=("c",))
        for name in ("a", "b", "c"):
            await fleet.wait_status(name, "Running")
        yield fleet


def own(fleet, job="clicks", node=None):
    """A channel of the workload `a`."""
    where = node or fleet.plane.leadership.fleet.workloads["a"].node_id
    return fleet.as_one(workload_identity(CLUSTER, job=job, node=where))


async def test_it_may_replace_a_member_of_its_own_group(tmp_path):
    async with scene(tmp_path) as fleet:
        answer = await fleet.apply_trusted(members=("a", "b2"), channel=own(fleet), expected=1, **SECRET)
        assert answer.generation == 2
        await fleet.wait_status("b2", "Running")
        await fleet.wait_gone("b")
        assert "GroupUpdated" in await fleet.event_kinds("clicks")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"group_id": "views", "members": ("c2",)}, "may change its own group only, not 'views'"),
        ({"group_id": "fresh"}, "may change its own group only"),
        ({"expected": None}, "expected_generation"),
        ({"env_from_secrets": {"X": "other"}}, "may not change process.env_from_secrets of 'a'"),
        ({"env_from_secrets": {"OTHER_NAME": "db"}}, "may not change process.env_from_secrets of 'a'"),
        ({"user": "root"}, "may not change process.user of 'a'"),
        ({"command": ["sh"]}, "may not change process.command of 'a'"),
        ({"args": ["--rank=1"]}, "may not change process.args of 'a'"),
        ({"members": ("a", "b", "b2")}, "may not give its group 3 members: its operator allows 2 to 2"),
        ({"members": ("a",)}, "may not give its group 1 members"),
        ({"bounds": run.MemberChanges(max_members=9)}, "its operator sets the bounds"),
    ],
    ids=[
        "another group",
        "a new group",
        "unseen",
        "another secret",
        "a secret by another name",
        "another user",
        "another command",
        "other arguments",
        "more members",
        "fewer members",
        "other bounds",
    ],
)
async def test_it_may_change_nothing_else(tmp_path, change, words):
    async with scene(tmp_path) as fleet:
        given = {"members": ("a", "b"), "env_from_secrets": {"PASSWORD": "db"}, "channel": own(fleet), "expected": 1}
        with pytest.raises(DeniedError, match=words):
            await fleet.apply_trusted(**{**given, **change})
        assert fleet.plane.leadership.fleet.groups["clicks"].generation == 1


async def test_a_process_cannot_become_a_container(tmp_path):
    async with scene(tmp_path) as fleet:
        spec = pb.WorkloadSpec(type="container", container=pb.ContainerSpec(image="x"))
        members = [pb.GroupMember(workload_id=name, spec=spec) for name in ("a", "b")]
        request = pb.ApplyGroupRequest(group_id="clicks", members=members, expected_generation=1)
        with pytest.raises(DeniedError, match="may not change type of 'a'"):
            await own(fleet).call(AgentControl.APPLY_GROUP, request)


async def test_a_spec_with_fields_that_are_not_known_here_is_refused(tmp_path):
    async with scene(tmp_path) as fleet:
        spec = process_spec()
        spec.MergeFromString(b"\xfa\x3e\x01x")
        members = [pb.GroupMember(workload_id=name, spec=spec) for name in ("a", "b")]
        request = pb.ApplyGroupRequest(group_id="clicks", members=members, expected_generation=1)
        with pytest.raises(InvalidError, match="fields that are not known here"):
            await own(fleet).call(AgentControl.APPLY_GROUP, request)


async def test_within_its_bounds_it_changes_count_and_arguments(tmp_path):
    async with scene(tmp_path) as fleet:
        bounds = run.MemberChanges(min_members=1, max_members=3, arg_prefixes=["--rank="])
        await fleet.apply_trusted(members=("a", "b"), bounds=bounds, args=["run", "--rank=0"], **SECRET)

        async def change(*members, expected, args):
            given = {"channel": own(fleet), "expected": expected, "args": args, **SECRET}
            return await fleet.apply_trusted(members=members, **given)

        assert (await change("a", "b", "d", expected=2, args=["run", "--rank=7", "--rank=8"])).generation == 3
        await fleet.wait_status("d", "Running")
        view = (await fleet.channel.call(AgentControl.GET_GROUP, pb.GetGroupRequest(group_id="clicks"))).group
        assert view.member_changes == bounds, "a member keeps the bounds"
        with pytest.raises(DeniedError, match=r"may not change process\.args"):
            await change("a", expected=3, args=["other"])
        with pytest.raises(DeniedError, match="its operator allows 1 to 3"):
            await change("a", "b", "d", "e", expected=3, args=["run"])
        assert (await change("a", expected=3, args=["run"])).generation == 4
        same = run.MemberChanges(max_members=3, arg_prefixes=["--rank="])
        again = {"channel": own(fleet), "expected": 4, "args": ["run", "--rank=3"], **SECRET}
        assert (await fleet.apply_trusted(members=("a", "d2"), bounds=same, **again)).generation == 5


async def test_bounds_that_an_operator_changes_are_a_change_of_the_group(tmp_path):
    async with scene(tmp_path) as fleet:
        bounds = run.MemberChanges(max_members=3)
        answer = await fleet.apply_trusted(members=("a", "b"), bounds=bounds, **SECRET)
        assert (answer.generation, answer.outcome) == (2, "updated")
        again = await fleet.apply_trusted(members=("a", "b"), bounds=bounds, **SECRET)
        assert (again.generation, again.outcome) == (2, "unchanged")


@pytest.mark.parametrize(
    ("bounds", "field"),
    [
        (run.MemberChanges(min_members=3), "member_changes.min_members"),
        (run.MemberChanges(max_members=1), "member_changes.max_members"),
        (run.MemberChanges(min_members=2, max_members=1), "member_changes.min_members"),
        (run.MemberChanges(max_members=-1), "member_changes.max_members"),
        (run.MemberChanges(arg_prefixes=[""]), "member_changes.arg_prefixes"),
    ],
    ids=["least", "most", "crossed", "negative", "every argument"],
)
async def test_bounds_that_cannot_be_are_refused(tmp_path, bounds, field):
    async with scene(tmp_path) as fleet:
        with pytest.raises(InvalidError) as caught:
            await fleet.apply_trusted(members=("a", "b"), bounds=bounds, **SECRET)
        assert any(each.field.startswith(field) for each in caught.value.problems), caught.value.problems


async def test_a_generation_that_was_overtaken_is_refused(tmp_path):
    async with scene(tmp_path) as fleet:
        await fleet.apply_trusted(members=("a",), expected=1)
        with pytest.raises(ConflictError):
            await fleet.apply_trusted(members=("a",), channel=own(fleet), expected=1)


@pytest.mark.parametrize("name", ["c", "single"])
async def test_it_cannot_take_a_member_of_another_group_or_a_workload_of_its_own(tmp_path, name):
    async with scene(tmp_path) as fleet:
        await fleet.apply("single")
        with pytest.raises(PreconditionError, match="already"):
            await fleet.apply_trusted(members=("a", name), channel=own(fleet), expected=1, **SECRET)


async def test_one_that_was_replaced_may_change_nothing(tmp_path):
    async with scene(tmp_path) as fleet:
        with pytest.raises(DeniedError, match="has been replaced: no member of group 'clicks' is on node 'n9' now"):
            await fleet.apply_trusted(channel=own(fleet, node="n9"), expected=1)


@pytest.mark.parametrize("expected", [0, 1, 2])
async def test_one_whose_group_is_gone_may_change_nothing(tmp_path, expected):
    async with scene(tmp_path) as fleet:
        channel = own(fleet)
        await fleet.channel.call(AgentControl.DELETE_GROUP, pb.DeleteGroupRequest(group_id="clicks"))
        with pytest.raises(DeniedError, match="may not make a group"):
            await fleet.apply_trusted(channel=channel, expected=expected)
        await fleet.wait_gone("a")
        with pytest.raises(DeniedError, match="may not make a group"):
            await fleet.apply_trusted(channel=channel, expected=0)


async def test_everything_else_is_refused(tmp_path):
    async with scene(tmp_path) as fleet:
        channel = own(fleet)
        requests = {
            AgentControl.APPLY_WORKLOAD: pb.ApplyWorkloadRequest(workload_id="x", spec=process_spec()),
            AgentControl.DELETE_WORKLOAD: pb.DeleteWorkloadRequest(workload_id="a"),
            AgentControl.DELETE_GROUP: pb.DeleteGroupRequest(group_id="clicks"),
            AgentControl.REGISTER_NODE: pb.RegisterNodeRequest(node_id="n1"),
            AgentControl.HEARTBEAT: pb.HeartbeatRequest(node_id="n1"),
        }
        for method in methods_of(AgentControl):
            if method is AgentControl.APPLY_GROUP or method.cardinality.value != "unary":
                continue
            with pytest.raises(DeniedError, match="needs"):
                await channel.call(method, requests.get(method, method.request()))


async def test_an_operator_is_bound_by_none_of_it(tmp_path):
    async with scene(tmp_path) as fleet:
        ada = fleet.as_one(Identity(Role.OPERATOR, CLUSTER, "ada"))
        answer = await fleet.apply_trusted(members=("a",), channel=ada, env_from_secrets={"X": "other"})
        assert answer.generation == 2


# ---------------------------------------------------------------------------------------------------------
# The table


MEMBER = workload_identity(CLUSTER, job="clicks", node="n1")
BOUNDS = MemberChanges(1, 4, ("--rank=",))


def decide(before: WorkloadSpec, after: WorkloadSpec, *, desired=DesiredState.RUNNING, workload_id="w") -> None:
    """Whether a member may replace one spec by another. Raises `DeniedError`."""
    record = replace(workload("w"), spec=before, node_id=NodeId("n1"), group_id=GroupId("clicks"))
    known = replace(group("clicks"), members=(WorkloadId("w"),), member_changes=BOUNDS)
    requested = WorkloadRequest(WorkloadId(workload_id), after, b"", b"", "", desired)
    check_entitled(MEMBER, known.group_id, known, [record], [requested], member_changes=None, expected_generation=1)


@pytest.mark.parametrize("cls", [WorkloadSpec, ProcessSpec, ContainerSpec, ComposeSpec, VmSpec])
def test_every_field_of_every_spec_is_in_the_table(cls):
    assert set(TABLE[cls]) == {field.name for field in fields(cls)}


def test_arguments_are_all_that_a_member_may_change():
    rules = {(cls, name): rule for cls, table in TABLE.items() for name, rule in table.items()}
    open_fields = {key for key, rule in rules.items() if rule is not Rule.FIXED}
    kinds = {(WorkloadSpec, kind.value) for kind in WorkloadType}
    assert open_fields == kinds | {(ProcessSpec, "args")}


@given(workload_specs(), workload_specs())
def test_a_spec_that_differs_in_anything_but_arguments_is_refused(before, after):
    decide(before, before, workload_id="new")
    if before == after:
        return
    with pytest.raises(DeniedError, match="may not change"):
        decide(before, after)


@pytest.mark.parametrize("workload_id", ["w", "new"])
@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        (["--rank=1"], ["--rank=2"], True),
        (["--rank=1"], [], True),
        ([], ["--rank=1", "--rank=2"], True),
        (["run", "--rank=1", "fast"], ["--rank=1", "run", "fast"], True),
        (["run", "fast"], ["fast", "run"], False),
        (["run"], ["run", "--ranks=1"], False),
        (["run"], ["run", "--rank", "1"], False),
        (["run"], [], False),
    ],
)
def test_arguments_with_a_listed_prefix_may_differ_and_others_stay(before, after, allowed, workload_id):
    one, two = (
        WorkloadSpec(WorkloadType.PROCESS, process=ProcessSpec(("python",), tuple(args))) for args in (before, after)
    )
    if allowed:
        decide(one, two, workload_id=workload_id)
    else:
        with pytest.raises(DeniedError, match=r"process\.args"):
            decide(one, two, workload_id=workload_id)


def test_a_member_cannot_stop_another():
    spec = workload("w").spec
    with pytest.raises(DeniedError, match="may not change desired_state of 'w'"):
        decide(spec, spec, desired=DesiredState.STOPPED)

"""What a workload may wish for with its certificate: its own group, anew, and nothing that the group does not have."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from shoal.core.errors import ConflictError, DeniedError
from shoal.model.identity import Identity, Role, workload_identity
from shoal.testing.control import process_spec
from shoal.wire.methods import AgentControl, Secrets, methods_of
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import secrets_pb2
from tests.unit.control.trusting import CLUSTER, trusting_fleet

pytestmark = pytest.mark.looptime


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
        answer = await fleet.apply_trusted(members=("a", "b2"), channel=own(fleet), expected=1)
        assert answer.generation == 2
        await fleet.wait_status("b2", "Running")
        await fleet.wait_gone("b")
        assert "GroupUpdated" in await fleet.event_kinds("clicks")


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ({"group_id": "views", "members": ("c2",)}, "may change its own group only, not 'views'"),
        ({"group_id": "fresh"}, "may change its own group only"),
        ({"expected": None}, "expected_generation"),
        ({"env_from_secrets": {"X": "other"}}, "secret 'other': its group does not have it"),
        ({"user": "root"}, "as another user"),
    ],
    ids=["another group", "a new group", "unseen", "another secret", "another user"],
)
async def test_it_may_not_wish_for_more(tmp_path, requested, words):
    async with scene(tmp_path) as fleet:
        with pytest.raises(DeniedError, match=words):
            await fleet.apply_trusted(**{"channel": own(fleet), "expected": 1, **requested})
        assert fleet.plane.leadership.fleet.groups["clicks"].generation == 1


async def test_it_may_wish_for_processes_only(tmp_path):
    async with scene(tmp_path) as fleet:
        spec = pb.WorkloadSpec(type="container", container=pb.ContainerSpec(image="x"))
        request = pb.ApplyGroupRequest(
            group_id="clicks", members=[pb.GroupMember(workload_id="a", spec=spec)], expected_generation=1
        )
        with pytest.raises(DeniedError, match="processes only"):
            await own(fleet).call(AgentControl.APPLY_GROUP, request)


async def test_the_secrets_of_its_group_are_its_own(tmp_path):
    async with scene(tmp_path) as fleet:
        answer = await fleet.apply_trusted(
            members=("a", "b3"), channel=own(fleet), expected=1, env_from_secrets={"OTHER_NAME": "db"}
        )
        assert answer.generation == 2


async def test_a_generation_that_was_overtaken_is_refused(tmp_path):
    async with scene(tmp_path) as fleet:
        await fleet.apply_trusted(members=("a",), expected=1)
        with pytest.raises(ConflictError):
            await fleet.apply_trusted(members=("a", "b"), channel=own(fleet), expected=1)


async def test_it_cannot_take_a_member_of_another_group_or_a_workload_of_its_own(tmp_path):
    async with scene(tmp_path) as fleet:
        await fleet.apply("single")
        for name in ("c", "single"):
            with pytest.raises(Exception, match="already"):
                await fleet.apply_trusted(members=("a", name), channel=own(fleet), expected=1)


async def test_one_that_was_replaced_or_whose_group_is_gone_may_wish_for_nothing(tmp_path):
    async with scene(tmp_path) as fleet:
        with pytest.raises(DeniedError, match="has been replaced: no member of group 'clicks' is on node 'n9' now"):
            await fleet.apply_trusted(channel=own(fleet, node="n9"), expected=1)
        channel = own(fleet)
        await fleet.channel.call(AgentControl.DELETE_GROUP, pb.DeleteGroupRequest(group_id="clicks"))
        for expected in (0, 1, 2):
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

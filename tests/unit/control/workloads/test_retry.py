"""A person asks for a workload to be run again: alone, and as a member of a group."""

import time

import pytest

from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb

pytestmark = pytest.mark.looptime(start=time.monotonic)


async def retry(kit, workload_id):
    request = pb.RetryWorkloadRequest(workload_id=workload_id)
    assert (await kit.channel.call(AgentControl.RETRY_WORKLOAD, request)).accepted


async def refused(kit, workload_id):
    """Why a retry is not accepted."""
    request = pb.RetryWorkloadRequest(workload_id=workload_id)
    answer = await kit.channel.call(AgentControl.RETRY_WORKLOAD, request)
    assert not answer.accepted
    return answer.error_message


async def gang(kit, *names, **spec):
    """A node, and a group that runs there and is settled."""
    node = kit.node("n1")
    await kit.wait_node("n1", "Ready")
    await kit.apply_group("gang", dict.fromkeys(names, spec))
    for name in names:
        await kit.wait_status(name, "Running")
    await kit.wait(lambda: not kit.plane.leadership.fleet.groups["gang"].before)
    return node


class TestAlone:
    async def test_one_that_runs_is_left_alone(self, kit):
        node = kit.node("n1")
        await kit.wait_node("n1", "Ready")
        await kit.apply("web")
        before = await kit.wait_status("web", "Running")
        await retry(kit, "web")
        await retry(kit, "web")
        assert (await kit.workload("web")).generation == before.generation
        assert "WorkloadRetried" not in await kit.event_kinds("web")
        assert [verb for verb, _, _ in node.history] == ["apply Running"]

    async def test_one_that_runs_on_a_cordoned_node_is_not_moved(self, kit):
        kit.node("n1")
        await kit.wait_node("n1", "Ready")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        kit.node("n2")
        await kit.wait_node("n2", "Ready")
        await kit.channel.call(AgentControl.CORDON_NODE, pb.CordonNodeRequest(node_id="n1"))
        await retry(kit, "web")
        await kit.clock.sleep(5)
        assert (await kit.workload("web")).assigned_node_id == "n1"

    async def test_one_that_waits_for_room_is_looked_at_at_once(self, kit):
        await kit.apply("web")
        await kit.wait(lambda: "web" in kit.plane.leadership.pending.rejections)
        await retry(kit, "web")
        assert "WorkloadRetried" in await kit.event_kinds("web")

    async def test_an_unknown_one_and_one_that_is_not_to_run(self, kit):
        assert "not found" in await refused(kit, "web")
        await kit.apply("web", desired="Stopped")
        assert "start it first" in await refused(kit, "web")


class TestMembers:
    async def test_a_failed_member_runs_again_and_its_group_is_as_before(self, kit):
        node = await gang(kit, "a", "b", restart="no")
        group = kit.plane.leadership.fleet.groups["gang"]
        other = await kit.workload("b")
        node.fail("a")
        failed = await kit.wait_status("a", "Failed")
        await retry(kit, "a")
        again = await kit.wait_status("a", "Running")
        assert again.generation > failed.generation
        assert again.group_id == "gang"
        assert node.runs["a"].request.attempt == 1
        assert kit.plane.leadership.fleet.groups["gang"] == group
        assert (await kit.workload("b")).generation == other.generation
        assert [name for _, name, _ in node.history if name == "b"] == ["b"]

    async def test_the_same_request_after_a_retry_changes_nothing(self, kit):
        node = await gang(kit, "a", "b", restart="no")
        generation = kit.plane.leadership.fleet.groups["gang"].generation
        node.fail("a")
        await kit.wait_status("a", "Failed")
        await retry(kit, "a")
        await kit.wait_status("a", "Running")
        answer = await kit.apply_group(
            "gang", {"a": {"restart": "no"}, "b": {"restart": "no"}}, expected_generation=generation
        )
        assert (answer.outcome, answer.generation) == ("unchanged", generation)

    async def test_one_during_a_change_does_not_settle_or_undo_it(self, kit):
        node = await gang(kit, "a", "b", restart="no")
        node.fail("a")
        await kit.wait_status("a", "Failed")
        node.deaf = True
        await kit.apply_group("gang", {"a": {"restart": "no"}, "b": {"restart": "no", "cpu": 200}})
        changed = kit.plane.leadership.fleet.groups["gang"]
        assert [each.workload_id for each in changed.before] == ["b"]
        await retry(kit, "a")
        await kit.clock.sleep(2)
        assert kit.plane.leadership.fleet.groups["gang"] == changed
        node.deaf = False
        await kit.wait_status("a", "Running")
        await kit.wait(lambda: not kit.plane.leadership.fleet.groups["gang"].before)
        settled = kit.plane.leadership.fleet.groups["gang"]
        assert (settled.generation, settled.members) == (changed.generation, changed.members)

    async def test_a_member_that_is_not_to_run_is_started_with_its_group(self, kit):
        await gang(kit, "a")
        request = pb.ApplyGroupRequest(group_id="gang")
        request.members.add(workload_id="a", desired_state="Stopped").spec.CopyFrom((await kit.workload("a")).spec)
        await kit.channel.call(AgentControl.APPLY_GROUP, request)
        assert "start it with its group 'gang'" in await refused(kit, "a")

    async def test_a_member_of_a_group_that_is_deleted_is_not_run_again(self, kit):
        node = await gang(kit, "a", restart="no")
        node.fail("a")
        await kit.wait_status("a", "Failed")
        node.deaf = True
        await kit.channel.call(AgentControl.DELETE_GROUP, pb.DeleteGroupRequest(group_id="gang"))
        assert "Deleted" in await refused(kit, "a")

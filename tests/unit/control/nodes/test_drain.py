"""The control plane when nodes are cordoned and drained, workloads fail and orphans are adopted. Virtual time."""

import asyncio
import time

import pytest

from shoal.core.errors import ExhaustedError, NotFoundError, PreconditionError, UnsupportedError
from shoal.testing.hollow import HollowRun
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from tests.unit.control.operating import copies, cordon, drain, ready, running_on, uncordon, wait_event

pytestmark = pytest.mark.looptime(start=time.monotonic)


class TestCordon:
    async def test_nothing_new_goes_there_and_what_is_there_stays(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", revision="v1")
        node = await cordon(kit, here.node_id)
        assert (node.status, node.wish) == ("Ready", "cordoned")
        for index in range(4):
            await kit.apply(f"new-{index}", cpu=10)
            assert (await kit.wait_status(f"new-{index}", "Running")).assigned_node_id == other.node_id
        await kit.apply("web", revision="v2", cpu=300)
        view = await kit.wait_status("web", "Running")
        assert view.assigned_node_id == here.node_id
        assert not here.draining

    async def test_neither_heartbeats_nor_registrations_nor_restarts_undo_it(self, kit):
        (node,) = await ready(kit, "n1")
        await cordon(kit, "n1")
        await kit.clock.sleep(60)
        node.sequence = 0  # it registers anew
        await kit.wait(lambda: node.registrations == 2, seconds=30)
        await kit.stop_control()
        await kit.start_control()
        await kit.clock.sleep(60)
        assert (await kit.node_view("n1")).wish == "cordoned"
        await kit.apply("web")
        await kit.wait(lambda: "web" in kit.plane.leadership.pending.rejections)
        assert [each.code for each in (await kit.workload("web")).rejections] == ["cordoned"]
        await uncordon(kit, "n1")
        await kit.wait_status("web", "Running", seconds=2)

    async def test_a_cordoned_node_that_is_lost_is_lost(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        await cordon(kit, here.node_id)
        here.silent = True
        await kit.wait(lambda: "web" in other.runs, seconds=60)
        here.silent = False
        await kit.wait_node(here.node_id, "Ready")
        assert (await kit.node_view(here.node_id)).wish == "cordoned"


class TestDrain:
    async def test_the_replacement_runs_before_the_old_copy_stops(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", cpu=3000)
        other.never_ready = True
        node = await drain(kit, here.node_id)
        assert (node.status, node.wish, node.leaving) == ("Draining", "draining", 1)
        await kit.wait(lambda: "web" in other.runs, seconds=5)
        await kit.clock.sleep(60)
        assert copies(kit, "web") == ["n1", "n2"]
        assert (await kit.workload("web")).moving_from == here.node_id
        assert kit.plane.leadership.fleet.facts_of(here.node_id).reserved.cpu_millicores == 3000
        assert here.draining
        other.start_again("web")
        await kit.wait(lambda: copies(kit, "web") == [other.node_id], seconds=2)
        await kit.wait_node(here.node_id, "Drained", seconds=15)
        view = await kit.wait_status("web", "Running")
        assert (view.assigned_node_id, view.moving_from) == (other.node_id, "")

    async def test_one_workload_at_a_time(self, kit):
        await ready(kit, "n1", "n2")
        for index in range(4):
            await kit.apply(f"w{index}", only_on="", cpu=10)
            await kit.wait_status(f"w{index}", "Running")
        first = sorted(kit.plane.leadership.fleet.owned_by("n1"))
        assert len(first) == 2
        kit.agents.nodes["n2"].never_ready = True
        await drain(kit, "n1")
        await kit.clock.sleep(60)
        assert len(kit.plane.leadership.fleet.moving_from("n1")) == 1
        assert copies(kit, first[1]) == ["n1"]
        kit.agents.nodes["n2"].never_ready = False
        kit.agents.nodes["n2"].start_again(first[0])
        await kit.wait_node("n1", "Drained", seconds=60)
        assert kit.agents.nodes["n1"].runs == {}

    async def test_of_what_may_exist_once_there_are_never_two(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "solo", at_most_one=True)
        seen = []
        kit.agents._on_command = lambda verb, name, _generation: seen.append((verb, copies(kit, name)))
        await drain(kit, here.node_id)
        await kit.wait_node(here.node_id, "Drained", seconds=60)
        await kit.wait_status("solo", "Running")
        assert copies(kit, "solo") == [other.node_id]
        assert seen[0] == ("delete", [here.node_id])
        assert all(not holders for verb, holders in seen if verb == "apply")

    async def test_it_is_not_stopped_before_there_is_room_elsewhere(self, kit):
        await ready(kit, "n1")
        await running_on(kit, "solo", at_most_one=True)
        await drain(kit, "n1")
        await kit.clock.sleep(120)
        assert copies(kit, "solo") == ["n1"]
        view = await kit.workload("solo")
        assert (view.status, view.reason.code) == ("Running", "NODE_DRAINING")
        await ready(kit, "n2")
        await kit.wait_node("n1", "Drained", seconds=60)
        assert copies(kit, "solo") == ["n2"]

    async def test_past_the_deadline_the_rest_goes_by_force(self, kit):
        await ready(kit, "n1")
        here, _ = await running_on(kit, "pinned", only_on="n1")
        await drain(kit, "n1", deadline_ms=60_000)
        await kit.clock.sleep(55)
        assert copies(kit, "pinned") == ["n1"]
        await kit.wait_node("n1", "Drained", seconds=30)
        assert here.runs == {}
        view = await kit.wait_status("pinned", "Pending")
        assert [each.code for each in view.rejections] == ["draining"]

    async def test_past_the_deadline_a_replacement_is_not_waited_for(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        other.never_ready = True
        await drain(kit, here.node_id, deadline_ms=60_000)
        await kit.wait(lambda: copies(kit, "web") == ["n1", "n2"])
        await kit.wait(lambda: copies(kit, "web") == [other.node_id], seconds=90)
        await kit.wait_node(here.node_id, "Drained")

    async def test_by_force_at_once(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        began = kit.clock.monotonic()
        await drain(kit, here.node_id, force=True)
        await kit.wait(lambda: copies(kit, "web") == [other.node_id], seconds=5)
        assert kit.clock.monotonic() - began < 5

    async def test_what_runs_to_an_end_is_waited_for(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "job", restart="no")
        await drain(kit, here.node_id)
        await kit.clock.sleep(300)
        assert copies(kit, "job") == [here.node_id]
        here.complete("job")
        await kit.wait_node(here.node_id, "Drained", seconds=20)
        assert (await kit.workload("job")).status == "Completed"
        assert other.runs == {}

    async def test_a_replacement_that_fails_leaves_the_old_one_in_charge(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        other.never_ready = True
        await drain(kit, here.node_id)
        await kit.wait(lambda: "web" in other.runs)
        other.fail("web")
        await wait_event(kit, "WorkloadMoveCanceled")
        view = await kit.wait_status("web", "Running")
        assert view.assigned_node_id == here.node_id
        assert "web" in here.runs
        other.never_ready = False
        await kit.wait_node(here.node_id, "Drained", seconds=120)
        assert copies(kit, "web") == [other.node_id]

    async def test_a_replacement_whose_node_is_lost_leaves_the_old_one_in_charge(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        other.never_ready = True
        await drain(kit, here.node_id)
        await kit.wait(lambda: "web" in other.runs)
        other.silent = True
        await kit.wait_node(other.node_id, "NotReady")
        view = await kit.wait_status("web", "Running")
        assert view.assigned_node_id == here.node_id
        other.silent, other.never_ready = False, False
        await kit.wait_node(here.node_id, "Drained", seconds=120)
        assert copies(kit, "web") == [other.node_id]

    async def test_a_target_that_refuses_it_leaves_the_old_one_in_charge(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        other.refuse["web"] = ExhaustedError("no room")
        await drain(kit, here.node_id)
        await wait_event(kit, "WorkloadMoveCanceled")
        assert copies(kit, "web") == [here.node_id]
        other.refuse.clear()
        await kit.wait_node(here.node_id, "Drained", seconds=120)

    async def test_it_goes_on_after_a_restart(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        other.never_ready = True
        await drain(kit, here.node_id)
        await kit.wait(lambda: "web" in other.runs)
        await kit.stop_control()
        await kit.clock.sleep(20)
        await kit.start_control()
        await kit.clock.sleep(60)
        assert copies(kit, "web") == ["n1", "n2"]
        other.start_again("web")
        await kit.wait_node(here.node_id, "Drained", seconds=60)
        assert copies(kit, "web") == [other.node_id]

    async def test_a_drained_node_stays_so_and_is_used_again_when_it_is_uncordoned(self, kit):
        (node,) = await ready(kit, "n1")
        await drain(kit, "n1")
        await kit.wait_node("n1", "Drained", seconds=20)
        node.sequence = 0
        await kit.wait(lambda: node.registrations == 2, seconds=30)
        node.silent = True
        await kit.wait_node("n1", "NotReady")
        node.silent = False
        await kit.wait_node("n1", "Drained")
        await kit.wait(lambda: node.draining)
        await kit.apply("web")
        await kit.clock.sleep(60)
        assert node.runs == {}
        assert (await uncordon(kit, "n1")).status == "Ready"
        await kit.wait_status("web", "Running", seconds=30)
        assert not node.draining

    async def test_an_update_of_what_has_not_left_yet_leaves_at_once(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", revision="v1")
        other.refuse["web"] = ExhaustedError("not yet")
        await drain(kit, here.node_id)
        await kit.clock.sleep(5)
        other.refuse.clear()
        await kit.apply("web", revision="v2", cpu=200)
        await kit.wait(lambda: copies(kit, "web") == [other.node_id], seconds=60)
        assert (await kit.wait_status("web", "Running")).observed_revision_id == "v2"
        await kit.wait_node(here.node_id, "Drained", seconds=30)

    async def test_deleting_or_stopping_in_the_middle_of_a_move_ends_both_copies(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        other.never_ready = True
        await drain(kit, here.node_id)
        await kit.wait(lambda: "web" in other.runs)
        await kit.delete("web")
        await kit.wait_gone("web", seconds=30)
        assert copies(kit, "web") == []
        await kit.wait_node(here.node_id, "Drained", seconds=30)

    async def test_members_of_a_group_move_too(self, kit):
        await ready(kit, "n1", "n2")
        await kit.apply_group("gang", {"a": {"cpu": 1000}, "b": {"cpu": 1000}})
        for name in "ab":
            await kit.wait_status(name, "Running")
        await drain(kit, "n1")
        await kit.wait_node("n1", "Drained", seconds=60)
        for name in "ab":
            assert (await kit.wait_status(name, "Running")).assigned_node_id == "n2"

    async def test_foreign_agents_are_emptied_by_the_published_contract(self, kit):
        await ready(kit, "n1", "n2", features=())
        here, (other,) = await running_on(kit, "web")
        await drain(kit, here.node_id)
        await kit.wait_node(here.node_id, "Drained", seconds=60)
        assert copies(kit, "web") == [other.node_id]
        assert [action.status for action in here.actions] == ["completed"]
        here2, (other2,) = await running_on(kit, "careful", migrate="after")
        assert here2 is other
        await uncordon(kit, here.node_id)
        await drain(kit, other.node_id)
        await kit.wait_node(other.node_id, "Drained", seconds=120)
        assert copies(kit, "careful") == [here.node_id]
        assert other2 is here

    async def test_a_deadline_must_make_sense(self, kit):
        await ready(kit, "n1")
        with pytest.raises(Exception, match="deadline_ms"):
            await drain(kit, "n1", deadline_ms=-1)


class TestRetries:
    async def test_a_failed_workload_is_tried_again_ever_more_slowly_and_then_not_any_more(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        waits = []
        for attempt in range(1, 6):
            node.fail("web")
            view = await kit.wait_status("web", "Failed")
            await kit.wait(lambda: kit.plane.leadership.fleet.workloads["web"].retry.next_at is not None)
            view = await kit.workload("web")
            assert (view.retry_attempts, view.retry_max_attempts) == (attempt, 5)
            assert view.reason.retryable
            began = kit.clock.monotonic()
            await kit.clock.sleep(5 * 2 ** (attempt - 1) * 0.7)
            assert (await kit.workload("web")).status == "Failed"
            await kit.wait_status("web", "Running", seconds=400)
            waits.append(kit.clock.monotonic() - began)
        assert [round(wait / 5 / 2**index) for index, wait in enumerate(waits)] == [1, 1, 1, 1, 1]
        node.fail("web")
        await wait_event(kit, "WorkloadRetriesExhausted")
        await kit.clock.sleep(310)
        view = await kit.workload("web")
        assert (view.status, view.reason.retryable) == ("Failed", False)
        assert node.runs["web"].request.attempt == 5

    async def test_being_well_for_ten_minutes_fills_the_budget(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        node.fail("web")
        await kit.wait_status("web", "Failed")
        await kit.wait_status("web", "Running", seconds=30)
        await kit.clock.sleep(580)
        assert (await kit.workload("web")).retry_attempts == 1
        await kit.clock.sleep(40)
        assert (await kit.workload("web")).retry_attempts == 0

    async def test_the_budget_and_the_next_try_survive_a_restart(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        node.fail("web")
        await kit.wait(lambda: kit.plane.leadership.fleet.workloads["web"].retry.next_at is not None)
        await kit.stop_control()
        await kit.start_control()
        assert (await kit.workload("web")).retry_attempts == 1
        await kit.wait_status("web", "Running", seconds=30)

    async def test_infrastructure_is_not_charged_and_another_node_is_tried(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        here.fail("web", "STORAGE_ERROR")
        await kit.wait(lambda: "web" in other.runs, seconds=30)
        view = await kit.wait_status("web", "Running")
        assert view.retry_attempts == 0

    async def test_what_cannot_be_helped_is_final(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        node.fail("web", "INVALID_SPEC")
        await kit.wait_status("web", "Failed")
        await kit.clock.sleep(310)
        assert node.runs["web"].request.attempt == 0

    async def test_a_job_that_is_not_restarted_is_not_retried(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("job", restart="no")
        await kit.wait_status("job", "Running")
        node.fail("job")
        await kit.wait_status("job", "Failed")
        await kit.clock.sleep(310)
        assert (await kit.workload("job")).status == "Failed"

    async def test_a_person_resets_the_count(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        node.fail("web")
        await kit.wait(lambda: kit.plane.leadership.fleet.workloads["web"].retry.attempts == 1)
        await kit.channel.call(AgentControl.RETRY_WORKLOAD, pb.RetryWorkloadRequest(workload_id="web"))
        view = await kit.wait_status("web", "Running", seconds=2)
        assert view.retry_attempts == 0

    async def test_a_foreign_agents_failure_is_tried_again_too(self, kit):
        (node,) = await ready(kit, "n1", features=())
        await kit.apply("web")
        await kit.wait_status("web", "Running", seconds=15)
        node.fail("web")
        await kit.wait_status("web", "Failed", seconds=15)
        await kit.wait_status("web", "Running", seconds=30)
        assert (await kit.workload("web")).retry_attempts == 1

    async def test_what_waits_for_its_next_try_holds_no_room_and_takes_none_that_is_gone(self, kit):
        (node,) = await ready(kit, "n1", cpu_millicores=1000)
        await kit.apply("web", cpu=900)
        await kit.wait_status("web", "Running")
        node.fail("web")
        await kit.wait_status("web", "Failed")
        await kit.apply("other", cpu=900)
        await kit.wait_status("other", "Running", seconds=2)
        await kit.clock.sleep(60)
        facts = kit.plane.leadership.fleet.facts_of("n1")
        assert facts.reserved.cpu_millicores == 900
        assert [each.code for each in (await kit.workload("web")).rejections] == ["cpu"]
        await kit.delete("other")
        await kit.wait_status("web", "Running", seconds=60)


class TestOrphans:
    async def orphan(self, kit, node, name="stray", **spec):
        """Something that runs on an agent and that the control plane has forgotten."""
        await kit.apply(name, only_on=node.node_id, **spec)
        await kit.wait_status(name, "Running")
        command = agent_pb2.ApplyWorkloadRequest()
        command.CopyFrom(node.runs[name].request)
        await kit.delete(name)
        await kit.wait_gone(name)
        node.runs[name] = HollowRun(command)
        node.changed.set()
        await kit.wait(lambda: kit.plane.leadership.contacts.get(node.node_id).orphans == (name,))
        return command

    async def adopt(self, kit, node_id, name):
        request = pb.AdoptWorkloadRequest(node_id=node_id, workload_id=name)
        return (await kit.channel.call(AgentControl.ADOPT_WORKLOAD, request)).workload

    async def test_it_is_left_alone_until_somebody_asks(self, kit):
        (node,) = await ready(kit, "n1")
        await self.orphan(kit, node, cpu=700)
        await kit.clock.sleep(300)
        assert "stray" in node.runs

    async def test_it_is_adopted_as_it_runs(self, kit):
        (node,) = await ready(kit, "n1")
        command = await self.orphan(kit, node, cpu=700, revision="r7", failover="stop", after=90.0)
        told = len(node.history)
        view = await self.adopt(kit, "n1", "stray")
        assert (view.revision_id, view.assigned_node_id) == ("r7", "n1")
        assert view.spec.resources.cpu_millicores == 700
        await kit.wait_status("stray", "Running")
        assert node.runs["stray"].request.spec == command.spec
        assert node.runs["stray"].request.generation > command.generation
        assert len(node.history) == told + 1
        await kit.wait(lambda: kit.plane.leadership.contacts.get("n1").orphans == ())
        assert kit.plane.leadership.fleet.facts_of("n1").reserved.cpu_millicores == 700

    async def test_what_stands_against_it(self, kit):
        (node,) = await ready(kit, "n1", cpu_millicores=1000)
        await self.orphan(kit, node, cpu=700)
        with pytest.raises(NotFoundError):
            await self.adopt(kit, "n1", "nothing")
        await kit.apply("web", cpu=600)
        await kit.wait_status("web", "Running")
        with pytest.raises(PreconditionError, match="known here"):
            await self.adopt(kit, "n1", "web")
        with pytest.raises(ExhaustedError, match="cpu"):
            await self.adopt(kit, "n1", "stray")
        assert "stray" not in kit.plane.leadership.fleet.workloads

    async def test_a_foreign_agent_hands_out_nothing_and_the_other_way_works(self, kit):
        (node,) = await ready(kit, "n1", features=())
        await self.orphan(kit, node)
        with pytest.raises(UnsupportedError, match="does not hand out"):
            await self.adopt(kit, "n1", "stray")
        await kit.apply("stray", only_on="n1")
        await kit.wait_status("stray", "Running")


async def test_a_fleet_at_rest_stores_nothing(kit):
    await ready(kit, "n1", "n2", "n3")
    await running_on(kit, "web")
    await cordon(kit, "n1")
    await drain(kit, "n2")
    await kit.wait_node("n2", "Drained", seconds=60)
    kinds = await kit.event_kinds()
    await asyncio.sleep(300)
    assert await kit.event_kinds() == kinds

"""The control plane as a whole, with hollow agents, in virtual time: what users and agents see of it."""

import asyncio
import time
from datetime import timedelta

import pytest

from shoal.core.errors import (
    ConflictError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    SessionSupersededError,
    StaleGenerationError,
    UnavailableError,
)
from shoal.testing.control import ControlKit
from shoal.testing.hollow import HollowRun
from shoal.testing.stores import Fault
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from tests.unit.control.conftest import each_kit as kit
from tests.unit.control.operating import ready, wait_event

__all__ = ["kit"]

pytestmark = pytest.mark.looptime(start=time.monotonic)


class TestApply:
    async def test_a_workload_runs_on_an_agent(self, kit):
        await ready(kit, "n1")
        answer = await kit.apply("web", revision="v1")
        assert answer.success
        assert (answer.revision_id, answer.outcome) == ("v1", "created")
        view = await kit.wait_status("web", "Running", seconds=1.0)
        assert view.assigned_node_id == "n1"
        assert view.revision_id == view.observed_revision_id == "v1"
        assert (await kit.event_kinds("web"))[:2] == ["WorkloadCreated", "WorkloadPlaced"]

    async def test_success_is_a_stored_request_not_a_running_process(self, kit):
        answer = await kit.apply("web")
        assert answer.success
        view = await kit.wait_status("web", "Pending")
        await kit.wait(lambda: "web" in kit.plane.leadership.pending.rejections)
        view = await kit.workload("web")
        assert view.reason.code == "INSUFFICIENT_RESOURCES"
        assert "no suitable node" in view.reason.message
        await ready(kit, "n1")
        await kit.wait_status("web", "Running", seconds=1.0)

    async def test_every_node_is_listed_with_its_reason(self, kit):
        await ready(kit, "n1", cpu_millicores=100)
        await ready(kit, "n2", workload_types=("container",))
        await kit.apply("web", cpu=200)
        await kit.wait(lambda: "web" in kit.plane.leadership.pending.rejections)
        view = await kit.workload("web")
        assert {(each.node_id, each.code) for each in view.rejections} == {("n1", "cpu"), ("n2", "type")}

    async def test_the_same_again_changes_nothing(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web", revision="v1")
        await kit.wait_status("web", "Running")
        again = await kit.apply("web", revision="v1")
        assert (again.success, again.outcome, again.generation) == (True, "unchanged", 1)
        await kit.clock.sleep(30)
        assert node.history == [("apply Running", "web", 1)]

    async def test_a_revision_means_one_spec(self, kit):
        await kit.apply("web", revision="v1", cpu=100)
        answer = await kit.apply("web", revision="v1", cpu=200)
        assert not answer.success
        assert answer.failure_reason == pb.INVALID_SPEC
        assert [each.field for each in answer.problems] == ["revision_id"]
        assert (await kit.workload("web")).spec.resources.cpu_millicores == 100

    async def test_without_a_revision_the_specs_hash_is_it(self, kit):
        first = await kit.apply("web", cpu=100)
        assert len(first.revision_id) == 64
        assert (await kit.apply("web", cpu=100)).outcome == "unchanged"
        second = await kit.apply("web", cpu=200)
        assert (second.outcome, second.revision_id != first.revision_id) == ("updated", True)

    async def test_expected_revision_is_compare_and_set(self, kit):
        await kit.apply("web", revision="v1")
        refused = await kit.apply("web", revision="v2", cpu=200, expected_revision="v0")
        assert not refused.success
        assert "v1" in refused.error_message
        assert (await kit.apply("web", revision="v2", cpu=200, expected_revision="v1")).success

    async def test_an_update_arrives_at_once(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web", revision="v1")
        await kit.wait_status("web", "Running")
        began = kit.clock.monotonic()
        await kit.apply("web", revision="v2", cpu=300)
        await kit.wait(lambda: node.runs["web"].request.revision_id == "v2")
        assert kit.clock.monotonic() - began < 0.5

    async def test_stop_and_start(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web", revision="v1")
        await kit.wait_status("web", "Running")
        request = pb.SetDesiredStateRequest(workload_id="web", desired_state="Stopped")
        await kit.channel.call(AgentControl.SET_DESIRED_STATE, request)
        await kit.wait_status("web", "Stopped")
        assert (await kit.node_view("n1")).available_cpu_cores == 4.0
        request.desired_state = "Running"
        await kit.channel.call(AgentControl.SET_DESIRED_STATE, request)
        view = await kit.wait_status("web", "Running")
        assert view.revision_id == "v1"
        assert [verb for verb, _id, _generation in node.history] == ["apply Running", "apply Stopped", "apply Running"]

    async def test_an_update_that_fits_nowhere_leaves_the_old_one_running(self, kit):
        (node,) = await ready(kit, "n1", cpu_millicores=1000)
        await kit.apply("web", revision="v1", cpu=500)
        await kit.wait_status("web", "Running")
        await kit.apply("web", revision="v2", cpu=5000)
        await kit.wait(lambda: "web" in kit.plane.leadership.pending.rejections)
        await kit.clock.sleep(30)
        view = await kit.workload("web")
        assert view.status == "Updating"
        assert "cpu" in view.reason.message
        assert node.runs["web"].request.revision_id == "v1"
        assert (await kit.node_view("n1")).available_cpu_cores == 0.5

    async def test_bad_input_is_answered_with_field_value_and_rule_and_nothing_is_stored(self, kit):
        answer = await kit.apply("../etc", cpu=-1, command=())
        assert not answer.success
        assert answer.failure_reason == pb.INVALID_SPEC
        fields = {each.field for each in answer.problems}
        assert {"workload_id", "spec.resources.cpu_millicores", "spec.process.command"} <= fields
        assert kit.plane.leadership.fleet.workloads == {}

    async def test_a_type_is_required_and_must_match(self, kit):
        request = pb.ApplyWorkloadRequest(workload_id="web", spec=pb.WorkloadSpec())
        answer = await kit.channel.call(AgentControl.APPLY_WORKLOAD, request)
        assert (answer.success, answer.failure_reason) == (False, pb.INVALID_SPEC)
        assert "spec.type" in answer.error_message
        request.spec.type = "container"
        request.spec.process.command.append("true")
        answer = await kit.channel.call(AgentControl.APPLY_WORKLOAD, request)
        assert "container" in answer.error_message


class TestDelete:
    async def test_a_deleted_workload_is_gone_within_two_seconds(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        assert (await kit.delete("web")).success
        await kit.wait_gone("web", seconds=2.0)
        assert node.runs == {}
        with pytest.raises(NotFoundError, match="not found"):
            await kit.workload("web")

    async def test_an_unknown_one_is_answered(self, kit):
        answer = await kit.delete("web")
        assert not answer.success
        assert "not found" in answer.error_message

    async def test_apply_takes_a_deletion_back(self, kit):
        (node,) = await ready(kit, "n1")
        node.slow = 1.0
        await kit.apply("web", revision="v1")
        await kit.wait_status("web", "Running")
        await kit.delete("web")
        assert (await kit.apply("web", revision="v2", cpu=200)).success
        await kit.wait(lambda: "web" in node.runs and node.runs["web"].request.revision_id == "v2")
        await kit.wait_status("web", "Running")

    async def test_one_on_a_lost_node_is_gone_for_people_and_removed_when_the_node_returns(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        node.silent = True
        await kit.wait_node("n1", "NotReady")
        assert (await kit.delete("web")).success
        with pytest.raises(NotFoundError):
            await kit.workload("web")
        node.silent = False
        await kit.wait_gone("web")
        assert node.runs == {}

    async def test_a_name_can_be_used_again(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web", revision="v1")
        await kit.wait_status("web", "Running")
        await kit.delete("web")
        await kit.wait_gone("web")
        await kit.apply("web", revision="v1", cpu=777)
        await kit.wait_status("web", "Running")
        assert node.runs["web"].request.spec.reservation.cpu_millicores == 777


class TestNodes:
    async def test_the_lease_decides_and_work_moves(self, kit):
        one, _two = await ready(kit, "n1", "n2")
        await kit.apply("web", only_on="n1")
        await kit.apply("free", only_on="")
        await kit.wait_status("web", "Running")
        free = await kit.wait_status("free", "Running")
        began = kit.clock.monotonic()
        doomed = kit.agents.nodes[free.assigned_node_id]
        doomed.silent = True
        await kit.wait_node(free.assigned_node_id, "Suspect")
        assert kit.clock.monotonic() - began >= 5
        await kit.wait_node(free.assigned_node_id, "NotReady")
        assert kit.clock.monotonic() - began <= 35
        await kit.wait(lambda: kit.plane.leadership.fleet.workloads["free"].node_id != doomed.node_id)
        moved = await kit.wait_status("free", "Running")
        assert moved.generation > free.generation
        assert one is not None

    async def test_a_returning_node_stops_its_superseded_copy_and_keeps_the_rest(self, kit):
        one, two = await ready(kit, "n1", "n2")
        await kit.apply("web")
        first = (await kit.wait_status("web", "Running")).assigned_node_id
        await kit.apply("pinned", only_on=first)
        await kit.wait_status("pinned", "Running")
        old, new = (one, two) if first == "n1" else (two, one)
        old.silent = True
        await kit.wait_node(first, "NotReady")
        await kit.wait(lambda: "web" in new.runs)
        old.silent = False
        await kit.wait(lambda: "web" not in old.runs, seconds=20)
        await kit.wait_status("pinned", "Running")
        assert "pinned" in old.runs
        assert "web" in new.runs
        assert [verb for verb, name, _generation in old.history if name == "pinned"] == ["apply Running"]

    async def test_a_restarted_control_plane_gives_every_node_a_full_lease(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        await kit.stop_control()
        node.silent = True
        await asyncio.sleep(300)
        await kit.start_control()
        began = kit.clock.monotonic()
        await asyncio.sleep(14)
        assert kit.plane.leadership.fleet.nodes["n1"].state.value == "Ready"
        await kit.wait_node("n1", "NotReady")
        assert 30 <= kit.clock.monotonic() - began <= 35

    async def test_nothing_is_told_twice_after_a_restart(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        await kit.stop_control()
        await asyncio.sleep(60)
        await kit.start_control()
        await asyncio.sleep(60)
        assert (await kit.workload("web")).status == "Running"
        assert node.history == [("apply Running", "web", 1)]

    async def test_a_request_accepted_before_a_crash_is_carried_out_after_it(self, kit):
        await kit.apply("web")
        await kit.stop_control()
        await kit.start_control()
        await ready(kit, "n1")
        await kit.wait_status("web", "Running")

    async def test_an_agent_that_forgot_everything_is_told_again(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        node.forget_everything()
        await kit.wait(lambda: "web" in node.runs, seconds=40)

    async def test_an_agent_that_forgot_everything_while_we_were_away_is_told_again(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        await kit.stop_control()
        node.forget_everything()
        await kit.start_control()
        await kit.wait(lambda: "web" in node.runs, seconds=60)

    async def test_a_clone_supersedes_and_the_loser_is_told(self, kit):
        (original,) = await ready(kit, "n1")
        clone = kit.agents.nodes.pop("n1")
        assert clone is original
        twin = kit.node("n1")
        await kit.wait(lambda: original.superseded, seconds=30)
        await kit.clock.sleep(60)
        assert not twin.superseded
        assert kit.plane.leadership.fleet.nodes["n1"].state.value == "Ready"

    async def test_an_agent_whose_answer_was_lost_is_not_taken_for_a_clone_of_itself(self, kit):
        request = pb.RegisterNodeRequest(node_id="n9", grpc_endpoint="h:1", features=["sessions"], instance="run1")
        request.capabilities.cpu_total_millicores = 1
        request.capabilities.memory_total_mb = 1
        first = await kit.channel.call(AgentControl.REGISTER_NODE, request)
        await kit.channel.call(AgentControl.REGISTER_NODE, request)  # and the agent never hears of this one
        heartbeat = pb.HeartbeatRequest(node_id="n9", session=first.session, sequence=1)
        with pytest.raises(NotFoundError, match="session"):
            await kit.channel.call(AgentControl.HEARTBEAT, heartbeat)
        request.instance = "run2"
        await kit.channel.call(AgentControl.REGISTER_NODE, request)
        with pytest.raises(SessionSupersededError):
            await kit.channel.call(AgentControl.HEARTBEAT, heartbeat)

    @pytest.mark.parametrize("instance", ["Upper", "a-b", "a" * 65])
    async def test_the_name_of_an_agent_s_run_is_checked(self, kit, instance):
        request = pb.RegisterNodeRequest(node_id="n9", grpc_endpoint="h:1", instance=instance)
        with pytest.raises(InvalidError, match="instance"):
            await kit.channel.call(AgentControl.REGISTER_NODE, request)

    async def test_another_cluster_is_turned_away_naming_both(self, kit):
        request = pb.RegisterNodeRequest(node_id="n1", grpc_endpoint="h:1", cluster_id="other")
        request.capabilities.cpu_total_millicores = 1
        request.capabilities.memory_total_mb = 1
        answer = await kit.channel.call(AgentControl.REGISTER_NODE, request)
        assert not answer.accepted
        assert "other" in answer.reason
        assert "default" in answer.reason

    async def test_a_node_without_cpu_is_not_accepted(self, kit):
        request = pb.RegisterNodeRequest(node_id="n1", grpc_endpoint="h:1")
        answer = await kit.channel.call(AgentControl.REGISTER_NODE, request)
        assert not answer.accepted
        assert "cpu_total_millicores" in answer.reason

    async def test_an_unknown_node_has_to_register(self, kit):
        with pytest.raises(NotFoundError):
            await kit.channel.call(AgentControl.HEARTBEAT, pb.HeartbeatRequest(node_id="ghost"))

    async def test_heartbeats_that_arrive_late_are_no_skewed_clock(self, kit, caplog):
        """This process was stopped: what lay in its queues meanwhile is old, and says nothing about a clock."""
        (node,) = await ready(kit, "n1")
        node.mute = True

        async def heartbeat(age):
            request = pb.HeartbeatRequest(node_id="n1", session=node.session, sequence=node.sequence)
            request.timestamp.FromDatetime(kit.clock.wall() - timedelta(seconds=age))
            node.sequence += 1
            await kit.channel.call(AgentControl.HEARTBEAT, request)

        for age in (33, 32.9, 23, 13, 3):
            await heartbeat(age)
        await kit.clock.sleep(10)
        await heartbeat(0)
        assert "is off by" not in caplog.text
        for _ in range(2):
            await kit.clock.sleep(10)
            await heartbeat(33)
        assert "the clock of node n1 is off by -33000 ms" in caplog.text

    async def test_skew_is_reported_and_changes_nothing(self, kit):
        await ready(kit, "n1")
        heartbeat = pb.HeartbeatRequest(node_id="n1", session=kit.agents.nodes["n1"].session, sequence=1000)
        heartbeat.timestamp.FromDatetime(kit.clock.wall() - timedelta(hours=2))
        await kit.channel.call(AgentControl.HEARTBEAT, heartbeat)
        view = await kit.node_view("n1")
        assert view.clock_skew_ms == -7_200_000
        assert view.status == "Ready"

    async def test_a_repeated_heartbeat_changes_nothing(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        old = pb.HeartbeatRequest(node_id="n1", session=node.session, sequence=1)
        answer = await kit.channel.call(AgentControl.HEARTBEAT, old)
        assert answer.acknowledged
        assert not answer.drain_node
        assert (await kit.workload("web")).status == "Running"

    async def test_what_a_workload_uses_is_shown_as_its_last_heartbeat_says(self, kit):
        (node,) = await ready(kit, "n1")
        node.measures = True
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        await kit.clock.sleep(20)
        first = (await kit.workload("web")).usage
        await kit.clock.sleep(20)
        later = (await kit.workload("web")).usage
        assert 0 < first.net_rx_bytes < later.net_rx_bytes == 1000 * (node.sequence - 1)

    async def test_a_node_that_repeats_itself_is_judged_anew(self, kit):
        one, two = await ready(kit, "n1", "n2")
        await kit.apply("web", only_on="n1")
        await kit.wait_status("web", "Running")
        two.runs["web"] = HollowRun(one.runs["web"].request)
        two.changed.set()
        await kit.clock.sleep(20)
        assert "web" in two.runs  # no request stands against that copy yet
        await kit.delete("web")
        await kit.clock.sleep(40)
        assert "web" not in one.runs
        assert "web" not in two.runs

    async def test_orphans_are_shown_and_left_alone(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        node.runs["stranger"] = node.runs["web"]
        node.changed.set()
        await kit.clock.sleep(20)
        assert list((await kit.node_view("n1")).orphans) == ["stranger"]
        assert "stranger" in node.runs

    async def test_a_node_under_disk_pressure_gets_no_new_work_until_that_is_over(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("before")
        await kit.wait_status("before", "Running")
        node.conditions["DiskPressure"] = "12 MB are free"
        node.changed.set()
        await wait_event(kit, "NodeConditionRaised")
        await kit.apply("later")
        await kit.clock.sleep(20)
        assert sorted(node.runs) == ["before"]
        view = await kit.workload("later")
        assert [each.code for each in view.rejections] == ["disk_pressure"]
        ((kind, message),) = [(each.type, each.message) for each in (await kit.node_view("n1")).conditions]
        assert (kind, message) == ("DiskPressure", "12 MB are free")
        del node.conditions["DiskPressure"]
        node.changed.set()
        await kit.wait_status("later", "Running")
        await wait_event(kit, "NodeConditionCleared")
        assert (await kit.event_kinds()).count("NodeConditionRaised") == 1
        assert not (await kit.node_view("n1")).conditions

    async def test_reports_of_others_work_are_counted_and_ignored(self, kit):
        one, two = await ready(kit, "n1", "n2")
        await kit.apply("web", only_on="n1")
        await kit.wait_status("web", "Running")
        heartbeat = pb.HeartbeatRequest(node_id="n2", session=two.session, sequence=1000)
        status = heartbeat.workload_statuses.add(workload_id="web", state="Failed")
        status.run.generation = 1
        before = kit.plane.leadership.heartbeats.reports_ignored
        await kit.channel.call(AgentControl.HEARTBEAT, heartbeat)
        assert kit.plane.leadership.heartbeats.reports_ignored == before + 1
        assert (await kit.workload("web")).status == "Running"
        assert "web" in one.runs

    async def test_only_a_lost_node_can_be_removed(self, kit):
        one, _two = await ready(kit, "n1", "n2")
        await kit.apply("web")
        with pytest.raises(PreconditionError, match="Ready"):
            await kit.channel.call(AgentControl.REMOVE_NODE, pb.RemoveNodeRequest(node_id="n1"))
        one.silent = True
        await kit.wait_node("n1", "NotReady")
        await kit.channel.call(AgentControl.REMOVE_NODE, pb.RemoveNodeRequest(node_id="n1"))
        with pytest.raises(NotFoundError):
            await kit.node_view("n1")

    async def test_at_most_one_work_waits_for_the_margin(self, kit):
        one, two = await ready(kit, "n1", "n2")
        await kit.apply("solo", at_most_one=True)
        first = (await kit.wait_status("solo", "Running")).assigned_node_id
        old, new = (one, two) if first == "n1" else (two, one)
        old.silent = True
        last_heartbeat = kit.plane.leadership.contacts.get(first).lease.last_receipt
        await kit.wait(lambda: "solo" in new.runs)
        assert kit.clock.monotonic() - last_heartbeat >= 33.0


class TestCommands:
    async def test_one_dead_agent_delays_nobody_else(self, kit):
        dead, alive = await ready(kit, "dead", "alive")
        dead.silent = True
        for index in range(40):
            await kit.apply(f"stuck-{index}", only_on="dead", cpu=1, memory=1)
        began = kit.clock.monotonic()
        await kit.apply("quick", only_on="alive")
        await kit.wait(lambda: "quick" in alive.runs)
        assert kit.clock.monotonic() - began < 0.5

    async def test_a_lost_answer_leads_to_the_same_run_not_a_second_one(self, kit):
        (node,) = await ready(kit, "n1")
        kit.network.drop_replies("agents:50051", 1)
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        assert {generation for _verb, _name, generation in node.history} == {1}

    async def test_a_refusal_leads_to_another_node(self, kit):
        one, two = await ready(kit, "n1", "n2")
        one.refuse["*"] = ExhaustedError("disk is full")
        two_only = await kit.apply("web")
        assert two_only.success
        view = await kit.wait_status("web", "Running")
        assert view.assigned_node_id == "n2"
        assert two.history[-1][2] >= 1

    async def test_refused_everywhere_it_waits_with_the_words_of_each(self, kit):
        (node,) = await ready(kit, "n1")
        node.refuse["*"] = ExhaustedError("disk is full")
        await kit.apply("web")
        await kit.wait(lambda: "web" in kit.plane.leadership.pending.rejections)
        view = await kit.workload("web")
        assert view.status == "Pending"
        assert "disk is full" in view.reason.message
        node.refuse.clear()
        await kit.wait_status("web", "Running", seconds=120)

    async def test_a_generation_that_an_agent_has_passed_is_overtaken(self, kit):
        (node,) = await ready(kit, "n1")
        node.generations["web"] = 41
        await kit.apply("web")
        view = await kit.wait_status("web", "Running")
        assert view.generation == 42

    async def test_a_completed_workload_is_never_run_again(self, kit):
        one, two = await ready(kit, "n1", "n2")
        await kit.apply("job", restart="no")
        first = (await kit.wait_status("job", "Running")).assigned_node_id
        old = one if first == "n1" else two
        old.complete("job")
        view = await kit.wait_status("job", "Completed")
        assert view.run.exit.code == 0
        old.silent = True
        await kit.wait_node(first, "NotReady")
        await kit.clock.sleep(60)
        assert (await kit.workload("job")).status == "Completed"
        await kit.stop_control()
        await kit.start_control()
        await kit.clock.sleep(60)
        assert (await kit.workload("job")).status == "Completed"

    async def test_completed_work_gives_its_room_back(self, kit):
        (node,) = await ready(kit, "n1", cpu_millicores=1000)
        await kit.apply("job", cpu=900, restart="no")
        await kit.wait_status("job", "Running")
        await kit.apply("next", cpu=900)
        await kit.wait(lambda: "next" in kit.plane.leadership.pending.rejections)
        node.complete("job")
        await kit.wait_status("next", "Running", seconds=2)

    async def test_retry_runs_a_failed_one_again(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("job", restart="no")
        await kit.wait_status("job", "Running")
        node.fail("job")
        await kit.wait_status("job", "Failed")
        answer = await kit.channel.call(AgentControl.RETRY_WORKLOAD, pb.RetryWorkloadRequest(workload_id="job"))
        assert answer.accepted
        await kit.wait_status("job", "Running")
        assert node.runs["job"].request.attempt == 1

    async def test_a_foreign_agent_is_served_by_the_published_contract_alone(self, kit):
        (node,) = await ready(kit, "n1", features=())
        await kit.apply("web", revision="v1")
        await kit.wait_status("web", "Running", seconds=15)
        await kit.delete("web")
        await kit.wait_gone("web", seconds=5)
        assert node.runs == {}

    async def test_foreign_agents_get_no_at_most_one_work(self, kit):
        await ready(kit, "n1", features=())
        await kit.apply("solo", at_most_one=True)
        await kit.wait(lambda: "solo" in kit.plane.leadership.pending.rejections)
        view = await kit.workload("solo")
        assert [each.code for each in view.rejections] == ["generations"]

    async def test_an_at_most_one_update_to_another_node_waits_for_the_old_copy(self, kit):
        one, two = await ready(kit, "n1", "n2")
        await kit.apply("solo", revision="v1", at_most_one=True, only_on="n1")
        await kit.wait_status("solo", "Running")
        one.slow = 4.0
        began = kit.clock.monotonic()
        await kit.apply("solo", revision="v2", at_most_one=True, only_on="n2")
        await kit.wait(lambda: "solo" in two.runs)
        assert "solo" not in one.runs
        assert kit.clock.monotonic() - began >= 4.0

    async def test_a_moved_workload_is_removed_from_a_reachable_node_at_once(self, kit):
        one, two = await ready(kit, "n1", "n2")
        await kit.apply("web", revision="v1", only_on="n1")
        await kit.wait_status("web", "Running")
        began = kit.clock.monotonic()
        await kit.apply("web", revision="v2", only_on="n2")
        await kit.wait(lambda: "web" in two.runs and "web" not in one.runs)
        assert kit.clock.monotonic() - began < 1.0

    async def test_a_clone_gets_at_most_one_work_only_after_its_predecessor_has_surely_stopped(self, kit):
        (original,) = await ready(kit, "n1")
        await kit.apply("solo", at_most_one=True)
        await kit.wait_status("solo", "Running")
        original.silent = True
        kit.agents.nodes.pop("n1")
        clone = kit.node("n1")
        await kit.wait(lambda: "solo" in clone.runs, seconds=90)
        assert kit.clock.monotonic() >= original.last_ack + original.lease * 1.1

    async def test_nonsense_from_one_agent_harms_nobody_else(self, kit):
        one, _two = await ready(kit, "n1", "n2")
        error = StaleGenerationError("web", offered=1, highest=2)
        error.facts["highest"] = "abc"
        one.refuse["*"] = error
        await kit.apply("web", only_on="n1")
        await kit.apply("other", only_on="n2")
        await kit.wait_status("other", "Running")
        await kit.clock.sleep(5)
        assert (await kit.workload("web")).status == "Pending"
        one.refuse.clear()
        await kit.wait_status("web", "Running", seconds=120)

    async def test_an_absurd_generation_is_not_believed(self, kit):
        (node,) = await ready(kit, "n1")
        node.generations["web"] = 2**62
        await kit.apply("web")
        await kit.clock.sleep(5)
        assert kit.plane.leadership.fleet.workloads["web"].generation < 10
        await kit.delete("web")
        await kit.apply("next")
        await kit.wait_status("next", "Running")

    async def test_work_that_a_node_never_answers_for_is_placed_elsewhere(self, kit):
        one, two = await ready(kit, "n1", "n2")
        one.deaf = True
        for index in range(4):
            await kit.apply(f"w{index}")
        await kit.wait(lambda: len(two.runs) == 4, seconds=120)

    async def test_a_commit_whose_outcome_is_unknown_is_looked_up(self, kit):
        await ready(kit, "n1")
        kit.store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)
        with pytest.raises(UnavailableError):
            await kit.apply("web", revision="v1")
        answer = await kit.apply("web", revision="v1")
        assert (answer.success, answer.outcome) == (True, "unchanged")
        await kit.wait_status("web", "Running")

    async def test_a_measurement_that_cannot_be_does_not_cost_a_node_its_lease(self, kit):
        (node,) = await ready(kit, "n1")
        heartbeat = pb.HeartbeatRequest(node_id="n1", session=node.session, sequence=10_000)
        heartbeat.usage.cpu_used_millicores = -(2**63)
        assert (await kit.channel.call(AgentControl.HEARTBEAT, heartbeat)).acknowledged


class TestGroups:
    async def test_all_members_are_placed_together(self, kit):
        await ready(kit, "n1", "n2")
        answer = await kit.apply_group("gang", {"a": {"cpu": 3000}, "b": {"cpu": 3000}})
        assert (answer.generation, answer.outcome) == (1, "created")
        nodes = {(await kit.wait_status(name, "Running")).assigned_node_id for name in "ab"}
        assert nodes == {"n1", "n2"}
        group = await kit.channel.call(AgentControl.GET_GROUP, pb.GetGroupRequest(group_id="gang"))
        assert group.group.status == "Running"

    async def test_or_none_of_them(self, kit):
        await ready(kit, "n1")
        with pytest.raises(ExhaustedError, match="nothing was"):
            await kit.apply_group("gang", {"a": {"cpu": 3000}, "b": {"cpu": 3000}})
        assert kit.plane.leadership.fleet.workloads == {}
        assert kit.plane.leadership.fleet.groups == {}

    async def test_a_second_call_changes_only_what_differs(self, kit):
        await ready(kit, "n1", "n2")
        await kit.apply_group("gang", {"a": {}, "b": {}, "c": {}})
        for name in "abc":
            await kit.wait_status(name, "Running")
        answer = await kit.apply_group("gang", {"a": {}, "b": {"cpu": 500}, "d": {}}, expected_generation=1)
        assert (answer.generation, answer.outcome) == (2, "updated")
        await kit.wait_gone("c")
        generations = {name: kit.plane.leadership.fleet.workloads[name].generation for name in "abd"}
        assert generations == {"a": 1, "b": 2, "d": 1}
        await kit.wait(lambda: not kit.plane.leadership.fleet.groups["gang"].before)
        again = await kit.apply_group("gang", {"a": {}, "b": {"cpu": 500}, "d": {}})
        assert (again.generation, again.outcome) == (2, "unchanged")

    async def test_the_generation_is_compare_and_set(self, kit):
        await ready(kit, "n1")
        await kit.apply_group("gang", {"a": {}}, expected_generation=0)
        with pytest.raises(ConflictError, match="stored is 1"):
            await kit.apply_group("gang", {"a": {"cpu": 500}}, expected_generation=0)

    async def test_a_refused_member_is_placed_elsewhere(self, kit):
        one, _two = await ready(kit, "n1", "n2")
        one.refuse["*"] = ExhaustedError("no")
        await kit.apply_group("gang", {"a": {}, "b": {}})
        for name in "ab":
            assert (await kit.wait_status(name, "Running")).assigned_node_id == "n2"

    async def test_a_new_group_that_is_refused_everywhere_is_undone(self, kit):
        one, two = await ready(kit, "n1", "n2")
        for node in (one, two):
            node.refuse["b"] = ExhaustedError("no room for b")
        await kit.apply_group("gang", {"a": {}, "b": {}})
        await kit.wait(lambda: not kit.plane.leadership.fleet.workloads)
        await kit.wait(lambda: not kit.plane.leadership.fleet.groups)
        assert one.runs == two.runs == {}
        assert "GroupChangeReverted" in await kit.event_kinds("gang")

    async def test_a_refused_change_is_undone_and_the_group_is_as_before(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply_group("gang", {"a": {"revision": "v1"}, "b": {"revision": "v1"}})
        for name in "ab":
            await kit.wait_status(name, "Running")
        await kit.wait(lambda: not kit.plane.leadership.fleet.groups["gang"].before)
        node.refuse["c"] = ExhaustedError("no room for c")
        await kit.apply_group("gang", {"a": {"revision": "v2", "cpu": 200}, "c": {}})
        await kit.wait(lambda: kit.plane.leadership.fleet.groups["gang"].message != "")
        await kit.wait_gone("c")
        for name in "ab":
            view = await kit.wait_status(name, "Running")
            assert view.revision_id == view.observed_revision_id == "v1"
        assert set(kit.plane.leadership.fleet.groups["gang"].members) == {"a", "b"}

    async def test_a_member_changes_only_with_its_group(self, kit):
        await ready(kit, "n1")
        await kit.apply_group("gang", {"a": {}})
        assert "gang" in (await kit.apply("a", cpu=500)).error_message
        assert "gang" in (await kit.delete("a")).error_message

    async def test_deleting_a_group_deletes_its_members(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply_group("gang", {"a": {}, "b": {}})
        for name in "ab":
            await kit.wait_status(name, "Running")
        await kit.channel.call(AgentControl.DELETE_GROUP, pb.DeleteGroupRequest(group_id="gang"))
        await kit.wait(lambda: not kit.plane.leadership.fleet.groups)
        assert node.runs == {}
        assert kit.plane.leadership.fleet.workloads == {}

    async def test_foreign_agents_get_no_groups(self, kit):
        await ready(kit, "n1", features=())
        with pytest.raises(ExhaustedError, match="generations"):
            await kit.apply_group("gang", {"a": {}})

    async def test_rules_on_the_request(self, kit):
        with pytest.raises(InvalidError, match="members"):
            await kit.apply_group("gang", {})
        with pytest.raises(InvalidError, match=r"members\[0\]\.workload_id"):
            await kit.apply_group("gang", {"../x": {}})


class TestReads:
    async def test_a_plan_says_where_and_why_and_stores_nothing(self, kit):
        await ready(kit, "n1", "n2")
        from shoal.testing.control import process_spec

        request = pb.PlanPlacementRequest(members=[pb.GroupMember(workload_id="web", spec=process_spec())])
        answer = await kit.channel.call(AgentControl.PLAN_PLACEMENT, request)
        assert answer.placeable
        assert answer.placements[0].node_id in ("n1", "n2")
        assert answer.placements[0].change == "create"
        assert {score.node_id for score in answer.placements[0].scores} == {"n1", "n2"}
        assert kit.plane.leadership.fleet.workloads == {}

    async def test_the_summary_counts_each_workload_once(self, kit):
        await ready(kit, "n1")
        await kit.apply("a")
        await kit.apply("b", desired="Stopped")
        await kit.apply("c", cpu=1_000_000)
        await kit.wait_status("a", "Running")
        await kit.wait(lambda: "c" in kit.plane.leadership.pending.rejections)
        summary = await kit.channel.call(AgentControl.GET_CLUSTER_SUMMARY, pb.GetClusterSummaryRequest())
        assert summary.total_workloads == 3
        assert (summary.running_workloads, summary.stopped_workloads, summary.pending_workloads) == (1, 1, 1)
        assert (summary.total_nodes, summary.ready_nodes, summary.not_ready_nodes) == (1, 1, 0)

    async def test_events_are_followed_without_a_gap(self, kit):
        await ready(kit, "n1")
        stream = kit.channel.stream(AgentControl.WATCH_EVENTS, pb.WatchEventsRequest())
        seen = []

        async def follow():
            async for event in stream:
                seen.append(event.cursor)

        task = asyncio.ensure_future(follow())
        for index in range(20):
            await kit.apply(f"w{index}", cpu=1, memory=1)
        await kit.wait_status("w19", "Running")
        await kit.clock.sleep(1)
        task.cancel()
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) > 60

    async def test_an_automation_may_ask_for_what_a_person_may(self, kit):
        await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        suggestion = pb.AutomationSuggestion(target_workload="web", action_type=pb.DELETE_WORKLOAD)
        request = pb.SubmitAutomationSuggestionRequest(suggestion=suggestion)
        answer = await kit.channel.call(AgentControl.SUBMIT_AUTOMATION_SUGGESTION, request)
        assert (answer.accepted, answer.applied_action) == (True, "DELETE_WORKLOAD")
        await kit.wait_gone("web")
        suggestion.action_type = pb.SCALE_REPLICAS
        answer = await kit.channel.call(AgentControl.SUBMIT_AUTOMATION_SUGGESTION, request)
        assert (answer.accepted, answer.decision) == (False, "rejected")


async def test_a_burst_is_spread_and_never_overcommits(tmp_path):
    async with ControlKit(tmp_path) as kit:
        for index in range(4):
            kit.node(f"n{index}", cpu_millicores=1000, memory_mb=1000)
            await kit.wait_node(f"n{index}", "Ready")
        await asyncio.gather(*(kit.apply(f"w{index}", cpu=250, memory=100) for index in range(20)))
        await kit.wait(lambda: sum(len(node.runs) for node in kit.agents.nodes.values()) == 16)
        await kit.wait(lambda: len(kit.plane.leadership.pending.rejections) == 4)
        assert {len(node.runs) for node in kit.agents.nodes.values()} == {4}

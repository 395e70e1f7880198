"""The control plane as a whole when workloads fail, nodes return, and the store is away. Virtual time."""

import asyncio
import time
from datetime import timedelta

import pytest

from shoal.core.errors import ExhaustedError, NotFoundError, PreconditionError, UnavailableError, UnsupportedError
from shoal.testing.control import ControlKit
from shoal.testing.hollow import HollowRun
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.agent.v1 import agent_pb2
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from tests.unit.control.test_failure_and_change import (
    copies,
    cordon,
    drain,
    ready,
    running_on,
    wait_event,
)

pytestmark = pytest.mark.looptime(start=time.monotonic)


class TestRetries:
    async def test_a_failed_workload_is_tried_again_ever_more_slowly_and_then_not_any_more(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        waits = []
        for attempt in range(1, 6):
            node.fail("web")
            view = await kit.wait_status("web", "Failed")
            await kit.wait(lambda: kit.plane.reign.fleet.workloads["web"].retry.next_at is not None)
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
        await wait_event(kit, "RetriesExhausted")
        await kit.clock.sleep(400)
        view = await kit.workload("web")
        assert (view.status, view.reason.retryable) == ("Failed", False)
        assert node.runs["web"].request.attempt == 5

    async def test_being_well_for_ten_minutes_fills_the_budget(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        for _ in range(3):
            node.fail("web")
            await kit.wait_status("web", "Failed")
            await kit.wait_status("web", "Running", seconds=400)
            assert (await kit.workload("web")).retry_attempts == 1
            await kit.clock.sleep(620)
            assert (await kit.workload("web")).retry_attempts == 0

    async def test_the_budget_and_the_next_try_survive_a_restart(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        node.fail("web")
        await kit.wait(lambda: kit.plane.reign.fleet.workloads["web"].retry.next_at is not None)
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
        await kit.clock.sleep(400)
        assert node.runs["web"].request.attempt == 0

    async def test_a_job_that_is_not_restarted_is_not_retried(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("job", restart="no")
        await kit.wait_status("job", "Running")
        node.fail("job")
        await kit.wait_status("job", "Failed")
        await kit.clock.sleep(400)
        assert (await kit.workload("job")).status == "Failed"

    async def test_a_person_resets_the_count(self, kit):
        (node,) = await ready(kit, "n1")
        await kit.apply("web")
        await kit.wait_status("web", "Running")
        node.fail("web")
        await kit.wait(lambda: kit.plane.reign.fleet.workloads["web"].retry.attempts == 1)
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
        facts = kit.plane.reign.fleet.facts_of("n1")
        assert facts.reserved.cpu_millicores == 900
        assert [each.code for each in (await kit.workload("web")).rejections] == ["cpu"]
        await kit.delete("other")
        await kit.wait_status("web", "Running", seconds=60)


class TestOrphans:
    async def orphan(self, kit, node, name="stray", **spec):
        """Something that runs on an agent and that the control plane has forgotten."""
        await kit.apply(name, only_on=node.node_id, **spec)
        await kit.wait_status(name, "Running")
        order = agent_pb2.ApplyWorkloadRequest()
        order.CopyFrom(node.runs[name].request)
        await kit.delete(name)
        await kit.wait_gone(name)
        node.runs[name] = HollowRun(order)
        node.changed.set()
        await kit.wait(lambda: kit.plane.reign.nodes.contact(node.node_id).orphans == (name,))
        return order

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
        order = await self.orphan(kit, node, cpu=700, revision="r7", failover="stop", after=90.0)
        told = len(node.history)
        view = await self.adopt(kit, "n1", "stray")
        assert (view.revision_id, view.assigned_node_id) == ("r7", "n1")
        assert view.spec.resources.cpu_millicores == 700
        await kit.wait_status("stray", "Running")
        assert node.runs["stray"].request.spec == order.spec
        assert node.runs["stray"].request.generation > order.generation
        assert len(node.history) == told + 1
        await kit.wait(lambda: kit.plane.reign.nodes.contact("n1").orphans == ())
        assert kit.plane.reign.fleet.facts_of("n1").reserved.cpu_millicores == 700

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
        assert "stray" not in kit.plane.reign.fleet.workloads

    async def test_a_foreign_agent_hands_out_nothing_and_the_other_way_works(self, kit):
        (node,) = await ready(kit, "n1", features=())
        await self.orphan(kit, node)
        with pytest.raises(UnsupportedError, match="does not hand out"):
            await self.adopt(kit, "n1", "stray")
        await kit.apply("stray", only_on="n1")
        await kit.wait_status("stray", "Running")


class TestReturn:
    async def test_copies_that_were_superseded_are_stopped_within_two_beats(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        await kit.apply("gone", only_on=here.node_id)
        await kit.wait_status("gone", "Running")
        await kit.apply("stays", only_on=here.node_id)
        await kit.wait_status("stays", "Running")
        here.silent = True
        await kit.wait(lambda: "web" in other.runs, seconds=60)
        await kit.delete("gone")
        here.silent = False
        began = kit.clock.monotonic()
        await kit.wait(lambda: set(here.runs) == {"stays"}, seconds=20)
        assert kit.clock.monotonic() - began <= 20.0
        assert [verb for verb, name, _ in here.history if name == "stays"] == ["apply Running"]
        await kit.wait_gone("gone", seconds=15)

    async def test_on_a_foreign_agent_by_the_published_contract(self, kit):
        await ready(kit, "n1", "n2", features=())
        here, (other,) = await running_on(kit, "web")
        await kit.apply("gone", only_on=here.node_id)
        await kit.wait_status("gone", "Running", seconds=15)
        here.silent = True
        await kit.wait(lambda: "web" in other.runs, seconds=60)
        await kit.delete("gone")
        here.silent = False
        await kit.wait(lambda: here.runs == {}, seconds=20)
        await kit.wait_gone("gone", seconds=15)
        await kit.wait(lambda: kit.plane.reign.fleet.workloads["web"].left_on == ())
        assert {action.workload_id for action in here.actions} == {"web", "gone"}

    async def test_a_ghost_of_a_foreign_agent_holds_nothing_up(self, kit):
        """Its list may bring a removed workload back; its log of actions is what counts."""
        await ready(kit, "n1", "n2", features=())
        here, (other,) = await running_on(kit, "web")
        here.silent = True
        await kit.wait(lambda: "web" in other.runs, seconds=60)
        ghost = here.runs["web"]
        here.silent = False
        await kit.wait(lambda: "web" not in here.runs, seconds=20)
        here.runs["web"] = ghost
        await drain(kit, here.node_id)
        await kit.wait(lambda: kit.plane.reign.fleet.workloads["web"].left_on == (), seconds=30)
        await kit.wait_node(here.node_id, "Drained", seconds=30)


class TestStoreAway:
    async def test_nothing_is_touched_and_nothing_is_forgotten(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", revision="v1")
        await kit.apply("other", revision="v1")
        await kit.wait_status("other", "Running")
        told = {name: list(node.history) for name, node in kit.agents.nodes.items()}
        kit.store.away = True
        beat = pb.HeartbeatRequest(node_id=here.node_id, session=here.session, sequence=here.sequence + 1000)
        answer = await kit.channel.call(AgentControl.HEARTBEAT, beat)
        here.sequence += 1001
        assert (answer.acknowledged, answer.drain_node) == (True, False)
        await kit.clock.sleep(600)
        assert {name: list(node.history) for name, node in kit.agents.nodes.items()} == told
        assert (await kit.workload("web")).status == "Running"
        assert not any(node.draining for node in kit.agents.nodes.values())
        kit.store.away = False
        await kit.clock.sleep(60)
        assert {name: list(node.history) for name, node in kit.agents.nodes.items()} == told
        assert {node.state.value for node in kit.plane.reign.fleet.nodes.values()} == {"Ready"}
        await kit.apply("web", revision="v2", cpu=200)
        await kit.wait(lambda: here.runs["web"].request.revision_id == "v2", seconds=5)
        assert other is not here

    async def test_every_write_is_refused_with_a_reason_and_nothing_is_changed(self, kit):
        await ready(kit, "n1")
        await running_on(kit, "web", revision="v1")
        kit.store.away = True
        calls = {
            AgentControl.DELETE_WORKLOAD: pb.DeleteWorkloadRequest(workload_id="web"),
            AgentControl.RETRY_WORKLOAD: pb.RetryWorkloadRequest(workload_id="web"),
            AgentControl.SET_DESIRED_STATE: pb.SetDesiredStateRequest(workload_id="web", desired_state="Stopped"),
            AgentControl.CORDON_NODE: pb.CordonNodeRequest(node_id="n1"),
            AgentControl.DRAIN_NODE: pb.DrainNodeRequest(node_id="n1"),
            AgentControl.MARK_NODE_DEAD: pb.MarkNodeDeadRequest(node_id="n1", force=True),
        }
        for method, request in calls.items():
            with pytest.raises(UnavailableError) as error:
                await kit.channel.call(method, request)
            assert "away" in error.value.message
            assert "goes on" in error.value.hint
        with pytest.raises(UnavailableError):
            await kit.apply("new")
        with pytest.raises(UnavailableError):
            await kit.apply_group("gang", {"a": {}})
        kit.store.away = False
        await kit.clock.sleep(30)
        view = await kit.workload("web")
        assert (view.status, view.desired_state, view.revision_id) == ("Running", "Running", "v1")
        node = await kit.node_view("n1")
        assert (node.status, node.wish) == ("Ready", "")

    async def test_a_node_lost_meanwhile_is_given_up_when_it_is_back(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        kit.store.away = True
        here.silent = True
        await kit.clock.sleep(300)
        assert other.runs == {}
        kit.store.away = False
        await kit.wait(lambda: "web" in other.runs, seconds=10)

    async def test_a_drain_waits_for_it(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        other.never_ready = True
        await drain(kit, here.node_id)
        await kit.wait(lambda: "web" in other.runs)
        kit.store.away = True
        other.start_again("web")
        await kit.clock.sleep(120)
        assert copies(kit, "web") == ["n1", "n2"]
        kit.store.away = False
        await kit.wait_node(here.node_id, "Drained", seconds=60)
        assert copies(kit, "web") == [other.node_id]


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path, lease=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=10)) as kit:
        yield kit


async def test_a_fleet_at_rest_stores_nothing(kit):
    await ready(kit, "n1", "n2", "n3")
    await running_on(kit, "web")
    await cordon(kit, "n1")
    await drain(kit, "n2")
    await kit.wait_node("n2", "Drained", seconds=60)
    kinds = await kit.event_kinds()
    await asyncio.sleep(600)
    assert await kit.event_kinds() == kinds

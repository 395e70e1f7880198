"""The control plane as a whole when nodes are lost, drained or declared dead, and when workloads fail. Virtual time."""

import time

import pytest

from shoal.core.errors import ExhaustedError, NotFoundError, PreconditionError
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb

pytestmark = pytest.mark.looptime(start=time.monotonic)


async def ready(kit, *names, **settings):
    nodes = [kit.node(name, **settings) for name in names]
    for name in names:
        await kit.wait_node(name, "Ready")
    return nodes


async def running_on(kit, name, **spec):
    """Apply it, and say on which node it runs, and on which of two it does not."""
    await kit.apply(name, **spec)
    view = await kit.wait_status(name, "Running")
    here = kit.agents.nodes[view.assigned_node_id]
    others = [node for node in kit.agents.nodes.values() if node is not here]
    return here, others


async def drain(kit, node_id, *, deadline_ms=0, force=False):
    request = pb.DrainNodeRequest(node_id=node_id, deadline_ms=deadline_ms, force=force)
    return (await kit.channel.call(AgentControl.DRAIN_NODE, request)).node


async def cordon(kit, node_id):
    return (await kit.channel.call(AgentControl.CORDON_NODE, pb.CordonNodeRequest(node_id=node_id))).node


async def uncordon(kit, node_id):
    return (await kit.channel.call(AgentControl.UNCORDON_NODE, pb.UncordonNodeRequest(node_id=node_id))).node


async def declare_dead(kit, node_id, *, force=False):
    request = pb.MarkNodeDeadRequest(node_id=node_id, force=force)
    return (await kit.channel.call(AgentControl.MARK_NODE_DEAD, request)).node


async def wait_event(kit, kind, seconds=10.0):
    deadline = kit.clock.monotonic() + seconds
    while kind not in await kit.event_kinds():
        assert kit.clock.monotonic() < deadline, f"no {kind} within {seconds} s"
        await kit.clock.sleep(0.05)


def copies(kit, name):
    return sorted(node.node_id for node in kit.agents.nodes.values() if name in node.runs)


class TestPolicies:
    async def test_a_grace_is_waited_for(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", after=60.0)
        here.silent = True
        await kit.wait_node(here.node_id, "NotReady")
        lost_at = kit.clock.monotonic()
        view = await kit.wait_status("web", "Unknown")
        assert view.reason.code == "NODE_LOST"
        await kit.wait(lambda: "web" in other.runs, seconds=120)
        assert 59.0 <= kit.clock.monotonic() - lost_at <= 62.0

    async def test_a_node_that_returns_within_the_grace_keeps_its_work(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", after=300.0)
        here.silent = True
        await kit.wait_node(here.node_id, "NotReady")
        await kit.clock.sleep(100)
        here.silent = False
        await kit.wait_status("web", "Running")
        await kit.clock.sleep(300)
        assert other.runs == {}
        assert [verb for verb, _name, _generation in here.history] == ["apply Running"]

    async def test_what_is_kept_is_not_moved_until_the_node_is_declared_dead(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "db", failover="keep")
        here.silent = True
        await kit.wait_node(here.node_id, "NotReady")
        await kit.clock.sleep(600)
        view = await kit.workload("db")
        assert view.status == "Unknown"
        assert "kept" in view.reason.message
        assert other.runs == {}
        await declare_dead(kit, here.node_id)
        await kit.wait(lambda: "db" in other.runs, seconds=2)

    async def test_what_stops_by_itself_is_replaced_only_when_it_surely_has(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", failover="stop", after=100.0)
        assert here.runs["web"].request.spec.stop_after_ms == 100_000
        last = kit.plane.reign.nodes.contact(here.node_id).lease.last_receipt
        here.silent = True
        await kit.wait(lambda: "web" in other.runs, seconds=300)
        assert kit.clock.monotonic() - last >= 110.0

    async def test_an_agent_that_stops_nothing_by_itself_gets_no_such_work(self, kit):
        await ready(kit, "n1", features=("generations", "sessions", "push"))
        await kit.apply("web", failover="stop", after=100.0)
        await kit.wait(lambda: "web" in kit.plane.reign.dispatch.rejections)
        assert [each.code for each in (await kit.workload("web")).rejections] == ["stop_alone"]

    async def test_rules_on_the_spec(self, kit):
        for spec, field in (
            ({"failover": "stop"}, "spec.failover.after"),
            ({"failover": "keep", "after": 1.0}, "spec.failover.after"),
            ({"failover": "hope"}, "spec.failover.policy"),
            ({"migrate": "before", "at_most_one": True}, "spec.failover.migrate"),
            ({"failover": "stop", "after": 9.0, "at_most_one": True}, "spec.failover.policy"),
        ):
            answer = await kit.apply("web", **spec)
            assert [each.field for each in answer.problems] == [field], spec


class TestMassLoss:
    async def test_lost_nodes_are_given_up_one_after_another(self, kit):
        await ready(kit, *(f"n{index}" for index in range(10)))
        for index in range(10):
            await kit.apply(f"w{index}", cpu=1000)
        for index in range(10):
            await kit.wait_status(f"w{index}", "Running")
        doomed = [kit.agents.nodes[name] for name in ("n1", "n2", "n3")]
        for node in doomed:
            node.silent = True
        for node in doomed:
            await kit.wait_node(node.node_id, "NotReady")
        began = kit.clock.monotonic()

        def moved():
            return sum(node.given_up for node in kit.plane.reign.fleet.nodes.values())

        await kit.wait(lambda: moved() == 3, seconds=60)
        assert 9.0 <= kit.clock.monotonic() - began <= 21.0
        alive = [node for node in kit.agents.nodes.values() if not node.silent]
        await kit.wait(lambda: sum(len(node.runs) for node in alive) == 10)

    async def test_when_most_nodes_vanish_nothing_moves_until_they_return(self, kit):
        nodes = await ready(kit, "n1", "n2", "n3", "n4")
        for node in nodes:
            await kit.apply(f"on-{node.node_id}", cpu=3000)
        for node in nodes:
            await kit.wait_status(f"on-{node.node_id}", "Running")
        before = {name: record.node_id for name, record in kit.plane.reign.fleet.workloads.items()}
        for node in nodes[:3]:
            node.silent = True
        for node in nodes[:3]:
            await kit.wait_node(node.node_id, "NotReady")
        await kit.clock.sleep(600)
        assert {name: record.node_id for name, record in kit.plane.reign.fleet.workloads.items()} == before
        assert "3 of 4 nodes" in kit.plane.reign.nodes.brake
        assert "MovesHeld" in await kit.event_kinds("default")
        assert (await kit.node_view("n1")).failover == "held"
        nodes[0].silent = False
        await kit.wait(lambda: kit.plane.reign.nodes.brake == "", seconds=30)
        await kit.wait(lambda: kit.plane.reign.fleet.nodes["n2"].given_up, seconds=60)
        assert "MovesResumed" in await kit.event_kinds("default")

    async def test_an_operator_who_knows_lets_go_of_the_brake(self, kit):
        nodes = await ready(kit, "n1", "n2", "n3", "n4")
        await kit.apply("web", only_on="n1", cpu=100)
        await kit.wait_status("web", "Running")
        for node in nodes[:3]:
            node.silent = True
        await kit.wait_node("n3", "NotReady")
        await kit.wait(lambda: kit.plane.reign.nodes.brake != "")
        await declare_dead(kit, "n2")
        await kit.wait(lambda: kit.plane.reign.nodes.brake == "")
        await kit.wait(lambda: kit.plane.reign.fleet.nodes["n1"].given_up)

    async def test_the_brake_survives_a_restart(self, kit):
        await ready(kit, "n1", "n2", "n3", "n4")
        here, others = await running_on(kit, "web")
        for node in (here, *others[:2]):
            node.silent = True
        await kit.wait(lambda: kit.plane.reign.nodes.brake != "", seconds=60)
        await kit.stop_control()
        await kit.start_control()
        await kit.clock.sleep(300)
        assert kit.plane.reign.fleet.workloads["web"].node_id == here.node_id

    async def test_nodes_lost_long_ago_do_not_pull_it(self, kit):
        nodes = await ready(kit, "n1", "n2", "n3", "n4")
        for node in nodes[:2]:
            node.silent = True
            await kit.wait(lambda name=node.node_id: kit.plane.reign.fleet.nodes[name].given_up, seconds=120)
            await kit.clock.sleep(60)
        here, others = await running_on(kit, "web")
        here.silent = True
        (other,) = [each for each in others if not each.silent]
        await kit.wait(lambda: "web" in other.runs, seconds=120)


class TestDead:
    async def test_it_is_refused_while_the_node_beats(self, kit):
        await ready(kit, "n1")
        with pytest.raises(PreconditionError, match="heard of a moment ago"):
            await declare_dead(kit, "n1")
        assert (await kit.node_view("n1")).status == "Ready"
        with pytest.raises(NotFoundError):
            await declare_dead(kit, "ghost")

    async def test_everything_moves_at_once_also_what_may_exist_only_once(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "solo", at_most_one=True)
        await kit.apply("plain", only_on=here.node_id)
        await kit.wait_status("plain", "Running")
        here.silent = True
        await kit.wait_node(here.node_id, "Suspect")
        node = await declare_dead(kit, here.node_id)
        assert (node.status, node.failover, node.status_updated_by) == ("NotReady", "dead", "operator")
        await kit.wait(lambda: "solo" in other.runs, seconds=2)
        assert "NodeDeclaredDead" in await kit.event_kinds(here.node_id)

    async def test_a_node_that_is_not_dead_after_all_comes_back_without_its_old_copies(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        await declare_dead(kit, here.node_id, force=True)
        await kit.wait(lambda: "web" in other.runs, seconds=2)
        await kit.wait_node(here.node_id, "Ready", seconds=30)
        await kit.wait(lambda: "web" not in here.runs, seconds=20)
        assert not kit.plane.reign.fleet.nodes[here.node_id].dead

    async def test_the_word_survives_a_restart(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "db", failover="keep", cpu=3000)
        await kit.apply("blocker", cpu=3000)
        await kit.wait_status("blocker", "Running")
        here.silent = True
        await kit.wait_node(here.node_id, "NotReady")
        await declare_dead(kit, here.node_id)
        await kit.stop_control()
        await kit.start_control()
        await kit.delete("blocker")
        await kit.wait(lambda: "db" in other.runs, seconds=60)

    async def test_a_deleted_workload_of_a_dead_node_is_forgotten_when_the_node_is_removed(self, kit):
        await ready(kit, "n1")
        here, _ = await running_on(kit, "web")
        here.silent = True
        await kit.wait_node("n1", "NotReady")
        await kit.delete("web")
        await declare_dead(kit, "n1")
        await kit.channel.call(AgentControl.REMOVE_NODE, pb.RemoveNodeRequest(node_id="n1"))
        await kit.wait_gone("web", seconds=5)


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

    async def test_neither_beats_nor_registrations_nor_restarts_take_it_back(self, kit):
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
        await kit.wait(lambda: "web" in kit.plane.reign.dispatch.rejections)
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
        assert kit.plane.reign.fleet.facts_of(here.node_id).reserved.cpu_millicores == 3000
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
        first = sorted(kit.plane.reign.fleet.owned_by("n1"))
        assert len(first) == 2
        kit.agents.nodes["n2"].never_ready = True
        await drain(kit, "n1")
        await kit.clock.sleep(60)
        assert len(kit.plane.reign.fleet.moving_from("n1")) == 1
        assert copies(kit, first[1]) == ["n1"]
        kit.agents.nodes["n2"].never_ready = False
        kit.agents.nodes["n2"].start_again(first[0])
        await kit.wait_node("n1", "Drained", seconds=60)
        assert kit.agents.nodes["n1"].runs == {}

    async def test_of_what_may_exist_once_there_are_never_two(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "solo", at_most_one=True)
        seen = []
        kit.agents._on_order = lambda verb, name, _generation: seen.append((verb, copies(kit, name)))
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
        await wait_event(kit, "MoveTakenBack")
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
        await wait_event(kit, "MoveTakenBack")
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

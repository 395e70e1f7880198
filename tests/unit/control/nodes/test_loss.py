"""The control plane when nodes are lost, return or are declared dead, and when its store is away. Virtual time."""

import time

import pytest

from shoal.core.errors import NotFoundError, PreconditionError, UnavailableError
from shoal.testing.stores import Fault
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from tests.unit.control.operating import copies, declare_dead, drain, ready, running_on

pytestmark = pytest.mark.looptime(start=time.monotonic)


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
        await kit.clock.sleep(200)
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
        last = kit.plane.leadership.contacts.get(here.node_id).lease.last_receipt
        here.silent = True
        await kit.wait(lambda: "web" in other.runs, seconds=300)
        assert kit.clock.monotonic() - last >= 110.0

    async def test_a_node_is_not_removed_while_it_may_still_run_such_work(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", failover="stop", after=100.0)
        here.silent = True
        await kit.wait_node(here.node_id, "NotReady")
        remove = pb.RemoveNodeRequest(node_id=here.node_id)
        with pytest.raises(PreconditionError, match="deadline"):
            await kit.channel.call(AgentControl.REMOVE_NODE, remove)
        await declare_dead(kit, here.node_id)
        await kit.channel.call(AgentControl.REMOVE_NODE, remove)
        await kit.wait(lambda: "web" in other.runs, seconds=5)

    async def test_an_agent_that_stops_nothing_by_itself_gets_no_such_work(self, kit):
        await ready(kit, "n1", features=("generations", "sessions", "push"))
        await kit.apply("web", failover="stop", after=100.0)
        await kit.wait(lambda: "web" in kit.plane.leadership.pending.rejections)
        assert [each.code for each in (await kit.workload("web")).rejections] == ["stop_alone"]

    @pytest.mark.parametrize(
        ("spec", "field"),
        [
            ({"failover": "stop"}, "spec.failover.after"),
            ({"failover": "keep", "after": 1.0}, "spec.failover.after"),
            ({"failover": "hope"}, "spec.failover.policy"),
            ({"migrate": "before", "at_most_one": True}, "spec.failover.migrate"),
            ({"failover": "stop", "after": 9.0, "at_most_one": True}, "spec.failover.policy"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
    )
    async def test_rules_on_the_spec(self, kit, spec, field):
        answer = await kit.apply("web", **spec)
        assert [each.field for each in answer.problems] == [field]


class TestMassLoss:
    async def test_the_verdicts_on_many_nodes_are_stored_together(self, kit):
        nodes = await ready(kit, *(f"n{index}" for index in range(60)))
        spared = await ready(kit, *(f"m{index}" for index in range(90)))
        stored = []
        kit.plane.leadership.ledger.on_batch(lambda batch: stored.extend([batch.nodes] if batch.nodes else []))
        for node in nodes:
            node.silent = True
        for node in nodes:
            await kit.wait_node(node.node_id, "NotReady", seconds=90)
        fleet = kit.plane.leadership.fleet
        await kit.wait(lambda: sum(node.declared_lost for node in fleet.nodes.values()) == 60)
        # Suspect, lost, declared lost: each is one commit, or two when a tick lay between their heartbeats.
        assert sum(len(changed) for changed in stored) == 180
        assert len(stored) <= 6
        assert all(fleet.nodes[node.node_id].state.value == "Ready" for node in spared)

    async def test_nodes_are_declared_lost_one_after_another(self, kit):
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
            return sum(node.declared_lost for node in kit.plane.leadership.fleet.nodes.values())

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
        before = {name: record.node_id for name, record in kit.plane.leadership.fleet.workloads.items()}
        for node in nodes[:3]:
            node.silent = True
        for node in nodes[:3]:
            await kit.wait_node(node.node_id, "NotReady")
        await kit.clock.sleep(200)
        assert {name: record.node_id for name, record in kit.plane.leadership.fleet.workloads.items()} == before
        assert "3 of 4 nodes" in kit.plane.leadership.lost_nodes.brake
        assert "FailoverPaused" in await kit.event_kinds("default")
        assert (await kit.node_view("n1")).failover == "held"
        nodes[0].silent = False
        await kit.wait(lambda: kit.plane.leadership.lost_nodes.brake == "", seconds=60)
        await kit.wait(lambda: kit.plane.leadership.fleet.nodes["n2"].declared_lost, seconds=60)
        assert "FailoverResumed" in await kit.event_kinds("default")

    async def test_nodes_that_come_back_one_after_another_keep_their_work(self, kit):
        nodes = await ready(kit, "n1", "n2", "n3", "n4")
        for node in nodes:
            await kit.apply(f"on-{node.node_id}", cpu=3000)
        for node in nodes:
            await kit.wait_status(f"on-{node.node_id}", "Running")
        before = {name: record.node_id for name, record in kit.plane.leadership.fleet.workloads.items()}
        for node in nodes[:3]:
            node.silent = True
        for node in nodes[:3]:
            await kit.wait_node(node.node_id, "NotReady")
        await kit.clock.sleep(100)
        for node in nodes[:3]:
            node.silent = False
            await kit.wait_node(node.node_id, "Ready")
        await kit.wait(lambda: kit.plane.leadership.lost_nodes.brake == "", seconds=5)  # nobody is missing any more
        await kit.clock.sleep(100)
        assert {name: record.node_id for name, record in kit.plane.leadership.fleet.workloads.items()} == before
        for node in nodes:
            assert "NodeDeclaredLost" not in await kit.event_kinds(node.node_id)

    async def test_an_operator_who_knows_lets_go_of_the_brake(self, kit):
        nodes = await ready(kit, "n1", "n2", "n3", "n4")
        await kit.apply("web", only_on="n1", cpu=100)
        await kit.wait_status("web", "Running")
        for node in nodes[:3]:
            node.silent = True
        await kit.wait_node("n3", "NotReady")
        await kit.wait(lambda: kit.plane.leadership.lost_nodes.brake != "")
        await declare_dead(kit, "n2")
        await kit.wait(lambda: kit.plane.leadership.lost_nodes.brake == "")
        await kit.wait(lambda: kit.plane.leadership.fleet.nodes["n1"].declared_lost)

    async def test_the_brake_survives_a_restart(self, kit):
        await ready(kit, "n1", "n2", "n3", "n4")
        here, others = await running_on(kit, "web")
        for node in (here, *others[:2]):
            node.silent = True
        await kit.wait(lambda: kit.plane.leadership.lost_nodes.brake != "", seconds=60)
        await kit.stop_control()
        await kit.start_control()
        await kit.clock.sleep(300)
        assert kit.plane.leadership.fleet.workloads["web"].node_id == here.node_id

    async def test_nodes_lost_long_ago_do_not_pull_it(self, kit):
        nodes = await ready(kit, "n1", "n2", "n3", "n4")
        for node in nodes[:2]:
            node.silent = True
            await kit.wait(lambda name=node.node_id: kit.plane.leadership.fleet.nodes[name].declared_lost, seconds=120)
            await kit.clock.sleep(60)
        here, others = await running_on(kit, "web")
        here.silent = True
        (other,) = [each for each in others if not each.silent]
        await kit.wait(lambda: "web" in other.runs, seconds=120)


class TestDead:
    async def test_it_is_refused_while_the_node_sends_heartbeats(self, kit):
        await ready(kit, "n1")
        with pytest.raises(PreconditionError, match="is Ready, not NotReady"):
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
        with pytest.raises(PreconditionError, match="is Suspect, not NotReady") as caught:
            await declare_dead(kit, here.node_id)
        assert "--force" in caught.value.hint
        node = await declare_dead(kit, here.node_id, force=True)
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
        assert not kit.plane.leadership.fleet.nodes[here.node_id].dead

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


class TestReturn:
    async def test_copies_that_were_superseded_are_stopped_within_two_heartbeats(self, kit):
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
        await kit.wait(lambda: kit.plane.leadership.fleet.workloads["web"].left_on == ())
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
        await kit.wait(lambda: kit.plane.leadership.fleet.workloads["web"].left_on == (), seconds=30)
        await kit.wait_node(here.node_id, "Drained", seconds=30)


class TestStoreAway:
    async def test_nothing_is_touched_and_nothing_is_forgotten(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", revision="v1")
        await kit.apply("other", revision="v1")
        await kit.wait_status("other", "Running")
        told = {name: list(node.history) for name, node in kit.agents.nodes.items()}
        kit.store.fail(Fault.NOT_APPLIED)
        heartbeat = pb.HeartbeatRequest(node_id=here.node_id, session=here.session, sequence=here.sequence + 1000)
        answer = await kit.channel.call(AgentControl.HEARTBEAT, heartbeat)
        here.sequence += 1001
        assert (answer.acknowledged, answer.drain_node) == (True, False)
        await kit.clock.sleep(200)
        assert {name: list(node.history) for name, node in kit.agents.nodes.items()} == told
        assert (await kit.workload("web")).status == "Running"
        assert not any(node.draining for node in kit.agents.nodes.values())
        kit.store.heal()
        await kit.clock.sleep(60)
        assert {name: list(node.history) for name, node in kit.agents.nodes.items()} == told
        assert {node.state.value for node in kit.plane.leadership.fleet.nodes.values()} == {"Ready"}
        await kit.apply("web", revision="v2", cpu=200)
        await kit.wait(lambda: here.runs["web"].request.revision_id == "v2", seconds=5)
        assert other is not here

    async def test_every_write_is_refused_with_a_reason_and_nothing_is_changed(self, kit):
        await ready(kit, "n1")
        await running_on(kit, "web", revision="v1")
        await kit.apply("huge", cpu=1_000_000)  # it waits, so there is something to retry
        kit.store.fail(Fault.NOT_APPLIED)
        calls = {
            AgentControl.DELETE_WORKLOAD: pb.DeleteWorkloadRequest(workload_id="web"),
            AgentControl.RETRY_WORKLOAD: pb.RetryWorkloadRequest(workload_id="huge"),
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
        kit.store.heal()
        await kit.clock.sleep(30)
        view = await kit.workload("web")
        assert (view.status, view.desired_state, view.revision_id) == ("Running", "Running", "v1")
        node = await kit.node_view("n1")
        assert (node.status, node.wish) == ("Ready", "")

    async def test_a_node_lost_meanwhile_is_declared_lost_when_it_is_back(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        kit.store.fail(Fault.NOT_APPLIED)
        here.silent = True
        await kit.clock.sleep(300)
        assert other.runs == {}
        kit.store.heal()
        await kit.wait(lambda: "web" in other.runs, seconds=10)

    async def test_a_drain_waits_for_it(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        other.never_ready = True
        await drain(kit, here.node_id)
        await kit.wait(lambda: "web" in other.runs)
        kit.store.fail(Fault.NOT_APPLIED)
        other.start_again("web")
        await kit.clock.sleep(120)
        assert copies(kit, "web") == ["n1", "n2"]
        kit.store.heal()
        await kit.wait_node(here.node_id, "Drained", seconds=60)
        assert copies(kit, "web") == [other.node_id]

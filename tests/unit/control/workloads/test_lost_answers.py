"""What is stored is acted upon, also when its caller is gone, and nothing is decided on an old picture."""

import asyncio
import contextlib
import dataclasses
import time

import pytest

from shoal.control.nodes.operations import NO_PLACEMENTS_WITHIN
from shoal.control.store.base import Batch
from shoal.core.errors import NotFoundError, UnavailableError
from shoal.model.nodes import DesiredNodeState, NodeState
from shoal.testing.stores import Fault
from shoal.wire.methods import AgentControl
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from tests.unit.control.operating import cordon, declare_dead, drain, ready, running_on, uncordon

pytestmark = pytest.mark.looptime(start=time.monotonic)


class Door:
    """Stands before the store: holds up the batches that are chosen, or lets something happen to the first of them."""

    def __init__(self, kit, monkeypatch):
        self._inner = kit.store.commit
        self._chosen = lambda _batch: False
        self._happens = None
        self.opened, self.reached = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(kit.store, "commit", self._commit)

    def hold(self, chosen):
        """Hold up what is chosen, until `opened` is set."""
        self._chosen, self._happens = chosen, None
        self.opened.clear()
        self.reached.clear()

    def once(self, chosen, happens):
        """Call `happens` before the first that is chosen is stored."""
        self._chosen, self._happens = chosen, happens

    async def _commit(self, batch, **settings):
        # As in a real store, what was handed over is stored even if its caller goes away.
        return await asyncio.shield(asyncio.ensure_future(self._pass(batch, settings)))

    async def _pass(self, batch, settings):
        if self._chosen(batch):
            self.reached.set()
            if self._happens is None:
                await self.opened.wait()
            else:
                self._chosen = lambda _batch: False
                await self._happens()
        return await self._inner(batch, **settings)


@pytest.fixture
def door(kit, monkeypatch):
    return Door(kit, monkeypatch)


def places(batch):
    return any(record.node_id for record in batch.workloads)


def about_nodes(batch):
    return bool(batch.nodes)


async def reach_and_leave(door, chosen, call):
    """Begin a call, and go away while what it changes is being stored; that is then stored all the same."""
    door.hold(chosen)
    calling = asyncio.ensure_future(call)
    await door.reached.wait()
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await calling
    door.hold(lambda _batch: False)
    door.opened.set()


def registration(node_id):
    return pb.RegisterNodeRequest(
        node_id=node_id,
        capabilities=pb.NodeCapabilities(
            cpu_total_millicores=4000, memory_total_mb=4096, supported_workload_types=["process"]
        ),
        grpc_endpoint="nowhere:1",
        features=["sessions", "generations"],
    )


class TestPlacements:
    async def test_what_a_placement_took_whose_answer_was_lost_is_not_given_away_again(self, kit, door):
        await ready(kit, "n1", cpu_millicores=1000)

        async def lose():
            await kit.clock.sleep(0.5)
            kit.store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)

        door.once(places, lose)
        await kit.apply("one", cpu=1000)
        await door.reached.wait()
        await kit.apply("two", cpu=1000)
        await kit.wait_status("one", "Running")
        await kit.clock.sleep(20)
        fleet = kit.plane.leadership.fleet
        assert fleet.workloads["two"].node_id is None
        assert fleet.facts_of("n1").reserved.cpu_millicores == 1000

    async def test_what_a_group_takes_is_not_given_away_when_its_caller_has_gone(self, kit, door):
        await ready(kit, "n1", cpu_millicores=1000)
        door.hold(lambda batch: bool(batch.groups))
        calling = asyncio.ensure_future(kit.apply_group("g", {"member": {"cpu": 1000}}))
        await door.reached.wait()
        calling.cancel()
        await kit.apply("late", cpu=1000)
        await kit.clock.sleep(1)
        assert kit.plane.leadership.fleet.workloads["late"].node_id is None
        door.opened.set()
        await kit.wait_status("member", "Running")
        await kit.clock.sleep(20)
        fleet = kit.plane.leadership.fleet
        assert fleet.workloads["late"].node_id is None
        assert fleet.facts_of("n1").reserved.cpu_millicores == 1000

    async def test_places_are_found_again_after_a_caller_has_gone(self, kit, door):
        await ready(kit, "n1")
        await reach_and_leave(door, lambda batch: bool(batch.groups), kit.apply_group("g", {"member": {"cpu": 1000}}))
        await kit.apply("late", cpu=1000)
        await kit.wait_status("late", "Running")
        await kit.wait_status("member", "Running")

    async def test_a_request_is_carried_out_when_its_caller_is_gone(self, kit, door):
        await ready(kit, "n1")
        await reach_and_leave(door, lambda batch: bool(batch.workloads), kit.apply("web"))
        await kit.wait(lambda: "web" in kit.agents.nodes["n1"].runs, seconds=5)


class TestCordon:
    async def test_it_comes_after_a_placement_that_is_being_stored(self, kit, door):
        await ready(kit, "n1")
        door.hold(places)
        await kit.apply("early")
        await door.reached.wait()
        asking = asyncio.ensure_future(cordon(kit, "n1"))
        await kit.clock.sleep(1)
        assert not asking.done()
        assert kit.plane.leadership.fleet.nodes["n1"].desired is DesiredNodeState.NONE
        door.opened.set()
        assert (await asking).wish == "cordoned"
        kinds = await kit.event_kinds()
        assert kinds.index("WorkloadPlaced") < kinds.index("NodeCordoned")

    @pytest.mark.parametrize("operation", [cordon, drain])
    async def test_it_is_refused_in_time_when_the_store_does_not_answer(self, kit, door, operation):
        await ready(kit, "n1")
        door.hold(places)
        await kit.apply("early")
        await door.reached.wait()
        asked_at = kit.clock.monotonic()
        with pytest.raises(UnavailableError, match="nothing was changed") as refused:
            await operation(kit, "n1")
        assert refused.value.facts["outcome"] == "none"
        assert kit.clock.monotonic() - asked_at <= NO_PLACEMENTS_WITHIN + 1
        assert kit.plane.leadership.fleet.nodes["n1"].desired is DesiredNodeState.NONE
        door.opened.set()
        await kit.wait_status("early", "Running")
        assert (await operation(kit, "n1")).wish != ""


class TestDrain:
    async def test_one_whose_answer_was_lost_begins(self, kit):
        await ready(kit, "n1", "n2")
        here, _ = await running_on(kit, "web")
        kit.store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)
        with pytest.raises(UnavailableError):
            await drain(kit, here.node_id)
        await kit.wait_node(here.node_id, "Drained", seconds=30)

    async def test_one_whose_caller_has_gone_begins(self, kit, door):
        await ready(kit, "n1", "n2")
        here, _ = await running_on(kit, "web")
        await reach_and_leave(door, about_nodes, drain(kit, here.node_id))
        await kit.wait_node(here.node_id, "Drained", seconds=30)

    async def test_what_was_taken_back_while_another_was_looked_at_is_left_alone(self, kit, monkeypatch):
        await ready(kit, "n1", "n2", "n3")
        for name, node_id in (("a", "n1"), ("b", "n2")):
            await kit.apply(name, only_on=node_id)
            await kit.wait_status(name, "Running")
        leadership, tried = kit.plane.leadership, []
        move_first = leadership.relocation.move_first

        async def begin(workload_id, **settings):
            tried.append(workload_id)
            await leadership.operations.uncordon("n2", cause="test")
            return await move_first(workload_id, **settings)

        monkeypatch.setattr(leadership.relocation, "move_first", begin)

        def both():
            nodes = (leadership.fleet.nodes[each] for each in ("n1", "n2"))
            desired = {"desired": DesiredNodeState.DRAINING, "state": NodeState.DRAINING}
            return Batch(nodes=tuple(dataclasses.replace(node, **desired) for node in nodes))

        await leadership.ledger.change(both)
        await kit.clock.sleep(10)
        assert set(tried) == {"a"}

    async def test_what_a_node_agreed_to_remove_is_forgotten_when_it_has_the_work_again(self, kit, door):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")

        async def lose():
            kit.store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)

        def tells_that_it_left(batch):
            return any(each.node_id == other.node_id and not each.left_on for each in batch.workloads)

        door.once(tells_that_it_left, lose)
        await drain(kit, here.node_id)
        await door.reached.wait()
        copies = kit.plane.leadership.copies
        assert here.node_id in copies._fenced["web"]
        await uncordon(kit, here.node_id)
        await drain(kit, other.node_id)
        await kit.wait(lambda: kit.plane.leadership.fleet.workloads["web"].node_id == here.node_id)
        assert here.node_id not in copies._fenced["web"]


class TestNodes:
    async def test_one_whose_registration_was_answered_to_nobody_has_a_lease(self, kit):
        kit.store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)
        with pytest.raises(UnavailableError):
            await kit.channel.call(AgentControl.REGISTER_NODE, registration("ghost"))
        await kit.wait_node("ghost", "Ready")
        await kit.wait_node("ghost", "NotReady", seconds=60)
        await kit.clock.sleep(60)
        await kit.channel.call(AgentControl.REMOVE_NODE, pb.RemoveNodeRequest(node_id="ghost"))

    async def test_one_who_takes_over_an_id_that_was_answered_to_nobody_has_a_predecessor(self, kit):
        await ready(kit, "n1")
        leadership = kit.plane.leadership
        spec = dataclasses.replace(leadership.fleet.nodes["n1"].spec, node_id="n2")
        kit.store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)
        with pytest.raises(UnavailableError):
            await leadership.registration.register(spec, sent_at=None, instance="one")
        assert (await leadership.registration.register(spec, sent_at=None, instance="other")).accepted
        assert leadership.contacts.predecessor_until("n2") > kit.clock.monotonic()

    async def test_one_that_went_while_it_was_registered_has_a_lease(self, kit, door):
        await reach_and_leave(door, about_nodes, kit.channel.call(AgentControl.REGISTER_NODE, registration("ghost")))
        await kit.wait_node("ghost", "Ready")
        await kit.wait_node("ghost", "NotReady", seconds=60)

    @pytest.mark.parametrize("state", [NodeState.SUSPECT, NodeState.NOT_READY])
    async def test_a_heartbeat_while_the_silence_is_being_stored_counts_at_once(self, kit, door, state):
        (node,) = await ready(kit, "n1")
        leadership = kit.plane.leadership
        beaten = asyncio.Event()

        async def heartbeat():
            heard = leadership.contacts.get("n1").lease.last_receipt
            node.silent = False
            await kit.wait(lambda: leadership.contacts.get("n1").lease.last_receipt != heard)
            beaten.set()

        door.once(lambda batch: any(each.state is state for each in batch.nodes), heartbeat)
        node.silent = True
        await beaten.wait()
        await kit.clock.sleep(1)
        assert leadership.fleet.nodes["n1"].state is NodeState.READY
        assert "NodeNotReady" not in await kit.event_kinds()

    async def test_copies_on_one_that_is_removed_are_gone_with_it(self, kit):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web")
        here.silent = True
        await kit.wait(lambda: "web" in other.runs, seconds=120)
        await kit.delete("web")
        fleet = kit.plane.leadership.fleet
        await kit.wait(lambda: fleet.workloads["web"].node_id is None)
        kit.store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)
        with pytest.raises(UnavailableError):
            await kit.channel.call(AgentControl.REMOVE_NODE, pb.RemoveNodeRequest(node_id=here.node_id))
        await kit.wait_gone("web", seconds=10)

    async def test_what_one_has_that_was_declared_dead_moves_when_the_caller_has_gone(self, kit, door):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", failover="keep")
        here.silent = True
        await kit.wait_node(here.node_id, "NotReady", seconds=60)
        await reach_and_leave(door, about_nodes, declare_dead(kit, here.node_id))
        await kit.wait(lambda: "web" in other.runs, seconds=5)
        await kit.wait(lambda: kit.plane.leadership.contacts.get(here.node_id) is None, seconds=5)

    async def test_what_one_has_that_was_removed_moves_when_the_caller_has_gone(self, kit, door):
        await ready(kit, "n1", "n2")
        here, (other,) = await running_on(kit, "web", failover="keep")
        here.silent = True
        await kit.wait_node(here.node_id, "NotReady", seconds=60)
        request = pb.RemoveNodeRequest(node_id=here.node_id)
        leaves = kit.channel.call(AgentControl.REMOVE_NODE, request)
        await reach_and_leave(door, lambda batch: bool(batch.removed_nodes), leaves)
        await kit.wait(lambda: "web" in other.runs, seconds=5)
        await kit.wait(lambda: kit.plane.leadership.contacts.get(here.node_id) is None, seconds=5)

    async def test_who_held_an_id_is_known_when_two_register_at_once(self, kit, door):
        await ready(kit, "n1")
        leadership = kit.plane.leadership
        held = leadership.fleet.nodes["n1"]
        door.hold(about_nodes)
        both = [
            asyncio.ensure_future(
                leadership.registration.register(
                    held.spec, sent_at=None, previous_session=held.session, instance=instance
                )
            )
            for instance in ("one", "other")
        ]
        await door.reached.wait()
        door.opened.set()
        assert all(answer.accepted for answer in await asyncio.gather(*both))
        assert leadership.contacts.predecessor_until("n1") > kit.clock.monotonic()

    async def test_when_it_was_heard_of_is_stored_later_if_it_could_not_be(self, kit):
        await ready(kit, "n1")
        contacts = kit.plane.leadership.contacts
        stored = contacts.get("n1").heartbeat_stored
        kit.store.fail(Fault.NOT_APPLIED)
        await kit.clock.sleep(90)
        assert contacts.get("n1").heartbeat_stored == stored
        kit.store.heal()
        await kit.wait(lambda: contacts.get("n1").heartbeat_stored > stored, seconds=5)


class TestGroups:
    async def test_one_is_settled_although_that_could_not_be_stored_at_first(self, kit, door):
        await ready(kit, "n1")

        async def fail():
            raise UnavailableError("the store is away")

        door.once(lambda batch: bool(batch.groups) and not batch.workloads, fail)
        await kit.apply_group("g", {"last": {}})
        await door.reached.wait()
        await kit.wait(lambda: kit.plane.leadership.fleet.groups["g"].before == (), seconds=10)

    async def test_one_whose_making_was_answered_to_nobody_can_be_deleted_at_once(self, kit):
        await ready(kit, "n1")
        kit.store.fail(Fault.UNKNOWN_APPLIED, "commit", times=1)
        with pytest.raises(UnavailableError):
            await kit.apply_group("g", {"a": {}})
        assert await kit.plane.leadership.groups.delete("g", cause="test") == 2

    async def test_one_that_only_lost_members_is_settled(self, kit):
        await ready(kit, "n1")
        await kit.apply_group("g", {"a": {}, "b": {}})
        await kit.wait_status("b", "Running")
        await kit.apply_group("g", {"a": {}})
        await kit.wait(lambda: kit.plane.leadership.fleet.groups["g"].before == (), seconds=10)


async def test_an_orphan_is_not_adopted_on_a_node_that_was_removed_meanwhile(kit, monkeypatch):
    (node,) = await ready(kit, "n1")
    await kit.apply("web")
    await kit.wait_status("web", "Running")
    leadership = kit.plane.leadership
    found = await leadership.agents.spec(leadership.fleet.nodes["n1"], "web")
    node.silent = True
    await kit.delete("web")

    async def slow_spec(_node, _workload_id):
        await kit.wait_node("n1", "NotReady", seconds=120)
        await kit.clock.sleep(60)
        await leadership.operations.remove("n1", cause="test")
        return found

    monkeypatch.setattr(leadership.agents, "spec", slow_spec)
    with pytest.raises(NotFoundError, match="n1"):
        await leadership.adoption.adopt("n1", "stray", cause="test")

"""A leader that is cut off from the store and not from its agents, while another begins to lead: in virtual time."""

import asyncio
import contextlib
import dataclasses
import logging
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from shoal.agent.contact.states import RegistrationState
from shoal.control.leadership.election import LEASE_SECONDS, Election
from shoal.control.server import ControlPlaneServer
from shoal.control.store.base import Leader
from shoal.core.entropy import SeededEntropy
from shoal.core.errors import NotLeaderError, ShoalError, UnavailableError
from shoal.testing.clock import LoopClock
from shoal.testing.control import START
from shoal.testing.stores import Fault, Seat, SharedStore
from tests.unit.control.real_agents import RealFleet

pytestmark = pytest.mark.looptime

ONE, TWO = "control:8085", "control-two:8085"


class TwoControlPlanes(RealFleet):
    """Two control planes on one store, and real agents that know both. The first one leads."""

    def __init__(self, folder) -> None:
        super().__init__(folder, lease=timedelta(seconds=30), heartbeat_interval=timedelta(seconds=10))
        self.seat = Seat()
        self._kept = self.store
        self.store = SharedStore(self._kept, self.seat, self.clock)
        self.other_store = SharedStore(self._kept, self.seat, self.clock)
        self.other: ControlPlaneServer

    async def __aenter__(self):
        await super().__aenter__()
        self.other = ControlPlaneServer(
            dataclasses.replace(self.settings, grpc_host="control-two", data_dir=str(self.folder / "two")),
            transport=self.network.transport("control two"),
            store=self.other_store,
            clock=self.clock,
            entropy=SeededEntropy(2),
        )
        await self.other.start(http=False)
        return self

    async def __aexit__(self, *error) -> None:
        for store in (self._kept, self.store, self.other_store):
            store.heal()
        self.network.heal()
        await self.other.stop()
        await super().__aexit__(*error)
        await self._kept.dispose()

    async def join(self, *names) -> None:
        for name in names:
            await self.start(name, control=(ONE, TWO))
        for name in names:
            await self.wait_node(name, "Ready")

    def nodes_with(self, workload_id) -> list[str]:
        return [name for name, machine in self.machines.items() if machine.alive(workload_id)]

    async def watch(self, seconds, workload_id) -> set[str]:
        """Let time pass, and say where a workload ran meanwhile. Fails when it ever ran twice."""
        seen = set()
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            alive = self.nodes_with(workload_id)
            assert len(alive) <= 1, f"{workload_id} may exist once and runs on {alive}"
            seen.update(alive)
            await self.clock.sleep(0.05)
        return seen


@asynccontextmanager
async def two_control_planes(folder):
    async with TwoControlPlanes(folder) as made:
        yield made


async def test_what_may_exist_once_never_runs_twice(tmp_path):
    async with two_control_planes(tmp_path) as it:
        await it.join("n1", "n2", "n3")
        await it.apply("only", at_most_one=True)
        await it.wait_status("only", "Running")
        (first,) = it.nodes_with("only")
        await it.apply("plain", only_on=first)
        await it.wait_status("plain", "Running")
        # Its agent hears the old leader only, which has lost the store; everyone else hears the new one only.
        for name in it.running:
            it.network.partition(f"agent {name}", TWO if name == first else ONE)
        it.store.fail(Fault.NOT_APPLIED)
        seen = await it.watch(100, "only")
        assert it.other.leads
        assert seen > {first}, "nobody else took over"
        assert first not in it.nodes_with("only")
        # For everything else the agent is in contact, and nothing was done to it.
        registration = it.running[first].registration
        assert registration.state is RegistrationState.REGISTERED
        assert len(it.machines[first].alive("plain")) == 1
        assert it.machines[first].count("ended", "plain") == 0


async def test_agents_of_a_leader_that_lost_the_store_are_heard_of_by_the_next_one(tmp_path):
    async with two_control_planes(tmp_path) as it:
        await it.join("n1", "n2")
        await it.apply("only", at_most_one=True)
        await it.wait_status("only", "Running")
        (first,) = it.nodes_with("only")
        it.store.fail(Fault.NOT_APPLIED)
        assert await it.watch(100, "only") == {first}
        assert it.other.leads
        assert it.machines[first].count("ended", "only") == 0
        assert {node.state.value for node in it.other.leadership.fleet.nodes.values()} == {"Ready"}
        assert "NodeNotReady" not in await _event_kinds(it)


async def test_a_store_that_is_away_for_everyone_ends_only_what_may_exist_once(tmp_path):
    async with two_control_planes(tmp_path) as it:
        await it.join("n1", "n2")
        await it.apply("only", at_most_one=True)
        await it.apply("plain")
        await it.wait_status("only", "Running")
        await it.wait_status("plain", "Running")
        (first,) = it.nodes_with("only")
        for each in (it.store, it.other_store):
            each.fail(Fault.NOT_APPLIED)
        await it.watch(20, "only")
        assert it.nodes_with("only") == [first]
        await it.watch(40, "only")
        assert it.nodes_with("only") == []
        assert {agent.registration.state for agent in it.running.values()} == {RegistrationState.REGISTERED}
        for each in (it.store, it.other_store):
            each.heal()
        await it.wait(lambda: it.nodes_with("only") == [first], what="it runs again")
        assert sum(machine.count("ended", "plain") for machine in it.machines.values()) == 0
        assert "NodeNotReady" not in await _event_kinds(it)


async def test_the_old_leader_follows_when_it_reaches_the_store_again(tmp_path):
    async with two_control_planes(tmp_path) as it:
        await it.join("n1", "n2")
        it.store.fail(Fault.NOT_APPLIED)
        await it.wait(lambda: it.other.leads, what="the other leads")
        assert it.plane.leads
        it.store.heal()
        await it.wait(lambda: not it.plane.leads, what="the old one follows")
        await it.clock.sleep(30)
        assert {agent.registration.state for agent in it.running.values()} == {RegistrationState.REGISTERED}
        assert {agent.registration.address for agent in it.running.values()} == {TWO}


async def test_a_follower_that_begins_to_lead_stops_following_at_once(tmp_path, monkeypatch):
    """What is read when others lead is older than what this one has written since it leads."""
    async with two_control_planes(tmp_path) as it:
        await it.join("n1")
        before = it.plane.leadership.fleet.nodes["n1"]

        async def load(*, again=False):
            raise AssertionError("the leader's memory was read anew")

        monkeypatch.setattr(it.store, "load", load)
        await it.plane.leadership.refresh()
        assert it.plane.leadership.fleet.nodes["n1"] is before
        monkeypatch.undo()


# ---------------------------------------------------------------------------------------------------------
# The leader's own count


class ScriptedStore:
    """Answers requests for the leadership by script, after so many seconds."""

    def __init__(self, clock) -> None:
        self.clock = clock
        self.seconds = 0.0
        self.expires_in = LEASE_SECONDS
        self.holder = "me"
        self.error = None

    async def acquire_leadership(self, _holder, _address, *, seconds):
        await self.clock.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return Leader(7, self.holder, "host:1", self.expires_in)


def run_election(store, clock):
    async def on_change(_leader, _leads):
        return None

    return Election(store, holder="me", address=lambda: "host:1", clock=clock, on_change=on_change)


async def test_a_leader_counts_from_when_it_asked_and_a_tenth_less():
    clock = LoopClock(START)
    store = ScriptedStore(clock)
    election = run_election(store, clock)
    assert not election.is_confirmed
    store.seconds = 2.0
    await election.once()
    assert election.is_confirmed
    await asyncio.sleep(2.4)
    assert election.is_confirmed
    await asyncio.sleep(0.2)
    assert not election.is_confirmed
    assert election.leads


async def test_a_store_that_is_away_confirms_nothing():
    clock = LoopClock(START)
    store = ScriptedStore(clock)
    election = run_election(store, clock)
    await election.once()
    store.error = UnavailableError("away")
    running = asyncio.ensure_future(election.run())
    await asyncio.sleep(4.4)
    assert election.is_confirmed
    await asyncio.sleep(0.2)
    assert not election.is_confirmed
    store.error = None
    await asyncio.sleep(1.1)
    assert election.is_confirmed
    running.cancel()


async def test_a_follower_confirms_nothing():
    clock = LoopClock(START)
    store = ScriptedStore(clock)
    election = run_election(store, clock)
    await election.once()
    store.holder = "another"
    await election.once()
    assert not election.is_confirmed


class SlowLeadership:
    """Begins to lead, and takes its time."""

    def __init__(self, clock, seconds):
        self.clock = clock
        self.seconds = seconds
        self.told = []
        self.abandoned = 0

    async def on_change(self, leader, leads):
        try:
            await self.clock.sleep(self.seconds if leads else 0.0)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        self.told.append((leader.holder, leader.term, leads))


async def test_a_lease_is_renewed_while_a_leadership_begins():
    clock = LoopClock(START)
    store, leadership = ScriptedStore(clock), SlowLeadership(clock, 20.0)
    election = Election(store, holder="me", address=lambda: "host:1", clock=clock, on_change=leadership.on_change)
    beginning = asyncio.ensure_future(election.once())
    for _ in range(19):
        await asyncio.sleep(1.0)
        assert election.is_confirmed
        assert (election.leads, election.leader.address) == (False, "")
    await beginning
    assert election.leads
    assert leadership.told == [("me", 7, True)]


async def test_a_lease_that_is_lost_while_a_leadership_begins_ends_it():
    clock = LoopClock(START)
    store, leadership = ScriptedStore(clock), SlowLeadership(clock, 20.0)
    election = Election(store, holder="me", address=lambda: "host:1", clock=clock, on_change=leadership.on_change)
    beginning = asyncio.ensure_future(election.once())
    await asyncio.sleep(3.5)
    store.holder = "another"
    await beginning
    assert (leadership.abandoned, leadership.told) == (1, [("another", 7, False)])
    assert not election.leads
    assert not election.is_confirmed


async def test_a_store_that_is_away_while_a_leadership_begins_ends_nothing_by_itself():
    clock = LoopClock(START)
    store, leadership = ScriptedStore(clock), SlowLeadership(clock, 10.0)
    election = Election(store, holder="me", address=lambda: "host:1", clock=clock, on_change=leadership.on_change)
    beginning = asyncio.ensure_future(election.once())
    await asyncio.sleep(0.5)
    store.error = UnavailableError("away")
    await beginning
    assert (election.leads, election.is_confirmed) == (True, False)


async def test_nothing_that_was_acknowledged_is_lost_when_it_leads_again_after_another(tmp_path, monkeypatch):
    """In a large fleet it takes seconds to begin. What an earlier leadership accepts meanwhile would be lost."""
    async with two_control_planes(tmp_path) as it:
        await it.join("n1")
        await it.apply("first", cpu=1, memory=1)
        load = it.store.load

        async def load_slowly(*, again=False):
            snapshot = await load(again=again)
            await it.clock.sleep(3.0)
            return snapshot

        monkeypatch.setattr(it.store, "load", load_slowly)
        it.other_store.fail(Fault.NOT_APPLIED)  # so that this one leads next, not the other
        before = it.seat.term
        it.seat.term, it.seat.holder, it.seat.until = before + 1, "another", 0.0
        accepted = []
        for number in range(40):
            with contextlib.suppress(ShoalError):
                await it.apply(f"w{number}", cpu=1, memory=1)
                accepted.append(f"w{number}")
            await it.clock.sleep(0.25)
        assert it.plane.leadership.term == it.seat.term > before + 1
        assert accepted
        assert set(accepted) <= set(it.plane.leadership.fleet.workloads)
        assert set(it.plane.leadership.fleet.workloads) == {record.workload_id for record in (await load()).workloads}


async def test_where_nobody_else_can_lead_there_is_nothing_to_confirm(tmp_path):
    async with RealFleet(tmp_path) as it:
        await it.start("n1")
        await it.wait_node("n1", "Ready")
        await it.apply("only", at_most_one=True)
        await it.wait_status("only", "Running")
        it.store.fail(Fault.NOT_APPLIED)
        await it.clock.sleep(100)
        assert len(it.machines["n1"].alive("only")) == 1
        assert it.machines["n1"].count("ended", "only") == 0
        it.store.heal()


async def test_a_term_that_is_over_is_told_of_now_and_then(tmp_path, caplog):
    async with two_control_planes(tmp_path) as it:
        await it.join("n1")
        await it.running["n1"]._terms.hear(1_000, of="elsewhere:1")
        with caplog.at_level(logging.WARNING, "shoal.agent.contact.registration"):
            await it.clock.sleep(300)
        told = [record for record in caplog.records if "which is over" in record.message]
        assert 1 <= len(told) <= 6


async def _event_kinds(it) -> list[str]:
    from shoal.control.store.base import EventQuery

    return [event.kind for event in (await it.other_store.events(EventQuery(limit=1000))).events]


async def test_a_longer_lease_that_agents_count_on_outlives_the_setting(tmp_path):
    """A leader with a long lease is followed by one with a short one: that has to wait as long as agents may."""
    async with RealFleet(tmp_path, lease=timedelta(seconds=10), heartbeat_interval=timedelta(seconds=3)) as it:
        await it.start("n1")
        await it.start("n2")
        await it.wait_node("n2", "Ready")
        await it.apply("only", at_most_one=True)
        await it.wait_status("only", "Running")
        first = next(name for name, machine in it.machines.items() if machine.alive("only"))
        short = it.settings
        it.settings = dataclasses.replace(short, lease=timedelta(seconds=100))
        await it.stop_control()
        await it.start_control()
        await it.clock.sleep(20)  # heartbeats are answered with the long lease
        await it.stop_control()
        it.network.partition(f"agent {first}", ONE)
        it.settings = short
        await it.start_control()
        for _ in range(1500):
            alive = [name for name, machine in it.machines.items() if machine.alive("only")]
            assert len(alive) <= 1, f"it may exist once and runs on {alive}"
            await it.clock.sleep(0.1)
        assert alive == [name for name in it.machines if name != first]


@pytest.mark.parametrize("no_listen", [False, True])
async def test_a_store_that_hangs_keeps_no_node_from_being_in_contact(tmp_path, caplog, no_listen):
    async with RealFleet(tmp_path) as it:
        agent = await it.start("n1", no_listen=no_listen)
        await it.wait_node("n1", "Ready")
        await it.apply("web", restart="always")
        await it.apply("only", at_most_one=True)
        await it.wait_status("web", "Running")
        await it.wait_status("only", "Running")
        it.store.fail(Fault.HANGS, "commit")
        agent_log = "shoal.agent.contact.registration"
        with caplog.at_level(logging.WARNING, agent_log):
            for _ in range(10):
                for run in it.machines["n1"].alive("web"):
                    it.machines["n1"].kill(run.run_id)  # a new status, which cannot be stored
                await it.clock.sleep(10)
        assert agent.registration.state is RegistrationState.REGISTERED
        assert [each for each in caplog.records if each.name == agent_log] == []
        assert it.machines["n1"].count("ended", "only") == 0
        it.store.heal()
        await it.wait_status("web", "Running")
        assert (await it.node_view("n1")).status == "Ready"


@pytest.mark.parametrize("call", ["apply", "delete"])
async def test_a_write_during_which_the_term_turns_out_to_be_over_names_the_next_leader(tmp_path, call):
    """As an error of its own, which clients follow: a sentence in an answer would be the end of it."""
    async with two_control_planes(tmp_path) as it:
        await it.join("n1")
        await it.apply("web")
        await it.wait_status("web", "Running")
        it.store.fail(Fault.NOT_APPLIED)
        await it.wait(lambda: it.other.leads)
        it.store.heal()  # the old leader has not asked yet who leads
        with pytest.raises(NotLeaderError) as refused:
            await (it.apply("web", cpu=200) if call == "apply" else it.delete("web"))
        assert refused.value.facts["leader"] == TWO
